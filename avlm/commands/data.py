"""`avlm data`: make demo clips, check a dataset, show its statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from avlm.recipe.schema import Data

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Make demo clips; check a dataset; show its statistics; write its metadata."""


@contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error, with speed; gives the function that moves it to (done, total)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft
    from rich.text import Text

    class Speed(ProgressColumn):
        """Things a second."""

        def render(self, task: Task) -> Text:
            return Text(f"{task.finished_speed or task.speed or 0:,.0f} {what}/s")

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), Speed(), TimeLeft())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _data_of(target: str, video_root: Path | None) -> Data:
    """The data block of a recipe, or one made for a JSONL file, with `video_root` set over it."""
    from avlm.recipe.load import load_recipe
    from avlm.recipe.schema import Data
    from avlm.utils.files import check_name

    if target.endswith((".jsonl", ".json")):
        for path in (Path(target), *([video_root] if video_root else [])):
            check_name(path, "data")
        return Data(train=[target], video_root=str(video_root or Path(target).parent))
    data = load_recipe(target).recipe.data
    return data if video_root is None else data.model_copy(update={"video_root": str(video_root)})


@app.command("make-demo")
def make_demo(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write; must not exist yet.")],
    seed: Annotated[int, typer.Option(help="Seed of everything random about the clips.", min=0, max=2**32 - 1)] = 0,
    clips: Annotated[int, typer.Option(help="Number of clips; one in five is for validation.")] = 320,
) -> None:
    """Write MP4 clips of a moving square with a tone, and questions about them, as train and validation JSONL."""
    from avlm.data import demo

    with _bar("clips") as update:
        state = demo.make_demo(directory, seed, clips, update)
    typer.echo(f"{directory}: {state}")


@app.command()
def check(
    target: Annotated[
        str, typer.Argument(metavar="RECIPE_OR_JSONL", help="Recipe (file or short name), or one JSONL file.")
    ],
    video_root: Annotated[
        Path | None,
        typer.Option(help="Folder that media paths are relative to; default: the recipe's, or the JSONL's."),
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Look at packets only; do not decode media.")] = False,
    jobs: Annotated[int, typer.Option(help="Files read at the same time.", min=1)] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Read a whole dataset and name everything wrong with it, by file and line. Exit code 2 when something is."""
    import json

    from rich.console import Console

    from avlm.data.check import check_dataset

    data = _data_of(target, video_root)
    with _bar("files") as update:
        report = check_dataset(data, decode=not fast, jobs=jobs, progress=update)
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        report.print(Console())
    raise typer.Exit(0 if report.ok else 2)


@app.command()
def stats(
    recipe: Annotated[str, typer.Argument(help="Recipe file, or a short name such as tiny_omni/sft.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="KEY=VALUE, e.g. data.max_video_frames=64.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Show exact token counts of every row, as a histogram, with frames and seconds."""
    import json

    from rich.console import Console

    from avlm.data.stats import dataset_stats
    from avlm.recipe.load import load_recipe

    loaded = load_recipe(recipe, overrides or [])
    with _bar("rows") as update:
        result = dataset_stats(loaded.recipe, update)
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=2))
    else:
        result.print(Console())


@app.command()
def metadata(
    files: Annotated[list[Path], typer.Argument(metavar="JSONL…", help="JSONL files of rows.")],
    video_root: Annotated[
        Path | None, typer.Option(help="Folder that media paths are relative to; default: that of each JSONL file.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Processes; default: one for each processor.", min=1)] = None,
) -> None:
    """Look at every media file once and keep what is found in JSONL.metadata.jsonl, so that runs start at once.

    Runs find that file by its name and believe it for media that have not changed since. Called again, it looks at new
    and changed media only. Exit code 2 when a file cannot be used.
    """
    from avlm.data.metadata import build_metadata

    bad = False
    for file in files:
        with _bar("files") as update:
            built = build_metadata(file, video_root or file.parent, jobs=jobs, progress=update)
        typer.echo(f"{built.path}: {built.files:,} media files, {built.probed:,} looked at now")
        for name, reason in built.damaged:
            typer.echo(f"  damaged: {name}: {reason}")
        for reason, count in built.opened.most_common():
            typer.echo(f"  opened with FFmpeg: {count:,} files: {reason}")
        for name, reason in built.bad:
            typer.secho(f"  unusable: {name}: {reason}", fg="red", err=True)
        if built.bad_rows:
            typer.secho(f"  {built.bad_rows:,} lines are no rows; `avlm data check` names them", fg="red", err=True)
        bad = bad or bool(built.bad or built.bad_rows)
    raise typer.Exit(2 if bad else 0)
