from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from avlm.data.index import id_hash, index_rows
from avlm.data.rows import read_rows
from avlm.errors import UserError


def line(id: str, *kinds: str, text: str = "What?") -> str:
    media = [{"type": kind, "path": f"{kind}.bin"} for kind in kinds]
    user = {"role": "user", "content": [*media, {"type": "text", "text": text}]}
    return json.dumps({"id": id, "conversation": [user, {"role": "assistant", "content": "That."}]}, ensure_ascii=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for kind in ("video", "audio", "image"):
        (tmp_path / f"{kind}.bin").touch()
    first = ["\ufeff" + line("a", "video"), "", line("b", text="größer"), "   ", line("c", "audio")]
    (tmp_path / "first.jsonl").write_text("\n".join(first) + "\n\n", encoding="utf-8")
    (tmp_path / "second.jsonl").write_bytes(line("d").encode() + b"\r\n" + line("e", "image", "video").encode())
    return tmp_path


def test_rows_are_those_of_read_rows(folder: Path) -> None:
    files = [folder / "first.jsonl", folder / "second.jsonl"]
    index = index_rows(files, folder)
    assert list(index) == read_rows(files, folder)
    assert [row.line for row in index] == [1, 3, 5, 1, 2]
    assert (len(index), index[-1].id, index[1].id) == (5, "e", "b")
    assert index.bounds.tolist() == [0, 3, 5]
    assert index.ids.tolist() == [id_hash(id) for id in "abcde"]
    with pytest.raises(IndexError):
        index[5]


def test_selected_rows(folder: Path) -> None:
    index = index_rows([folder / "first.jsonl", folder / "second.jsonl"], folder)
    assert index.kinds == {"video", "audio", "image"}
    few = index.select(np.array([1, 2, 3]))
    assert [row.id for row in few] == ["b", "c", "d"]
    assert [row.source for row in few] == [str(folder / "first.jsonl")] * 2 + [str(folder / "second.jsonl")]
    assert few.bounds.tolist() == [0, 2, 3]
    assert few.kinds == {"audio"}
    assert [row.id for row in index[3:]] == ["d", "e"]
    assert index.select(np.array([1])).kinds == frozenset()


def test_it_can_be_sent_to_a_worker(folder: Path) -> None:
    index = index_rows([folder / "first.jsonl"], folder)
    assert list(pickle.loads(pickle.dumps(index))) == list(index)


def test_problems_are_those_of_read_rows(folder: Path) -> None:
    bad = folder / "bad.jsonl"
    bad.write_text("\n".join([line("a"), "{", line("a"), line("b", "audio"), '{"id": "z"}', line("a")]))
    (folder / "empty.jsonl").write_text("\n")
    files = [bad, folder / "empty.jsonl", folder / "first.jsonl"]
    with pytest.raises(UserError) as indexed:
        index_rows(files, folder)
    with pytest.raises(UserError) as read:
        read_rows(files, folder)
    assert str(indexed.value) == str(read.value)
    assert "id 'a' is used before, at" in str(indexed.value)
    with pytest.raises(UserError, match="no such file"):
        index_rows([folder / "none.jsonl"], folder)


def test_a_file_that_changes_during_the_run(folder: Path) -> None:
    file = folder / "second.jsonl"
    index = index_rows([file], folder)
    assert index[0].id == "d"
    os.utime(file, ns=(1, 1))
    with pytest.raises(UserError, match=r"second.jsonl: the file has changed"):
        index[0]
    file.unlink()
    with pytest.raises(UserError, match=r"second.jsonl: cannot be read"):
        index[0]


def test_media_that_vanish_are_told_with_their_line(folder: Path) -> None:
    index = index_rows([folder / "second.jsonl"], folder)
    again = pickle.loads(pickle.dumps(index))
    (folder / "image.bin").unlink()
    again._parser._folder._known.clear()
    with pytest.raises(UserError, match=r"second.jsonl:2: .*image.bin"):
        again[1]
