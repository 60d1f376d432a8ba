"""`avlm model`: checkpoints for demos and tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Make a tiny model for tests and demos."""


@app.command()
def tiny(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write; must not exist yet.")],
    seed: Annotated[int, typer.Option(help="Seed of the random weights.", min=0, max=2**32 - 1)] = 0,
) -> None:
    """Write a Qwen3-Omni-MoE of 0.6 M random parameters, with tokenizer and processor, as a Hugging Face folder."""
    from avlm.models.qwen3_omni_moe.tiny import make_tiny

    typer.echo(f"{directory}: {make_tiny(directory, seed)}")
