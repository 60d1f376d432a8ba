"""`python -m automodel.train RECIPE [KEY=VALUE…]`: one rank of a training run on AutoModel.

Everything that can be wrong with the input is found before upstream is imported (half a minute).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from avlm.errors import RunError, UserError

if TYPE_CHECKING:
    from automodel.loop import Finetune
    from avlm.recipe.schema import Recipe

NAME: Final = "automodel"


def _log_to_file(folder: Path, rank: int) -> TextIO:
    """Log to `logs/rank<N>.log`, which is returned; warnings of this project also go to the terminal of rank 0."""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    file = (folder / "logs" / f"rank{rank}.log").open("a", encoding="utf-8", buffering=1)
    logging.basicConfig(level=logging.INFO, stream=file, force=True)
    logging.captureWarnings(True)
    for name in ("torch", "transformers"):  # they bring handlers of their own, which write to the terminal
        library = logging.getLogger(name)
        library.handlers, library.propagate = [], True
    if rank == 0:
        terminal = logging.StreamHandler()
        terminal.setLevel(logging.WARNING)
        terminal.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        for name in ("automodel", "avlm"):
            logging.getLogger(name).handlers = [terminal]
    return file


def _threads(recipe: Recipe) -> int:
    """Compute threads of a rank on a CPU: its share of the cores, less those that its loader workers keep busy.

    More threads than cores are worse than few: OpenMP threads wait for each other in busy loops.
    """
    share = len(os.sched_getaffinity(0)) // recipe.parallel.devices_per_node
    return max(1, share - recipe.data.workers)


def train(recipe_path: str, overrides: Sequence[str] = ()) -> None:
    """Load, check, train and export. Raises `UserError` or `RunError`."""
    from avlm.recipe.checks import check
    from avlm.recipe.load import load_recipe

    loaded = load_recipe(recipe_path, overrides)
    check(loaded.recipe, loaded.places, stack=NAME)
    run_recipe(loaded.recipe)


def run_recipe(recipe: Recipe) -> Finetune:
    """Train a checked recipe as one rank, export it when its schedule is done, and return the loop.

    Raises:
        UserError: bad data, another number of ranks than the recipe's, a checkpoint or folder of another run, a
            package of the family that is not installed.
        RunError: the run failed.
    """
    from automodel.translate import translate
    from avlm.launch.run import prepare
    from avlm.utils.quiet import quiet_loading

    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world != recipe.world_size:
        raise UserError(
            f"{world} ranks were started, but parallel.nodes × parallel.devices_per_node = {recipe.parallel.nodes} × "
            f"{recipe.parallel.devices_per_node}; start {recipe.world_size} ranks or override the two"
        )
    with quiet_loading():
        _require_packages(recipe.model.family)
    run = prepare(recipe, stack=NAME, main=rank == 0, check_folder=rank == 0)
    log = _log_to_file(run.folder, rank)

    import torch

    if recipe.device == "cpu":
        torch.set_num_threads(_threads(recipe))

    native = translate(recipe, run.steps)
    if rank == 0:
        print("importing AutoModel and building the model: about half a minute", flush=True)
    with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):  # upstream's chatter
        from automodel.checkpoints import latest, steps_done
        from automodel.export import export
        from automodel.loop import Finetune

        finetune = Finetune(native, run)
        finetune.setup()
    finetune.run_train_validation_loop()
    checkpoint = latest(run.folder)
    if rank == 0 and checkpoint is not None and steps_done(checkpoint) >= run.steps:
        print(f"exported to {export(run)}", flush=True)
        run.mark_done()
    return finetune


def _require_packages(family: str) -> None:
    """Refuse to start without the packages that `automodel/families/<family>.py` names in `PACKAGES`."""
    needed = getattr(importlib.import_module(f"automodel.families.{family}"), "PACKAGES", ())
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"model.family: {family} needs the Python packages {' and '.join(missing)} (GPU kernels); "
            "make env EXTRA=gpu installs them"
        )


def main(arguments: Sequence[str]) -> int:
    """Exit code: 0, 2 for bad input, 1 for a failed run."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    try:
        train(arguments[0], arguments[1:])
    except (UserError, RunError) as error:
        if int(os.environ.get("RANK", "0")) == 0:
            print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
