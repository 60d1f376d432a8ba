"""Images and videos in one batch.

Defect: `nemo_automodel/components/models/qwen3_omni_moe/model.py:456-466` joins image and video features of the
deepstack layers with masks that `get_placeholder_mask` has expanded over the hidden dimension. The joint tensor is then
allocated with tokens × hidden rows and the assignment fails with a shape error as soon as a batch holds an image and a
video.
Versions: nemo-automodel 0.6.0.
Repair: give the masks a last dimension of 1. `masked_scatter` broadcasts it, the deepstack code reads `[..., 0]`.
Guard: `tests/automodel/test_patches.py::test_visual_masks_are_still_needed` fails when upstream works without it.
"""

from __future__ import annotations

from types import MethodType
from typing import Any


def apply(model: Any) -> None:
    """Replace `get_placeholder_mask` of this one model instance."""
    upstream = model.get_placeholder_mask

    def get_placeholder_mask(self: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return tuple(mask[..., :1] for mask in upstream(*args, **kwargs))

    model.get_placeholder_mask = MethodType(get_placeholder_mask, model)
