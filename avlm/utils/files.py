"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from avlm.errors import RunError, UserError


def check_writable(folder: Path, field: str) -> None:
    """Look whether `folder` is there and can be written, or can be made. Nothing is written.

    Raises `UserError`, beginning with `field`, when a file is in the way, permission is missing, or the name is no
    UTF-8 (no JSON or YAML file could say it).
    """
    check_name(folder, field)
    try:
        nearest = next(path for path in (folder, *folder.absolute().parents) if _exists(path))
    except OSError as error:
        raise UserError(f"{field}: {folder} is no folder that can be made: {error.strerror}") from None
    if not nearest.is_dir():
        what = "is a file" if nearest == folder else f"cannot be made: {nearest} is a file"
        raise UserError(f"{field}: {folder} {what}; give a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(f"{field}: {folder} cannot be written: no permission in {nearest}; give another folder")


def check_name(path: Path, field: str) -> None:
    """Raises `UserError`, beginning with `field`, for a name that holds bytes which are not UTF-8."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"{field}: the name {str(path)!a} is not UTF-8; rename it") from None


def _exists(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def write_atomic(path: Path, text: str) -> None:
    """Write a UTF-8 text file; makes its folder.

    Raises `RunError` when it cannot be written; an earlier file is then as it was.
    """
    content = text.encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_lines(path, [content])
    except OSError as error:
        raise RunError(f"{path}: could not be written: {error.strerror or error}") from error


def write_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Write lines as they come. Raises `OSError` when that fails; an earlier file is then as it was."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(lines)
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # temporary files are private to the user at first
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
