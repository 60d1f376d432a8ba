"""Recipe -> native configuration of AutoModel's `FinetuneRecipeForVLM` (nemo-automodel 0.6.0). Imports no upstream.

One line of `ENTRIES` per native key. What has no line is not AutoModel's business here: rows, media and batches come
from `avlm.data`, metrics from `avlm.metrics`, and the exact freezing from `automodel.patches.freeze_by_component`.
"""

from __future__ import annotations

import copy
import difflib
import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from automodel.native_keys import known_keys
from automodel.peft_targets import native_freeze_config, peft_target_modules
from avlm.errors import UserError
from avlm.recipe.fields import get_value
from avlm.recipe.horizon import warmup_steps
from avlm.recipe.schema import Recipe, StackName
from avlm.stacks import Native, build, flatten, set_dotted

NEVER = 10**9
"""A step or epoch that is not reached. For a missing value AutoModel takes 10 epochs and a checkpoint every epoch
(`components/training/step_scheduler.py`), which would end or interrupt a run that was asked for by steps."""
_TIMEOUT_MINUTES = 30
_REMOTE_CODE = frozenset({"nemotron_3_nano_omni"})
"""Families whose published checkpoints bring their own Python classes."""


def _same(path: str) -> Callable[[Recipe], Any]:
    return lambda recipe: get_value(recipe, path)


def _fixed(value: Any) -> Callable[[Recipe], Any]:
    return lambda recipe: value


def _on_cpu(recipe: Recipe) -> bool:
    return recipe.device == "cpu"


def _is_lora(recipe: Recipe) -> bool:
    return recipe.method.kind == "lora"


def _is_fsdp2(recipe: Recipe) -> bool:
    return recipe.parallel.strategy == "fsdp2"


def _is_megatron_fsdp(recipe: Recipe) -> bool:
    return recipe.parallel.strategy == "megatron_fsdp"


def _brings_code(recipe: Recipe) -> bool:
    return recipe.model.family in _REMOTE_CODE


def _has_revision(recipe: Recipe) -> bool:
    return recipe.model.revision is not None


def _validates(recipe: Recipe) -> bool:
    return bool(recipe.data.validation)


def _checkpoint_interval(recipe: Recipe) -> int:
    return recipe.schedule.checkpoint_interval or NEVER


def _offloads(recipe: Recipe) -> bool:
    return recipe.memory.parameter_offload


def _stored_dtype(recipe: Recipe) -> str:
    """Weights as stored: AdamW's moments take their data type, FSDP2 casts them to `model.dtype` for computation."""
    wide = recipe.memory.optimizer_state_dtype == "float32"
    return "torch.float32" if wide else f"torch.{recipe.model.dtype}"


def _backend(recipe: Recipe) -> str:
    if _on_cpu(recipe):
        return "gloo"
    return "cpu:gloo,cuda:nccl" if _offloads(recipe) else "nccl"  # gradients in host RAM are reduced by gloo


def _warmup(recipe: Recipe) -> int | None:
    """Steps of the warmup, at least 1; None while the horizon is unknown."""
    steps = recipe.schedule.max_steps
    if steps is None:
        return max(recipe.optimizer.warmup, 1) if isinstance(recipe.optimizer.warmup, int) else None
    return max(warmup_steps(recipe, steps), 1)


def _native_warmup(recipe: Recipe) -> int | None:
    """AutoModel uses in step k the value of its schedule after k - 1 steps, ours peaks in step w."""
    warmup = _warmup(recipe)
    return None if warmup is None else warmup - 1


def _first_lr(recipe: Recipe) -> float | None:
    warmup = _warmup(recipe)
    return None if warmup is None else recipe.optimizer.lr / warmup


def _checkpointing(recipe: Recipe) -> bool | str:
    mode = recipe.memory.activation_checkpointing
    return mode if mode == "selective" else mode == "full"


def _freeze(key: str) -> Callable[[Recipe], bool]:
    return lambda recipe: native_freeze_config(recipe)[key]


_LENGTH = ("schedule.max_steps", "schedule.epochs")
_WARMUP = ("optimizer.warmup", *_LENGTH)
_DTYPES = ("model.dtype", "memory.optimizer_state_dtype")
_VISION, _AUDIO, _DECODER = "freeze.vision_encoder", "freeze.audio_encoder", "freeze.language_model"
_OFFLOAD = ("memory.optimizer_offload", "memory.parameter_offload")
_FSDP = "torch.distributed.fsdp"
_ROWS = "automodel.batches.recipe_rows"

# fmt: off
ENTRIES: tuple[Native, ...] = (
    Native("seed", ("seed",), _same("seed")),
    Native("dist_env.backend", ("device", "memory.parameter_offload"), _backend, open=True),
    Native("dist_env.timeout_minutes", (), _fixed(_TIMEOUT_MINUTES)),

    Native("step_scheduler.global_batch_size", ("batch.global_batch_size",), _same("batch.global_batch_size")),
    Native("step_scheduler.local_batch_size", ("batch.micro_batch_size",), _same("batch.micro_batch_size")),
    Native("step_scheduler.max_steps", _LENGTH, _same("schedule.max_steps")),
    Native("step_scheduler.num_epochs", ("schedule.epochs",), lambda r: r.schedule.epochs or NEVER),
    Native("step_scheduler.ckpt_every_steps", ("schedule.checkpoint_interval",), _checkpoint_interval),
    Native("step_scheduler.save_checkpoint_every_epoch", (), _fixed(False)),
    Native("step_scheduler.val_every_steps", ("schedule.validation_interval",), _same("schedule.validation_interval")),

    Native("model._target_", (), _fixed("nemo_automodel.NeMoAutoModelForMultimodalLM.from_pretrained")),
    Native("model.pretrained_model_name_or_path", ("model.checkpoint",), _same("model.checkpoint")),
    Native("model.revision", ("model.revision",), _same("model.revision"), when=_has_revision),
    Native("model.trust_remote_code", ("model.family",), _fixed(True), when=_brings_code, open=True),
    Native("model.torch_dtype", _DTYPES, _stored_dtype, open=True),
    Native("model.attn_implementation", (), _fixed("sdpa")),
    Native("model.backend._target_", (), _fixed("nemo_automodel.components.models.common.BackendConfig")),
    Native("model.backend.attn", (), _fixed("sdpa")),
    Native("model.backend.linear", (), _fixed("torch")),
    # torch_fp32 is compiled, which takes minutes on a CPU, where everything is float32 anyway
    Native("model.backend.rms_norm", ("device",), lambda r: "torch" if _on_cpu(r) else "torch_fp32", open=True),
    Native("model.backend.rope_fusion", (), _fixed(False)),
    Native("model.backend.experts", ("device",), lambda r: "torch" if _on_cpu(r) else "torch_mm", open=True),
    Native("model.backend.dispatcher", ("parallel.moe_dispatcher",), _same("parallel.moe_dispatcher"), open=True),
    Native("model.backend.enable_hf_state_dict_adapter", (), _fixed(True)),

    Native("freeze_config.freeze_vision_tower", (_VISION, "method.kind"), _freeze("freeze_vision_tower")),
    Native("freeze_config.freeze_audio_tower", (_AUDIO, "method.kind"), _freeze("freeze_audio_tower")),
    Native("freeze_config.freeze_language_model", (_DECODER, "method.kind"), _freeze("freeze_language_model")),

    Native("peft._target_", ("method.kind",), _fixed("nemo_automodel.components._peft.lora.PeftConfig"), when=_is_lora),
    Native("peft.dim", ("method.lora.rank",), _same("method.lora.rank"), when=_is_lora),
    Native("peft.alpha", ("method.lora.alpha",), _same("method.lora.alpha"), when=_is_lora),
    Native("peft.dropout", ("method.lora.dropout",), _same("method.lora.dropout"), when=_is_lora),
    Native("peft.dropout_position", (), _fixed("pre"), when=_is_lora),
    Native("peft.target_modules", ("method.lora.targets", "model.family"), peft_target_modules, when=_is_lora),

    Native("distributed.strategy", ("parallel.strategy",), _same("parallel.strategy")),
    Native("distributed.tp_size", ("parallel.tp",), _same("parallel.tp")),
    Native("distributed.pp_size", ("parallel.pp",), _same("parallel.pp")),
    Native("distributed.cp_size", ("parallel.cp",), _same("parallel.cp")),
    Native("distributed.ep_size", ("parallel.ep",), _same("parallel.ep")),
    Native("distributed.activation_checkpointing", ("memory.activation_checkpointing",), _checkpointing),
    Native("distributed.sequence_parallel", (), _fixed(False), when=_is_fsdp2),
    Native("distributed.mp_policy._target_", (), _fixed(f"{_FSDP}.MixedPrecisionPolicy"), when=_is_fsdp2),
    Native("distributed.mp_policy.param_dtype", ("model.dtype",), _same("model.dtype"), when=_is_fsdp2, open=True),
    Native("distributed.mp_policy.reduce_dtype", (), _fixed("float32"), when=_is_fsdp2),
    Native("distributed.mp_policy.output_dtype", ("model.dtype",), _same("model.dtype"), when=_is_fsdp2, open=True),
    Native("distributed.offload_policy._target_", _OFFLOAD, _fixed(f"{_FSDP}.CPUOffloadPolicy"), when=_offloads),
    Native("distributed.offload_policy.pin_memory", ("device",), lambda r: not _on_cpu(r), when=_offloads, open=True),
    Native("distributed.grad_reduce_in_fp32", (), _fixed(True), when=_is_megatron_fsdp),

    Native("optimizer._target_", (), _fixed("torch.optim.AdamW")),
    Native("optimizer.lr", ("optimizer.lr",), _same("optimizer.lr")),
    Native("optimizer.betas", ("optimizer.betas",), _same("optimizer.betas")),
    Native("optimizer.eps", ("optimizer.eps",), _same("optimizer.eps")),
    Native("optimizer.weight_decay", ("optimizer.weight_decay",), _same("optimizer.weight_decay")),
    Native("optimizer.foreach", ("device",), _fixed(False), when=_on_cpu, open=True),
    Native("lr_scheduler.lr_decay_style", (), _fixed("cosine")),
    Native("lr_scheduler.lr_warmup_steps", _WARMUP, _native_warmup),
    Native("lr_scheduler.lr_decay_steps", _LENGTH, _same("schedule.max_steps")),
    Native("lr_scheduler.init_lr", ("optimizer.lr", *_WARMUP), _first_lr),
    Native("lr_scheduler.max_lr", ("optimizer.lr",), _same("optimizer.lr")),
    Native("lr_scheduler.min_lr", ("optimizer.min_lr",), _same("optimizer.min_lr")),
    # a resumed run follows the recipe's schedule, not the one in the checkpoint
    Native("lr_scheduler.use_checkpoint_opt_param_scheduler", (), _fixed(False)),
    Native("lr_scheduler.override_opt_param_scheduler", (), _fixed(True)),
    Native("clip_grad_norm.max_norm", ("optimizer.grad_clip",), _same("optimizer.grad_clip")),
    Native("loss_fn._target_", (), _fixed("nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy")),

    Native("dataset._target_", ("data.train",), _fixed(_ROWS)),
    Native("validation_dataset._target_", ("data.validation",), _fixed(_ROWS), when=_validates),

    Native("checkpoint.enabled", (), _fixed(True)),
    Native("checkpoint.checkpoint_dir", ("output_dir",), lambda r: posixpath.join(r.output_dir, "checkpoints")),
    Native("checkpoint.model_save_format", (), _fixed("safetensors")),
    Native("checkpoint.save_consolidated", (), _fixed("final")),
    Native("checkpoint.max_recent_checkpoints", ("schedule.keep_last",), _same("schedule.keep_last")),
)
# fmt: on


@dataclass(frozen=True)
class AutoModel:
    """The stack as `avlm.stacks.Stack`."""

    name: StackName = "automodel"
    train_module: str = "automodel.train"
    entries: tuple[Native, ...] = ENTRIES

    def translate(self, recipe: Recipe, steps: int | None = None) -> dict[str, Any]:
        """See `translate`."""
        return translate(recipe, steps)

    def native_problems(self, recipe: Recipe) -> dict[str, str]:
        """See `native_problems`."""
        return native_problems(recipe)


STACK = AutoModel()


def translate(recipe: Recipe, steps: int | None = None) -> dict[str, Any]:
    """Native configuration of a recipe that passed the checks for this stack.

    Args:
        recipe: the recipe. Its `automodel` block of native keys is applied last.
        steps: the run's horizon (`avlm.recipe.horizon.horizon`), which alone ends the run then: AutoModel takes all
            epochs for equally long. Without it `max_steps` stands for it; a run of epochs only then has null in
            `max_steps`, `lr_decay_steps` and, for a share, the warmup.

    Returns:
        A nested dict of plain values, for `nemo_automodel.components.config.loader.ConfigNode`.

    Raises:
        UserError: a native key that AutoModel does not read or that a recipe field already says; a warmup longer than
            the run.
    """
    problems = native_problems(recipe)
    if problems:
        raise UserError("automodel: " + "\n  ".join(problems.values()))
    if steps is not None:
        schedule = recipe.schedule.model_copy(update={"max_steps": steps, "epochs": None})
        recipe = recipe.model_copy(update={"schedule": schedule})
    config = build(ENTRIES, recipe)
    for key, value in flatten(recipe.automodel).items():
        set_dotted(config, key, copy.deepcopy(value))
    return config


def native_problems(recipe: Recipe) -> dict[str, str]:
    """What is wrong with the recipe's `automodel` block: native key -> message."""
    known, entries = known_keys(), {entry.key: entry for entry in ENTRIES}
    problems = {}
    for key in flatten(recipe.automodel):
        entry = entries.get(key)
        if key not in known:
            longer = sorted(k for k in known if k.startswith(key))
            near = longer or difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.4)
            nearest = f"; the nearest is {near[0]}" if near else ""
            problems[key] = f"AutoModel reads no key {key}{nearest}"
        elif entry is not None and not entry.replaceable:
            problems[key] = f"{key} comes from {' and '.join(entry.fields)}; change it there"
    return problems
