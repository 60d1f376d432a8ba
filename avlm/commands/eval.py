"""`avlm eval`: accuracy per class on held-out rows, and what it depends on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from avlm.commands.infer import (
    Adapter,
    Checkpoint,
    DataFiles,
    Limit,
    Overrides,
    Overwrite,
    RecipeArgument,
    data_files,
    name_of,
    summary,
)
from avlm.errors import UserError

if TYPE_CHECKING:
    from avlm.eval.ablations import Ablation

app = typer.Typer()


@app.command("eval")
def evaluate(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    checkpoint: Checkpoint = None,
    adapter: Adapter = None,
    data: DataFiles = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the result. Default: after, before (the weights that the run starts from), the ablation, or "
            "the name of the predictions file."
        ),
    ] = None,
    mute_audio: Annotated[bool, typer.Option("--mute-audio", help="Set all sound to zero.")] = False,
    blank_video: Annotated[bool, typer.Option("--blank-video", help="Set all frames to black.")] = False,
    shuffle_frames: Annotated[bool, typer.Option("--shuffle-frames", help="Mix up each clip's frames.")] = False,
    predictions: Annotated[Path | None, typer.Option(help="Score this predictions file; generate nothing.")] = None,
    limit: Limit = None,
    overwrite: Overwrite = False,
) -> None:
    """Answer the validation rows where that is not done yet, and score: <output_dir>/eval/<name>.json."""
    from rich.console import Console

    from avlm.eval.metrics import accuracy_table, read_predictions
    from avlm.eval.run import evaluate_run, save_scores
    from avlm.recipe.load import load_recipe

    ablation = _ablation(mute_audio=mute_audio, blank_video=blank_video, shuffle_frames=shuffle_frames)
    if name is not None and not re.fullmatch(r"\w[\w.-]*", name):
        raise UserError(f"--name: {name!r} must be a plain file name without ending, such as after")
    loaded = load_recipe(recipe, overrides or []).recipe
    if predictions is not None:
        if checkpoint or adapter or data or ablation or limit or overwrite:
            raise UserError("--predictions scores a file as it is; leave out the flags that say what to generate")
        name = name or predictions.stem
        facts = {"predictions": str(predictions)}
        scores, target = save_scores(loaded, read_predictions(predictions), name, ablation, facts)
    else:
        from avlm.eval.checkpoint import choose

        weights = choose(loaded, checkpoint, adapter)
        name = name or ablation or name_of(weights)
        typer.echo(f"{name}: answering with {weights}")
        scores, target = evaluate_run(
            loaded,
            weights,
            name,
            data_files(loaded, data),
            ablation=ablation,
            limit=limit,
            overwrite=overwrite,
            tell=lambda result: typer.echo(summary(result)),
        )
    Console().print(accuracy_table(scores))
    typer.echo(f"written: {target}")


def _ablation(**flags: bool) -> Ablation | None:
    chosen = [name for name, given in flags.items() if given]
    if len(chosen) > 1:
        raise UserError(f"{' and '.join('--' + name.replace('_', '-') for name in chosen)}: take one at a time")
    return chosen[0] if chosen else None  # type: ignore[return-value]
