"""Answers and scores of a run, kept in its folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from avlm.errors import UserError
from avlm.eval.ablations import Ablation
from avlm.eval.checkpoint import Weights
from avlm.eval.generate import Inferred, infer
from avlm.eval.metrics import evaluate, read_predictions
from avlm.recipe.schema import Recipe
from avlm.utils.files import write_atomic


def save_scores(
    recipe: Recipe,
    lines: Sequence[Mapping[str, Any]],
    name: str,
    ablation: Ablation | None,
    facts: Mapping[str, Any],
) -> tuple[dict[str, Any], Path]:
    """Score predictions and write `<output_dir>/eval/<name>.json`; `facts` are kept beside the scores.

    Raises `UserError` when there is nothing to score.
    """
    if not lines:
        raise UserError(f"{facts['predictions']}: no predictions to score")
    scores = evaluate(lines, name, ablation)
    target = Path(recipe.output_dir) / "eval" / f"{name}.json"
    write_atomic(target, json.dumps(scores | dict(facts), indent=2, ensure_ascii=False) + "\n")
    return scores, target


def evaluate_run(
    recipe: Recipe,
    weights: Weights,
    name: str,
    files: Sequence[str | Path],
    *,
    ablation: Ablation | None = None,
    limit: int | None = None,
    overwrite: bool = False,
    tell: Callable[[Inferred], None] = lambda result: None,
) -> tuple[dict[str, Any], Path]:
    """Answer the rows of `files` where that is not done yet, score them, and write both to the run's folder.

    Args:
        recipe: names the folder, the media budget and the device.
        weights: what answers (`avlm.eval.checkpoint.choose`).
        name: name of the result.
        files: JSONL files of rows.
        ablation, limit, overwrite: see `avlm.eval.generate.infer`.
        tell: called with what was done before scoring.

    Returns:
        The scores (`avlm.eval.metrics.evaluate`) and the file that holds them.
    """
    out = Path(recipe.output_dir) / "predictions" / f"{name}.jsonl"
    result = infer(recipe, files, weights, out, ablation=ablation, limit=limit, overwrite=overwrite)
    tell(result)
    wanted = set(result.ids)
    lines = [line for line in read_predictions(out) if line["id"] in wanted]
    facts = {"weights": str(weights), "data": [str(path) for path in files], "predictions": str(out)}
    return save_scores(recipe, lines, name, ablation, facts)
