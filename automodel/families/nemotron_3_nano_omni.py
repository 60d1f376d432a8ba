"""Nemotron-3-Nano-Omni: AutoModel's class and its configuration, for building on the meta device.

The class takes its vision tower from `AutoModel.from_config(config.vision_config, trust_remote_code=True)`: RADIO,
whose code lies in the checkpoint's repository only. `RadioShapes` stands in for it where models are counted: the same
parameter names and shapes (patch generator: `megatron/core/models/vision/radio.py`; blocks: timm's ViT), no forward
pass.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

NOTES: tuple[str, ...] = (
    "vision tower: parameter shapes of RADIO ViT-H/16 only, its code comes with the checkpoint; "
    "all else is the class that is trained",
)
"""What the built module leaves out or replaces; printed with every count."""


def model_class() -> type[Any]:
    """The class that AutoModel trains."""
    from nemo_automodel.components.models.nemotron_omni.model import NemotronOmniForConditionalGeneration

    return NemotronOmniForConditionalGeneration


def config_from(architecture: dict[str, Any]) -> Any:
    """Configuration of an `architecture*.json` file, with `RadioShapes` as vision tower."""
    from nemo_automodel.components.models.nemotron_omni.model import NemotronOmniConfig
    from transformers import NemotronHConfig, PretrainedConfig

    vision, projector = architecture["vision"], architecture["projector"]
    shapes_config, _ = _radio_shapes()
    return NemotronOmniConfig(
        vision_config=shapes_config(**vision),
        llm_config=NemotronHConfig(**architecture["llm"]),
        sound_config=PretrainedConfig(**architecture["sound"]),
        vit_hidden_size=vision["hidden_size"],
        patch_size=vision["patch_size"],
        projector_hidden_size=projector["hidden_size"],
        downsample_ratio=projector["downsample_ratio"],
        video_temporal_patch_size=vision["frames_per_patch"],
    )


def config_in(folder: Path) -> Any:
    """None: a checkpoint directory of this family describes its vision tower by code."""
    return None


@cache
def _radio_shapes() -> tuple[type[Any], type[Any]]:
    """(config class, model class) of the stand-in, registered with transformers' `AutoModel`."""
    import torch
    from timm.models.vision_transformer import Block
    from torch import nn
    from transformers import AutoModel, PretrainedConfig, PreTrainedModel

    class RadioShapesConfig(PretrainedConfig):
        model_type = "radio_shapes"

    class PatchGenerator(nn.Module):
        """Patch embedding without bias, position grid, class and register tokens. `video_embedder` is AutoModel's."""

        def __init__(self, config: Any) -> None:
            super().__init__()
            self.patch_size = config.patch_size
            self.embed_dim = config.hidden_size
            self.embedder = nn.Linear(3 * config.patch_size**2, config.hidden_size, bias=False)
            self.pos_embed = nn.Parameter(torch.empty(1, config.position_grid**2, config.hidden_size))
            self.cls_token = nn.Module()
            self.cls_token.token = nn.Parameter(torch.empty(config.class_and_register_tokens, config.hidden_size))

    class Trunk(nn.Module):
        def __init__(self, config: Any) -> None:
            super().__init__()
            self.patch_generator = PatchGenerator(config)
            ratio = config.intermediate_size / config.hidden_size
            self.blocks = nn.ModuleList(
                Block(config.hidden_size, config.num_attention_heads, mlp_ratio=ratio, qkv_bias=True)
                for _ in range(config.num_hidden_layers)
            )

    class Radio(nn.Module):
        def __init__(self, config: Any) -> None:
            super().__init__()
            self.model = Trunk(config)

        def make_preprocessor_external(self) -> None:
            """Nothing to take out: there is no preprocessor."""

    class RadioShapes(PreTrainedModel):
        config_class = RadioShapesConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.radio_model = Radio(config)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError("RadioShapes has parameters only; train with the checkpoint's own RADIO")

    AutoModel.register(RadioShapesConfig, RadioShapes)
    return RadioShapesConfig, RadioShapes
