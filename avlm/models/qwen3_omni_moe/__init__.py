"""Qwen3-Omni-MoE: names of the thinker, alone (`model.…`) or inside the whole model (`thinker.model.…`).

Module names are those of `transformers/models/qwen3_omni_moe/modeling_qwen3_omni_moe.py`; stacks that replace the text
decoder keep them. The speech side (`talker.`, `code2wav.`) exists in the whole model only.
"""

from __future__ import annotations

from avlm.models.base import Family

_LAYER = r"(?:thinker\.)?model\.layers\.\d+"

FAMILY = Family(
    name="qwen3_omni_moe",
    components={
        "vision_encoder": ("visual.", "thinker.visual."),
        # `merger` after the last block, `merger_list` after the blocks whose features enter early decoder layers
        "vision_projector": (
            "visual.merger.",
            "visual.merger_list.",
            "thinker.visual.merger.",
            "thinker.visual.merger_list.",
        ),
        "audio_encoder": ("audio_tower.", "thinker.audio_tower."),
        "audio_projector": (
            "audio_tower.proj1.",
            "audio_tower.proj2.",
            "thinker.audio_tower.proj1.",
            "thinker.audio_tower.proj2.",
        ),
        "language_model": ("model.", "lm_head.", "thinker.model.", "thinker.lm_head."),
        "talker": ("talker.", "code2wav."),
    },
    lora_targets={
        "attention": (rf"{_LAYER}\.self_attn\.[qkvo]_proj",),
        "experts": (rf"{_LAYER}\.mlp\.experts",),
    },
    model_types=("qwen3_omni_moe", "qwen3_omni_moe_thinker"),
    processing="avlm.models.qwen3_omni_moe.processing:Qwen3OmniProcessor",
    flops="avlm.models.qwen3_omni_moe.flops:flops",
)
