"""The translation against the installed AutoModel: its typed config takes every value, and its schedules are ours."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

import pytest

from automodel.native_keys import NATIVE_KEYS
from automodel.peft_targets import peft_target_modules
from automodel.translate import translate
from avlm.recipe.horizon import horizon, lr_at
from avlm.recipe.load import load_recipe, shipped_recipes
from avlm.recipe.schema import Recipe
from avlm.stacks import flatten

pytestmark = [pytest.mark.upstream, pytest.mark.timeout(600)]

HORIZON = 500
MEMORY = "memory={optimizer_offload: true, parameter_offload: true}"
# every shipped recipe, and what none of them uses
VARIANTS = [
    *((name, ()) for name in sorted(shipped_recipes())),
    ("qwen3_omni_30b_a3b/sft", ("memory.optimizer_state_dtype=float32", "parallel.nodes=2")),
    ("qwen3_omni_30b_a3b/sft", (MEMORY, "memory.activation_checkpointing=selective")),
    ("tiny_omni/sft", (MEMORY, "parallel.devices_per_node=2", "data.validation=[]")),
    ("tiny_omni/sft", ("parallel.strategy=ddp", "memory.activation_checkpointing=full")),
    (
        "qwen3_omni_30b_a3b/lora",
        ("parallel={strategy: megatron_fsdp, ep: 1, moe_dispatcher: torch}", "model.revision=main"),
    ),
]


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda variant: "-".join([variant[0], *variant[1]]))
def recipe(request: pytest.FixtureRequest) -> Recipe:
    name, overrides = request.param
    return load_recipe(name, overrides).recipe


@pytest.fixture(scope="module")
def native(recipe: Recipe) -> dict[str, Any]:
    return translate(recipe, HORIZON)


@pytest.fixture(scope="module")
def config(native: dict[str, Any]) -> Any:
    """The native config as AutoModel wraps it."""
    from nemo_automodel.components.config.loader import ConfigNode
    from nemo_automodel.recipes._typed_config import RecipeConfig

    return RecipeConfig(ConfigNode(native))


def names(*classes: Any) -> set[str]:
    return {field.name for cls in classes for field in fields(cls)}


# ---- typed config ----


def test_steps(config: Any, native: dict[str, Any], recipe: Recipe) -> None:
    found = config.step_scheduler
    assert found.global_batch_size == recipe.batch.global_batch_size
    assert found.max_steps == HORIZON
    keys = set(native["step_scheduler"]) - {"local_batch_size"}
    assert keys <= names(type(found))
    assert {key: getattr(found, key) for key in keys} == {key: native["step_scheduler"][key] for key in keys}


def test_learning_rate(config: Any, native: dict[str, Any]) -> None:
    assert set(native["lr_scheduler"]) <= names(type(config.lr_scheduler))
    assert {key: getattr(config.lr_scheduler, key) for key in native["lr_scheduler"]} == native["lr_scheduler"]


def test_optimizer(config: Any, native: dict[str, Any], recipe: Recipe) -> None:
    import torch

    model = torch.nn.Linear(2, 2)
    (optimizer,) = config.optimizer.build(model)
    assert type(optimizer) is torch.optim.AdamW
    group = optimizer.param_groups[0]
    for key in set(native["optimizer"]) - {"_target_", "betas"}:
        assert group[key] == native["optimizer"][key]
    assert (group["lr"], list(group["betas"])) == (recipe.optimizer.lr, recipe.optimizer.betas)


def test_loss(config: Any) -> None:
    from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy

    assert type(config.loss_fn.build()) is MaskedCrossEntropy


def test_checkpoint(config: Any, native: dict[str, Any], recipe: Recipe) -> None:
    found = config.checkpoint
    assert set(native["checkpoint"]) <= names(type(found))
    assert found.checkpoint_dir == f"{recipe.output_dir}/checkpoints"
    assert found.max_recent_checkpoints == recipe.schedule.keep_last
    assert found.save_consolidated.value == "final"
    assert found.is_peft == (recipe.method.kind == "lora")
    assert found.model_repo_id == recipe.model.checkpoint


def test_model_target_and_arguments(config: Any, native: dict[str, Any]) -> None:
    from nemo_automodel.recipes.vlm.finetune import _is_recipe_target

    assert _is_recipe_target(config.model._target_)
    taken = set(inspect.signature(config.model._target_).parameters) | {"revision", "trust_remote_code", "backend"}
    assert set(native["model"]) - {"_target_"} <= taken


def test_backend(config: Any, native: dict[str, Any], recipe: Recipe) -> None:
    backend = config.model.backend.instantiate()
    wanted = {key: value for key, value in native["model"]["backend"].items() if key != "_target_"}
    assert {key: getattr(backend, key) for key in wanted} == wanted, "AutoModel changed a value"
    assert backend.dispatcher == recipe.parallel.moe_dispatcher


def test_distributed(config: Any, recipe: Recipe) -> None:
    import torch
    from nemo_automodel.components.distributed import config as strategies
    from nemo_automodel.recipes._dist_utils import parse_distributed_section

    found = parse_distributed_section(config.distributed.to_dict())
    strategy, sizes = found["strategy_config"], found["parallelism_sizes"]
    classes = {"fsdp2": "FSDP2Config", "ddp": "DDPConfig", "megatron_fsdp": "MegatronFSDPConfig"}
    assert type(strategy) is getattr(strategies, classes[recipe.parallel.strategy])
    assert (sizes.tp_size, sizes.pp_size, sizes.cp_size, sizes.ep_size) == (1, 1, 1, recipe.parallel.ep)
    mode = {"none": False, "full": True, "selective": "selective"}[recipe.memory.activation_checkpointing]
    assert found["activation_checkpointing"] == mode
    if recipe.parallel.strategy == "fsdp2":
        policy = strategy.mp_policy
        assert policy.param_dtype is policy.output_dtype is getattr(torch, recipe.model.dtype)
        assert policy.reduce_dtype is torch.float32
        assert (strategy.offload_policy is not None) == recipe.memory.parameter_offload
        if strategy.offload_policy is not None:
            assert strategy.offload_policy.pin_memory == (recipe.device == "cuda")


def test_adapters(config: Any, recipe: Recipe) -> None:
    if recipe.method.lora is None:
        assert config.get("peft", None) is None
        return
    found = config.peft.instantiate()
    assert type(found).__name__ == "PeftConfig"
    assert (found.dim, found.alpha, found.dropout) == (
        recipe.method.lora.rank,
        recipe.method.lora.alpha,
        recipe.method.lora.dropout,
    )
    assert found.target_modules == peft_target_modules(recipe)


def test_row_references_resolve(config: Any, native: dict[str, Any]) -> None:
    from automodel.batches import recipe_rows

    assert config.dataset._target_ is recipe_rows
    assert ("validation_dataset" in native) == (config.get("validation_dataset", None) is not None)


def test_values_survive_the_wrapping(config: Any, native: dict[str, Any]) -> None:
    """`ConfigNode` evaluates texts and puts environment variables in: none of ours may change."""
    kept = flatten(config.to_dict())
    for key, value in flatten(native).items():
        if not key.endswith("_target_"):
            assert (kept[key], type(kept[key])) == (value, type(value))


# ---- the table of native keys ----


def test_native_keys_are_those_of_the_installed_classes() -> None:
    import torch
    from nemo_automodel import NeMoAutoModelForMultimodalLM
    from nemo_automodel.components._peft.lora import PeftConfig
    from nemo_automodel.components.checkpoint.config import CheckpointingConfig
    from nemo_automodel.components.distributed import config as dist
    from nemo_automodel.components.distributed.mesh import ParallelismSizes
    from nemo_automodel.components.loss.loss import LOSS_CONFIG_REGISTRY
    from nemo_automodel.components.models.common import BackendConfig
    from nemo_automodel.components.models.common.utils import CudaGraphConfig, TEFp8Config
    from nemo_automodel.components.optim.optimizer import FlashAdamWConfig, FusedAdamConfig, LRSchedulerConfig
    from nemo_automodel.components.quantization.fp8 import FP8Config
    from nemo_automodel.components.training.prewarm import PrewarmConfig
    from nemo_automodel.components.training.step_scheduler import StepSchedulerConfig
    from nemo_automodel.components.utils.compile_utils import CompileConfig
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    target = {"_target_"}
    fused_adam = {"exp_avg_dtype", "exp_avg_sq_dtype", "store_param_remainders"}  # of Transformer Engine, not installed
    loader = set(inspect.signature(NeMoAutoModelForMultimodalLM.from_pretrained).parameters)
    strategies = names(dist.FSDP2Config, dist.DDPConfig, dist.MegatronFSDPConfig)
    expected = {
        "step_scheduler": names(StepSchedulerConfig) - {"start_step", "start_epoch"} | {"local_batch_size"},
        "lr_scheduler": names(LRSchedulerConfig),
        "optimizer": target
        | (set(inspect.signature(torch.optim.AdamW).parameters) - {"params"})
        | names(FusedAdamConfig, FlashAdamWConfig)
        | fused_adam,
        "loss_fn": target
        | names(*(LOSS_CONFIG_REGISTRY[n] for n in ("MaskedCrossEntropy", "FusedLinearCrossEntropy"))),
        "model": target
        | {"revision", "cache_dir", "trust_remote_code"}
        | loader
        - {
            *("model_args", "kwargs", "quantization_config", "distributed_setup", "device_mesh", "qat_config"),
            *("peft_config", "fp8_config", "compile_config"),
        },
        "model.backend": target | names(BackendConfig) - {"enable_deepep", "te_fp8", "cuda_graph"},
        "model.backend.te_fp8": names(TEFp8Config),
        "model.backend.cuda_graph": names(CudaGraphConfig),
        "checkpoint": names(CheckpointingConfig)
        - {"model_cache_dir", "model_repo_id", "is_peft", "model_state_dict_keys"}
        | {"restore_from"},
        "distributed": strategies - {"mp_policy", "offload_policy", "multimodal"}
        | names(ParallelismSizes)
        | {"strategy"},
        "distributed.mp_policy": target | names(MixedPrecisionPolicy),
        "distributed.offload_policy": target | names(CPUOffloadPolicy),
        "distributed.multimodal": names(dist.MultimodalDistributedConfig) - {"vision"},
        "distributed.moe": names(dist.MoEParallelizerConfig) - {"mp_policy"},
        "peft": target | names(PeftConfig),
        "compile": names(CompileConfig),
        "fp8": names(FP8Config),
        "prewarm": names(PrewarmConfig),
    }
    for block, keys in expected.items():
        assert set(NATIVE_KEYS[block]) == keys, block
    assert set(NATIVE_KEYS) - set(expected) == {"", "dist_env", "clip_grad_norm", "freeze_config"}


# ---- length of the run and learning rate: 80 rows, global batch 8 ----


class Rows:
    """80 rows in batches of 8."""

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def small(*overrides: str) -> Recipe:
    return load_recipe(
        "tiny_omni/sft",
        [
            "batch={global_batch_size: 8, micro_batch_size: 8}",
            "optimizer={lr: 1e-3, min_lr: 1e-5, warmup: 10}",
            *overrides,
        ],
    ).recipe


class Loop:
    """AutoModel's step scheduler and learning-rate schedule, as its loop uses them."""

    def __init__(self, recipe: Recipe, steps: int | None = None, rows: Any = None) -> None:
        import torch
        from nemo_automodel.components.config.loader import ConfigNode
        from nemo_automodel.recipes._typed_config import RecipeConfig

        self.steps = steps or horizon(recipe, len(Rows()))
        config = RecipeConfig(ConfigNode({**translate(recipe, self.steps)}))
        config.step_scheduler.preemption_signal = None
        self.scheduler = config.step_scheduler.build(rows or Rows(), dp_group_size=1, local_batch_size=8)
        self.optimizer = config.optimizer.build(torch.nn.Linear(1, 1))[0]
        (self.schedule,) = config.lr_scheduler.build(self.optimizer, self.scheduler)

    def run(self, stop: int | None = None) -> list[float]:
        """Learning rate of each step. `stop`: leave after that step."""
        rates: list[float] = []
        for epoch in self.scheduler.epochs:
            self.scheduler.set_epoch(epoch)
            for _ in self.scheduler:
                rates.append(self.optimizer.param_groups[0]["lr"])
                self.optimizer.step()
                self.schedule.step(1)
                if len(rates) == stop:
                    self.saved = (self.scheduler.state_dict(), self.schedule.state_dict())
                    return rates
        self.saved = (self.scheduler.state_dict(), self.schedule.state_dict())
        return rates

    def resume(self, saved: tuple[dict[str, Any], dict[str, Any]]) -> None:
        self.scheduler.load_state_dict(saved[0])
        self.schedule.load_state_dict(saved[1])


def ours(recipe: Recipe, steps: Iterable[int], length: int) -> Any:
    return pytest.approx([lr_at(recipe, step, length) for step in steps], rel=1e-12, abs=1e-18)


@pytest.mark.parametrize(
    ("schedule", "length"),
    [
        ("{max_steps: 250, epochs: null}", 250),
        ("{max_steps: 250, epochs: 3}", 30),
        ("{max_steps: null, epochs: 3}", 30),
    ],
)
@pytest.mark.parametrize("warmup", ["10", "0", "1", "0.1"])
def test_steps_and_rates_of_a_whole_run(schedule: str, length: int, warmup: str) -> None:
    recipe = small(f"schedule={schedule}", f"optimizer.warmup={warmup}")
    rates = Loop(recipe).run()
    assert len(rates) == length
    assert rates == ours(recipe, range(1, length + 1), length)
    peak = {"10": 10, "0.1": length // 10}.get(warmup, 1)
    assert rates.index(max(rates)) + 1 == peak
    assert max(rates) == pytest.approx(1e-3, rel=1e-12)


def test_resumed_run_has_the_rates_of_the_uninterrupted_one() -> None:
    recipe = small("schedule={max_steps: 250, epochs: null}")
    whole, first, second = Loop(recipe).run(), Loop(recipe), Loop(recipe)
    head = first.run(stop=50)
    second.resume(first.saved)
    assert head + second.run() == whole


def test_finished_run_takes_no_further_step() -> None:
    recipe = small("schedule={max_steps: 250, epochs: null}")
    first, second = Loop(recipe), Loop(recipe)
    first.run()
    second.resume(first.saved)
    assert second.run() == []


def test_longer_schedule_on_resume_is_the_recipes() -> None:
    short, longer = small("schedule={max_steps: 50, epochs: null}"), small("schedule={max_steps: 250, epochs: null}")
    first, second = Loop(short), Loop(longer)
    first.run()
    second.resume(first.saved)
    assert second.run() == ours(longer, range(51, 251), 250)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("{max_steps: 25, checkpoint_interval: null, validation_interval: 10}", ([25], [10, 20, 25])),
        ("{max_steps: 25, checkpoint_interval: 10, validation_interval: null}", ([10, 20, 25], [10, 20, 25])),
        ("{max_steps: null, epochs: 2, checkpoint_interval: null, validation_interval: null}", ([20], [20])),
    ],
)
def test_where_checkpoints_and_validation_fall(schedule: str, expected: tuple[list[int], list[int]]) -> None:
    scheduler = Loop(small(f"schedule={schedule}")).scheduler
    checkpoints, validations, step = [], [], 0
    for epoch in scheduler.epochs:
        scheduler.set_epoch(epoch)
        for _ in scheduler:
            step += 1
            checkpoints += [step] if scheduler.is_ckpt_step else []
            validations += [step] if scheduler.is_val_step else []
    assert (checkpoints, validations) == expected


class Packed:
    """A loader whose epochs have 10, 12, 9, 10, … steps, as packs that are made anew have."""

    LENGTHS = (10, 12, 9)

    def __init__(self) -> None:
        self.epoch, self.sampler = 0, self

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.LENGTHS[self.epoch % 3]

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))


@pytest.mark.parametrize(
    ("schedule", "steps", "checkpoints"),
    [
        ("{max_steps: null, epochs: 2, checkpoint_interval: null}", 22, [22]),
        ("{max_steps: null, epochs: 3, checkpoint_interval: 12}", 31, [12, 24, 31]),
        ("{max_steps: 25, epochs: 3, checkpoint_interval: null}", 25, [25]),
        ("{max_steps: 45, epochs: null, checkpoint_interval: null}", 45, [45]),
    ],
)
def test_epochs_of_different_lengths(schedule: str, steps: int, checkpoints: list[int]) -> None:
    """AutoModel takes every epoch for as long as the first; told the horizon alone, it never asks."""
    recipe = small(f"schedule={schedule}")
    assert horizon(recipe, lambda epoch: Packed.LENGTHS[epoch]) == steps
    loop = Loop(recipe, steps, Packed())
    done, found, last = 0, [], []
    for epoch in loop.scheduler.epochs:
        loop.scheduler.set_epoch(epoch)
        for _ in loop.scheduler:
            done += 1
            found += [done] if loop.scheduler.is_ckpt_step else []
            last += [done] if loop.scheduler.is_last_step else []
    assert (done, found, last) == (steps, checkpoints, [steps])
    assert Loop(recipe, steps, Packed()).run() == ours(recipe, range(1, steps + 1), steps)


# ---- adapters ----

MODULES = {
    "qwen3_omni_30b_a3b/lora": [
        *(f"model.layers.12.self_attn.{p}_proj" for p in "qkvo"),
        "model.layers.0.mlp.gate",
        "model.layers.0.mlp.experts",
        "lm_head",
        "visual.blocks.0.attn.qkv",
        "audio_tower.layers.0.self_attn.q_proj",
        "talker.model.layers.0.self_attn.q_proj",
    ],
    "nemotron_3_nano_omni_30b_a3b/lora": [
        *(f"language_model.model.layers.5.mixer.{p}_proj" for p in ("q", "k", "v", "o", "in", "out")),
        "language_model.model.layers.1.mixer.shared_experts.up_proj",
        "language_model.model.layers.1.mixer.experts",
        "language_model.model.layers.1.mixer.gate",
        "language_model.lm_head",
        "sound_encoder.layers.0.self_attn.q_proj",
        "vision_model.radio_model.model.blocks.0.attn.proj",
    ],
}


@pytest.mark.parametrize("name", MODULES)
def test_automodel_reads_the_patterns_as_whole_names(name: str) -> None:
    import torch
    from nemo_automodel.components._peft.module_matcher import ModuleMatcher

    patterns = peft_target_modules(load_recipe(name).recipe)
    matcher = ModuleMatcher(patterns)
    found = [m for m in MODULES[name] if matcher.match(torch.nn.Linear(1, 1), m)]
    assert found == [m for m in MODULES[name] if any(re.fullmatch(p, m) for p in patterns)]
    assert found == MODULES[name][: 4 if "qwen" in name else 7]
