"""`avlm infer`: what it answers with, and where answers go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from avlm.cli import run
from avlm.eval.generate import Inferred
from avlm.recipe.load import save_resolved
from tests.avlm.report.made_up import recipe


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A recipe, and a stand-in for generation that notes what it was asked."""
    asked: list[dict[str, Any]] = []

    def infer(recipe: Any, files: Any, weights: Any, out: Path, **more: Any) -> Inferred:
        asked.append({"files": [str(f) for f in files], "weights": weights, "out": out, **more})
        return Inferred(out, ("1", "2", "3", "4"), 1, 2, 1, 1, 2.5)

    monkeypatch.setattr("avlm.eval.generate.infer", infer)
    save_resolved(recipe(tmp_path), tmp_path / "recipe.yaml")
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text('{"model_type": "qwen3_omni_moe"}')
    return asked


def test_defaults(tmp_path: Path, calls: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["infer", str(tmp_path / "recipe.yaml")]) == 0
    (call,) = calls
    assert call["out"] == tmp_path / "run" / "predictions" / "before.jsonl"
    assert call["files"] == [str(tmp_path / "data" / "validation.jsonl")]
    assert (call["limit"], call["overwrite"], call["weights"].checkpoint) == (None, False, str(tmp_path / "tiny"))
    shown = capsys.readouterr().out
    assert "4 rows: 2 answered in 2.5 s, 1 were answered before, 1 left out" in shown
    assert "1 cut at the length limit" in shown


def test_flags(tmp_path: Path, calls: list[dict[str, Any]]) -> None:
    arguments = ["infer", str(tmp_path / "recipe.yaml"), "--data", "mine.jsonl", "--limit", "3", "--overwrite"]
    assert run(arguments) == 0
    assert run([*arguments, "--out", "x.jsonl"]) == 0
    assert [call["out"] for call in calls] == [tmp_path / "run" / "predictions" / "mine.jsonl", Path("x.jsonl")]
    assert calls[0]["files"] == ["mine.jsonl"] and calls[0]["limit"] == 3 and calls[0]["overwrite"]
