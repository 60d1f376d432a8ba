"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from avlm.errors import RunError


def write_atomic(path: Path, text: str) -> None:
    """Write a UTF-8 text file; makes its folder.

    Raises `RunError` when it cannot be written; an earlier file is then as it was.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        _fill(handle, Path(name), path, text)
    except OSError as error:
        raise RunError(f"{path}: could not be written: {error.strerror or error}") from error


def _fill(handle: int, temporary: Path, path: Path, text: str) -> None:
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # temporary files are private to the user at first
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
