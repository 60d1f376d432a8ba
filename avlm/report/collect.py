"""What a run left behind: its folder, read as it is. Every part may be missing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from avlm.errors import UserError
from avlm.utils.text import clipped

if TYPE_CHECKING:
    from avlm.recipe.schema import Recipe

_NUMBER, _TEXT = (int, float), (str,)
_COUNTS = {"correct": (int,), "total": (int,), "unanswered": (int,)}
_CLASS = {**_COUNTS, "accuracy": _NUMBER, "low": _NUMBER, "high": _NUMBER}
_PREDICTION = {"id": _TEXT, "question": _TEXT, "answer": (str, type(None)), "reference": _TEXT}

ABLATIONS = ("mute_audio", "blank_video", "shuffle_frames")


@dataclass
class Collected:
    """The parts of a run's folder (see `docs/architecture.md`).

    recipe is None when recipe.yaml is missing; recipe_text is its text. evaluations and predictions are keyed by name
    (`before`, `after`, …), predictions then by row id. lengths: tokens per training row, or None when not recorded.
    """

    folder: Path
    recipe: Recipe | None = None
    recipe_text: str = ""
    metrics: list[dict[str, Any]] = field(default_factory=list)
    validation: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, Any]] | None = None
    versions: dict[str, str] = field(default_factory=dict)
    evaluations: dict[str, dict[str, Any]] = field(default_factory=dict)
    predictions: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    lengths: list[int] | None = None


def collect(folder: Path) -> Collected:
    """Read the run in `folder`. Raises `UserError` for a missing folder, one with nothing of a run, or a bad file."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give a run's output_dir")
    recipe_file = folder / "recipe.yaml"
    run = Collected(
        folder=folder,
        metrics=_lines(folder / "metrics.jsonl", {"step": (int,), "loss": _NUMBER, "lr": _NUMBER}) or [],
        validation=_lines(folder / "validation.jsonl", {"step": (int,), "loss": _NUMBER}) or [],
        skipped=_lines(folder / "skipped.jsonl", {"id": _TEXT, "reason": _TEXT}),
        versions=_flat(_json(folder / "versions.json", {})),
        evaluations={
            p.stem: _evaluation(p) for p in sorted((folder / "eval").glob("*.json")) if not p.name.startswith(".")
        },
        predictions={p.stem: _predictions(p) for p in sorted((folder / "predictions").glob("*.jsonl"))},
        lengths=_lengths(folder / "lengths.json"),
    )
    if recipe_file.is_file():
        from avlm.recipe.load import load_recipe

        run.recipe = load_recipe(recipe_file).recipe
        run.recipe_text = recipe_file.read_text(encoding="utf-8")
    if not (run.recipe or run.metrics or run.evaluations or run.predictions):
        raise UserError(f"{folder}: holds no run (no recipe.yaml, metrics.jsonl, eval/); give a run's output_dir")
    return run


def _json(path: Path, default: Any) -> Any:
    if not path.is_file():
        return default
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}); remove the file or make it again") from None


def _lines(path: Path, needed: Mapping[str, tuple[type, ...]]) -> list[dict[str, Any]] | None:
    """Whole lines of a JSONL file, None when it is missing. A torn last line is left out: the run may be going on."""
    if not path.is_file():
        return None
    found = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}:{number}: not JSON ({error})") from None
        problem = _problem(value, needed)
        if problem:
            raise UserError(f"{path}:{number}: {problem}")
        found.append(value)
    return found


def _problem(value: Any, needed: Mapping[str, tuple[type, ...]]) -> str | None:
    """What an object lacks, or has of another type."""
    missing = [key for key in needed if not isinstance(value, dict) or key not in value]
    if missing:
        return f"{', '.join(missing)} missing"
    wrong = [key for key, kinds in needed.items() if not isinstance(value[key], kinds) or isinstance(value[key], bool)]
    return f"{wrong[0]} cannot be {clipped(json.dumps(value[wrong[0]]))}" if wrong else None


def _evaluation(path: Path) -> dict[str, Any]:
    value = _json(path, {})
    if not isinstance(value, dict) or not isinstance(value.get("classes"), dict):
        raise UserError(f"{path}: not a result of `avlm eval` (no classes); make it again")
    for label, one in value["classes"].items():
        problem = _problem(one, _CLASS)
        if problem:
            raise UserError(f"{path}: class {clipped(label)}: {problem}; make it again with `avlm eval`")
    return value


def _predictions(path: Path) -> dict[str, dict[str, Any]]:
    return {line["id"]: line for line in _lines(path, _PREDICTION) or []}


def _lengths(path: Path) -> list[int] | None:
    value = _json(path, None)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(n, int) for n in value):
        raise UserError(f"{path}: must be a list of whole numbers, tokens per training row")
    return value


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
    """Nested objects as one level with dotted names."""
    if not isinstance(value, dict):
        return {prefix: str(value)}
    flat: dict[str, str] = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{prefix}.{key}" if prefix else key)
    return flat
