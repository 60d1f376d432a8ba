"""AutoModel's own fine-tuning loop, fed with our batches. Imports upstream on import: import it last.

`Finetune` is `nemo_automodel.recipes.vlm.finetune.FinetuneRecipeForVLM` with hooks: our loader instead of its dataset,
exact freezing, our metrics, early checkpoint on a stop file, and one clear message when a checkpoint cannot be written.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from nemo_automodel.components.checkpoint.utils import is_checkpoint_incomplete
from nemo_automodel.components.config.loader import ConfigNode
from nemo_automodel.recipes._typed_config import RecipeConfig
from nemo_automodel.recipes.vlm.finetune import FinetuneRecipeForVLM

from automodel import towers
from automodel.batches import TOKENS, Batches, inputs_of
from automodel.cpu import on_cpu
from automodel.patches import (
    expert_lora_tokens,
    mamba_out_adapter,
    nemotron_frozen_towers,
    nemotron_media,
    nemotron_sound_scale,
    packed_padding_mask,
)
from automodel.patches.adapter_init import adapters_from_seed
from automodel.patches.freeze_by_component import freeze_by_component
from automodel.trainable import assert_trainable
from avlm.errors import RunError
from avlm.launch.run import STOP_FILE, Run
from avlm.metrics import MetricsWriter

log = logging.getLogger("automodel.loop")


class _Config(RecipeConfig):
    """The native config, with our batches in place of the dataset blocks."""

    def __init__(self, native: dict[str, Any], run: Run) -> None:
        super().__init__(ConfigNode(native))
        self._run = run

    @cached_property
    def vlm_dataloader(self) -> Batches:
        return Batches(self._run, training=True)

    @cached_property
    def vlm_validation_dataloader(self) -> Batches | None:
        return Batches(self._run, training=False) if self._run.validation else None


class Finetune(FinetuneRecipeForVLM):
    """One run of AutoModel's loop. Call `setup()` then `run_train_validation_loop()`.

    Args:
        native: translated config (`automodel.translate.translate`).
        run: rows, processor and horizon.
    """

    def __init__(self, native: dict[str, Any], run: Run) -> None:
        super().__init__(_Config(native, run))
        self._run = run
        self._inputs = inputs_of(run.recipe.model.family)
        self._metrics: MetricsWriter | None = None
        self._unsupervised_steps = 0
        self._step_facts: dict[str, Any] = {}
        self._step_ended = 0.0

    def _context(self) -> contextlib.AbstractContextManager[None]:
        return on_cpu() if self._run.recipe.device == "cpu" else contextlib.nullcontext()

    def _create_distributed_setup(self) -> Any:
        if self._run.recipe.device == "cpu":
            self.dist_env.device = torch.device("cpu")
        return super()._create_distributed_setup()

    def _log_experiment_details(self) -> None:
        """The run's folder already holds recipe, native config and versions."""

    def setup(self) -> None:
        """Build model, optimizer, loaders; resume when the run's folder holds a checkpoint."""
        recipe = self._run.recipe
        with self._context(), freeze_by_component(recipe), adapters_from_seed(recipe.seed):
            super().setup()
        model = self.model_parts[0]
        assert_trainable(model, recipe)
        expert_lora_tokens.apply(model)
        if recipe.model.family == "nemotron_3_nano_omni":
            nemotron_frozen_towers.apply(model, recipe)
            several = self.dist_env.world_size > 1
            nemotron_media.apply(model, always_hear=several and "audio" in self._run.media_kinds)
            nemotron_sound_scale.apply(model)
            mamba_out_adapter.apply(model)
        if recipe.model.family == "qwen3_omni_moe":
            if recipe.data.packing.enabled:
                packed_padding_mask.apply(model)
            towers.keep_in_step(model, self._run.media_kinds)
        for logger in (self.metric_logger_train, self.metric_logger_valid):
            logger.close()  # ours are written instead
            if self.dist_env.is_main:
                Path(logger.filepath).unlink(missing_ok=True)
        if self.dist_env.is_main:
            self._metrics = MetricsWriter(recipe, step=self.step_scheduler.step)
            if self._run.recipe.data.validation and not self._run.validation:
                log.warning("validation: no row to validate on, so no validation loss is written")

    def run_train_validation_loop(self) -> None:
        """Train to the horizon, or to a stop file."""
        if self.step_scheduler.step >= self.step_scheduler.max_steps:
            if self.dist_env.is_main:
                print(f"nothing to do: {self.step_scheduler.step} of {self.step_scheduler.max_steps} steps are done")
            self._finalize_and_close_checkpointer()
        else:
            with self._context():
                super().run_train_validation_loop()
        if self._metrics is not None:
            self._metrics.close()

    def _run_train_optim_step(self, batches: list[dict[str, Any]], max_grad_norm: float | None = None) -> Any:
        started = self._step_ended or self.timestamp
        lr = self.optimizer[0].param_groups[0]["lr"]
        tokens = torch.tensor([sum(int(batch[TOKENS]) for batch in batches)])
        tokens = int(self._dp_allreduce(tokens).item())
        sample = super()._run_train_optim_step(batches, max_grad_norm)
        self._step_ended = time.perf_counter()
        seconds = self._step_ended - started
        norm = sample.metrics["grad_norm"]
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        sample.metrics.update(lr=lr, grad_norm=float(norm), tps=tokens / seconds)
        self._step_facts = {"tokens": tokens, "seconds": seconds}
        return sample

    def _forward_backward_step(self, idx: int, batch: dict[str, Any], **kwargs: Any) -> None:
        super()._forward_backward_step(idx, self._inputs(batch), **kwargs)

    def log_train_metrics(self, log_data: Any) -> None:
        """Write the step's metrics; look for the stop file."""
        metrics, step = log_data.metrics, log_data.step + 1
        if metrics["num_label_tokens"] == 0:
            self._unsupervised_steps += 1
            if self._unsupervised_steps == 1 and self.dist_env.is_main:
                log.warning("step %d: no supervised token in the whole batch; loss is 0 and nothing is learned", step)
        if self._metrics is not None:
            self._metrics.train(
                step=step,
                epoch=log_data.epoch,
                loss=metrics["loss"],
                lr=metrics["lr"],
                grad_norm=metrics["grad_norm"],
                supervised_tokens=metrics["num_label_tokens"],
                **self._step_facts,
            )
        self._look_for_stop()

    def _look_for_stop(self) -> None:
        stop_file = self._run.folder / STOP_FILE
        stop = torch.tensor([int(self.dist_env.is_main and stop_file.exists())])
        if self.dist_env.world_size > 1:
            stop = stop.to(self.dist_env.device)
            torch.distributed.broadcast(stop, src=0)
        if stop.item():
            self.step_scheduler.sigterm_flag = True  # upstream's own path: checkpoint now, then leave the loop
            if self.dist_env.is_main:
                stop_file.unlink(missing_ok=True)
                print("stop file found: writing a checkpoint, then stopping", flush=True)

    def _run_validation_epoch(self, val_dataloader: Any) -> Any:
        val_dataloader.set_epoch(0)
        return super()._run_validation_epoch(self._inputs(batch) for batch in val_dataloader)

    def log_val_metrics(self, log_data: Any) -> None:
        """Write the validation loss."""
        if self._metrics is not None and log_data is not None and log_data.metrics["num_label_tokens"] > 0:
            self._metrics.validation(
                step=log_data.step + 1,
                loss=log_data.metrics["val_loss"],
                supervised_tokens=log_data.metrics["num_label_tokens"],
            )

    def save_checkpoint(self, epoch: int, step: int, *args: Any, **kwargs: Any) -> None:
        """Write a checkpoint. A failed write leaves the previous checkpoints alone and nothing half-written."""
        try:
            super().save_checkpoint(epoch, step, *args, **kwargs)
        except Exception as error:
            folder = Path(self.checkpointer.config.checkpoint_dir)
            unfinished = folder / f"epoch_{epoch}_step_{step}"
            if self.dist_env.is_main and is_checkpoint_incomplete(unfinished):  # never a complete one of this name
                shutil.rmtree(unfinished, ignore_errors=True)
            latest = folder / "LATEST"
            kept = f"the one before is intact: {latest.resolve()}" if latest.exists() else "there is none before it"
            raise RunError(
                f"the checkpoint after step {step + 1} could not be written ({_root_cause(error)}); {kept}"
            ) from error


def _root_cause(error: BaseException) -> str:
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return f"{type(error).__name__}: {error}"
