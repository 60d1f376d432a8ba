"""`avlm train`: fine-tune from a recipe on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="Recipe file, or a short name such as tiny_omni/sft.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="KEY=VALUE, e.g. optimizer.lr=1e-5.")] = None,
    stack: Annotated[str, typer.Option(help="Training stack.")] = "automodel",
) -> None:
    """Fine-tune from a recipe. Run again to resume; Ctrl-C once stops with a checkpoint."""
    from avlm.launch.local import train_locally

    raise typer.Exit(train_locally(recipe, overrides or [], stack))
