"""Whole files or none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from avlm.utils.files import write_atomic


def test_written_whole_with_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.txt"
    write_atomic(path, "één\n")
    assert path.read_text(encoding="utf-8") == "één\n"
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask
    assert os.listdir(path.parent) == ["b.txt"]


def test_failed_write_leaves_the_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "b.txt"
    write_atomic(path, "first")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "second \ud800")
    assert path.read_text() == "first" and os.listdir(tmp_path) == ["b.txt"]
