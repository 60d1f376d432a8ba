"""`avlm infer`: answers of a trained model to the questions of a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from avlm.errors import UserError

if TYPE_CHECKING:
    from avlm.eval.checkpoint import Weights
    from avlm.eval.generate import Inferred
    from avlm.recipe.schema import Recipe

app = typer.Typer()

RecipeArgument = Annotated[str, typer.Argument(help="Recipe file, or a short name such as tiny_omni/sft.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="KEY=VALUE, e.g. evaluation.batch_size=32.")]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        help="Hugging Face folder or hub id, or an adapter's folder. Default: <output_dir>/export if it is there, "
        "else model.checkpoint."
    ),
]
Adapter = Annotated[str | None, typer.Option(help="PEFT adapter's folder, put on the checkpoint.")]
DataFiles = Annotated[list[Path] | None, typer.Option("--data", help="JSONL of rows; may be given more than once.")]
Limit = Annotated[int | None, typer.Option(help="Only the first so many rows.", min=1)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Start the predictions file anew.")]


@app.command()
def infer(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    checkpoint: Checkpoint = None,
    adapter: Adapter = None,
    data: DataFiles = None,
    out: Annotated[
        Path | None, typer.Option(help="Predictions file. Default: <output_dir>/predictions/<name>.jsonl.")
    ] = None,
    limit: Limit = None,
    overwrite: Overwrite = False,
) -> None:
    """Answer the questions of the validation rows, or of --data. Run again to continue after a stop."""
    from avlm.eval.checkpoint import choose
    from avlm.eval.generate import infer as generate_all
    from avlm.recipe.load import load_recipe

    loaded = load_recipe(recipe, overrides or []).recipe
    weights = choose(loaded, checkpoint, adapter)
    files = data_files(loaded, data)
    if out is None:
        name = data[0].stem if data else name_of(weights)
        out = Path(loaded.output_dir) / "predictions" / f"{name}.jsonl"
    typer.echo(f"answering with {weights}")
    result = generate_all(loaded, files, weights, out, limit=limit, overwrite=overwrite)
    typer.echo(summary(result))


def data_files(recipe: Recipe, data: list[Path] | None) -> list[Path]:
    """The files of --data, or the recipe's validation files."""
    files = data or [Path(name) for name in recipe.data.validation]
    if not files:
        raise UserError("data.validation: the recipe names no validation rows; give --data FILE.jsonl")
    return files


def name_of(weights: Weights) -> str:
    """`after` for trained weights, `before` for those that the run started from."""
    return "after" if weights.trained else "before"


def summary(result: Inferred) -> str:
    """What was done, with everything that is not a plain answer counted."""
    parts = [f"{len(result.ids)} rows: {result.generated} answered"]
    if result.generated:
        parts[0] += f" in {result.seconds:.1f} s"
    if result.reused:
        parts.append(f"{result.reused} were answered before")
    if result.skipped:
        parts.append(f"{result.skipped} left out (over data.sequence_length)")
    if result.cut:
        parts.append(f"{result.cut} cut at the length limit (evaluation.max_new_tokens)")
    return f"{', '.join(parts)}: {result.path}"
