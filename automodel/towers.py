"""Keep the towers of all ranks in step.

FSDP2 gathers a tower's weights when the tower runs, by a collective that every rank must join. A rank whose batch has
no video would not call the vision tower, and the others would wait for it or take its next collective for this one
(reported as QwenLM/Qwen3-VL#1832 and ByteDance-Seed/VeOmni#177). So every tower that the data can need runs in every
forward pass, in a fixed order: a medium that a batch lacks is replaced by the smallest possible dummy. Its features are
cut off again, so the loss is bit-equal and the tower's gradient from that rank is zero. One rank alone does the same:
a gradient of zero moves AdamW's moments and a missing one does not, so runs would depend on how batches are cut.
"""

from __future__ import annotations

from collections.abc import Collection
from types import MethodType
from typing import Any

from avlm.data.types import MediaKind

# medium -> (model argument, argument of its sizes, method that runs the tower)
_PATHS: dict[MediaKind, tuple[str, str, str]] = {
    "audio": ("input_features", "feature_attention_mask", "get_audio_features"),
    "image": ("pixel_values", "image_grid_thw", "get_image_features"),
    "video": ("pixel_values_videos", "video_grid_thw", "get_video_features"),
}


def _dummy(model: Any, medium: MediaKind, device: Any) -> tuple[Any, Any]:
    """Smallest input of a tower: one merged patch, or 8 mel frames (one audio token)."""
    import torch

    if medium == "audio":
        bins = model.config.audio_config.num_mel_bins
        return torch.zeros(1, bins, 8, device=device), torch.ones(1, 8, dtype=torch.long, device=device)
    vision = model.config.vision_config
    side = vision.spatial_merge_size
    width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    grid = torch.tensor([[1, side, side]], dtype=torch.long, device=device)
    return torch.zeros(side * side, width, device=device), grid


def _cut(features: Any, wanted: int) -> Any:
    """Features of real media only; the dummy's stay in the graph with a zero gradient."""
    for name in ("last_hidden_state", "pooler_output"):
        value = getattr(features, name, None)
        if value is not None and value.dim() == 2:
            setattr(features, name, value[:wanted])
    if getattr(features, "deepstack_features", None) is not None:
        features.deepstack_features = [level[:wanted] for level in features.deepstack_features]
    return features


def keep_in_step(model: Any, media: Collection[MediaKind]) -> None:
    """Make every forward pass of `model` (Qwen3-Omni thinker) run the towers of all `media`.

    Args:
        model: the built model; hooks and three of its methods are set on the instance.
        media: kinds of media that any rank may meet, from the rows.
    """
    missing: set[str] = set()

    def fill(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        missing.clear()
        for medium, (features, sizes, method) in _PATHS.items():
            if medium in media and kwargs.get(features) is None:
                kwargs[features], kwargs[sizes] = _dummy(model, medium, kwargs["input_ids"].device)
                missing.add(method)
        return args, kwargs

    def cutting(name: str) -> None:
        run = getattr(model, name)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            features = run(*args, **kwargs)
            return _cut(features, 0) if name in missing else features

        setattr(model, name, MethodType(call, model))

    model.register_forward_pre_hook(fill, prepend=True, with_kwargs=True)  # before FSDP casts inputs
    for _, _, method in _PATHS.values():
        cutting(method)
