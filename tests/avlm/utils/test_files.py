"""Whole files or none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from avlm.errors import RunError, UserError
from avlm.utils.files import check_writable, write_atomic


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


def test_a_writable_folder_is_there_or_can_be_made(tmp_path: Path) -> None:
    check_writable(tmp_path, "output_dir")
    check_writable(tmp_path / "a/b", "output_dir")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("file", "output_dir: {0}/file is a file; give a folder"),
        ("file/a/b", "output_dir: {0}/file/a/b cannot be made: {0}/file is a file; give a folder"),
        ("a\udce4", "output_dir: the name '{0}/a\\udce4' is not UTF-8; rename it"),
        ("x" * 300, "is no folder that can be made: File name too long"),
    ],
)
def test_a_folder_that_cannot_be_made(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError) as caught:
        check_writable(tmp_path / name, "output_dir")
    assert message.format(tmp_path) in str(caught.value)


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(UserError, match=f"output_dir: {tmp_path}/a cannot be written: no permission in {tmp_path}; "):
        check_writable(tmp_path / "a", "output_dir")
