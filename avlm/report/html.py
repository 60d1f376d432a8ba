"""One self-contained HTML page about a run: no scripts, no network, pictures and charts inside the file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from avlm.data.types import MediaLimits, MediaRef
from avlm.errors import UserError
from avlm.eval.metrics import UNANSWERED
from avlm.report.collect import ABLATIONS, Collected, collect
from avlm.report.examples import Example, choose, describe
from avlm.report.plots import Curve, histogram, interval_row, line_chart, number, smooth, thin
from avlm.utils.files import check_writable, write_atomic
from avlm.utils.quiet import quiet_loading

if TYPE_CHECKING:
    from avlm.data.processing import Processor

SHOWN_SKIPPED = 50
SHOWN_VIEWS = 3
"""Pictures on one example."""
MOST_ANSWERS = 12
"""Columns of a confusion table; rarer answers share one."""
MEASURED_ROWS = 2000
"""Most rows whose length is counted for the histogram when the run did not record lengths."""
ABLATION_TITLES = {
    "after": ("Everything", "nothing taken away"),
    "mute_audio": ("Sound muted", "samples set to zero"),
    "blank_video": ("Picture blanked", "frames set to black"),
    "shuffle_frames": ("Frames shuffled", "out of order"),
}


@dataclass
class Lengths:
    """Tokens per training row; `values` may be empty, `note` then says why."""

    values: list[int]
    note: str


def write_report(run_dir: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of the run in `run_dir` to `out` (default: `<run_dir>/report.html`) and return its path.

    Missing parts are named on the page. Raises `UserError` when the folder holds nothing of a run.
    """
    folder = Path(run_dir)
    target = Path(out) if out is not None else folder / "report.html"
    if target.is_dir():
        raise UserError(f"{target} is a folder; --out takes the name of the HTML file")
    run = collect(folder)
    check_writable(target.parent, str(target))
    source = _Source(run)
    examples = [describe(id, run.predictions) for id in choose(run.predictions)]
    for example in examples:
        source.add_views(example)
    write_atomic(target, render(run, examples, source.lengths()))
    return target


class _Source:
    """Rows and media of the run, as training reads them; loaded when first needed."""

    def __init__(self, run: Collected) -> None:
        self._run = run
        self._loaded: Processor | str | None = None

    def _processor(self) -> Processor | str:
        if self._loaded is None:
            if self._run.recipe is None:
                self._loaded = "no recipe.yaml in this folder"
            else:
                from avlm.data.processing import load_processor

                try:
                    with quiet_loading():
                        self._loaded = load_processor(self._run.recipe)
                except UserError as error:
                    self._loaded = str(error)
        return self._loaded

    def add_views(self, example: Example) -> None:
        """Put pictures of the example's media on its card, or why there are none."""
        if not example.media:
            return
        processor = self._processor()
        if isinstance(processor, str):
            example.no_views = f"No picture: {processor}"
            return
        assert self._run.recipe is not None
        root = Path(self._run.recipe.data.video_root)
        add_views(example, root, processor.limits, processor.factor)

    def lengths(self) -> Lengths:
        """Recorded lengths, or lengths counted now from the rows of the recipe."""
        if self._run.lengths is not None:
            return Lengths(self._run.lengths, f"{len(self._run.lengths):,} rows")
        processor = self._processor()
        if isinstance(processor, str):
            return Lengths([], f"not measured: {processor}")
        from avlm.data.media import probe
        from avlm.data.rows import read_rows

        assert self._run.recipe is not None
        data = self._run.recipe.data
        try:
            rows = read_rows(data.train_paths, data.video_root)
            stride = -(-len(rows) // MEASURED_ROWS)
            known = cache(lambda ref: probe(ref, processor.limits))
            values = [processor.count(row, [known(ref) for ref in row.media]) for row in rows[::stride]]
        except UserError as error:
            return Lengths([], f"not measured: {str(error).splitlines()[0]}")
        return Lengths(values, f"{len(rows):,} rows" if stride == 1 else f"{len(values):,} of {len(rows):,} rows")


def add_views(example: Example, root: Path, limits: MediaLimits, factor: int) -> None:
    """Read the example's media, which lie below `root`, within `limits`, and add a picture of each."""
    from avlm.data.media import read_media
    from avlm.report.pictures import views

    for ref in example.media:
        try:
            media = read_media(MediaRef(ref["type"], root / ref["path"], ref["path"]), limits, factor)  # type: ignore[arg-type]
            example.views += views(media, ref["path"])
        except (UserError, KeyError) as error:
            example.no_views = f"No picture: {error}"
    if len(example.views) > SHOWN_VIEWS:
        example.no_views = f"{len(example.views) - SHOWN_VIEWS} more pictures are not shown."
        del example.views[SHOWN_VIEWS:]


def render(run: Collected, examples: Sequence[Example], lengths: Lengths) -> str:
    """The page as text. Pure: everything that needs files was read before."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("avlm.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")
    shown = [name for name in ("before", "after") if name in run.evaluations]
    labels = sorted({label for result in run.evaluations.values() for label in result["classes"]})
    ablations, missing = _ablations(run, labels)
    limit = run.recipe.data.sequence_length if run.recipe else None
    lengths_chart = _lengths_chart(lengths, limit) if lengths.values else ""
    values: dict[str, Any] = {
        "style": Markup(style),
        "title": run.recipe.name if run.recipe else run.folder.resolve().name,
        "facts": _facts(run),
        "tiles": _tiles(run),
        "shown": shown,
        "accuracy": [_accuracy_line(run, label, shown, Markup) for label in [*labels, None]] if shown else [],
        "accuracy_notes": _accuracy_notes(run, shown),
        "labels": labels,
        "ablations": ablations,
        "ablations_missing": missing,
        **_training(run, Markup),
        "examples": list(examples),
        "examples_note": _examples_note(run, examples),
        "lengths_chart": Markup(lengths_chart),
        "lengths_note": _lengths_note(lengths, limit),
        "skipped": [_skipped(row) for row in (run.skipped or [])[:SHOWN_SKIPPED]],
        "skipped_count": len(run.skipped or []),
        "skipped_note": "No row was left out of training."
        if run.skipped is not None
        else "Rows left out: not recorded.",
        "confusion": _confusion(run.evaluations.get("after", {}).get("confusion", {})),
        "command": _command(run),
        "recipe_text": run.recipe_text,
        "versions": list(run.versions.items()),
    }
    return environment.get_template("page.html.jinja").render(values)


def _facts(run: Collected) -> list[str]:
    if run.recipe is None:
        return []
    recipe = run.recipe
    ranks = "1 rank" if recipe.world_size == 1 else f"{recipe.world_size} ranks"
    facts = [recipe.model.family, f"from {Path(recipe.model.checkpoint).name}", recipe.method.kind.upper()]
    if recipe.method.kind == "lora":
        facts[-1] = "LoRA"
    stack = run.versions.get("stack")
    return [*facts, *([stack] if stack else []), f"{ranks}, {recipe.device}", f"seed {recipe.seed}"]


def _tiles(run: Collected) -> list[dict[str, str]]:
    tiles = []
    before, after = (_total(run.evaluations.get(name)) for name in ("before", "after"))
    if after:
        note = f"{after['correct']:,} of {after['total']:,} held-out rows"
        note += f"; {_percent(before['accuracy'])} before" if before else ""
        tiles.append({"name": "Accuracy after training", "value": _percent(after["accuracy"]), "note": note})
    elif before:
        note = f"{before['correct']:,} of {before['total']:,} held-out rows; after: not run"
        tiles.append({"name": "Accuracy before training", "value": _percent(before["accuracy"]), "note": note})
    else:
        tiles.append({"name": "Accuracy", "value": "–", "note": "not run"})
    for name, lines in (("Training loss", run.metrics), ("Validation loss", run.validation)):
        if not lines:
            tiles.append({"name": name, "value": "–", "note": "not run"})
            continue
        first, last = lines[0], lines[-1]
        note = f"at step {last['step']:,}" + (
            f"; {first['loss']:.3f} at step {first['step']:,}" if len(lines) > 1 else ""
        )
        tiles.append({"name": name, "value": f"{last['loss']:.3f}", "note": note})
    if run.metrics:
        seconds = sum(line.get("seconds", 0.0) for line in run.metrics)
        tokens = sum(line.get("tokens", 0) for line in run.metrics)
        speeds = [line["tokens_per_second"] for line in run.metrics if line.get("tokens_per_second")]
        steps = f"{run.metrics[-1]['step']:,} step" + ("s" if run.metrics[-1]["step"] != 1 else "")
        parts = [steps] if seconds else []
        parts += [f"{_count(tokens)} tokens"] if tokens else []
        parts += [f"{_count(median(speeds))} a second"] if speeds else []
        value = _duration(seconds) if seconds else steps
        tiles.append({"name": "Time to train" if seconds else "Trained for", "value": value, "note": ", ".join(parts)})
    return tiles


def _total(result: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Sum over classes; the interval is that of the whole."""
    if not result or not result["classes"]:
        return None
    from avlm.eval.metrics import wilson

    correct = sum(one["correct"] for one in result["classes"].values())
    total = sum(one["total"] for one in result["classes"].values())
    low, high = wilson(correct, total)
    return {"correct": correct, "total": total, "accuracy": correct / max(1, total), "low": low, "high": high}


def _accuracy_line(run: Collected, label: str | None, shown: Sequence[str], mark: Callable) -> dict[str, Any]:
    results = {name: run.evaluations[name] for name in shown}
    ones = {n: r["classes"].get(label) if label is not None else _total(r) for n, r in results.items()}
    points = [(name, one["accuracy"], one["low"], one["high"]) for name, one in ones.items() if one]
    return {
        "label": label or "all",
        "all": label is None,
        "rows": max((one["total"] for one in ones.values() if one), default=0),
        "graph": mark(interval_row(points)),
        **ones,
    }


def _accuracy_notes(run: Collected, shown: Sequence[str]) -> list[str]:
    notes = []
    for name in shown:
        result = run.evaluations[name]
        unanswered = sum(one["unanswered"] for one in result["classes"].values())
        if unanswered:
            rows = "answer" if unanswered == 1 else "answers"
            notes.append(f"{name.capitalize()}: {unanswered:,} {rows} could not be read and count as wrong.")
        skipped = result.get("total", {}).get("skipped", 0)
        if skipped:
            notes.append(f"{name.capitalize()}: {skipped:,} of them were left out of generation (too long).")
    missing = [name for name in ("before", "after") if name not in shown]
    return notes + [f"{name.capitalize()}: not run." for name in missing]


def _ablations(run: Collected, labels: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    present = [name for name in ABLATIONS if name in run.evaluations]
    if not present:
        return [], []
    base = run.evaluations.get("after", {}).get("classes", {})
    lines = []
    for name in (["after"] if base else []) + present:
        title, note = ABLATION_TITLES[name]
        cells = []
        for label in labels:
            one = run.evaluations[name]["classes"].get(label)
            change = None
            if one and name != "after" and label in base:
                points = round(100 * (one["accuracy"] - base[label]["accuracy"]), 1)
                change = f"{'+' if points > 0 else '−' if points < 0 else '±'}{abs(points):.1f}"
            cells.append({"accuracy": one["accuracy"], "change": change} if one else None)
        lines.append({"title": title, "note": note, "cells": cells})
    return lines, [ABLATION_TITLES[name][0].lower() for name in ABLATIONS if name not in present]


def _training(run: Collected, mark: Callable) -> dict[str, Any]:
    if not run.metrics:
        return {"loss_chart": "", "lr_chart": "", "loss_keys": [], "loss_note": ""}
    steps, losses = [line["step"] for line in run.metrics], [line["loss"] for line in run.metrics]
    x, y, k = thin(steps, losses)
    curves, keys, note = [], [], ""
    if len(x) >= 40:
        span = len(x) / 50
        curves += [Curve("each step", x, y, "faint"), Curve("training", x, smooth(y, span))]
        keys = [{"css": "line faint", "name": "each step" if k == 1 else f"mean of {k} steps"}]
        keys += [{"css": "line", "name": "training, moving average"}]
    else:
        curves.append(Curve("training", x, y))
        keys = [{"css": "line", "name": "training"}]
    missing = sum(not math.isfinite(loss) for loss in losses)
    if missing:
        has = "1 step has" if missing == 1 else f"{missing:,} steps have"
        note = f"{has} a loss that is not finite, and no point in the chart."
    if run.validation:
        val_steps, val_losses = [v["step"] for v in run.validation], [v["loss"] for v in run.validation]
        curves.append(Curve("validation", val_steps, val_losses, "dots", "third"))
        keys.append({"css": "third", "name": "validation"})
    else:
        note = (note + " Validation: not run.").strip()
    low, high = min(y, default=0), max(y, default=0)
    loss = line_chart(
        curves,
        description=f"Loss over {steps[-1]:,} steps: from {number(losses[0])} to {number(losses[-1])}"
        f", between {number(low)} and {number(high)}",
        x_label="step",
    )
    rates = [line["lr"] for line in run.metrics]
    lr = line_chart(
        [Curve("learning rate", steps, rates)],
        description=f"Learning rate: {number(rates[0])} first, {number(max(rates))} at most, {number(rates[-1])} last",
        x_label="step",
    )
    return {"loss_chart": mark(loss), "lr_chart": mark(lr), "loss_keys": keys, "loss_note": note}


def _examples_note(run: Collected, examples: Sequence[Example]) -> str:
    absent = [name for name in ("before", "after") if name not in run.predictions]
    note = "Held-out rows, frames as the model saw them. Rows that training changed come first"
    note += ", and a wrong answer is among them." if any(not e.answers[-1].correct for e in examples) else "."
    return note + "".join(f" {name.capitalize()} training: not run." for name in absent)


def _lengths_chart(lengths: Lengths, limit: int | None) -> str:
    low, mid, high = min(lengths.values), median(lengths.values), max(lengths.values)
    return histogram(
        lengths.values,
        description=f"Histogram of tokens per row: {low:,} to {high:,}, median {mid:,.0f}",
        x_label="tokens in a row",
        limit=limit,
    )


def _lengths_note(lengths: Lengths, limit: int | None) -> str:
    if not lengths.values:
        return lengths.note
    low, mid, high = min(lengths.values), median(lengths.values), max(lengths.values)
    of_limit = f", limit {limit:,}" if limit is not None else ""
    return f"{lengths.note}: {low:,} to {high:,}, median {mid:,.0f}{of_limit}"


def _skipped(row: Mapping[str, Any]) -> dict[str, str]:
    where = f"{row['source']}:{row['line']}" if "source" in row and "line" in row else ""
    return {"id": str(row["id"]), "where": where, "reason": str(row["reason"])}


def _confusion(tables: Mapping[str, Mapping[str, Mapping[str, int]]]) -> list[dict[str, Any]]:
    return [_confusion_table(label, table) for label, table in sorted(tables.items())]


def _confusion_table(label: str, table: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """One class: references as rows; their own answers, then others, then "(other)" and "(unanswered)" as columns."""
    if len(table) > MOST_ANSWERS:
        more = f"{len(table):,} different references: too many to show."
        return {"label": label, "answers": [], "lines": [], "more": more}
    totals: Counter[str] = Counter()
    for counts in table.values():
        totals.update(counts)
    plain = [*table, *sorted(a for a in totals if a not in table and not a.startswith("("))]
    special = sorted((a for a in totals if a.startswith("(")), key=lambda a: a == UNANSWERED)
    answers = [*plain[:MOST_ANSWERS], *special]
    hidden = sum(totals[answer] for answer in plain[MOST_ANSWERS:])
    lines = [
        {"reference": one, "cells": [{"count": table[one].get(a, 0), "hit": a == one} for a in answers]}
        for one in table
    ]
    more = f"{hidden:,} rarer answers are not shown." if hidden else ""
    return {"label": label, "answers": answers, "lines": lines, "more": more}


def _command(run: Collected) -> str:
    if run.recipe is None:
        return ""
    recipe = f"{run.folder}/recipe.yaml"
    lines = [f"avlm train {recipe}"]
    if "before" in run.evaluations:
        lines.append(f"avlm eval {recipe} --name before --checkpoint {run.recipe.model.checkpoint}")
    lines.append(f"avlm eval {recipe}")
    lines += [f"avlm eval {recipe} --{name.replace('_', '-')}" for name in ABLATIONS if name in run.evaluations]
    return "\n".join([*lines, f"avlm report {run.folder}"])


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _count(value: float) -> str:
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if value >= size:
            return f"{value / (1e3 if unit == ' k' else size):.3g}{unit}"
    return f"{value:,.0f}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
