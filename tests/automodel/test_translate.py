"""Recipe -> native AutoModel config, without AutoModel.

`python -m tests.automodel.test_translate` writes the golden files anew; look at the difference before you commit it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from automodel.native_keys import known_keys
from automodel.translate import ENTRIES, NEVER, STACK, translate
from avlm.errors import UserError
from avlm.recipe.load import load_recipe, shipped_recipes
from avlm.recipe.yaml12 import dump
from avlm.stacks import flatten

GOLDEN = Path(__file__).parents[1] / "golden" / "automodel"
SHIPPED = sorted(shipped_recipes())
HORIZON = 500


def native(name: str, *overrides: str, steps: int | None = None) -> dict[str, Any]:
    return flatten(translate(load_recipe(name, overrides).recipe, steps))


def golden_file(name: str) -> Path:
    return GOLDEN / f"{name.replace('/', '-')}.yaml"


def golden_text(name: str) -> str:
    return dump(translate(load_recipe(name).recipe, HORIZON))


@pytest.mark.parametrize("name", SHIPPED)
def test_golden(name: str) -> None:
    assert golden_file(name).read_text(encoding="utf-8") == golden_text(name)


def test_no_golden_file_is_left_over() -> None:
    assert sorted(p.name for p in GOLDEN.glob("*.yaml")) == sorted(golden_file(name).name for name in SHIPPED)


def test_every_entry_is_a_key_that_automodel_reads() -> None:
    references = {"dataset._target_", "validation_dataset._target_"}
    assert {entry.key for entry in ENTRIES} - known_keys() == references


# ---- length of the run and learning rate (80 rows, global batch 8: 10 steps an epoch) ----


def test_steps_without_epochs_are_not_ended_by_epochs() -> None:
    found = native("tiny_omni/sft", "schedule={max_steps: 250, epochs: null}", steps=250)
    assert found["step_scheduler.max_steps"] == 250
    assert found["step_scheduler.num_epochs"] == NEVER
    assert found["lr_scheduler.lr_decay_steps"] == 250


def test_epochs_that_come_first() -> None:
    found = native(
        "tiny_omni/sft", "schedule={max_steps: 250, epochs: 3}", "optimizer.warmup=10", "optimizer.lr=3e-3", steps=30
    )
    assert found["step_scheduler.max_steps"] == 30
    assert found["step_scheduler.num_epochs"] == NEVER  # the horizon counts the epochs, which may differ in length
    assert found["lr_scheduler.lr_decay_steps"] == 30
    assert found["lr_scheduler.lr_warmup_steps"] == 9  # AutoModel's schedule is one step behind
    assert found["lr_scheduler.init_lr"] == pytest.approx(3e-4)


def test_epochs_only_and_no_horizon_yet() -> None:
    found = native("tiny_omni/sft", "schedule={max_steps: null, epochs: 3}")
    for key in ("step_scheduler.max_steps", "lr_scheduler.lr_decay_steps", "lr_scheduler.lr_warmup_steps"):
        assert found[key] is None
    assert found["step_scheduler.num_epochs"] == 3
    assert (
        native("tiny_omni/sft", "schedule={max_steps: null, epochs: 3}", "optimizer.warmup=5")[
            "lr_scheduler.lr_warmup_steps"
        ]
        == 4
    )


def test_a_share_of_warmup_follows_the_horizon() -> None:
    assert native("tiny_omni/sft", "optimizer.warmup=0.1", steps=250)["lr_scheduler.lr_warmup_steps"] == 24
    assert native("tiny_omni/sft", "optimizer.warmup=0", steps=250)["lr_scheduler.lr_warmup_steps"] == 0


def test_warmup_longer_than_the_run() -> None:
    with pytest.raises(UserError, match="300 warmup steps do not fit into the run's 30 steps"):
        native("tiny_omni/sft", "optimizer.warmup=300", steps=30)


def test_a_resumed_run_follows_the_recipe() -> None:
    found = native("tiny_omni/sft")
    assert found["lr_scheduler.override_opt_param_scheduler"] is True
    assert found["lr_scheduler.use_checkpoint_opt_param_scheduler"] is False


def test_intervals_that_are_not_given() -> None:
    found = native("tiny_omni/sft", "schedule={checkpoint_interval: null, validation_interval: null}")
    assert found["step_scheduler.ckpt_every_steps"] == NEVER
    assert found["step_scheduler.val_every_steps"] is None
    assert found["step_scheduler.save_checkpoint_every_epoch"] is False


# ---- data types, memory, ranks ----


@pytest.mark.parametrize(
    ("overrides", "stored", "computed"),
    [
        (("model.dtype=float32", "memory.optimizer_state_dtype=float32"), "torch.float32", "float32"),
        (("model.dtype=bfloat16", "memory.optimizer_state_dtype=float32"), "torch.float32", "bfloat16"),
        (("model.dtype=bfloat16", "memory.optimizer_state_dtype=bfloat16"), "torch.bfloat16", "bfloat16"),
    ],
)
def test_data_types(overrides: tuple[str, ...], stored: str, computed: str) -> None:
    found = native("qwen3_omni_30b_a3b/sft", *overrides)
    assert found["model.torch_dtype"] == stored
    assert found["distributed.mp_policy.param_dtype"] == found["distributed.mp_policy.output_dtype"] == computed
    assert found["distributed.mp_policy.reduce_dtype"] == "float32"


def test_offload() -> None:
    offload = "memory={optimizer_offload: true, parameter_offload: true}"
    gpu, cpu = native("qwen3_omni_30b_a3b/sft", offload), native("tiny_omni/sft", offload)
    assert gpu["distributed.offload_policy._target_"] == "torch.distributed.fsdp.CPUOffloadPolicy"
    assert (gpu["distributed.offload_policy.pin_memory"], gpu["dist_env.backend"]) == (True, "cpu:gloo,cuda:nccl")
    assert (cpu["distributed.offload_policy.pin_memory"], cpu["dist_env.backend"]) == (False, "gloo")
    assert not [key for key in native("qwen3_omni_30b_a3b/sft") if "offload" in key]


@pytest.mark.parametrize(("mode", "value"), [("none", False), ("full", True), ("selective", "selective")])
def test_activation_checkpointing(mode: str, value: bool | str) -> None:
    found = native("tiny_omni/sft", f"memory.activation_checkpointing={mode}")
    assert found["distributed.activation_checkpointing"] == value
    assert type(found["distributed.activation_checkpointing"]) is type(value)


@pytest.mark.parametrize("strategy", ["ddp", "megatron_fsdp"])
def test_other_strategies_get_no_fsdp2_keys(strategy: str) -> None:
    found = native("tiny_omni/sft", f"parallel.strategy={strategy}")
    assert found["distributed.strategy"] == strategy
    assert not [key for key in found if "mp_policy" in key or "sequence_parallel" in key]


def test_validation_block_only_with_validation_files() -> None:
    assert "validation_dataset._target_" in native("tiny_omni/sft")
    assert "validation_dataset._target_" not in native("tiny_omni/sft", "data.validation=[]")


# ---- adapters ----


def test_lora() -> None:
    found = native("nemotron_3_nano_omni_30b_a3b/lora", "method.lora={rank: 16, alpha: 32, dropout: 0.05}")
    assert (found["peft.dim"], found["peft.alpha"], found["peft.dropout"]) == (16, 32, 0.05)
    assert found["peft.dropout_position"] == "pre"  # on the adapter's input
    assert not [pattern for pattern in found["peft.target_modules"] if "$" in pattern or "*" in pattern]
    assert not [key for key in native("nemotron_3_nano_omni_30b_a3b/sft") if key.startswith("peft")]


def test_only_nemotron_runs_code_of_the_checkpoint() -> None:
    assert native("nemotron_3_nano_omni_30b_a3b/sft")["model.trust_remote_code"] is True
    assert "model.trust_remote_code" not in native("qwen3_omni_30b_a3b/sft")


# ---- the block of native keys ----


def test_native_keys_come_last_and_may_be_nested() -> None:
    override = "automodel={model.backend.attn: te, checkpoint: {is_async: true}, dist_env.backend: 'cuda:nccl'}"
    found = native("qwen3_omni_30b_a3b/sft", override)
    assert found["model.backend.attn"] == "te"
    assert found["checkpoint.is_async"] is True
    assert found["dist_env.backend"] == "cuda:nccl"
    assert found["checkpoint.enabled"] is True


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("model.backend.atn", "reads no key model.backend.atn; the nearest is model.backend.attn"),
        ("distributed.reshard", "reads no key distributed.reshard; the nearest is distributed.reshard_after_forward"),
        ("dataloader.num_workers", "reads no key dataloader.num_workers"),
        ("step_scheduler.max_steps", "step_scheduler.max_steps comes from schedule.max_steps and schedule.epochs"),
        ("optimizer.lr", "optimizer.lr comes from optimizer.lr; change it there"),
        ("checkpoint.checkpoint_dir", "checkpoint.checkpoint_dir comes from output_dir"),
        ("peft.dim", "peft.dim comes from method.lora.rank"),
    ],
)
def test_native_keys_that_are_refused(key: str, message: str) -> None:
    recipe = load_recipe("tiny_omni/sft", [f"automodel={{{key}: 1}}"]).recipe
    with pytest.raises(UserError) as error:
        translate(recipe)
    assert message in str(error.value)
    assert message in STACK.native_problems(recipe)[key]


def test_translation_does_not_share_values() -> None:
    recipe = load_recipe("tiny_omni/sft").recipe
    first = translate(recipe)
    first["optimizer"]["betas"].append(1)
    assert translate(recipe)["optimizer"]["betas"] == [0.9, 0.95] == recipe.optimizer.betas


if __name__ == "__main__":
    for old in GOLDEN.glob("*.yaml"):
        old.unlink()
    for shipped in SHIPPED:
        golden_file(shipped).write_text(golden_text(shipped), encoding="utf-8")
