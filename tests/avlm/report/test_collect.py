"""Reading a run's folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from avlm.errors import UserError
from avlm.report.collect import collect


def test_missing_and_foreign_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        collect(tmp_path / "nowhere")
    with pytest.raises(UserError, match="holds no run"):
        collect(tmp_path)


def test_torn_last_line_is_left_out_and_a_bad_one_named(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "loss": 2.0, "lr": 0.1}\n{"step": 2, "lo')
    assert [line["step"] for line in collect(tmp_path).metrics] == [1]
    file.write_text('{"step": 1, "loss": 2.0, "lr": 0.1}\n{"step": 2, "lo\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl:2: not JSON"):
        collect(tmp_path)
    file.write_text('{"step": 1, "loss": 2.0}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl:1: lr missing"):
        collect(tmp_path)
    file.write_bytes(b"\xff\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl:1: not JSON"):
        collect(tmp_path)


def test_parts(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0, "lr": 0.1}\n')
    run = collect(tmp_path)
    assert (run.recipe, run.skipped, run.lengths, run.evaluations) == (None, None, None, {})
    (tmp_path / "skipped.jsonl").write_text("")
    (tmp_path / "versions.json").write_text('{"python": "3.12", "packages": {"torch": "2.13"}}')
    (tmp_path / "lengths.json").write_text("[1, 2]")
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "after.json").write_text('{"classes": {}}')
    run = collect(tmp_path)
    assert (run.skipped, run.lengths, list(run.evaluations)) == ([], [1, 2], ["after"])
    assert run.versions == {"python": "3.12", "packages.torch": "2.13"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("eval/after.json", "[]", "not a result of `avlm eval`"),
        ("eval/after.json", "{", "not JSON"),
        (
            "eval/after.json",
            '{"classes": {"a": 5}}',
            "class a: correct, total, unanswered, accuracy, low, high missing",
        ),
        ("lengths.json", '{"a": 1}', "list of whole numbers"),
        ("metrics.jsonl", '{"step": "x", "loss": 1.0, "lr": 0.1}\n', r'metrics\.jsonl:1: step cannot be "x"'),
        ("metrics.jsonl", '{"step": 1, "loss": null, "lr": 0.1}\n', r"metrics\.jsonl:1: loss cannot be null"),
        ("skipped.jsonl", "[]\n", r"skipped\.jsonl:1: id, reason missing"),
        ("predictions/a.jsonl", '{"id": [], "question": "", "answer": "", "reference": ""}\n', r"id cannot be \[\]"),
        ("predictions/after.jsonl", json.dumps({"id": "1"}) + "\n", r"after\.jsonl:1: question, answer, reference"),
    ],
)
def test_bad_parts(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        collect(tmp_path)
