"""Which predictions `avlm demo` makes again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from avlm.commands.demo import outdated
from avlm.eval.checkpoint import Weights


@pytest.mark.parametrize(("age", "expected"), [(10, True), (-10, False)])
@pytest.mark.parametrize("kind", ["checkpoint", "adapter"])
def test_predictions_older_than_their_weights_are_outdated(age: int, expected: bool, kind: str, tmp_path: Path) -> None:
    weights_folder, predictions = tmp_path / "export", tmp_path / "after.jsonl"
    weights_folder.mkdir()
    predictions.touch()
    now = weights_folder.stat().st_mtime
    os.utime(predictions, (now - age, now - age))
    base = tmp_path / "elsewhere"
    weights = Weights(str(weights_folder)) if kind == "checkpoint" else Weights(str(base), adapter=str(weights_folder))
    assert outdated(predictions, weights) is expected


def test_no_predictions_are_not_outdated(tmp_path: Path) -> None:
    assert not outdated(tmp_path / "none.jsonl", Weights(str(tmp_path)))
