"""`avlm recipe`: list, show, validate and explain recipes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from avlm.recipe.load import Loaded

app = typer.Typer(no_args_is_help=True)

_WIDE = 120
"""Columns of a terminal from which the list has room for model and description."""


def complete_recipe(incomplete: str) -> list[str]:
    """Short names that begin with what was typed, for shell completion."""
    from avlm.recipe.load import shipped_recipes

    return [name for name in shipped_recipes() if name.startswith(incomplete)]


RecipeArgument = Annotated[
    str, typer.Argument(help="Recipe file, or a short name such as tiny_omni/sft.", autocompletion=complete_recipe)
]
Overrides = Annotated[list[str] | None, typer.Argument(help="KEY=VALUE, e.g. optimizer.lr=1e-5.")]
StackOption = Annotated[str, typer.Option("--stack", help="Training stack: automodel, megatron_bridge, zero_offload.")]


def _summary(path: Path) -> str:
    """The recipe's first comment line."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def _console() -> Console:
    """The terminal, or a wide page when the output goes to a file or a pipe."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=200)


def _table(*columns: str) -> Table:
    """A table that cuts nothing off: long cells go over several lines."""
    from rich import box
    from rich.table import Table

    table = Table(*columns, box=box.SIMPLE_HEAD)
    for column in table.columns:
        column.overflow = "fold"
    table.columns[0].no_wrap = True
    return table


def _checked(recipe: str, overrides: list[str] | None, stack: str) -> Loaded:
    from avlm.recipe.checks import check
    from avlm.recipe.load import load_recipe

    loaded = load_recipe(recipe, overrides or [])
    check(loaded.recipe, loaded.places, stack=stack)
    return loaded


@app.command("list")
def list_recipes() -> None:
    """List the recipes in `recipes/` here and next to the avlm package."""
    from avlm.errors import UserError
    from avlm.recipe.load import load_recipe, shipped_recipes

    console = _console()
    columns = ("Recipe", "Method", "Devices", "Model", "What it does")[: 5 if console.width >= _WIDE else 3]
    table = _table(*columns)
    for name, path in shipped_recipes().items():
        try:
            recipe = load_recipe(path).recipe
        except UserError:
            table.add_row(name, "not valid", style="red")
            continue
        lora = recipe.method.lora
        method = f"lora, rank {lora.rank}" if recipe.method.kind == "lora" and lora else recipe.method.kind
        parallel, unit = recipe.parallel, "GPU" if recipe.device == "cuda" else "CPU process"
        devices = f"{parallel.devices_per_node} {unit}" + (
            "s" if unit == "GPU" and parallel.devices_per_node > 1 else ""
        )
        nodes = f"{parallel.nodes} × " if parallel.nodes > 1 else ""
        cells = (name, method, nodes + devices, recipe.model.family, _summary(path))
        table.add_row(*cells[: len(columns)])
    console.print(table)


@app.command()
def show(recipe: RecipeArgument, overrides: Overrides = None) -> None:
    """Print the whole recipe as YAML: base, overrides and defaults filled in."""
    from avlm.recipe.load import load_recipe
    from avlm.recipe.yaml12 import dump

    typer.echo(dump(load_recipe(recipe, overrides or []).recipe.model_dump()), nl=False)


@app.command()
def validate(
    recipes: Annotated[
        list[str],
        typer.Argument(
            help="Recipe files or short names, then KEY=VALUE for all of them.", autocompletion=complete_recipe
        ),
    ],
    stack: StackOption = "automodel",
) -> None:
    """Check recipes: keys, types and the rules across fields. Exit 0 when all are good, 2 otherwise."""
    from avlm.errors import UserError

    names = [text for text in recipes if "=" not in text]
    overrides = [text for text in recipes if "=" in text]
    if not names:
        raise UserError("name at least one recipe before the overrides")
    failed = False
    for name in names:
        try:
            _checked(name, overrides, stack)
        except UserError as error:
            failed = True
            typer.secho(f"{name}: not valid", fg="red", err=True)
            typer.echo(f"  {error}", err=True)
        else:
            typer.echo(f"{name}: valid")
    if failed:
        raise typer.Exit(2)


@app.command()
def explain(recipe: RecipeArgument, overrides: Overrides = None, stack: StackOption = "automodel") -> None:
    """Show each field's value, where it was written, and the stack's native keys it goes into."""
    from rich.text import Text

    from avlm.recipe.explain import explain as explain_lines
    from avlm.stacks import get_stack

    chosen = get_stack(stack)
    loaded = _checked(recipe, overrides, stack)
    table = _table("Field", "Value", "From", f"In {stack}")
    for line in explain_lines(loaded, chosen):
        style = "dim" if line.origin == "default" else ""
        table.add_row(
            *(Text(cell) for cell in (line.field, line.value, line.origin, "\n".join(line.native))), style=style
        )
    console = _console()
    console.print(f"{loaded.path}, stack {stack}")
    console.print(table)
    console.print("Fields with nothing in the last column are read by avlm itself: rows, media, metrics, evaluation.")
