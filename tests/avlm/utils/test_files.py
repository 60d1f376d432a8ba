"""Whole files or none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from avlm.errors import RunError
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


def test_what_cannot_be_written_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match=r"file/b\.txt: could not be written: (Not a directory|File exists)"):
        write_atomic(tmp_path / "file" / "b.txt", "x")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(RunError, match="No space left on device"):
        write_atomic(tmp_path / "file", "y")
    assert (tmp_path / "file").read_text() == "x" and os.listdir(tmp_path) == ["file"]
