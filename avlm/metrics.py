"""Metrics of a run: JSONL always, TensorBoard and Weights & Biases on request, the same names on every stack."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

from avlm.errors import RunError, UserError
from avlm.recipe.schema import Recipe

TRAIN_FILE = "metrics.jsonl"
VALIDATION_FILE = "validation.jsonl"


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a JSONL file; a torn last line (killed writer) is left out. Missing file: empty list.

    Raises `UserError` for a line that is damaged.
    """
    if not path.is_file():
        return []
    found = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            found.append(dict(json.loads(line)))
        except (ValueError, TypeError):
            raise UserError(f"{path}:{number}: is damaged; remove this line") from None
    return found


def _rewind(path: Path, step: int) -> None:
    """Forget entries after `step`, which a resumed run will write again."""
    kept = [entry for entry in read_jsonl(path) if entry["step"] <= step]
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("".join(json.dumps(entry) + "\n" for entry in kept), encoding="utf-8")
    os.replace(temporary, path)


class MetricsWriter:
    """Writes one entry a step to `<output_dir>`; only the main rank makes one.

    Args:
        recipe: the run's recipe (`logging`, `output_dir`, `name`).
        step: steps already done; later entries of an earlier attempt are removed.
    """

    def __init__(self, recipe: Recipe, step: int = 0) -> None:
        self._folder = Path(recipe.output_dir)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._interval = recipe.logging.interval
        for name in (TRAIN_FILE, VALIDATION_FILE):
            _rewind(self._folder / name, step)
        self._files = {
            name: (self._folder / name).open("a", encoding="utf-8") for name in (TRAIN_FILE, VALIDATION_FILE)
        }
        self._tensorboard = self._open_tensorboard(step) if recipe.logging.tensorboard else None
        self._wandb = self._open_wandb(recipe) if recipe.logging.wandb != "disabled" else None

    def _open_tensorboard(self, step: int) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self._folder / "tensorboard"), purge_step=step + 1 if step else None)

    def _open_wandb(self, recipe: Recipe) -> Any:
        import wandb

        mode = recipe.logging.wandb
        if mode == "online" and not wandb.api.api_key:
            print(
                "W&B: no key found (`wandb login` stores one), so this run is recorded offline under wandb/.",
                flush=True,
            )
            mode = "offline"
        id_file = self._folder / "wandb_id"
        run_id = id_file.read_text(encoding="utf-8") if id_file.is_file() else uuid.uuid4().hex[:8]
        id_file.write_text(run_id, encoding="utf-8")
        return wandb.init(
            project=recipe.logging.wandb_project,
            entity=recipe.logging.wandb_entity,
            name=recipe.name,
            id=run_id,
            resume="allow",
            mode=mode,
            dir=str(self._folder),
            config=recipe.model_dump(),
        )

    def _write(self, name: str, prefix: str, entry: dict[str, Any]) -> None:
        file = self._files[name]
        try:
            file.write(json.dumps(entry) + "\n")
            file.flush()
        except OSError as error:
            raise RunError(f"{self._folder / name}: could not be written: {error.strerror or error}") from error
        values = {f"{prefix}/{key}": value for key, value in entry.items() if key != "step"}
        if self._tensorboard is not None:
            for key, value in values.items():
                self._tensorboard.add_scalar(key, value, entry["step"])
        if self._wandb is not None:
            self._wandb.log(values, step=entry["step"])

    def train(
        self,
        *,
        step: int,
        epoch: int,
        loss: float,
        lr: float,
        grad_norm: float,
        tokens: int,
        supervised_tokens: int,
        seconds: float,
    ) -> None:
        """One optimizer step. `loss`: mean over supervised tokens of the global batch; `lr`: as used in this step;
        `tokens`: all tokens without padding, over all ranks; `seconds`: wall time of the step with loading."""
        if step % self._interval:
            return
        entry = {
            "step": step,
            "epoch": epoch,
            "loss": loss,
            "lr": lr,
            "grad_norm": grad_norm,
            "tokens": tokens,
            "supervised_tokens": supervised_tokens,
            "tokens_per_second": tokens / seconds if seconds > 0 else 0.0,
            "seconds": seconds,
        }
        self._write(TRAIN_FILE, "train", entry)

    def validation(self, *, step: int, loss: float, supervised_tokens: int) -> None:
        """One validation pass after `step` steps. `loss`: mean over all supervised tokens of the validation rows."""
        entry = {"step": step, "loss": loss, "supervised_tokens": supervised_tokens}
        self._write(VALIDATION_FILE, "validation", entry)

    def close(self) -> None:
        """Flush and close every sink."""
        for file in self._files.values():
            file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()
