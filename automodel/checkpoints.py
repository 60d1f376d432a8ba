"""AutoModel's checkpoint folders: `<output_dir>/checkpoints/epoch_<E>_step_<S>`, both counted from 0."""

from __future__ import annotations

import re
from pathlib import Path

from avlm.errors import RunError

FOLDER = "checkpoints"
_NAME = re.compile(r"epoch_\d+_step_(\d+)")


def steps_done(checkpoint: Path) -> int:
    """Optimizer steps behind a checkpoint."""
    match = _NAME.fullmatch(checkpoint.name)
    if match is None:
        raise RunError(f"{checkpoint} is not a checkpoint folder of this project")
    return int(match[1]) + 1


def latest(run_folder: Path) -> Path | None:
    """The newest complete checkpoint of a run, or None. Complete ones are what `LATEST` points at."""
    pointer = run_folder / FOLDER / "LATEST"
    target = pointer.resolve()
    return target if pointer.exists() and target.is_dir() else None
