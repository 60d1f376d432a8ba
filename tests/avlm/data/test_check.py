from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console

from avlm.data.check import Report, check_dataset, content_keys
from avlm.errors import UserError
from avlm.recipe.schema import Data
from tests.avlm.data.clips import greys, tone, write
from tests.avlm.data.test_media import truncated


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """good1, good2: clips; copy: the bytes of good1; cut: a truncated clip; text: no clip."""
    folder = tmp_path_factory.mktemp("media")
    write(folder / "good1.mp4", greys(6), tone(0.6, 16_000))
    write(folder / "good2.mp4", greys(8), tone(0.8, 16_000))
    shutil.copy(folder / "good1.mp4", folder / "copy.mp4")
    (folder / "text.mp4").write_text("no clip at all\n" * 100)
    truncated(folder).rename(folder / "cut.mov")
    return folder


def row(id: str, clip: str | None = "good1.mp4", question: str = "What?", answer: str = "A dog.",
        label: str | None = "a") -> dict[str, Any]:  # fmt: skip
    content: list[dict[str, str]] = [{"type": "text", "text": question}]
    if clip is not None:
        content.insert(0, {"type": "video", "path": clip})
    turns = [{"role": "user", "content": content}, {"role": "assistant", "content": answer}]
    return {"id": id, "conversation": turns} | ({} if label is None else {"class": label})


def check(media: Path, tmp_path: Path, train: list[Any], validation: list[Any] | None = None, **options: Any) -> Report:
    files = {}
    for name, lines in (("train", train), ("validation", validation or [])):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
        files[name] = [str(path)] if name == "train" or validation else []
    return check_dataset(Data(video_root=str(media), video_min_pixels=1024, **files), **options)


def found(report: Report) -> list[tuple[str, str, int | None, str | None]]:
    return [(f.kind, Path(f.place.file).stem, f.place.line, f.id) for f in report.findings]


def test_good_dataset(media: Path, tmp_path: Path) -> None:
    train = [row("1"), row("2", question="Who?", label="b"), row("3", None, label=None)]
    report = check(media, tmp_path, train, [row("4", "good2.mp4"), row("5", None, "Else?")])
    assert report.ok and report.findings == []
    assert [(s.name, s.total, s.good, dict(s.classes)) for s in report.splits] == [
        ("train", 3, 3, {"a": 1, "b": 1, "(none)": 1}),
        ("validation", 2, 2, {"a": 2}),
    ]
    assert report.files == 2


def test_everything_wrong_is_found_at_its_line(media: Path, tmp_path: Path) -> None:
    train = [
        row("1"),
        "{not json",
        row("2", "text.mp4"),
        row("3", "gone.mp4"),
        row("4", "cut.mov"),
        row("5", "copy.mp4", answer="A cat."),
        row("6", "good1.mp4", "Else?"),
        row("7", "good1.mp4", "Else?"),
    ]
    report = check(media, tmp_path, train, [row("8", "copy.mp4", "New?"), row("9", "good2.mp4"), "[]"])
    assert found(report) == [
        ("row", "train", 2, None),
        ("media", "train", 3, "2"),
        ("row", "train", 4, "3"),
        ("damaged", "train", 5, "4"),
        ("duplicate", "train", 6, "5"),
        ("duplicate", "train", 8, "7"),
        ("leak", "validation", 1, "8"),
        ("row", "validation", 3, None),
    ]
    reasons = {f.id: f.reason for f in report.findings}
    assert "text.mp4: cannot be read" in reasons["2"]
    assert "18 of 30 frames" in reasons["4"]
    assert "train.jsonl:1" in reasons["5"] and "another answer" in reasons["5"]
    assert "train.jsonl:7" in reasons["7"] and "the same answer" in reasons["7"]
    assert "copy.mp4 is in the training set too, at" in reasons["8"] and "train.jsonl:1" in reasons["8"]
    for split in report.splits:
        assert split.total == split.good + sum(split.bad.values())
        assert sum(split.classes.values()) == split.good
    assert [(s.total, s.good) for s in report.splits] == [(8, 2), (3, 1)]


def test_a_row_counts_once_under_the_first_fault(media: Path, tmp_path: Path) -> None:
    report = check(media, tmp_path, [row("1", "cut.mov"), row("2", "cut.mov")], [row("3", "cut.mov")])
    assert [f.kind for f in report.findings] == ["damaged"] * 3
    report = check(media, tmp_path, [row("1"), row("1", "good2.mp4")])
    assert found(report) == [("row", "train", 2, "1")]


def part(row: dict[str, Any], start: float, end: float) -> dict[str, Any]:
    row["conversation"][0]["content"][0] |= {"start": start, "end": end}
    return row


def test_parts_of_one_clip(media: Path, tmp_path: Path) -> None:
    train = [part(row("1"), 0.0, 0.2), part(row("2"), 0.2, 0.4)]
    report = check(media, tmp_path, train, [part(row("3", "copy.mp4"), 0.4, 0.5), part(row("4"), 0.3, 0.5)])
    assert found(report) == [("leak", "validation", 2, "4")]
    assert found(check(media, tmp_path, [*train, part(row("5"), 0.0, 0.2)])) == [("duplicate", "train", 3, "5")]


def test_clips_given_as_images(media: Path, tmp_path: Path) -> None:
    for name, grey in (("a.png", 10), ("b.png", 20), ("c.png", 10)):
        Image.new("L", (64, 64), grey).save(media / name)

    def images(id: str, *names: str) -> dict[str, Any]:
        made = row(id)
        made["conversation"][0]["content"][0] = {"type": "video", "frames": names, "times": list(range(len(names)))}
        return made

    report = check(
        media, tmp_path, [images("1", "a.png", "b.png"), images("2", "a.png"), images("3", "c.png", "b.png")]
    )
    assert found(report) == [("duplicate", "train", 3, "3")] and report.files == 3


def test_text_rows_leak_by_their_question(media: Path, tmp_path: Path) -> None:
    report = check(media, tmp_path, [row("1", None, "Why?")], [row("2", None, "Why?"), row("3", None, "How?")])
    assert found(report) == [("leak", "validation", 1, "2")]


def test_the_same_question_about_other_media_is_fine(media: Path, tmp_path: Path) -> None:
    assert check(media, tmp_path, [row("1"), row("2", "good2.mp4")]).ok


def test_without_decoding_packets_are_looked_at(media: Path, tmp_path: Path) -> None:
    lines = [row("1"), row("2", "text.mp4"), row("3", "cut.mov")]
    assert [f.kind for f in check(media, tmp_path, lines, decode=False).findings] == ["media", "damaged"]


def test_empty_dataset(media: Path, tmp_path: Path) -> None:
    report = check(media, tmp_path, [])
    assert [(f.kind, f.place.line) for f in report.findings] == [("row", None)]
    assert (report.splits[0].total, report.splits[0].good) == (0, 0)
    report.print(Console(file=io.StringIO()))


def test_missing_file_is_an_error(media: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        check_dataset(Data(train=[str(tmp_path / "gone.jsonl")], video_root=str(media)))


def test_progress_counts_files(media: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    lines = [row("1"), row("2", "good2.mp4"), row("3", question="Else?")]
    check(media, tmp_path, lines, progress=lambda *c: calls.append(c))
    assert calls == [(1, 2), (2, 2)]


def test_json_and_table_say_the_same(media: Path, tmp_path: Path) -> None:
    report = check(media, tmp_path, [row("1"), "{", row("2", "text.mp4")])
    data = json.loads(json.dumps(report.to_json()))
    assert data["ok"] is False and data["media_files"] == 2
    assert data["splits"]["train"]["rows"] == 3 and data["splits"]["train"]["bad"] == {"row": 1, "media": 1}
    assert [(f["kind"], f["line"]) for f in data["findings"]] == [("row", 2), ("media", 3)]
    out = io.StringIO()
    report.print(Console(file=out, width=40))
    lines = out.getvalue().splitlines()
    for finding in report.findings:
        assert str(finding) in lines, "a finding is one line, however narrow the screen"
    assert "2 problems" in out.getvalue()


def test_content_keys(tmp_path: Path) -> None:
    for name, text in (("a", "xx"), ("b", "xx"), ("c", "xy"), ("d", "xyz")):
        (tmp_path / name).write_text(text)
    keys = content_keys(tmp_path / n for n in "abcd")
    assert keys[tmp_path / "a"] == keys[tmp_path / "b"]
    assert len(set(keys.values())) == 3
