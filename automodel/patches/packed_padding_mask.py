"""Padding mask of packed batches.

Defect: `nemo_automodel/components/models/qwen3_omni_moe/model.py:165` overwrites the `padding_mask` it is given with
the inverted attention mask. With a block-diagonal mask [B, 1, S, S] the experts then get a 4-D mask instead of [B, S].
Versions: nemo-automodel 0.6.0.
Repair: the model remembers the `padding_mask` of the current forward pass, and each layer's `mlp` is given it.
Guard: `tests/automodel/test_patches.py::test_packed_padding_mask_is_still_needed`.
"""

from __future__ import annotations

from typing import Any


def apply(model: Any) -> None:
    """Hook this model instance and every decoder layer's feed-forward block."""
    current: dict[str, Any] = {}

    def remember(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        current["padding_mask"] = kwargs.get("padding_mask")

    def replace(module: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(args) > 1 and args[1] is not None and args[1].ndim == 4:
            return (args[0], current["padding_mask"], *args[2:])
        return args

    model.register_forward_pre_hook(remember, with_kwargs=True)
    for layer in model.model.layers:
        layer.mlp.register_forward_pre_hook(replace)
