"""`avlm demo`: from nothing to a fine-tuned, evaluated tiny model and its report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from avlm.commands.recipe import Overrides, RecipeArgument, StackOption
from avlm.errors import RunError

if TYPE_CHECKING:
    from avlm.eval.checkpoint import Weights
    from avlm.recipe.schema import Recipe

app = typer.Typer()

EVALUATIONS = ("before", "after", "mute_audio", "blank_video", "shuffle_frames")


@app.command()
def demo(
    recipe: RecipeArgument = "tiny_omni/sft", overrides: Overrides = None, stack: StackOption = "automodel"
) -> None:
    """Make a tiny model and clips, fine-tune, evaluate on held-out clips, report. What is there is used again."""
    from rich.console import Console

    from avlm.launch.local import check_locally, train_locally
    from avlm.report.html import write_report
    from avlm.utils.files import write_atomic
    from avlm.utils.quiet import quiet_loading

    loaded, _ = check_locally(recipe, overrides or [], stack)
    folder = Path(loaded.output_dir)
    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        result = work()
        seconds[name] = round(seconds.get(name, 0.0) + time.perf_counter() - started, 1)
        return result

    with quiet_loading():
        timed("inputs", partial(_make_inputs, loaded))
    base = _weights(loaded, loaded.model.checkpoint)
    accuracy = {"before": timed("evaluate", partial(_evaluate, loaded, base, "before"))}
    code = timed("train", partial(train_locally, recipe, overrides or [], stack))
    if code > 128:
        raise typer.Exit(code)
    if code:
        raise RunError("training failed; its message is above")
    trained = _weights(loaded, str(folder / "export"))
    for name in EVALUATIONS[1:]:
        accuracy[name] = timed("evaluate", partial(_evaluate, loaded, trained, name))
    report = timed("report", partial(write_report, folder))
    seconds["total"] = round(sum(seconds.values()), 1)
    summary = {"accuracy": accuracy, "loss": _losses(folder), "seconds": seconds}
    write_atomic(folder / "metrics.json", json.dumps(summary, indent=2) + "\n")
    console = Console()
    console.print(_table(summary))
    console.print(f"report:  {report}\nnumbers: {folder / 'metrics.json'}", highlight=False)


def _make_inputs(recipe: Recipe) -> None:
    """The tiny checkpoint and the demo clips, where the recipe's paths are empty."""
    from avlm.data.demo import make_demo
    from avlm.models.qwen3_omni_moe.tiny import make_tiny

    checkpoint, root = Path(recipe.model.checkpoint), Path(recipe.data.video_root)
    if not checkpoint.exists() and recipe.name.startswith("tiny_omni") and recipe.method.kind == "sft":
        typer.echo(f"making a tiny model: {checkpoint}")
        make_tiny(checkpoint, recipe.seed)
    if not root.exists() and recipe.name.startswith("tiny_omni"):
        typer.echo(f"making demo clips: {root}")
        make_demo(root)


def _weights(recipe: Recipe, checkpoint: str) -> Weights:
    from avlm.eval.checkpoint import choose

    return choose(recipe, checkpoint)


def _evaluate(recipe: Recipe, weights: Weights, name: str) -> dict[str, float]:
    """Accuracy of each class; predictions and scores go to the run's folder, those of older weights are replaced."""
    from avlm.eval.run import evaluate_run

    ablation: Any = None if name in ("before", "after") else name
    made_before = outdated(Path(recipe.output_dir) / "predictions" / f"{name}.jsonl", weights)
    scores, _ = evaluate_run(recipe, weights, name, recipe.data.validation, ablation=ablation, overwrite=made_before)
    return {label: round(counts["accuracy"], 4) for label, counts in scores["classes"].items()}


def outdated(predictions: Path, weights: Weights) -> bool:
    """Whether the predictions are older than the folder of the weights that should have made them."""
    folder = Path(weights.adapter or weights.checkpoint)
    return predictions.is_file() and folder.is_dir() and predictions.stat().st_mtime_ns < folder.stat().st_mtime_ns


def _losses(folder: Path) -> dict[str, float]:
    from avlm.metrics import TRAIN_FILE, read_jsonl

    entries = read_jsonl(folder / TRAIN_FILE)
    return {"first": entries[0]["loss"], "last": entries[-1]["loss"]}


def _table(summary: dict[str, Any]) -> Any:
    from rich.table import Table

    loss, seconds = summary["loss"], summary["seconds"]
    table = Table(
        title="Accuracy on held-out clips, free generation",
        caption=f"training loss {loss['first']:.3f} → {loss['last']:.3f}; {seconds['total']:.0f} s in all, "
        f"{seconds['train']:.0f} s training",
    )
    labels = list(next(iter(summary["accuracy"].values())))
    table.add_column("")
    for label in labels:
        table.add_column(label, justify="right")
    for name, accuracy in summary["accuracy"].items():
        table.add_row(name.replace("_", " "), *(f"{accuracy[label]:.1%}" for label in labels))
    return table
