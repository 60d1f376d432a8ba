"""The page: complete, self-contained, and honest about what is missing."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from avlm.data.processing import limits_of
from avlm.errors import UserError
from avlm.report.collect import collect
from avlm.report.examples import choose, describe
from avlm.report.html import Lengths, add_views, render, write_report
from tests.avlm.report.made_up import make_run, recipe


class Page(HTMLParser):
    """Checks that tags close in order, and keeps what tests ask for."""

    VOID = frozenset({"meta", "img", "line", "circle", "rect", "polyline"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href", "action", "data")]
        if tag == "img":
            self.images.append(values)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open and self.open.pop() == tag, tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.VOID, tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words.append(data)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made_up")
    make_run(folder)
    return folder


def full(made: Path) -> str:
    run = collect(made / "run")
    examples = [describe(id, run.predictions) for id in choose(run.predictions)]
    for example in examples:
        add_views(example, made / "data", limits_of(recipe(made)), 32)
    assert run.lengths is not None
    return render(run, examples, Lengths(run.lengths, "1,024 rows"))


def test_full_page(made: Path) -> None:
    text = full(made)
    page = Page(text)
    assert len(text.encode()) < 2_000_000
    assert "tiny_omni demo" in page.text and "automodel" in page.text and "2.13.0" in page.text
    after = json.loads((made / "run" / "eval" / "after.json").read_text())
    for one in after["classes"].values():
        assert f"{100 * one['accuracy']:.1f} %" in page.text
    assert f"{after['total']['correct']} of {after['total']['total']} held-out rows" in page.text
    assert text.count('class="example"') == 6
    assert "✗ wrong" in page.text and "✓ right" in page.text and "✗ unanswered" in page.text
    assert "700 tokens" in page.text and "1 row was left out" in page.text
    assert "avlm eval" in page.text and "--mute-audio" in page.text
    assert "not run" not in page.text.lower()
    assert "max_video_frames: 8" in page.text


def test_self_contained_and_accessible(made: Path) -> None:
    text = full(made)
    page = Page(text)
    assert all(link.startswith("data:image/jpeg;base64,") for link in page.links)
    assert not re.search(r"<script|@import|url\(|https?://", text)
    assert len(page.images) == 12  # six strips, six spectrograms
    assert all((image["alt"] or "").strip() for image in page.images)
    assert text.count('role="img"') == text.count("aria-label=") == 3
    assert '<html lang="en">' in text and "prefers-color-scheme: dark" in text and "@media print" in text


def test_ablation_changes(made: Path) -> None:
    page = Page(full(made))
    results = {
        name: json.loads((made / "run" / "eval" / f"{name}.json").read_text())["classes"]["sound"]["accuracy"]
        for name in ("after", "mute_audio")
    }
    points = 100 * (results["after"] - results["mute_audio"])
    assert points > 50 and f"−{points:.1f}" in page.text


@pytest.mark.parametrize("present", ["metrics.jsonl", "recipe.yaml", "eval", "predictions"])
def test_missing_parts_are_named(made: Path, tmp_path: Path, present: str) -> None:
    run = tmp_path / "run"
    run.mkdir()
    source = made / "run" / present
    shutil.copytree(source, run / present) if source.is_dir() else shutil.copy(source, run)
    out = write_report(run)
    page = Page(out.read_text(encoding="utf-8"))
    assert out == run / "report.html"
    expected = {
        "metrics.jsonl": ["no evaluation", "no ablation", "no predictions", "Validation: not run", "no recipe.yaml"],
        "recipe.yaml": ["no evaluation", "no metrics.jsonl", "no predictions", "Token lengths: not measured"],
        "eval": ["no metrics.jsonl", "no predictions", "Rows left out: not recorded"],
        "predictions": ["no evaluation", "No picture: no recipe.yaml"],
    }[present]
    for words in expected:
        assert words in page.text, words


def test_only_before(made: Path, tmp_path: Path) -> None:
    (tmp_path / "eval").mkdir()
    shutil.copy(made / "run" / "eval" / "before.json", tmp_path / "eval")
    page = Page(write_report(tmp_path, tmp_path / "page.html").read_text())
    assert "Accuracy before training" in page.text and "After: not run." in page.text
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["page.html"]


def test_text_from_data_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    line = {"id": evil, "class": evil, "question": evil, "answer": evil, "reference": evil, "media": []}
    (tmp_path / "predictions").mkdir()
    (tmp_path / "predictions" / "after.jsonl").write_text(json.dumps(line) + "\n")
    (tmp_path / "skipped.jsonl").write_text(json.dumps({"id": evil, "reason": evil}) + "\n")
    text = write_report(tmp_path).read_text()
    assert "<script" not in text
    Page(text)


def test_loss_that_is_not_finite_is_counted(tmp_path: Path) -> None:
    lines = ['{"step": 1, "loss": 2.0, "lr": 0.1}', '{"step": 2, "loss": NaN, "lr": 0.1}']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert "1 step has a loss that is not finite" in Page(write_report(tmp_path).read_text()).text


def test_out_is_a_folder(made: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder"):
        write_report(made / "run", tmp_path)
