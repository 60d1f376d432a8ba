from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from avlm.data.rows import read_rows, scan_rows
from avlm.data.types import MediaRef, Text
from avlm.errors import UserError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "media"
    (folder / "sub").mkdir(parents=True)
    for name in ("a.mp4", "sub/b.wav", "c.png"):
        (folder / name).write_bytes(b"x")
    (tmp_path / "outside.mp4").write_bytes(b"x")
    (folder / "link.mp4").symlink_to(tmp_path / "outside.mp4")
    (folder / "inner.mp4").symlink_to(folder / "a.mp4")
    return folder


def turn(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def item(kind: str, path: str) -> dict[str, Any]:
    return {"type": kind, "path": path}


def images(frames: list[str], times: list[float]) -> dict[str, Any]:
    return {"type": "video", "frames": frames, "times": times}


def row(*turns: Any, **keys: Any) -> dict[str, Any]:
    return {**keys, "conversation": list(turns)}


def question(*items: Any) -> dict[str, Any]:
    return turn("user", [*items, {"type": "text", "text": "What?"}])


ANSWER = turn("assistant", "red")


def write(tmp_path: Path, *lines: Any, name: str = "train.jsonl") -> Path:
    file = tmp_path / name
    file.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines), encoding="utf-8")
    return file


def test_good_rows(tmp_path: Path, root: Path) -> None:
    file = write(
        tmp_path,
        row(question(item("video", "a.mp4"), item("audio", "sub/b.wav"), item("image", "c.png")), ANSWER, id="one"),
        "",
        row(turn("system", "S"), turn("user", "a"), ANSWER, turn("user", "b"), ANSWER, **{"class": "text"}),
        row(question(item("video", "inner.mp4")), ANSWER),
        row(question(item("video", str(root / "a.mp4"))), ANSWER),
    )
    rows = read_rows([file], root)
    assert [r.id for r in rows] == ["one", "train:3", "train:4", "train:5"]
    assert [(r.source, r.line) for r in rows] == [(str(file), n) for n in (1, 3, 4, 5)]
    assert rows[0].media == (
        MediaRef("video", root / "a.mp4", "a.mp4"),
        MediaRef("audio", root / "sub/b.wav", "sub/b.wav"),
        MediaRef("image", root / "c.png", "c.png"),
    )
    assert rows[0].turns[0].parts[-1] == Text("What?")
    assert [t.role for t in rows[1].turns] == ["system", "user", "assistant", "user", "assistant"]
    assert rows[1].label == "text"
    assert rows[2].media[0].path == root / "a.mp4"


def test_byte_order_mark_and_other_languages(tmp_path: Path, root: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(row(turn("user", "色は？"), ANSWER), ensure_ascii=False).encode())
    assert read_rows([file], root)[0].turns[0].parts == (Text("色は？"),)


BAD = [
    ('{"conversation": [', "not JSON"),
    ("[", "a row is one object on one line, without a list around the rows"),
    ('{"id": ' + "9" * 5000 + "}", "not a row: it holds a number of thousands of digits"),
    (b"\xff{}", "not UTF-8"),
    ('{"conversation": "\\ud800"}', "not Unicode"),
    ("[1]", "a row must be an object"),
    ("{}", "no conversation"),
    (row(turn("user", "a"), ANSWER, conversations=1), "unknown key 'conversations'; did you mean 'conversation'?"),
    ('{"id": "a", "id": "b", "conversation": []}', "'id' is given twice"),
    (row(id=3), "id must be a non-empty string"),
    (row(turn("user", "a"), ANSWER, **{"class": 3}), "class must be a non-empty string"),
    (row(), "conversation must be a list of turns"),
    (row("hi", ANSWER), "turn 1 must be an object"),
    (row({"role": "user"}, ANSWER), "turn 1 has no content"),
    (row({"role": "user", "content": "a", "name": "x"}, ANSWER), "turn 1 has an unknown key 'name'"),
    (row(turn("usr", "a"), ANSWER), "turn 1: unknown role \"usr\"; did you mean 'user'?"),
    (row(turn("tool", "a"), ANSWER), "known: system, user, assistant"),
    (row(turn("user", 3), ANSWER), "content must be a string or a list of items"),
    (row(turn("user", ["a"]), ANSWER), "turn 1, item 1 must be an object"),
    (row(question({"type": "vidoe", "path": "a.mp4"}), ANSWER), "unknown type \"vidoe\"; did you mean 'video'?"),
    (row(question({"path": "a.mp4"}), ANSWER), "unknown type null"),
    (row(question({"type": ["video"], "path": "a.mp4"}), ANSWER), "unknown type"),
    (row(question({"type": "video", "pth": "a.mp4"}), ANSWER), "unknown key 'pth'; did you mean 'path'?"),
    (row(question({"type": "video"}), ANSWER), "a video item needs 'path'"),
    (row(question({"type": "video", "path": 3}), ANSWER), "needs 'path', a string, not 3"),
    (row(question({"type": "video", "path": ""}), ANSWER), "path is empty"),
    (row(question(item("video", "a.mp4") | {"start": -1}), ANSWER), "start must be a number of seconds from 0 up"),
    (
        row(question(item("video", "a.mp4") | {"end": "3"}), ANSWER),
        'end must be a number of seconds from 0 up, not "3"',
    ),
    (row(question(item("video", "a.mp4") | {"end": True}), ANSWER), "end must be a number"),
    (row(question(item("video", "a.mp4") | {"start": 2, "end": 2.0}), ANSWER), "end must be later than start"),
    (
        '{"conversation": [{"role": "user", "content": [{"type": "audio", "path": "sub/b.wav", "end": NaN}]}]}',
        "not NaN",
    ),
    (row(question(item("audio", "sub/b.wav") | {"audio_in_video": True}), ANSWER), "unknown key 'audio_in_video'"),
    (row(question(item("image", "c.png") | {"start": 1}), ANSWER), "unknown key 'start'"),
    (row(question(item("video", "a.mp4") | {"audio_in_video": 1}), ANSWER), "audio_in_video must be true or false"),
    (row(question(images([], [])), ANSWER), "frames must be a list of image paths, not []"),
    (row(question({"type": "video", "frames": ["c.png"]}), ANSWER), "times must be the seconds"),
    (row(question(images(["c.png"], [0, 1])), ANSWER), "1 frames but 2 times"),
    (row(question(images(["c.png", "c.png"], [1, 1])), ANSWER), "times must ascend"),
    (row(question(images(["gone.png"], [1])), ANSWER), "'gone.png' does not exist"),
    (row(question(images(["c.png"], [1]) | {"path": "a.mp4"}), ANSWER), "path does not go with frames"),
    (row(turn("user", [{"type": "text", "text": None}]), ANSWER), "a text item needs 'text'"),
    (row(turn("user", " "), ANSWER), "the user turn is empty"),
    (row(turn("user", []), ANSWER), "the user turn is empty"),
    (row(turn("user", "a")), 'no assistant answer; its last turn must be {"role": "assistant"'),
    (row(turn("user", "a"), turn("assistant", " ")), "answer is empty"),
    (row(turn("user", "a"), turn("assistant", [])), "answer is empty"),
    (row(turn("user", "a"), ANSWER, turn("user", "b")), "last turn must be the assistant's answer, not user"),
    (row(ANSWER), "turn 1: roles in the wrong order: expected user, got assistant"),
    (row(turn("user", "a"), turn("user", "b"), ANSWER), "turn 2: roles in the wrong order: expected assistant"),
    (row(turn("user", "a"), ANSWER, ANSWER), "turn 3: roles in the wrong order: expected user, got assistant"),
    (row(turn("user", "a"), turn("system", "S"), ANSWER), "turn 2: a system turn must be the first turn"),
    (row(turn("user", "a"), turn("assistant", [item("audio", "sub/b.wav")])), "not yet supported"),
    (row(question(item("video", "../outside.mp4")), ANSWER), "'../outside.mp4' leaves video_root"),
    (row(question(item("video", "/etc/passwd")), ANSWER), "'/etc/passwd' leaves video_root"),
    (row(question(item("video", "link.mp4")), ANSWER), "'link.mp4' leaves video_root"),
    (row(question(item("video", "sub/../../media2/x.mp4")), ANSWER), "leaves video_root"),
    (row(question(item("video", "none.mp4")), ANSWER), "media file 'none.mp4' does not exist"),
    (row(question(item("video", "sub")), ANSWER), "'sub' is not a file"),
    (row(question(item("video", "a\0.mp4")), ANSWER), "NUL"),
]


@pytest.mark.parametrize(("line", "reason"), BAD)
def test_bad_rows(tmp_path: Path, root: Path, line: Any, reason: str) -> None:
    good = row(turn("user", "a"), ANSWER)
    file = write(tmp_path, good, "X", good)
    raw = line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode()
    file.write_bytes(file.read_bytes().replace(b"\nX\n", b"\n" + raw + b"\n"))
    rows, problems = scan_rows([file], root)
    assert [r.line for r in rows] == [1, 3]
    assert len(problems) == 1
    assert str(problems[0]).startswith(f"{file}:2: ")
    assert reason in str(problems[0])


def test_parts_and_images(tmp_path: Path, root: Path) -> None:
    items = (
        item("video", "a.mp4") | {"start": 1, "end": 2.5, "audio_in_video": False},
        item("audio", "sub/b.wav") | {"end": 3},
        images(["c.png", "c.png"], [0, 0.5]),
        item("video", "a.mp4") | {"start": None},
    )
    (row_read,) = read_rows([write(tmp_path, row(question(*items), ANSWER))], root)
    path, picture = root / "a.mp4", root / "c.png"
    assert row_read.media == (
        MediaRef("video", path, "a.mp4", 1.0, 2.5, False),
        MediaRef("audio", root / "sub/b.wav", "sub/b.wav", None, 3.0),
        MediaRef("video", picture, "c.png", frames=(picture, picture), times=(0.0, 0.5)),
        MediaRef("video", path, "a.mp4"),
    )
    assert row_read.media[2].paths == (picture, picture) and row_read.media[0].paths == (path,)


def test_duplicate_ids(tmp_path: Path, root: Path) -> None:
    one = write(tmp_path, row(turn("user", "a"), ANSWER, id="x"), name="one.jsonl")
    two = write(
        tmp_path, row(turn("user", "a"), ANSWER, id="y"), row(turn("user", "a"), ANSWER, id="x"), name="two.jsonl"
    )
    rows, problems = scan_rows([one, two], root)
    assert [r.id for r in rows] == ["x", "y"]
    assert str(problems[0]) == f"{two}:2: id 'x' is used before, at {one}:1; ids must differ"
    assert problems[0].id == "x"


def test_empty_dataset(tmp_path: Path, root: Path) -> None:
    file = write(tmp_path, "", " ")
    with pytest.raises(UserError, match=f"{file}: the dataset is empty"):
        read_rows([file], root)


def test_missing_file_and_folder(tmp_path: Path, root: Path) -> None:
    with pytest.raises(UserError, match=r"none\.jsonl: no such file"):
        scan_rows([tmp_path / "none.jsonl"], root)
    with pytest.raises(UserError, match="video_root"):
        scan_rows([write(tmp_path, row(turn("user", "a"), ANSWER))], tmp_path / "none")
    with pytest.raises(UserError, match="cannot be read"):
        scan_rows([root], root)


def test_all_problems_in_one_error(tmp_path: Path, root: Path) -> None:
    file = write(tmp_path, *["{"] * 25, row(turn("user", "a"), ANSWER))
    with pytest.raises(UserError) as caught:
        read_rows([file], root)
    lines = str(caught.value).splitlines()
    assert lines[0] == "25 bad rows in the data:"
    assert [f"{file}:{n}:" in line for n, line in enumerate(lines[1:21], 1)] == [True] * 20
    assert lines[21:] == ["  … and 5 more"]


@pytest.mark.parametrize(
    "long",
    [row(**{"k" * 200_000: 1}), row(question(item("video", "x" * 200_000)), ANSWER), row(turn("r" * 200_000, "a"))],
)
def test_long_values_are_not_repeated_whole(long: Any, tmp_path: Path, root: Path) -> None:
    _, problems = scan_rows([write(tmp_path, long)], root)
    assert len(problems) == 1 and len(problems[0].reason) < 300


def test_an_empty_dataset_is_no_bad_row(tmp_path: Path, root: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n \n")
    with pytest.raises(UserError, match=r"1 problem in the data:\n  .*rows.jsonl: the dataset is empty"):
        read_rows([file], root)
