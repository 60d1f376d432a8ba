"""`avlm doctor`: check this machine and say what to mend."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from avlm.launch.doctor import Check

app = typer.Typer()

COLOURS = {"ok": "green", "warning": "yellow", "failed": "red"}


@app.command()
def doctor(
    output_dir: Annotated[Path, typer.Option(help="Folder that runs will write to.")] = Path("outputs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Check this machine and say what to mend. Exit code 1 when a check failed."""
    from avlm.launch.doctor import run_checks

    checks = run_checks(output_dir)
    if as_json:
        import dataclasses
        import json

        typer.echo(json.dumps([dataclasses.asdict(check) for check in checks], indent=2, ensure_ascii=False))
    else:
        _show(checks)
    if any(check.status == "failed" for check in checks):
        raise typer.Exit(1)


def _show(checks: list[Check]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("check", "", "found"):
        table.add_column(title, no_wrap=title != "found", overflow="fold")
    for check in checks:
        found = Text(check.detail)
        if check.advice:
            found.append(f"\n→ {check.advice}", style=COLOURS[check.status])
        table.add_row(check.name, Text(check.status, style=COLOURS[check.status]), found)
    console = Console()
    console.print(table)
    count = {status: sum(check.status == status for check in checks) for status in COLOURS}
    warnings = f"{count['warning']} warning" + "s" * (count["warning"] != 1)
    console.print(f"\n{count['ok']} ok, {warnings}, {count['failed']} failed")
