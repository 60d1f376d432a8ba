"""`avlm report`: one HTML page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Folder of the run: its recipe's output_dir.")],
    out: Annotated[Path | None, typer.Option(help="File to write. Default: RUN_DIR/report.html.")] = None,
) -> None:
    """Write one self-contained HTML page: curves, accuracy, ablations, examples, recipe. Missing parts say so."""
    from avlm.report.html import write_report

    path = write_report(run_dir, out)
    typer.echo(f"written: {path} ({path.stat().st_size / 1000:.0f} kB)")
