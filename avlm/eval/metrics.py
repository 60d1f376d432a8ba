"""From predictions to accuracy per class, with intervals, confusion and what was left unanswered."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from avlm.errors import UserError
from avlm.eval.answers import Choice, Scored, find_choices, score_answer

if TYPE_CHECKING:
    from rich.table import Table

Z95 = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""
NO_CLASS = "(no class)"
"""Class of rows that name none."""
UNANSWERED = "(unanswered)"
"""Confusion column of answers that could not be read."""
OTHER = "(other)"
"""Confusion column of answers that are no reference and no option of their class."""


def wilson(correct: int, total: int) -> tuple[float, float]:
    """95 % score interval of a proportion (Wilson, 1927), as fractions; (0, 1) when `total` is 0."""
    if total == 0:
        return 0.0, 1.0
    p, z2 = correct / total, Z95 * Z95
    centre = (p + z2 / (2 * total)) / (1 + z2 / total)
    half = Z95 / (1 + z2 / total) * math.sqrt(p * (1 - p) / total + z2 / (4 * total * total))
    return max(0.0, centre - half), min(1.0, centre + half)


def score_prediction(prediction: Mapping[str, Any]) -> Scored:
    """Judge one line of a predictions file. Options come from its `choices`, or are found in its question."""
    listed = prediction.get("choices")
    choices = find_choices(prediction["question"]) if listed is None else [Choice(k, v) for k, v in listed.items()]
    return score_answer(prediction["answer"], prediction["reference"], choices)


def evaluate(predictions: Iterable[Mapping[str, Any]], name: str, ablation: str | None = None) -> dict[str, Any]:
    """Score predictions.

    Returns the content of `eval/<name>.json`: `name`, `ablation`, `classes` (class -> `correct`, `total`, `unanswered`,
    `accuracy`, `low`, `high`; fractions), `total` (the same over all rows, with `skipped`: rows left out of generation,
    which count as unanswered, and `cut`: answers that ended at the length limit) and `confusion` (class -> reference ->
    answer -> rows).
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    pairs: dict[str, list[tuple[str, str | None]]] = defaultdict(list)
    known: dict[str, set[str]] = defaultdict(set)
    whole: Counter[str] = Counter()
    for prediction in predictions:
        label = prediction.get("class") or NO_CLASS
        scored = score_prediction(prediction)
        one = Counter(correct=int(scored.correct), total=1, unanswered=int(scored.answer is None))
        counts[label] += one
        whole += one
        whole["skipped"] += int(prediction.get("skipped") is not None)
        whole["cut"] += int(prediction.get("finished") is False)
        pairs[label].append((scored.reference, scored.answer))
        known[label].add(scored.reference)
        if prediction.get("choices") and scored.answer is not None:
            known[label].add(scored.answer)
    return {
        "name": name,
        "ablation": ablation,
        "classes": {label: _summary(counts[label]) for label in sorted(counts)},
        "total": _summary(whole) | {"skipped": whole["skipped"], "cut": whole["cut"]},
        "confusion": {label: _confusion(pairs[label], known[label]) for label in sorted(pairs)},
    }


def _summary(count: Counter[str]) -> dict[str, Any]:
    correct, total = count["correct"], count["total"]
    low, high = wilson(correct, total)
    return {
        "correct": correct,
        "total": total,
        "unanswered": count["unanswered"],
        "accuracy": correct / total if total else 0.0,
        "low": low,
        "high": high,
    }


def _confusion(pairs: list[tuple[str, str | None]], known: set[str]) -> dict[str, dict[str, int]]:
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for reference, answer in pairs:
        table[reference][UNANSWERED if answer is None else answer if answer in known else OTHER] += 1
    return {reference: dict(sorted(table[reference].items())) for reference in sorted(table)}


def read_predictions(path: Path) -> list[dict[str, Any]]:
    """Lines of a predictions file. Raises `UserError` with file and line for what is not a prediction."""
    if not path.is_file():
        raise UserError(f"{path}: no such predictions file; `avlm infer` writes one")
    predictions = []
    lines = path.read_bytes().removesuffix(b"\n").split(b"\n")
    for number, line in enumerate(lines if lines != [b""] else [], 1):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise UserError(
                f"{path}:{number}: not JSON ({getattr(error, 'msg', error)}); a torn last line is removed by running "
                "`avlm infer` again"
            ) from None
        needed = ("id", "question", "answer", "reference")
        missing = [key for key in needed if not isinstance(value, dict) or key not in value]
        if missing:
            raise UserError(f"{path}:{number}: a prediction needs {', '.join(needed)}; missing: {', '.join(missing)}")
        for key, kinds in (("id", str), ("question", str), ("reference", str), ("answer", (str, type(None)))):
            if not isinstance(value[key], kinds):
                raise UserError(f"{path}:{number}: {key} must be text, not {json.dumps(value[key])[:60]}")
        choices = value.get("choices")
        if not (
            choices is None or (isinstance(choices, dict) and all(isinstance(text, str) for text in choices.values()))
        ):
            raise UserError(f'{path}:{number}: choices must map letters to texts, such as {{"A": "red", "B": "blue"}}')
        predictions.append(value)
    return predictions


def accuracy_table(result: Mapping[str, Any]) -> Table:
    """`result` of `evaluate` as a table for the terminal, one line a class and one for all rows."""
    from rich.table import Table

    title = result["name"]
    if result["ablation"] not in (None, title):
        title += f" ({result['ablation']})"
    table = Table(title=f"Accuracy: {title}", title_justify="left")
    table.add_column("class")
    for column in ("accuracy", "95 % interval", "correct", "rows", "unanswered"):
        table.add_column(column, justify="right")
    lines = list(result["classes"].items())
    for number, (label, one) in enumerate([*lines, ("all", result["total"])]):
        table.add_row(
            label,
            f"{100 * one['accuracy']:.1f} %",
            f"{100 * one['low']:.1f} – {100 * one['high']:.1f} %",
            str(one["correct"]),
            str(one["total"]),
            str(one["unanswered"]),
            end_section=number == len(lines) - 1,
        )
    return table
