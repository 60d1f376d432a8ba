"""Run a stack's training on this machine: one process, or one per rank through torch's elastic launcher."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from avlm.errors import UserError
from avlm.launch.run import STOP_FILE, refuse_busy
from avlm.recipe.schema import Recipe
from avlm.stacks import Stack
from avlm.utils.files import check_writable

PATIENCE = 600.0
"""Seconds that ranks get for the rest of a step and a checkpoint, once they are asked to stop."""
RANKS_PER_CORE = 8
"""CPU ranks for each core that are still let through; more would only bring the machine to a halt."""
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
    stop = Path(recipe.output_dir) / STOP_FILE
    _remove(stop)  # meant for an earlier attempt
    with _noted_signals() as signals:
        process = subprocess.Popen(command, start_new_session=True, preexec_fn=_dies_with_parent())
        code = _wait(process, signals, stop, patience)
    if not signals:
        return code if code in (0, 2) else 1
    _remove(stop)  # it came after the last step, or was not waited for
    return 128 + signals[0] if code in (0, None) else 2 if code == 2 else 1


def _wait(process: subprocess.Popen[bytes], signals: list[int], stop: Path, patience: float) -> int | None:
    """Exit code of the process, or None when it was killed."""
    deadline = None
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=0.1)
        if signals and deadline is None:
            deadline = time.monotonic() + (patience if _asked_to_stop(stop) else 0.0)
        if deadline is not None and (len(signals) > 1 or time.monotonic() >= deadline):
            _kill(process)
            print("stopped", flush=True)
            return None


def _remove(stop: Path) -> None:
    with suppress(OSError):
        stop.unlink()


def _asked_to_stop(stop: Path) -> bool:
    """Make the stop file; False when there is no folder for it yet, so nothing to save."""
    try:
        stop.touch()
    except OSError:
        return False
    print("\nstopping after this step with a checkpoint; Ctrl-C again stops now", flush=True)
    return True


@contextmanager
def _noted_signals() -> Iterator[list[int]]:
    """Within the block signals that ask for an end are collected; ignored ones (`nohup`) stay ignored."""
    received: list[int] = []
    caught = [stop for stop in _STOPS if signal.getsignal(stop) is not signal.SIG_IGN]
    before = {stop: signal.signal(stop, lambda number, _: received.append(number)) for stop in caught}
    try:
        yield received
    finally:
        for stop, handler in before.items():
            signal.signal(stop, handler)


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
        psutil.wait_procs(family[:-1], timeout=5)
    process.wait()


def _refuse_missing_devices(recipe: Recipe) -> None:
    """The ranks that the recipe asks for must fit this machine."""
    ranks = recipe.parallel.devices_per_node
    if recipe.device == "cpu":
        most = RANKS_PER_CORE * (os.cpu_count() or 1)
        if ranks > most:
            raise UserError(
                f"parallel.devices_per_node: {ranks} ranks are too many for this machine's CPU; at most {most}"
            )
        return
    import torch

    found = torch.cuda.device_count()
    if found < ranks:
        has = {0: "no GPU", 1: "1 GPU"}.get(found, f"{found} GPUs")
        raise UserError(
            f"parallel.devices_per_node is {ranks}, but this machine has {has} that PyTorch can use (`avlm doctor` "
            "says more); lower it, or train on another machine"
        )


def check_locally(recipe_path: str, overrides: Sequence[str], stack: str) -> tuple[Recipe, Stack]:
    """The recipe and the stack that trains it, once all that can be told without the data is seen to be right.

    Raises:
        UserError: a bad recipe, one that does not fit this machine, or a folder that cannot be written.
    """
    from avlm.recipe.checks import check
    from avlm.recipe.load import load_recipe
    from avlm.stacks import get_stack

    loaded = load_recipe(recipe_path, overrides)
    recipe, chosen = loaded.recipe, get_stack(stack)
    check(recipe, loaded.places, stack=chosen.name)
    if recipe.parallel.nodes > 1:
        raise UserError(
            f"parallel.nodes is {recipe.parallel.nodes}: `avlm train` starts ranks on this machine only; start "
            f"`python -m {chosen.train_module}` on every node with torchrun or srun, or set parallel.nodes=1"
        )
    _refuse_missing_devices(recipe)
    check_writable(Path(recipe.output_dir), "output_dir")
    refuse_busy(Path(recipe.output_dir))
    return recipe, chosen


def train_locally(recipe_path: str, overrides: Sequence[str], stack: str) -> int:
    """Check everything that training will need, then train on this machine. Returns the exit code of `launch`.

    Raises:
        UserError: bad recipe or data; nothing has been started or written.
    """
    from avlm.launch.run import prepare

    recipe, chosen = check_locally(recipe_path, overrides, stack)
    run = prepare(recipe, stack=chosen.name, main=False)
    if run.done:
        print(f"{recipe.name}: all {run.steps} steps are done and exported in {run.folder}")
        return 0
    print(f"{recipe.name}: {len(run.rows)} rows, {run.steps} steps, {chosen.name}; log in {run.folder / 'logs'}")
    code = launch(recipe, chosen.train_module, [recipe_path, *overrides])
    return 0 if code > 128 and run.done else code  # a signal after the last step changes nothing
