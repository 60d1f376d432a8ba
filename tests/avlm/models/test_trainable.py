"""What a recipe trains, by names; and that adapters land there and nowhere else (E1)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from avlm.errors import UserError
from avlm.models.base import get_family
from avlm.models.trainable import (
    adapted_module,
    expert_parameters,
    plain_name,
    select_lora_modules,
    trainable_parameters,
)
from avlm.recipe.schema import Recipe

if TYPE_CHECKING:
    from torch import nn

QWEN = get_family("qwen3_omni_moe")
NEMOTRON = get_family("nemotron_3_nano_omni")

NAMES = [
    "visual.blocks.0.attn.qkv.weight",
    "visual.merger.mlp.0.weight",
    "audio_tower.layers.0.fc1.weight",
    "audio_tower.proj1.weight",
    "model.embed_tokens.weight",
    "model.layers.0.mlp.gate.weight",
    "model.layers.0.mlp.experts.down_proj",
    "lm_head.weight",
]


def recipe(family: str = "qwen3_omni_moe", **fields: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "t",
            "model": {"family": family, "checkpoint": "x"},
            "batch": {"global_batch_size": 1},
            "schedule": {"max_steps": 1},
            "data": {"train": ["a.jsonl"]},
            "output_dir": "out",
            **fields,
        }
    )


def lora(*targets: str) -> Recipe:
    return recipe(method={"kind": "lora", "lora": {"rank": 2, "targets": list(targets)}})


def test_sft_default_trains_the_language_model_only() -> None:
    assert trainable_parameters(NAMES, recipe()) == set(NAMES[4:])


def test_every_component_opens_on_its_own() -> None:
    for component, index in (
        ("vision_encoder", 0),
        ("vision_projector", 1),
        ("audio_encoder", 2),
        ("audio_projector", 3),
    ):
        freeze = {"language_model": True, component: False}
        assert trainable_parameters(NAMES, recipe(freeze=freeze)) == {NAMES[index]}


def test_everything_frozen_is_an_error() -> None:
    with pytest.raises(UserError, match="freeze: every component is frozen"):
        trainable_parameters(NAMES, recipe(freeze={"language_model": True}))


def test_opening_what_the_model_lacks_is_an_error() -> None:
    with pytest.raises(UserError, match=r"freeze\.talker: false, but this qwen3_omni_moe model has no talker"):
        trainable_parameters(NAMES, recipe(freeze={"talker": False}))


def test_unknown_parameter_is_an_error() -> None:
    with pytest.raises(KeyError, match="surprise"):
        trainable_parameters([*NAMES, "surprise.weight"], recipe())


def test_lora_trains_the_wanted_adapters_only() -> None:
    wanted = ["model.layers.0.self_attn.q_proj.lora_A.weight", "model.layers.0.self_attn.q_proj.lora_B.weight"]
    leaked = ["visual.blocks.0.attn.qkv.lora_A.weight", "model.layers.0.mlp.experts.lora_down_A"]
    assert trainable_parameters([*NAMES, *wanted, *leaked], lora("attention")) == set(wanted)


def test_lora_target_without_adapter_is_an_error() -> None:
    names = [*NAMES, "model.layers.0.self_attn.q_proj.lora_A.weight"]
    with pytest.raises(UserError, match="'experts' matches no module"):
        trainable_parameters(names, lora("attention", "experts"))


def test_target_that_the_family_lacks() -> None:
    with pytest.raises(UserError, match="qwen3_omni_moe has no 'mamba'; it has attention, experts"):
        select_lora_modules(["model.layers.0.self_attn.q_proj"], QWEN, ["mamba"])


@pytest.mark.parametrize(
    ("wrapped", "plain"),
    [
        ("model.layers.0._checkpoint_wrapped_module.mlp.gate.weight", "model.layers.0.mlp.gate.weight"),
        ("_orig_mod.model.norm.weight", "model.norm.weight"),
        ("module.lm_head.weight", "lm_head.weight"),
        ("base_model.model.thinker.lm_head.base_layer.weight", "thinker.lm_head.weight"),
        ("a.experts.base_layer.base_layer.down_proj", "a.experts.down_proj"),
    ],
)
def test_plain_name(wrapped: str, plain: str) -> None:
    assert plain_name(wrapped) == plain


def test_adapted_module() -> None:
    assert adapted_module("a.q_proj.lora_A.default.weight") == "a.q_proj"
    assert adapted_module("a.experts.lora_gate_and_up_A") == "a.experts"
    assert adapted_module("a.q_proj.weight") is None


def test_a_loose_pattern_stays_in_the_language_model() -> None:
    loose = replace(QWEN, lora_targets={"attention": (r".*\.q_proj",)})
    names = ["audio_tower.layers.0.self_attn.q_proj", "model.layers.0.self_attn.q_proj", "talker.model.q_proj"]
    assert select_lora_modules(names, loose, ["attention"]) == {"attention": [names[1]]}


def test_nemotron_layers_are_told_apart_by_their_linear_layers() -> None:
    mixer = "language_model.model.layers.{}.mixer.{}"
    names = [mixer.format(0, leaf) for leaf in ("in_proj", "conv1d", "norm", "out_proj")]
    names += [mixer.format(1, leaf) for leaf in ("gate", "experts", "shared_experts", "shared_experts.up_proj")]
    names += [mixer.format(1, "shared_experts.down_proj")]
    names += [mixer.format(5, f"{leaf}_proj") for leaf in "qkvo"]
    names += ["language_model.lm_head", "sound_encoder.layers.0.self_attn.q_proj", "vision_model.x.mixer.in_proj"]
    found = select_lora_modules(names, NEMOTRON, ["attention", "mamba", "shared_experts", "experts"])
    assert found == {
        "attention": [mixer.format(5, f"{leaf}_proj") for leaf in "qkvo"],
        "mamba": [mixer.format(0, "in_proj"), mixer.format(0, "out_proj")],
        "shared_experts": [mixer.format(1, "shared_experts.up_proj"), mixer.format(1, "shared_experts.down_proj")],
        "experts": [mixer.format(1, "experts")],
    }


def test_experts_as_linear_layers_are_taken_instead_of_their_list() -> None:
    experts = "language_model.backbone.layers.1.mixer.experts"
    linear = [f"{experts}.{number}.{side}_proj" for number in range(2) for side in ("up", "down")]
    found = select_lora_modules([experts, f"{experts}.0", f"{experts}.1", *linear], NEMOTRON, ["experts"])
    assert found == {"experts": linear}


def stub_tree() -> nn.Module:
    """The tree of case E1: language model, router, fused experts, shared expert, head, towers, talker."""
    import torch
    from torch import nn

    def tree(**children: nn.Module) -> nn.Module:
        module = nn.Module()
        for name, child in children.items():
            module.add_module(name, child)
        return module

    def linear() -> nn.Linear:
        return nn.Linear(4, 4, bias=False)

    def attention() -> nn.Module:
        return tree(q_proj=linear(), k_proj=linear(), v_proj=linear(), o_proj=linear())

    experts = nn.Module()
    experts.gate_up_proj = nn.Parameter(torch.zeros(2, 8, 4))
    experts.down_proj = nn.Parameter(torch.zeros(2, 4, 4))
    mlp = tree(gate=linear(), shared_expert=tree(down_proj=linear()), experts=experts)
    thinker = tree(
        model=tree(layers=nn.ModuleList([tree(self_attn=attention(), mlp=mlp)])),
        lm_head=linear(),
        visual=tree(
            patch_embed=tree(proj=nn.Conv3d(1, 4, 1)),
            blocks=nn.ModuleList([tree(attn=tree(qkv=linear()))]),
        ),
        audio_tower=tree(layers=nn.ModuleList([tree(self_attn=tree(q_proj=linear()))])),
    )
    talker = tree(model=tree(layers=nn.ModuleList([tree(self_attn=tree(q_proj=linear()))])))
    return tree(thinker=thinker, talker=talker)


def adapt(model: nn.Module, wanted: Recipe) -> nn.Module:
    """Adapters by `peft`, on the modules and bare expert weights that the recipe selects."""
    import peft

    assert wanted.method.lora is not None
    found = select_lora_modules([name for name, _ in model.named_modules()], QWEN, wanted.method.lora.targets)
    modules = [name for names in found.values() for name in names]
    parameters = expert_parameters([name for name, _ in model.named_parameters()], modules)
    linear = [name for name in modules if hasattr(model.get_submodule(name), "weight")]
    config = peft.LoraConfig(r=2, target_modules=linear, target_parameters=parameters or None)
    return peft.get_peft_model(model, config)


ATTENTION = {f"thinker.model.layers.0.self_attn.{leaf}_proj" for leaf in "qkvo"}
EXPERTS = "thinker.model.layers.0.mlp.experts"


@pytest.mark.filterwarnings("ignore")
def test_e1_attention_adapters_land_on_the_language_model_only() -> None:
    model = adapt(stub_tree(), lora("attention"))
    trained = {plain_name(name) for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {adapted_module(name) for name in trained} == ATTENTION
    assert len(trained) == 8
    assert trained == trainable_parameters([plain_name(n) for n, _ in model.named_parameters()], lora("attention"))


@pytest.mark.filterwarnings("ignore")
def test_e1_experts_get_adapters_on_both_weights() -> None:
    wanted = lora("attention", "experts")
    model = adapt(stub_tree(), wanted)
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert len(names) == 8 + 4
    trained = {plain_name(name) for name in names}
    assert {adapted_module(name) for name in trained} == ATTENTION | {EXPERTS}
    adapted = {m.parameter_name for m in model.modules() if type(m).__name__ == "ParamWrapper"}
    assert adapted == {"gate_up_proj", "down_proj"}
    assert trained == trainable_parameters([plain_name(n) for n, _ in model.named_parameters()], wanted)


def test_e1_selection() -> None:
    model = stub_tree()
    names = [name for name, _ in model.named_modules()]
    found = select_lora_modules(names, QWEN, ["attention", "experts"])
    assert set(found["attention"]) == ATTENTION
    assert found["experts"] == [EXPERTS]
    parameters = expert_parameters([name for name, _ in model.named_parameters()], found["experts"])
    assert parameters == [f"{EXPERTS}.gate_up_proj", f"{EXPERTS}.down_proj"]


def test_e1_experts_that_are_not_there_are_an_error() -> None:
    names = [name for name, _ in stub_tree().named_modules() if "experts" not in name]
    with pytest.raises(UserError, match="'experts' matches no module of this qwen3_omni_moe model"):
        select_lora_modules(names, QWEN, ["attention", "experts"])
