"""Run a stack's training on this machine: one process, or one per rank through torch's elastic launcher."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from avlm.errors import UserError
from avlm.launch.run import STOP_FILE
from avlm.recipe.schema import Recipe

PATIENCE = 600.0
"""Seconds that ranks get for the rest of a step and a checkpoint, once they are asked to stop."""
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def launch(recipe: Recipe, module: str, arguments: Sequence[str], *, patience: float = PATIENCE) -> int:
    """Run `python -m <module> <arguments>` on `devices_per_node` ranks and wait.

    Ctrl-C, SIGTERM or SIGHUP once asks for a checkpoint and a clean stop after the current step, by the stop file;
    a second one, or `patience` seconds without an end, stops now. Either way no process is left behind; ranks whose
    launcher is killed are sent SIGTERM by the kernel (Linux).

    Returns:
        The exit code: 0, 2 (bad input), 1 (failed run), 128 + the signal's number when the run was stopped by one.
    """
    ranks = recipe.parallel.devices_per_node
    command = [sys.executable, "-m"]
    command += [module, *arguments] if ranks == 1 else ["avlm.launch.ranks", str(ranks), module, *arguments]
    folder = Path(recipe.output_dir)
    with _noted_signals() as signals:
        process = subprocess.Popen(command, start_new_session=True, preexec_fn=_dies_with_parent())
        deadline = float("inf")
        while True:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout=0.1)
                break
            if signals and deadline == float("inf"):
                deadline = time.monotonic() + patience
                if not _asked_to_stop(folder):
                    deadline = 0.0
            if len(signals) > 1 or time.monotonic() > deadline:
                _kill(process)
                print("stopped", flush=True)
                return 128 + signals[0]
    if signals and code == 0:
        return 128 + signals[0]
    return code if code in (0, 2) else 1


def _asked_to_stop(folder: Path) -> bool:
    """Make the stop file; False when there is no folder yet, so nothing to save."""
    try:
        (folder / STOP_FILE).touch()
    except OSError:
        return False
    print("\nstopping after this step with a checkpoint; Ctrl-C again stops now", flush=True)
    return True


@contextmanager
def _noted_signals() -> Iterator[list[int]]:
    """Within the block signals that ask for an end are collected; ignored ones (`nohup`) stay ignored."""
    received: list[int] = []
    before: dict[int, Any] = {}
    for number in _STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, lambda number, _: received.append(number))
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _dies_with_parent() -> Callable[[], None] | None:
    """What a new process calls so that the kernel sends it SIGTERM when its parent is gone."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started, wherever they moved."""
    import psutil

    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process.pid)
        parent.suspend()  # it starts nothing more
        family = [*parent.children(recursive=True), parent]
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(family[:-1], timeout=10)
    process.wait()


def train_locally(recipe_path: str, overrides: Sequence[str], stack: str) -> int:
    """Check everything that training will need, then train on this machine. Returns the exit code of `launch`.

    Raises:
        UserError: bad recipe or data; nothing has been started or written.
    """
    from avlm.launch.run import prepare, refuse_busy
    from avlm.recipe.checks import check
    from avlm.recipe.load import load_recipe
    from avlm.stacks import get_stack
    from avlm.utils.quiet import quiet_loading

    loaded = load_recipe(recipe_path, overrides)
    chosen = get_stack(stack)
    check(loaded.recipe, loaded.places, stack=chosen.name)
    if loaded.recipe.parallel.nodes > 1:
        raise UserError(
            f"parallel.nodes is {loaded.recipe.parallel.nodes}: `avlm train` starts ranks on this machine only; start "
            f"`python -m {chosen.train_module}` on every node with torchrun or srun, or set parallel.nodes=1"
        )
    refuse_busy(Path(loaded.recipe.output_dir))
    with quiet_loading():
        run = prepare(loaded.recipe, stack=chosen.name, main=False)
    if run.done:
        print(f"{loaded.recipe.name}: all {run.steps} steps are done and exported in {run.folder}")
        return 0
    print(f"{loaded.recipe.name}: {len(run.rows)} rows, {run.steps} steps, {chosen.name}; log in {run.folder / 'logs'}")
    code = launch(loaded.recipe, chosen.train_module, [recipe_path, *overrides])
    if code > 128 and run.done:  # the signal came after the last step
        return 0
    return code
