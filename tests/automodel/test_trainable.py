"""Freezing, adapters and the patches around them, on AutoModel's own classes in small."""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
from typing import TYPE_CHECKING, Any

import pytest

from automodel.patches import expert_lora_tokens, nemotron_frozen_towers
from automodel.patches.adapter_init import adapters_from_seed
from automodel.patches.freeze_by_component import freeze_by_component
from automodel.peft_targets import native_freeze_config, peft_target_modules
from automodel.trainable import assert_trainable, freeze
from avlm.errors import UserError
from avlm.models.base import get_family
from avlm.models.trainable import adapted_module
from avlm.recipe.schema import Recipe

if TYPE_CHECKING:
    import torch
    from torch import nn

LANGUAGE = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 32}
QWEN = {
    "text": {
        **LANGUAGE,
        "num_hidden_layers": 2,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
    },
    "vision": {"depth": 2, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 16}
    | {"deepstack_visual_indexes": [0]},
    "audio": {"encoder_layers": 1, "d_model": 16, "encoder_attention_heads": 2, "encoder_ffn_dim": 16}
    | {"output_dim": 16, "downsample_hidden_size": 8},
}
NEMOTRON = {
    "llm": {**LANGUAGE, "hybrid_override_pattern": "ME*E", "n_routed_experts": 4, "num_experts_per_tok": 2}
    | {"moe_intermediate_size": 8, "moe_shared_expert_intermediate_size": 8, "mamba_num_heads": 4, "mamba_head_dim": 8}
    | {"ssm_state_size": 8, "n_groups": 2, "conv_kernel": 4, "chunk_size": 8},
    "vision": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    | {"patch_size": 4, "class_and_register_tokens": 2, "position_grid": 4, "frames_per_patch": 2},
    "projector": {"downsample_ratio": 0.5, "hidden_size": 32},
    "sound": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    | {"conv_kernel_size": 9, "convolution_bias": False, "attention_bias": False, "subsampling_factor": 8}
    | {"subsampling_conv_channels": 8, "num_mel_bins": 32, "projection_hidden_size": 16},
}
SMALL = {"qwen3_omni_moe": QWEN, "nemotron_3_nano_omni": NEMOTRON}


def recipe(family: str, **fields: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "t",
            "model": {"family": family, "checkpoint": "x", "dtype": "float32"},
            "batch": {"global_batch_size": 1},
            "schedule": {"max_steps": 1},
            "data": {"train": ["a.jsonl"]},
            "output_dir": "out",
            **fields,
        }
    )


def lora(family: str, *targets: str) -> Recipe:
    return recipe(family, method={"kind": "lora", "lora": {"rank": 2, "alpha": 4, "targets": list(targets)}})


def small(family: str) -> nn.Module:
    """The family's class with a few thousand parameters, on the meta device."""
    import importlib

    import torch

    from automodel import inspect as inspection

    module = importlib.import_module(f"automodel.families.{family}")
    return inspection._build(module.model_class(), module.config_from(SMALL[family]), torch.float32)


def add_adapters(model: nn.Module, patterns: list[str]) -> None:
    import torch
    from nemo_automodel.components._peft.lora import PeftConfig, apply_lora_to_linear_modules

    with torch.device("meta"):
        apply_lora_to_linear_modules(model, PeftConfig(target_modules=patterns, dim=2, alpha=4), skip_freeze=True)


def trained(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def adapted(model: nn.Module) -> set[str]:
    return {host for name, _ in model.named_parameters() if (host := adapted_module(name)) is not None}


# --- freezing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize(
    "opened",
    ["vision_encoder", "vision_projector", "audio_encoder", "audio_projector", "language_model"],
)
def test_each_component_opens_alone(family: str, opened: str) -> None:
    model = small(family)
    wanted = recipe(family, freeze={"language_model": True, opened: False})
    freeze(model, wanted)
    component_of = get_family(family).component_of
    names = {name for name, _ in model.named_parameters()}
    assert trained(model) == {name for name in names if component_of(name) == opened}
    assert trained(model)
    assert_trainable(model, wanted)


@pytest.mark.parametrize("family", SMALL)
def test_every_parameter_has_a_component(family: str) -> None:
    described = get_family(family)
    found = {described.component_of(name) for name, _ in small(family).named_parameters()}
    assert found == set(described.components) - {"talker"}


def test_a_difference_is_named() -> None:
    model, wanted = small("qwen3_omni_moe"), recipe("qwen3_omni_moe")
    freeze(model, wanted)
    model.visual.pos_embed.weight.requires_grad_(True)
    model.lm_head.weight.requires_grad_(False)
    with pytest.raises(RuntimeError) as error:
        assert_trainable(model, wanted)
    assert "1 train but should be frozen (visual.pos_embed.weight)" in str(error.value)
    assert "1 are frozen but should train (lm_head.weight)" in str(error.value)


def test_names_below_activation_checkpointing() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model, wanted = small("qwen3_omni_moe"), recipe("qwen3_omni_moe")
    freeze(model, wanted)
    model.model.layers[0] = checkpoint_wrapper(model.model.layers[0])
    assert any("_checkpoint_wrapped_module" in name for name, _ in model.named_parameters())
    assert_trainable(model, wanted)


def test_freezing_replaces_upstreams_within_the_block_only() -> None:
    from nemo_automodel._transformers import infrastructure

    upstream = infrastructure.apply_parameter_freezing
    model, wanted = small("qwen3_omni_moe"), recipe("qwen3_omni_moe", freeze={"vision_projector": False})
    with freeze_by_component(wanted):
        infrastructure.apply_parameter_freezing(model, native_freeze_config(wanted))
    assert_trainable(model, wanted)
    assert infrastructure.apply_parameter_freezing is upstream


def test_a_build_without_freezing_is_an_error() -> None:
    with (
        pytest.raises(RuntimeError, match="the native config needs `freeze_config`"),
        freeze_by_component(recipe("qwen3_omni_moe")),
    ):
        pass


def test_an_error_inside_the_block_stays_itself() -> None:
    with pytest.raises(UserError, match="first"), freeze_by_component(recipe("qwen3_omni_moe")):
        raise UserError("first")


def test_upstream_still_freezes_by_name() -> None:
    """When this fails, upstream freezes what its flags say: drop `automodel/patches/freeze_by_component.py`."""
    from nemo_automodel.components.utils.model_utils import apply_parameter_freezing

    model = small("qwen3_omni_moe")
    apply_parameter_freezing(model, {"freeze_vision_tower": False, "freeze_language_model": True})
    assert "model.layers.0.self_attn.q_proj.weight" in trained(model)
    model = small("qwen3_omni_moe")
    apply_parameter_freezing(model, {"freeze_vision_tower": True})
    assert not any(name.startswith("visual.merger") for name in trained(model))


def test_native_flags() -> None:
    flags = native_freeze_config(recipe("qwen3_omni_moe", freeze={"audio_encoder": False}))
    assert flags == {"freeze_vision_tower": True, "freeze_audio_tower": False, "freeze_language_model": False}
    assert all(native_freeze_config(lora("qwen3_omni_moe", "attention")).values())


# --- frozen towers ------------------------------------------------------------------------------------------------


def sound_encoder() -> Any:
    """A random Parakeet encoder as AutoModel configures it, in a model that has nothing else."""
    import torch
    from torch import nn
    from transformers import ParakeetEncoder, ParakeetEncoderConfig

    torch.manual_seed(0)
    options = {name: value for name, value in NEMOTRON["sound"].items() if name != "projection_hidden_size"}
    model = nn.Module()
    model.sound_encoder = ParakeetEncoder(ParakeetEncoderConfig(**options))
    model.language_model = nn.Linear(2, 2)
    model.sound_encoder.requires_grad_(False)
    return model


def statistics_after_training_mode(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    model.train()
    norm = model.sound_encoder.layers[0].conv.norm
    before = norm.running_mean.clone()
    with torch.no_grad():
        for _ in range(4):  # layer drop may leave the first layer out once
            model.sound_encoder(torch.randn(1, 64, 32))
    return before, norm.running_mean


def test_upstream_still_trains_frozen_batch_norms() -> None:
    """When this fails, frozen towers need no help: drop `automodel/patches/nemotron_frozen_towers.py`."""
    before, after = statistics_after_training_mode(sound_encoder())
    assert not before.equal(after)


def test_frozen_towers_stay_as_loaded() -> None:
    import torch

    model = sound_encoder()
    nemotron_frozen_towers.apply(model, recipe("nemotron_3_nano_omni"))
    before, after = statistics_after_training_mode(model)
    assert before.equal(after)
    assert model.language_model.training
    sound = torch.randn(1, 64, 32)
    assert model.sound_encoder(sound).last_hidden_state.equal(model.sound_encoder(sound).last_hidden_state)


def test_open_towers_train() -> None:
    model = sound_encoder()
    model.sound_encoder.requires_grad_(True)
    nemotron_frozen_towers.apply(model, recipe("nemotron_3_nano_omni"))
    assert model.train().sound_encoder.training


# --- adapters -----------------------------------------------------------------------------------------------------

ATTENTION = {f"model.layers.{layer}.self_attn.{leaf}_proj" for layer in range(2) for leaf in "qkvo"}
EXPERTS = {f"model.layers.{layer}.mlp.experts" for layer in range(2)}
MIXER = "language_model.model.layers.{}.mixer.{}".format
NEMOTRON_TARGETS = {
    "attention": {MIXER(2, f"{leaf}_proj") for leaf in "qkvo"},
    "mamba": {MIXER(0, "in_proj"), MIXER(0, "out_proj")},
    "shared_experts": {MIXER(layer, f"shared_experts.{side}_proj") for layer in (1, 3) for side in ("up", "down")},
    "experts": {MIXER(layer, "experts") for layer in (1, 3)},
}


@pytest.mark.parametrize(
    ("targets", "hosts"), [(["attention"], ATTENTION), (["attention", "experts"], ATTENTION | EXPERTS)]
)
def test_qwen_adapters_land_on_the_language_model_only(targets: list[str], hosts: set[str]) -> None:
    model, wanted = small("qwen3_omni_moe"), lora("qwen3_omni_moe", *targets)
    add_adapters(model, peft_target_modules(wanted))
    assert adapted(model) == hosts
    freeze(model, wanted)
    assert {adapted_module(name) for name in trained(model)} == hosts
    assert all(".lora_" in name for name in trained(model))
    assert_trainable(model, wanted)


@pytest.mark.parametrize("target", NEMOTRON_TARGETS)
def test_nemotron_adapters_land_on_their_target_only(target: str) -> None:
    model, wanted = small("nemotron_3_nano_omni"), lora("nemotron_3_nano_omni", target)
    add_adapters(model, peft_target_modules(wanted))
    assert adapted(model) == NEMOTRON_TARGETS[target]
    freeze(model, wanted)
    assert {adapted_module(name) for name in trained(model)} == NEMOTRON_TARGETS[target]


def test_leaf_patterns_leak_and_are_refused() -> None:
    """What `*_proj`, AutoModel's default, does to the towers."""
    model, wanted = small("qwen3_omni_moe"), lora("qwen3_omni_moe", "attention")
    add_adapters(model, ["*_proj"])
    assert any(host.startswith("audio_tower.") for host in adapted(model))
    with pytest.raises(RuntimeError, match=r"adapters are not where .* have an adapter .*audio_tower"):
        freeze(model, wanted)


def test_missing_adapters_are_named() -> None:
    model, wanted = small("qwen3_omni_moe"), lora("qwen3_omni_moe", "attention", "experts")
    add_adapters(model, peft_target_modules(lora("qwen3_omni_moe", "attention")))
    with pytest.raises(RuntimeError, match=r"2 modules lack their adapter \(model\.layers\.0\.mlp\.experts"):
        assert_trainable(model, wanted)


def test_sft_with_adapters_is_refused() -> None:
    model = small("qwen3_omni_moe")
    add_adapters(model, peft_target_modules(lora("qwen3_omni_moe", "attention")))
    with pytest.raises(RuntimeError, match="8 modules have an adapter they should not have"):
        assert_trainable(model, recipe("qwen3_omni_moe"))


def test_targets_that_the_family_lacks() -> None:
    with pytest.raises(UserError, match=r"method\.lora\.targets: qwen3_omni_moe has no 'mamba'"):
        peft_target_modules(lora("qwen3_omni_moe", "attention", "mamba"))
    with pytest.raises(ValueError, match="needs a recipe with"):
        peft_target_modules(recipe("qwen3_omni_moe"))


# --- initial adapters ---------------------------------------------------------------------------------------------


def adapted_on_cpu() -> Any:
    """A linear layer and a block of experts, each with an adapter."""
    import torch
    from nemo_automodel.components._peft.lora import LinearLoRA
    from torch import nn

    model = nn.Module()
    model.q_proj = LinearLoRA(nn.Linear(8, 4), dim=2)
    model.k_proj = LinearLoRA(nn.Linear(8, 4), dim=2)
    model.experts = experts_with_adapters()
    for name, parameter in model.named_parameters():
        torch.nn.init.constant_(parameter, float("nan") if "lora_" in name else 1.0)
    return model


def initialised(seed: int, rank_seed: int, patched: bool = True, model: Any = None) -> dict[str, torch.Tensor]:
    import torch
    from nemo_automodel.components.checkpoint import checkpointing

    model = model or adapted_on_cpu()
    torch.manual_seed(rank_seed)
    with adapters_from_seed(seed) if patched else contextlib.nullcontext():
        checkpointing._init_peft_adapters(model, "xavier")
    return {name: parameter.detach() for name, parameter in model.named_parameters() if "lora_" in name}


def test_adapters_depend_on_the_seed_alone() -> None:
    one, same, other = initialised(3, 0), initialised(3, 1), initialised(4, 0)
    assert len(one) == 8
    for name, values in one.items():
        assert values.equal(same[name])
        if "_B" in name:
            assert not values.any()
        else:
            assert values.isfinite().all() and values.std() > 0
            assert not values.equal(other[name])
    assert not one["q_proj.lora_A.weight"].equal(one["k_proj.lora_A.weight"])


def test_a_rank_keeps_its_piece_of_the_same_adapter() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.nn import Parameter

    from automodel.inspect import _fake_ranks

    whole = initialised(3, 0)
    model = adapted_on_cpu()
    with _fake_ranks(2):
        mesh = init_device_mesh("cpu", (2,))
        for module in (model.q_proj.lora_A, model.k_proj.lora_A, model.experts):
            for name, parameter in list(module.named_parameters(recurse=False)):
                shard = distribute_tensor(parameter.detach(), mesh, [Shard(0)], src_data_rank=None)
                setattr(module, name, Parameter(shard))
        pieces = initialised(3, 1, model=model)
        assert pieces["experts.lora_down_A"].to_local().equal(whole["experts.lora_down_A"][:2])
        assert pieces["q_proj.lora_A.weight"].to_local().equal(whole["q_proj.lora_A.weight"][:1])


def test_an_adapter_without_a_rule_is_an_error() -> None:
    import torch

    model = adapted_on_cpu()
    model.q_proj.lora_magnitude = torch.nn.Parameter(torch.ones(4))
    with pytest.raises(RuntimeError, match=r"q_proj\.lora_magnitude: no rule"):
        initialised(3, 0, model=model)


def test_upstream_still_draws_adapters_by_rank() -> None:
    """When this fails, a seed is enough: drop `automodel/patches/adapter_init.py`."""
    one, other = initialised(3, 0, patched=False), initialised(3, 1, patched=False)
    assert not one["q_proj.lora_A.weight"].equal(other["q_proj.lora_A.weight"])


# --- experts with adapters under expert parallelism ------------------------------------------------------------------

LENGTHS = (5, 2)


def experts_with_adapters() -> Any:
    """Four experts with random weights and adapters, equal in every process."""
    import torch
    from nemo_automodel.components._peft.lora_experts import GroupedExpertsLoRA
    from nemo_automodel.components.moe.config import MoEConfig
    from nemo_automodel.components.moe.experts import GroupedExperts

    torch.manual_seed(1)
    options = {"n_shared_experts": 0, "n_expert_groups": 1, "n_limited_groups": 1, "train_gate": True}
    options |= {"gate_bias_update_factor": 0.0, "aux_loss_coeff": 0.0, "score_func": "softmax", "route_scale": 1.0}
    config = MoEConfig(
        dim=8, inter_dim=8, moe_inter_dim=8, n_routed_experts=4, n_activated_experts=2, norm_topk_prob=True,
        dtype=torch.float32, **options,
    )  # fmt: skip
    base = GroupedExperts(config)
    for parameter in base.parameters():
        torch.nn.init.normal_(parameter)
    module = GroupedExpertsLoRA(base, lora_dim=2, alpha=4)
    for name, parameter in module.named_parameters():
        if name.startswith("lora_"):
            torch.nn.init.normal_(parameter)
    return module


def tokens(rank: int) -> tuple[torch.Tensor, ...]:
    """(x, mask, weights, indices) of one rank; its last token is padding."""
    import torch

    generator = torch.Generator().manual_seed(rank)
    count = LENGTHS[rank]
    x = torch.randn(count, 8, generator=generator)
    mask = torch.arange(count) < count - 1
    weights = torch.rand(count, 2, generator=generator)
    indices = torch.stack([torch.randperm(4, generator=generator)[:2] for _ in range(count)])
    return x, mask, weights, indices


def run_rank(rank: int, port: int, patched: bool, results: Any) -> None:
    import faulthandler
    import os

    import torch
    import torch.distributed as dist
    from nemo_automodel.components.moe.parallelizer import ExpertParallel
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module

    faulthandler.disable()  # gloo aborts the process when lengths differ
    torch.set_num_threads(1)
    torch.compiler.set_stance("force_eager")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    try:
        dist.init_process_group("gloo")
        module = experts_with_adapters()
        parallelize_module(module, init_device_mesh("cpu", (2,)), ExpertParallel())
        if patched:
            expert_lora_tokens.apply(module)
        results.send("ready")
        y = module(*tokens(rank))
        y.square().sum().backward()
        results.send((y.detach().numpy(), module.lora_down_A.grad.to_local().numpy()))
        dist.barrier()
    except Exception as error:
        results.send((repr(error), None))
    os._exit(0)


def run_two_ranks(patched: bool) -> list[tuple[Any, Any]] | None:
    """(output, gradient of one adapter) of each rank; None when the ranks did not finish."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("forkserver")  # upstream is imported once for all ranks
    context.set_forkserver_preload(["nemo_automodel.components.moe.parallelizer"])
    pipes = [context.Pipe() for _ in range(2)]
    ranks = [context.Process(target=run_rank, args=(rank, port, patched, pipes[rank][1])) for rank in range(2)]
    for process in ranks:
        process.start()
    try:
        for ours, _ in pipes:
            assert ours.poll(120) and ours.recv() == "ready"
        finished = all(ours.poll(60 if patched else 5) for ours, _ in pipes)
        return [ours.recv() for ours, _ in pipes] if finished else None
    finally:
        for process in ranks:
            process.kill()
            process.join()


@pytest.fixture(scope="module")
def one_process() -> tuple[Any, Any]:
    """(outputs, gradient) of all tokens in one process."""
    import torch

    module = experts_with_adapters()
    with torch.compiler.set_stance("force_eager"):
        y = module(*(torch.cat(parts) for parts in zip(tokens(0), tokens(1), strict=True)))
        y.square().sum().backward()
    return y.detach().split(LENGTHS), module.lora_down_A.grad.chunk(2)


@pytest.mark.filterwarnings("ignore")
def test_expert_adapters_with_unequal_tokens(one_process: tuple[Any, Any]) -> None:
    import numpy as np

    outputs, gradients = one_process
    found = run_two_ranks(patched=True)
    assert found is not None
    assert not any(isinstance(output, str) for output, _ in found), found
    for rank in range(2):
        np.testing.assert_allclose(found[rank][0], outputs[rank], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found[rank][1], gradients[rank], rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_unequal_tokens_still_break_upstream(one_process: tuple[Any, Any]) -> None:
    """When this fails, upstream gathers unequal lengths: drop `automodel/patches/expert_lora_tokens.py`."""
    import numpy as np

    found = run_two_ranks(patched=False)
    if found is None or any(isinstance(output, str) for output, _ in found):
        return  # the process died, hangs, or raised
    outputs, _ = one_process
    right = all(
        found[rank][0].shape == outputs[rank].shape and np.allclose(found[rank][0], outputs[rank], atol=1e-5)
        for rank in range(2)
    )
    assert not right
