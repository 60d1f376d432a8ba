"""Folders that are made once: complete or absent, reused when they already hold the same thing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from avlm.errors import RunError, UserError
from avlm.utils.files import check_writable

MANIFEST = "manifest.json"
"""File that says how a folder was made and what it holds."""


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def tree_hash(folder: Path) -> str:
    """SHA-256 over the names and bytes of all files below `folder`, without its manifest."""
    total = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p != folder / MANIFEST):
        total.update(f"{path.relative_to(folder).as_posix()}\0{file_hash(path)}\n".encode())
    return total.hexdigest()


def build_folder(
    folder: Path, settings: Mapping[str, Any], build: Callable[[Path], None]
) -> Literal["written", "reused"]:
    """Make `folder` by calling `build` on a temporary sibling that is renamed when it is complete.

    `settings` go into the manifest with the hash of the content. A folder whose manifest has the same settings and
    whose content has the recorded hash is left alone ("reused"); any other folder that is not empty is refused with
    a `UserError`, and nothing is changed. Raises `RunError` when the disk does not take it.
    """
    if os.path.exists(folder):  # False, not an error, for a name that is too long
        if not folder.is_dir():
            raise UserError(f"{folder}: is a file; give a folder that does not exist yet")
        if any(folder.iterdir()):
            _check_same(folder, settings)
            return "reused"
    check_writable(folder, "folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise RunError(f"{folder}: could not be made: {error.strerror}") from error
    try:
        build(work)
        manifest = {"settings": dict(settings), "sha256": tree_hash(work)}
        (work / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        umask = os.umask(0)
        os.umask(umask)
        for path in (work, *work.rglob("*")):  # temporary files are private to the user at first
            path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)
        work.rename(folder)  # POSIX: replaces an empty folder, fails on any other
    except OSError as error:
        shutil.rmtree(work, ignore_errors=True)
        raise RunError(f"{folder}: could not be written: {error.strerror or error}; nothing was left there") from error
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return "written"


def _check_same(folder: Path, settings: Mapping[str, Any]) -> None:
    advice = "give another folder, or remove this one first"
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        found, expected_hash = manifest["settings"], manifest["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{folder}: is not empty and was not made by this command; {advice}") from None
    if found != dict(settings):
        names = [k for k in {*found, *settings} if found.get(k) != settings.get(k)]
        differences = ", ".join(f"{k} {found.get(k)!r} instead of {settings.get(k)!r}" for k in sorted(names))
        raise UserError(f"{folder}: was made with other settings ({differences}); {advice}")
    if tree_hash(folder) != expected_hash:
        raise UserError(f"{folder}: its files were changed after it was made; {advice}")
