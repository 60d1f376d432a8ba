from __future__ import annotations

from pathlib import Path

import pytest

from avlm.errors import RunError, UserError
from avlm.utils.folder import MANIFEST, build_folder, tree_hash


def fill(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "a.txt").write_text("a")


def listing(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_written_then_reused(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "out"
    assert build_folder(folder, {"seed": 1}, fill) == "written"
    before = listing(folder)
    assert set(before) == {"sub/a.txt", MANIFEST}

    def never(_: Path) -> None:
        raise AssertionError("built again")

    assert build_folder(folder, {"seed": 1}, never) == "reused"
    assert listing(folder) == before
    assert folder.stat().st_mode & 0o777 == (tmp_path / "deep").stat().st_mode & 0o777


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert build_folder(tmp_path / "out", {}, fill) == "written"


def test_failure_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        fill(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_folder(tmp_path / "out", {}, fail)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", ["settings", "content", "extra", "foreign", "file", "manifest"])
def test_anything_else_is_refused_and_kept(tmp_path: Path, change: str) -> None:
    folder = tmp_path / "out"
    settings = {"seed": 1}
    reason = "changed after"
    if change == "file":
        folder.write_text("mine")
        reason = "is a file"
    elif change == "foreign":
        folder.mkdir()
        (folder / "mine.txt").write_text("mine")
        reason = "not made by this command"
    else:
        build_folder(folder, settings, fill)
    if change == "settings":
        settings, reason = {"seed": 2}, "seed 1 instead of 2"
    if change == "content":
        (folder / "sub" / "a.txt").write_text("b")
    if change == "extra":
        (folder / "b.txt").write_text("b")
    if change == "manifest":
        (folder / MANIFEST).write_text("[]")
        reason = "not made by this command"
    before = listing(tmp_path)
    with pytest.raises(UserError, match=reason) as error:
        build_folder(folder, settings, fill)
    assert str(folder) in str(error.value)
    assert listing(tmp_path) == before


def test_tree_hash_sees_names_and_bytes(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
    (tmp_path / "one" / "a").write_text("x")
    (tmp_path / "two" / "b").write_text("x")
    (tmp_path / "three" / "a").write_text("x")
    hashes = {name: tree_hash(tmp_path / name) for name in ("one", "two", "three")}
    assert hashes["one"] == hashes["three"] != hashes["two"]


@pytest.mark.parametrize("name", ["file", "file/a/b", "x" * 300])
def test_a_place_where_no_folder_can_be(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"give a folder|File name too long"):
        build_folder(tmp_path / name, {}, fill)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_full_disk_leaves_nothing(tmp_path: Path) -> None:
    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(RunError, match="out: could not be written: No space left on device; nothing was left there"):
        build_folder(tmp_path / "out", {}, full)
    assert not list(tmp_path.iterdir())
