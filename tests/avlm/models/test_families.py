"""Component maps and LoRA patterns of the families, on names alone."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from avlm.errors import UserError
from avlm.models.base import FAMILIES, get_family
from avlm.recipe.schema import Component, FamilyName, LoraTarget


@pytest.mark.parametrize(
    ("family", "parameter", "component"),
    [
        ("qwen3_omni_moe", "visual.blocks.0.attn.qkv.weight", "vision_encoder"),
        ("qwen3_omni_moe", "visual.pos_embed.weight", "vision_encoder"),
        ("qwen3_omni_moe", "visual.merger.mlp.0.weight", "vision_projector"),
        ("qwen3_omni_moe", "visual.merger_list.2.ln_q.bias", "vision_projector"),
        ("qwen3_omni_moe", "audio_tower.layers.0.fc1.weight", "audio_encoder"),
        ("qwen3_omni_moe", "audio_tower.proj1.weight", "audio_projector"),
        ("qwen3_omni_moe", "audio_tower.proj2.bias", "audio_projector"),
        ("qwen3_omni_moe", "model.layers.0.mlp.gate.weight", "language_model"),
        ("qwen3_omni_moe", "lm_head.weight", "language_model"),
        ("qwen3_omni_moe", "thinker.visual.merger.mlp.0.weight", "vision_projector"),
        ("qwen3_omni_moe", "thinker.audio_tower.conv2d1.weight", "audio_encoder"),
        ("qwen3_omni_moe", "thinker.model.norm.weight", "language_model"),
        ("qwen3_omni_moe", "talker.model.layers.0.mlp.shared_expert.up_proj.weight", "talker"),
        ("qwen3_omni_moe", "code2wav.decoder.0.conv.weight", "talker"),
        ("nemotron_3_nano_omni", "vision_model.radio_model.model.blocks.3.attn.qkv.weight", "vision_encoder"),
        ("nemotron_3_nano_omni", "vision_projector.linear1.weight", "vision_projector"),
        ("nemotron_3_nano_omni", "mlp1.3.weight", "vision_projector"),
        ("nemotron_3_nano_omni", "sound_encoder.layers.0.conv.norm.bias", "audio_encoder"),
        ("nemotron_3_nano_omni", "sound_encoder.encoder.layers.0.conv.norm.bias", "audio_encoder"),
        ("nemotron_3_nano_omni", "sound_projection.linear2.weight", "audio_projector"),
        ("nemotron_3_nano_omni", "language_model.model.layers.7.mixer._fp32_params.A_log", "language_model"),
        ("nemotron_3_nano_omni", "language_model.backbone.embeddings.weight", "language_model"),
        ("nemotron_3_nano_omni", "language_model.lm_head.weight", "language_model"),
    ],
)
def test_component_of(family: str, parameter: str, component: str) -> None:
    assert get_family(family).component_of(parameter) == component


@pytest.mark.parametrize("family", FAMILIES)
def test_unknown_names_are_not_guessed(family: str) -> None:
    for name in ("other.weight", "thinkers.model.x", "visuals.x", "mlp10.weight"):
        with pytest.raises(KeyError, match=name):
            get_family(family).component_of(name)


@pytest.mark.parametrize("family", FAMILIES)
def test_family_uses_the_shared_vocabulary(family: str) -> None:
    described = get_family(family)
    assert described.name == family
    assert set(described.components) <= set(get_args(Component))
    assert set(described.lora_targets) <= set(get_args(LoraTarget))
    assert re.fullmatch(rf"avlm\.models\.{family}\.processing:[A-Z]\w+", described.processing)


def test_schema_and_registry_list_the_same_families() -> None:
    assert set(FAMILIES) == set(get_args(FamilyName))


@pytest.mark.parametrize("family", FAMILIES)
def test_patterns_serve_automodel_unchanged(family: str) -> None:
    """AutoModel compiles `^pattern$` and rewrites every `*`; our patterns must survive both."""
    for patterns in get_family(family).lora_targets.values():
        for pattern in patterns:
            assert "*" not in pattern
            outside_groups = re.sub(r"\(.*?\)", "", pattern)
            assert "|" not in outside_groups


def test_unknown_family() -> None:
    with pytest.raises(UserError, match="known families: qwen3_omni_moe, nemotron_3_nano_omni"):
        get_family("qwen9")
