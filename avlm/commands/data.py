"""`avlm data`: make demo clips, check a dataset, show its statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Make demo clips; check a dataset; show its statistics."""


@app.command("make-demo")
def make_demo(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write; must not exist yet.")],
    seed: Annotated[int, typer.Option(help="Seed of everything random about the clips.", min=0)] = 0,
    clips: Annotated[int, typer.Option(help="Number of clips; one in five is for validation.")] = 320,
) -> None:
    """Write MP4 clips of a moving square with a tone, and questions about them, as train and validation JSONL."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from avlm.data import demo

    columns = (TextColumn("clips"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("clips", total=clips)
        state = demo.make_demo(directory, seed, clips, lambda done, total: bar.update(task, completed=done))
    typer.echo(f"{directory}: {state}")
