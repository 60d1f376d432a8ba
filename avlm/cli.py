"""The command line `avlm`: options that hold for every command, the table of commands, and exit codes.

A command's module in `avlm/commands/` is imported only when that command is called, so that `--help` and shell
completion answer at once.
"""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

import avlm
from avlm.errors import RunError, UserError


@dataclass(frozen=True)
class Entry:
    """A line of `avlm --help`. A group has sub-commands; otherwise its module's `app` holds a single command."""

    help: str
    group: bool = False


COMMANDS = {
    "recipe": Entry("List, show, validate and explain recipes.", group=True),
    "model": Entry("Make a tiny model for tests and demos.", group=True),
    "data": Entry("Make demo clips; check a dataset; show its statistics; write its metadata.", group=True),
    "train": Entry("Fine-tune from a recipe."),
    "infer": Entry("Answer a dataset's questions with a trained model."),
    "eval": Entry("Score answers per class, with intervals and ablations."),
    "report": Entry("Write one HTML page about a run."),
    "demo": Entry("Run everything on a tiny model, from clips to report."),
    "doctor": Entry("Check this machine and say what to mend."),
}


def load(name: str) -> Any:
    """The command `name`, from the `app` of `avlm.commands.<name>`, which is imported here."""
    app = importlib.import_module(f"avlm.commands.{name}").app
    app.rich_markup_mode = None
    app._add_completion = False
    command = typer.main.get_group(app) if COMMANDS[name].group else typer.main.get_command(app)
    command.name = name
    return command


class LazyGroup(TyperGroup):
    """Shows the table above; imports a command's module when that command is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, entry in COMMANDS.items():
            self.add_command(TyperCommand(name, help=entry.help))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that `args` name, loaded, and the arguments left for it."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load(cast(str, name)), rest


@dataclass
class Options:
    """Options given before the command."""

    debug: bool = False


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: fits a screen, reads well in logs, and spares 0.1 s
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"avlm {avlm.__version__}")
        raise typer.Exit


@app.callback(help="Fine-tune audio-visual language models from one recipe file.")
def _global_options(
    ctx: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    ctx.ensure_object(Options).debug = debug


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs `avlm` with `arguments` (default: the process's own) and returns the exit code.

    0: done. 2: bad input (a wrong flag, or `UserError`). 1: the run failed (`RunError`). 130: interrupted. Any other
    exception is a defect and passes through with its traceback.
    """
    options = Options()
    try:
        app(arguments, prog_name="avlm", obj=options)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return 130
    except (UserError, RunError) as error:
        if options.debug:
            raise
        typer.secho(f"Error: {error}", fg="red", err=True)
        return error.exit_code
    return 0


def main() -> None:
    """Entry point of the `avlm` script. Characters that the terminal's encoding does not have are shown as `?`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    sys.exit(run())


if __name__ == "__main__":
    main()
