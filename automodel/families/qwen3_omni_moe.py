"""Qwen3-Omni-MoE: AutoModel's thinker class and its configuration, for building on the meta device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

NOTES: tuple[str, ...] = ()
"""What the built module leaves out or replaces; printed with every count."""


def model_class() -> type[Any]:
    """The class that AutoModel trains: the thinker, without talker and code2wav."""
    from nemo_automodel.components.models.qwen3_omni_moe.model import Qwen3OmniMoeThinkerForConditionalGeneration

    return Qwen3OmniMoeThinkerForConditionalGeneration


def config_from(architecture: dict[str, Any]) -> Any:
    """Thinker configuration of an `architecture*.json` file."""
    from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeThinkerConfig

    return Qwen3OmniMoeThinkerConfig(
        text_config=dict(architecture["text"]),
        vision_config=dict(architecture["vision"]),
        audio_config=dict(architecture["audio"]),
    )


def config_in(folder: Path) -> Any:
    """Thinker configuration of a checkpoint directory, which may hold the whole model's."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
    return getattr(config, "thinker_config", config)
