"""Floating-point operations of Nemotron-3-Nano-Omni: hybrid Mamba decoder, RADIO and Parakeet towers.

Shapes of layers: transformers' `models/nemotron_h/` and `models/parakeet/`, AutoModel's
`components/models/nemotron_omni/model.py`, and timm's ViT for RADIO.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from avlm.models.flops import Blocks, Flops

MEL_FRAME_SAMPLES = 160
"""Samples at 16 kHz between two mel frames."""


def flops(checkpoint: str, revision: str | None = None) -> Flops:
    """Operations of a checkpoint. The family is published in one size, so the checkpoint is not read."""
    file = resources.files(__package__) / "architecture_30b_a3b.json"
    return flops_of(json.loads(file.read_text(encoding="utf-8")))


def flops_of(architecture: Mapping[str, Any]) -> Flops:
    """Operations of an `architecture*.json` file."""
    vision, sound = architecture["vision"], architecture["sound"]
    llm_hidden = architecture["llm"]["hidden_size"]
    return Flops(
        decoder=_decoder(architecture["llm"]),
        vision=_vision(vision, architecture["projector"], llm_hidden),
        audio=_audio(sound, llm_hidden),
        patch=vision["patch_size"],
        frames_per_step=vision["frames_per_patch"],
        extra_patches=vision["class_and_register_tokens"],
        step_samples=sound["subsampling_factor"] * MEL_FRAME_SAMPLES,
    )


def _decoder(llm: Mapping[str, Any]) -> Blocks:
    """One mixer a layer by `hybrid_override_pattern`: M Mamba-2, E experts (up, down), * attention; output head."""
    hidden = llm["hidden_size"]
    queries = llm["num_attention_heads"] * llm["head_dim"]
    attention = hidden * (2 * queries + 2 * llm["num_key_value_heads"] * llm["head_dim"])
    routed = llm["num_experts_per_tok"] * llm["moe_intermediate_size"]
    shared = llm["n_shared_experts"] * llm["moe_shared_expert_intermediate_size"]
    experts = 2 * hidden * (routed + shared) + hidden * llm["n_routed_experts"]
    weights = {"M": _mamba(llm), "E": experts, "*": attention}
    layers = sum(weights[mixer] for mixer in llm["hybrid_override_pattern"])
    attention_layers = llm["hybrid_override_pattern"].count("*")
    return Blocks(token=2 * (layers + hidden * llm["vocab_size"]), pair=attention_layers * 4 * queries)


def _mamba(llm: Mapping[str, Any]) -> float:
    """Multiply-adds a token of a Mamba-2 mixer: projections, convolution, and the chunked scan (Dao & Gu, 2024,
    arXiv:2405.21060, section 6), in which the tokens of a chunk see those before them and a state is carried on."""
    inner = llm["mamba_num_heads"] * llm["mamba_head_dim"]
    states = llm["n_groups"] * llm["ssm_state_size"]
    projections = llm["hidden_size"] * (3 * inner + 2 * states + llm["mamba_num_heads"])
    convolution = llm["conv_kernel"] * (inner + 2 * states)
    within = llm["chunk_size"] / 2 * (states + inner)
    carried = 2 * inner * llm["ssm_state_size"]
    return projections + convolution + within + carried


def _vision(vision: Mapping[str, Any], projector: Mapping[str, Any], llm_hidden: int) -> Blocks:
    """Patch embedding of a pair of frames, ViT blocks, pixel shuffle and a two-layer projector."""
    hidden, layers = vision["hidden_size"], vision["num_hidden_layers"]
    embedding = 3 * vision["frames_per_patch"] * vision["patch_size"] ** 2 * hidden
    block = 4 * hidden**2 + 2 * hidden * vision["intermediate_size"]
    shuffled = round(1 / projector["downsample_ratio"]) ** 2
    projection = projector["hidden_size"] * (hidden * shuffled + llm_hidden) / shuffled
    return Blocks(token=2 * (embedding + layers * block + projection), pair=layers * 4 * hidden)


def _audio(sound: Mapping[str, Any], llm_hidden: int) -> Blocks:
    """Subsampling convolutions, Conformer blocks (two half feed-forwards, attention with relative positions, a
    convolution module) and a two-layer projector."""
    hidden, layers, channels = sound["hidden_size"], sound["num_hidden_layers"], sound["subsampling_conv_channels"]
    bins, frames = sound["num_mel_bins"] // 2, sound["subsampling_factor"] // 2  # of one step, after the first stride
    subsampling = bins * frames * 9 * channels
    while frames > 1:
        bins, frames = bins // 2, frames // 2
        subsampling += bins * frames * channels * (9 + channels)  # depthwise, then pointwise
    subsampling += bins * channels * hidden
    feed_forward = 4 * hidden * sound["intermediate_size"]
    attention = 6 * hidden**2  # q, k, v, output; keys of relative positions, of which there are twice as many
    convolution = 3 * hidden**2 + sound["conv_kernel_size"] * hidden
    projection = sound["projection_hidden_size"] * (hidden + llm_hidden)
    token = subsampling + layers * (feed_forward + attention + convolution) + projection
    return Blocks(token=2 * token, pair=layers * 8 * hidden)  # with keys, values, and twice with relative positions
