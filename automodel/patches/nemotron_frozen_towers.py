"""Frozen towers stay in evaluation mode.

Defect: `nemo_automodel/recipes/vlm/finetune.py:689` puts the whole model into training mode, frozen towers included.
`components/models/nemotron_omni/model.py:753` (`extract_sound_feature`) then runs a frozen Parakeet encoder with
dropout 0.1 and layer drop 0.1 (the library's defaults, since `:426` passes none), and its batch norms replace their
running statistics, so that the exported encoder is not the one that was loaded. The vision tower is put into
evaluation mode by `:591`; the towers of Qwen3-Omni have no such layers.
Versions: nemo-automodel 0.6.0.
Repair: a tower without trainable parameters ignores `train()`.
Guard: `tests/automodel/test_trainable.py::test_upstream_still_trains_frozen_batch_norms`.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

from avlm.models.base import get_family
from avlm.recipe.schema import Component, Recipe

_TOWERS: tuple[Component, ...] = ("vision_encoder", "audio_encoder")


def _stay(self: Any, mode: bool = True) -> Any:
    return self


def apply(model: Any, recipe: Recipe) -> None:
    """Fix the mode of each tower of this model instance that has no trainable parameter."""
    family = get_family(recipe.model.family)
    for component in _TOWERS:
        for prefix in family.components[component]:
            tower = getattr(model, prefix.rstrip("."), None)
            if tower is None or any(parameter.requires_grad for parameter in tower.parameters()):
                continue
            tower.eval()
            tower.train = MethodType(_stay, tower)
