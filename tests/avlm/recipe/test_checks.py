"""Every rule across fields: what breaks it, what it says, and what just holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from avlm.errors import UserError
from avlm.recipe.checks import RULES, check
from avlm.recipe.load import load_recipe, shipped_recipes

Write = Callable[..., str]

GPU = ("device=cuda", "model.dtype=bfloat16", "memory.optimizer_state_dtype=bfloat16")
"""The small recipe (one CPU rank asked for by each test) as one of eight GPUs."""

# rule -> (overrides that break it, stack, parts of the message, overrides that mend it)
BROKEN: dict[str, tuple[tuple[str, ...], str, tuple[str, ...], tuple[str, ...]]] = {
    "run_ends": (
        ("schedule.max_steps=null",),
        "automodel",
        ("schedule.max_steps = null (command line)", "schedule.epochs = null (default)"),
        ("schedule.epochs=1",),
    ),
    "warmup_fits": (
        ("optimizer.warmup=10",),
        "automodel",
        ("optimizer.warmup = 10 (command line)", "schedule.max_steps = 10 (r.yaml:4)"),
        ("optimizer.warmup=9",),
    ),
    "lr_falls": (
        ("optimizer.min_lr=1e-3",),
        "automodel",
        ("optimizer.min_lr = 0.001 (command line)", "optimizer.lr = 5e-05 (default)"),
        ("optimizer.lr=1e-3",),
    ),
    "betas_in_range": (
        ("optimizer.betas=[0.9, 1.0]",),
        "automodel",
        ("optimizer.betas = [0.9, 1.0]",),
        ("optimizer.betas=[0.0, 0.999]",),
    ),
    "lora_block_matches_kind": (
        ("method.kind=lora",),
        "automodel",
        ("method.kind = lora (command line)", "method.lora is not given"),
        ("method.lora={}",),
    ),
    "lora_freezes_everything": (
        ("method={kind: lora, lora: {}}", "freeze.vision_encoder=false"),
        "automodel",
        ("freeze.vision_encoder = false (command line)", "method.kind = lora", "adapters only"),
        ("freeze.vision_encoder=true",),
    ),
    "lora_targets_exist": (
        ("method={kind: lora, lora: {targets: [attention, mamba]}}",),
        "automodel",
        ("method.lora.targets = [attention, mamba]", "model.family = qwen3_omni_moe (r.yaml:2)", "no mamba", "experts"),
        ("model.family=nemotron_3_nano_omni",),
    ),
    "lora_dropout_reaches_experts": (
        ("method={kind: lora, lora: {targets: [attention, experts], dropout: 0.1}}",),
        "automodel",
        ("method.lora.dropout = 0.1", "method.lora.targets = [attention, experts]"),
        ("method.lora.dropout=0.0",),
    ),
    "something_trains": (
        ("freeze.language_model=true",),
        "automodel",
        ("freeze.language_model = true (command line)", "freeze.audio_projector = true (default)", "nothing trains"),
        ("freeze.audio_projector=false",),
    ),
    "opened_components_exist": (
        ("model.family=nemotron_3_nano_omni", "freeze.talker=false"),
        "megatron_bridge",
        ("freeze.talker = false", "model.family = nemotron_3_nano_omni"),
        ("model.family=qwen3_omni_moe",),
    ),
    "talker_stays_frozen": (("freeze.talker=false",), "automodel", ("freeze.talker = false",), ("freeze.talker=true",)),
    "revision_needs_hub": (
        ("model.revision=main", "model.checkpoint=./outputs/tiny"),
        "automodel",
        ("model.revision = main", "model.checkpoint = ./outputs/tiny"),
        ("model.checkpoint=Qwen/Qwen3-Omni-30B-A3B-Instruct",),
    ),
    "batch_divides": (
        ("batch.micro_batch_size=3",),
        "automodel",
        ("batch.global_batch_size = 8 (r.yaml:3)", "batch.micro_batch_size = 3 (command line)", "3 × 8 = 24"),
        ("batch.global_batch_size=48",),
    ),
    "packs_alone": (
        ("data.packing.enabled=true", "batch.micro_batch_size=2", "batch.global_batch_size=16"),
        "automodel",
        ("data.packing.enabled = true", "batch.micro_batch_size = 2"),
        ("batch.micro_batch_size=1",),
    ),
    "pack_holds_a_sample": (
        ("data.packing={enabled: true, pack_size: 1024}",),
        "automodel",
        ("data.packing.pack_size = 1024 (command line)", "data.sequence_length = 21504 (default)"),
        ("data.sequence_length=1024",),
    ),
    "train_files_once": (
        ("data.train=[rows.jsonl, {path: ./rows.jsonl, weight: 3}]",),
        "automodel",
        ("data.train (command line): rows.jsonl stands there more than once", "{path: rows.jsonl, weight: 2}"),
        ("data.train=[{path: rows.jsonl, weight: 2}, other.jsonl]",),
    ),
    "pixel_range": (
        ("data.video_max_pixels=1024",),
        "automodel",
        ("data.video_min_pixels = 131072 (default)", "data.video_max_pixels = 1024"),
        ("data.video_min_pixels=1024",),
    ),
    "model_parallel_divides": (
        ("parallel.tp=3",),
        "megatron_bridge",
        ("parallel.tp = 3", "= 3 must divide the world size 8", "parallel.devices_per_node = 8 (default)"),
        ("parallel.devices_per_node=3", "batch.global_batch_size=1"),
    ),
    "expert_parallel_divides": (
        ("parallel.ep=3",),
        "automodel",
        ("parallel.ep = 3", "8 / 1", "1, 2, 4, 8 do"),
        ("parallel.ep=4",),
    ),
    "world_holds_experts": (
        ("parallel.pp=2", "parallel.ep=8"),
        "megatron_bridge",
        ("parallel.ep = 8", "world size 8", "max(tp × cp, ep) = 16"),
        ("parallel.ep=4",),
    ),
    "parallel_plan_exists": (
        ("parallel.tp=2", "parallel.cp=2"),
        "automodel",
        ("parallel.tp = 2", "parallel.cp = 2", "model.family = qwen3_omni_moe"),
        ("parallel.tp=1", "parallel.cp=1"),
    ),
    "towers_run_alike": (
        ("model.family=nemotron_3_nano_omni", "freeze={vision_projector: false, audio_encoder: false}"),
        "automodel",
        ("freeze.vision_projector = false (command line), freeze.audio_encoder = false", "on 8 ranks"),
        ("freeze={vision_projector: true, audio_encoder: true}",),
    ),
    "strategy_takes_experts": (
        ("parallel.ep=8", "parallel.strategy=ddp"),
        "automodel",
        ("parallel.ep = 8", "parallel.strategy = ddp"),
        ("parallel.strategy=fsdp2",),
    ),
    "cpu_is_float32": (
        ("device=cpu",),
        "automodel",
        ("device = cpu (command line)", "model.dtype = bfloat16 (command line)"),
        ("model.dtype=float32", "memory.optimizer_state_dtype=float32"),
    ),
    "cpu_has_no_mamba": (
        (
            "device=cpu",
            "model.dtype=float32",
            "memory.optimizer_state_dtype=float32",
            "model.family=nemotron_3_nano_omni",
        ),
        "automodel",
        ("device = cpu (command line)", "model.family = nemotron_3_nano_omni"),
        ("model.family=qwen3_omni_moe",),
    ),
    "cpu_uses_torch_dispatcher": (
        (
            "device=cpu",
            "parallel.ep=8",
            "parallel.moe_dispatcher=deepep",
            "model.dtype=float32",
            "memory={optimizer_state_dtype: float32}",
        ),
        "automodel",
        ("device = cpu", "parallel.moe_dispatcher = deepep"),
        ("parallel.moe_dispatcher=torch",),
    ),
    "deepep_needs_experts_spread": (
        ("parallel.moe_dispatcher=deepep",),
        "automodel",
        ("parallel.moe_dispatcher = deepep", "parallel.ep = 1 (default)"),
        ("parallel.ep=2",),
    ),
    "native_keys_known": (
        ("automodel.model.backend.atn=te",),
        "automodel",
        ("command line: ", "reads no key model.backend.atn; the nearest is model.backend.attn"),
        ("automodel={model.backend.attn: te}",),
    ),
    "moments_follow_weights": (
        ("model.dtype=float32",),
        "automodel",
        ("memory.optimizer_state_dtype = bfloat16", "model.dtype = float32"),
        ("memory.optimizer_state_dtype=float32",),
    ),
    "offloaded_moments_are_float32": (
        ("memory.optimizer_offload=true",),
        "megatron_bridge",
        ("memory.optimizer_offload = true", "memory.optimizer_state_dtype = bfloat16"),
        ("memory.optimizer_state_dtype=float32",),
    ),
    "offload_is_whole": (
        ("memory.optimizer_offload=true",),
        "automodel",
        ("memory.optimizer_offload = true (command line)", "memory.parameter_offload = false (default)"),
        ("memory.parameter_offload=true",),
    ),
    "activations_stay": (
        ("memory.activation_offload=true",),
        "automodel",
        ("memory.activation_offload = true",),
        ("memory.activation_offload=false",),
    ),
    "selective_checkpointing_fits": (
        ("memory.activation_checkpointing=selective", "parallel.strategy=megatron_fsdp"),
        "automodel",
        ("memory.activation_checkpointing = selective", "parallel.strategy = megatron_fsdp"),
        ("parallel.strategy=ddp",),
    ),
    "no_dollar_signs": (
        ("output_dir=$HOME/run",),
        "automodel",
        ("output_dir = $HOME/run (command line)",),
        ("output_dir=run",),
    ),
}


def verdict(path: str, overrides: tuple[str, ...], stack: str) -> str | None:
    loaded = load_recipe(path, overrides)
    try:
        check(loaded.recipe, loaded.places, stack)
    except UserError as error:
        return str(error)
    return None


def test_every_rule_has_a_case() -> None:
    assert [rule.name for rule in RULES] == list(BROKEN)
    assert all(rule.text.endswith(".") for rule in RULES)


@pytest.mark.parametrize("name", BROKEN)
def test_rule(write: Write, name: str) -> None:
    broken, stack, parts, mended = BROKEN[name]
    message = verdict(write(), (*GPU, *broken), stack)
    assert message is not None, "the rule holds"
    assert "\n" not in message, "other rules are broken too"
    for part in parts:
        assert part in message
    if name != "native_keys_known":
        assert verdict("r.yaml", (*GPU, *broken, *mended), stack) is None
    else:  # an override can add a native key but not take one away
        assert verdict("r.yaml", (*GPU, *mended), stack) is None


@pytest.mark.parametrize(
    ("overrides", "stack"),
    [
        (("talker", "freeze.talker=false"), "megatron_bridge"),
        (("activation offload", "memory.activation_offload=true"), "megatron_bridge"),
        (("no EP rule of AutoModel", "parallel.ep=4", "parallel.tp=2"), "megatron_bridge"),
    ],
)
def test_rules_of_one_stack_do_not_bind_another(write: Write, overrides: tuple[str, ...], stack: str) -> None:
    assert verdict(write(), (*GPU, *overrides[1:]), stack) is None


@pytest.mark.parametrize(
    "overrides",
    [
        ("method={kind: sft, lora: {rank: 4}}",),
        ("parallel={devices_per_node: 1}", "model.dtype=bfloat16", "memory.optimizer_state_dtype=float32"),
        ("parallel.strategy=ddp", "memory.optimizer_state_dtype=float32"),
        ("memory={optimizer_offload: true, parameter_offload: true}", "parallel.devices_per_node=1"),
        ("memory={optimizer_offload: true, parameter_offload: true}", "parallel.strategy=ddp"),
        ("parallel.pp=3", "parallel.devices_per_node=3"),
        ("parallel.cp=2", "model.family=qwen3_omni_moe"),
        ("parallel.cp=2", "model.family=nemotron_3_nano_omni"),
        ("automodel={optimizer.lr: 1e-3}",),
        ("model.checkpoint=/models/qwen", "model.revision=main"),
    ],
)
def test_other_sides_of_rules(write: Write, overrides: tuple[str, ...]) -> None:
    assert verdict(write(), (*GPU, *overrides), "automodel") is not None


def test_revision_of_a_directory_that_looks_like_a_hub_id(write: Write, tmp_path: str) -> None:
    write(name="models/qwen/config.json")
    assert "no revisions" in str(
        verdict(write(), (*GPU, "model.checkpoint=models/qwen", "model.revision=x"), "automodel")
    )


def test_native_key_with_the_line_of_the_file(write: Write) -> None:
    text = load_recipe(write()).raw  # the small recipe, as written
    assert text
    from tests.avlm.recipe.conftest import MINIMAL

    path = write(MINIMAL + "parallel: {devices_per_node: 1}\nautomodel:\n  optimizer.lr: 1\n  modl.backend.attn: te\n")
    message = str(verdict(path, (), "automodel"))
    assert "r.yaml:10: optimizer.lr comes from optimizer.lr; change it there" in message
    assert "r.yaml:11: AutoModel reads no key modl.backend.attn; the nearest is model.backend.attn" in message


def test_all_broken_rules_at_once(write: Write) -> None:
    message = verdict(write(), (*GPU, "optimizer.min_lr=1", "parallel.ep=3", "batch.micro_batch_size=5"), "automodel")
    assert message is not None and message.startswith("small: 3 rules are broken\n  ")
    assert message.count("\n") == 3


def test_unknown_stack(write: Write) -> None:
    assert "known stacks: automodel" in str(verdict(write(), GPU, "auto"))


def test_unset_freeze_of_the_defaults_is_no_problem_for_lora(write: Write) -> None:
    assert verdict(write(), (*GPU, "method={kind: lora, lora: {}}"), "automodel") is None  # language_model: false


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_shipped_recipes_keep_the_rules(name: str) -> None:
    assert verdict(name, (), "automodel") is None
