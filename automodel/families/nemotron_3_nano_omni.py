"""Nemotron-3-Nano-Omni: AutoModel's class, its configuration for building on the meta device, its batches.

The class takes its vision tower from `AutoModel.from_config(config.vision_config, trust_remote_code=True)`: RADIO,
whose code lies in the checkpoint's repository only. `RadioShapes` stands in for it where models are counted: the same
parameter names and shapes (patch generator: `megatron/core/models/vision/radio.py`; blocks: timm's ViT), no forward
pass.

Packs: attention layers read a block-diagonal mask, Mamba layers a number for each document (`seq_idx` of the kernel, at
whose changes state and convolution start anew). AutoModel makes the second from `_packed_seq_ids`, so a pack has both,
as from its own collator for this attention (`neat_packed_vlm_collater`). Two differences: padding sees itself rather
than nothing, and a pack of one document has numbers too, without which Mamba layers would be given the four-dimensional
mask. Its other form, THD with Transformer Engine (`packed_sequence_thd_vlm_collater`), cannot be used with this class:
`nemotron_omni/model.py` of 0.6.0 does not hand on the positions that it asks for.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from automodel.batches import DOC, TOKENS, block_mask

NOTES: tuple[str, ...] = (
    "vision tower: parameter shapes of RADIO ViT-H/16 only, its code comes with the checkpoint; "
    "all else is the class that is trained",
)
"""What the built module leaves out or replaces; printed with every count."""
PACKAGES = ("mamba_ssm", "causal_conv1d")
"""Python packages that training needs and the core environment does not have: the kernels of the Mamba layers."""


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


def model_inputs(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch of ours as the patched model takes it (`automodel.patches.nemotron_media`)."""
    batch = {key: value for key, value in batch.items() if key != TOKENS}
    if DOC in batch:
        batch = packed_inputs(batch)
    if "input_features" in batch:
        from torch.nn.functional import pad

        batch["sound_features"] = batch.pop("input_features").transpose(1, 2)
        frames = batch.pop("feature_attention_mask").bool()  # the last one of each sound is behind it and empty
        batch["sound_attention_mask"] = pad(frames[:, 1:], (0, 1), value=False)
    return batch


def packed_inputs(batch: dict[str, Any]) -> dict[str, Any]:
    """A packed batch with what keeps documents apart: a mask [B, 1, S, S], numbers [B, S] in `_packed_seq_ids`."""
    batch = dict(batch)
    doc = batch.pop(DOC)
    return {**batch, "attention_mask": block_mask(doc), "_packed_seq_ids": doc}


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
