"""Run a stack's training on this machine: one process, or one per rank through torch's elastic launcher."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from avlm.errors import UserError
from avlm.launch.run import STOP_FILE
from avlm.recipe.schema import Recipe


def launch(recipe: Recipe, module: str, arguments: Sequence[str]) -> int:
    """Run `python -m <module> <arguments>` on `devices_per_node` ranks and wait.

    Ctrl-C once asks for a checkpoint and a clean stop after the current step; twice stops now.

    Returns:
        The exit code: 0, 2 (bad input), 1 (failed run).
    """
    ranks = recipe.parallel.devices_per_node
    command = [sys.executable, "-m"]
    command += [module, *arguments] if ranks == 1 else ["avlm.launch.ranks", str(ranks), module, *arguments]
    process = subprocess.Popen(command, start_new_session=True)
    asked = False
    while True:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            if asked:
                process.send_signal(signal.SIGTERM)
                process.kill()
                raise
            asked = True
            (Path(recipe.output_dir) / STOP_FILE).touch()
            print("\nstopping after this step with a checkpoint; Ctrl-C again stops now", flush=True)
        else:
            return code if code in (0, 2) else 1


def train_locally(recipe_path: str, overrides: Sequence[str], stack: str) -> int:
    """Check everything that training will need, then train on this machine. Returns the exit code.

    Raises:
        UserError: bad recipe or data; nothing has been started or written.
    """
    from avlm.launch.run import prepare
    from avlm.recipe.checks import check
    from avlm.recipe.load import load_recipe
    from avlm.stacks import get_stack

    loaded = load_recipe(recipe_path, overrides)
    chosen = get_stack(stack)
    check(loaded.recipe, loaded.places, stack=chosen.name)
    if loaded.recipe.parallel.nodes > 1:
        raise UserError(
            f"parallel.nodes is {loaded.recipe.parallel.nodes}: `avlm train` starts ranks on this machine only; start "
            f"`python -m {chosen.train_module}` on every node with torchrun or srun, or set parallel.nodes=1"
        )
    run = prepare(loaded.recipe, stack=chosen.name, main=False)
    if run.done:
        print(f"{loaded.recipe.name}: all {run.steps} steps are done and exported in {run.folder}")
        return 0
    print(f"{loaded.recipe.name}: {len(run.rows)} rows, {run.steps} steps, {chosen.name}; log in {run.folder / 'logs'}")
    return launch(loaded.recipe, chosen.train_module, [recipe_path, *overrides])
