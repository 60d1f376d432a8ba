"""Accuracy, intervals, confusion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from avlm.errors import UserError
from avlm.eval.metrics import OTHER, UNANSWERED, accuracy_table, evaluate, read_predictions, wilson


def row(id: str, label: str | None, answer: str | None, reference: str, **more: Any) -> dict[str, Any]:
    return {
        "id": id,
        "class": label,
        "question": "?",
        "answer": answer,
        "reference": reference,
        "choices": None,
        **more,
    }


@pytest.mark.parametrize(
    ("correct", "total", "low", "high"),
    [
        # Newcombe (1998), Statistics in Medicine 17, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (0, 0, 0.0, 1.0),
    ],
)
def test_wilson(correct: int, total: int, low: float, high: float) -> None:
    assert wilson(correct, total) == pytest.approx((low, high), abs=5e-5)
    if total:
        assert wilson(total - correct, total) == pytest.approx((1 - high, 1 - low), abs=5e-5)


def test_evaluate_counts() -> None:
    choices = {"A": "red", "B": "blue"}
    result = evaluate(
        [
            row("1", "picture", "A", "A", choices=choices),
            row("2", "picture", "blue", "A", choices=choices),
            row("3", "picture", "Both", "B", choices=choices, finished=False),
            row("4", "sound", "High!", "high", finished=True),
            row("5", "sound", "a trumpet", "low"),
            row("6", None, None, "x", skipped="too long"),
        ],
        "after",
        "mute_audio",
    )
    assert (result["name"], result["ablation"]) == ("after", "mute_audio")
    picture = result["classes"]["picture"]
    assert (picture["correct"], picture["total"], picture["unanswered"]) == (1, 3, 1)
    assert picture["accuracy"] == pytest.approx(1 / 3)
    assert (picture["low"], picture["high"]) == wilson(1, 3)
    assert result["classes"]["(no class)"]["unanswered"] == 1
    total = result["total"]
    assert (total["correct"], total["total"], total["unanswered"], total["skipped"], total["cut"]) == (2, 6, 2, 1, 1)
    assert result["confusion"]["picture"] == {"blue": {UNANSWERED: 1}, "red": {"blue": 1, "red": 1}}
    assert result["confusion"]["sound"] == {"high": {"high": 1}, "low": {OTHER: 1}}
    json.dumps(result, allow_nan=False)


def test_choices_are_found_in_the_question_when_the_line_has_none() -> None:
    line = row("1", "picture", "(b)", "blue") | {"question": "Which? A) red B) blue"}
    assert evaluate([line], "x")["total"]["correct"] == 1


def test_nothing_to_score() -> None:
    total = evaluate([], "x")["total"]
    assert (total["accuracy"], total["low"], total["high"]) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "1"', ":2: not JSON"),
        ('{"id": "1", "question": "?"}', ":2: .*missing: answer, reference"),
        ("[1]", ":2: .*missing: id"),
        ('{"id": 1, "question": "?", "answer": "3", "reference": "x"}', ":2: id must be text"),
        ('{"id": "1", "question": "?", "answer": 3, "reference": "x"}', ":2: answer must be text"),
        ('{"id": "1", "question": "?", "answer": "3", "reference": "x", "choices": ["r"]}', ":2: choices must map"),
    ],
)
def test_bad_predictions(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "predictions.jsonl"
    path.write_text(json.dumps(row("0", "a", "x", "x")) + "\n" + line + "\n")
    with pytest.raises(UserError, match=message):
        read_predictions(path)


def test_predictions_that_are_no_text_or_none_at_all(tmp_path: Path) -> None:
    path = tmp_path / "predictions.jsonl"
    path.write_bytes(b"\xff\n")
    with pytest.raises(UserError, match=":1: not JSON"):
        read_predictions(path)
    path.touch()
    for nothing in (b"", b"\n"):
        path.write_bytes(nothing)
        assert read_predictions(path) == []


def test_missing_predictions(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such predictions file"):
        read_predictions(tmp_path / "x.jsonl")


def test_table_shows_every_class_and_the_total() -> None:
    from rich.console import Console

    console = Console(width=100, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(accuracy_table(evaluate([row("1", "picture", "red", "red"), row("2", "sound", "x", "y")], "after")))
    text = console.export_text()
    assert "picture" in text and "100.0 %" in text and "sound" in text and "50.0 %" in text
