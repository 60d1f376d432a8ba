"""Floating-point operations of the Qwen3-Omni-MoE thinker.

Shapes of layers: transformers' `models/qwen3_omni_moe/modeling_qwen3_omni_moe.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from avlm.errors import UserError
from avlm.models.architecture import known_architecture
from avlm.models.flops import Blocks, Flops

CHUNK_FRAMES = 100
"""Mel frames in a chunk of the audio tower's convolutions, at 100 frames a second."""
CHUNK_STEPS = 13
"""Encoder steps that a chunk becomes."""


def flops(checkpoint: str, revision: str | None = None) -> Flops:
    """Operations of a checkpoint, from its `config.json` or, for a published one, from what is known of it."""
    described = known_architecture("qwen3_omni_moe", checkpoint)
    return flops_of(described or _shapes(checkpoint, revision))


def flops_of(shapes: Mapping[str, Any]) -> Flops:
    """Operations of a model with these `text`, `vision` and `audio` shapes (keys of transformers' config classes)."""
    vision, audio = shapes["vision"], shapes["audio"]
    window = audio["n_window_infer"] // (2 * audio["n_window"]) if "n_window_infer" in audio else 8
    return Flops(
        decoder=_decoder(shapes["text"]),
        vision=_vision(vision),
        audio=_audio(audio),
        patch=vision["patch_size"],
        frames_per_step=vision["temporal_patch_size"],
        extra_patches=0,
        step_samples=16_000 / CHUNK_STEPS,
        window_steps=window * CHUNK_STEPS,
    )


def _decoder(text: Mapping[str, Any]) -> Blocks:
    """Grouped-query attention and experts (gate, up, down) in every layer, then the output head."""
    hidden, layers = text["hidden_size"], text["num_hidden_layers"]
    queries = text["num_attention_heads"] * text["head_dim"]
    keys = text["num_key_value_heads"] * text["head_dim"]
    attention = hidden * (2 * queries + 2 * keys)
    experts = text["num_experts_per_tok"] * 3 * hidden * text["moe_intermediate_size"] + hidden * text["num_experts"]
    weights = layers * (attention + experts) + hidden * text["vocab_size"]
    return Blocks(token=2 * weights, pair=layers * 4 * queries)


def _vision(vision: Mapping[str, Any]) -> Blocks:
    """Patch embedding, blocks, and one merger at the end plus one for each level that enters the decoder early."""
    hidden, depth = vision["hidden_size"], vision["depth"]
    embedding = 3 * vision["temporal_patch_size"] * vision["patch_size"] ** 2 * hidden
    block = 4 * hidden**2 + 2 * hidden * vision["intermediate_size"]
    side = vision["spatial_merge_size"] ** 2
    merger = (side * hidden) * (side * hidden + vision["out_hidden_size"]) / side
    mergers = 1 + len(vision["deepstack_visual_indexes"])
    return Blocks(token=2 * (embedding + depth * block + mergers * merger), pair=depth * 4 * hidden)


def _audio(audio: Mapping[str, Any]) -> Blocks:
    """Three convolutions that halve both axes of a chunk of 100 mel frames, blocks, and two projecting layers."""
    hidden, channels = audio["d_model"], audio["downsample_hidden_size"]
    bins, frames = audio["num_mel_bins"], CHUNK_FRAMES
    convolutions = 0
    inputs = 1
    for _ in range(3):
        bins, frames = (bins + 1) // 2, (frames + 1) // 2
        convolutions += bins * frames * 9 * inputs * channels
        inputs = channels
    block = 4 * hidden**2 + 2 * hidden * audio["encoder_ffn_dim"]
    step = bins * channels * hidden + audio["encoder_layers"] * block + hidden * (hidden + audio["output_dim"])
    return Blocks(token=2 * (convolutions / CHUNK_STEPS + step), pair=audio["encoder_layers"] * 4 * hidden)


def _shapes(checkpoint: str, revision: str | None) -> dict[str, Any]:
    """The thinker's shapes in a checkpoint's configuration."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(checkpoint, revision=revision)
        config = getattr(config, "thinker_config", config)
        return {name: getattr(config, f"{name}_config").to_dict() for name in ("text", "vision", "audio")}
    except (OSError, ValueError, AttributeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"model.checkpoint: {checkpoint} has no Qwen3-Omni configuration: {reason}") from error
