"""Qwen3-Omni's thinker for generation in plain transformers, with the positions that training used.

Defect (transformers 5.12.1, `models/qwen3_omni_moe/modeling_qwen3_omni_moe.py`): `prepare_inputs_for_generation` of
`Qwen3OmniMoeThinkerForConditionalGeneration` throws `position_ids` away, and `forward` then computes them again from
one `use_audio_in_video` flag for the whole batch. In a batch of clips with and without sound one of the two kinds gets
wrong positions. The generic code of `GenerationMixin` handles 3-D positions well: it slices them, and each new token
gets the last position plus one in all three axes, which is what a full forward pass over prompt and answer has there.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import GenerationMixin, Qwen3OmniMoeThinkerForConditionalGeneration

from avlm.errors import UserError

FIRST_STEP_ONLY = (
    "pixel_values",
    "pixel_values_videos",
    "image_grid_thw",
    "video_grid_thw",
    "input_features",
    "feature_attention_mask",
    "video_second_per_grid",
)
"""Media arguments: read with the prompt, not with the tokens that follow."""


class Thinker(Qwen3OmniMoeThinkerForConditionalGeneration):
    """The upstream class, except that generation keeps the `position_ids` it is given."""

    def prepare_inputs_for_generation(
        self, input_ids: torch.Tensor, *, is_first_iteration: bool = False, **kwargs: Any
    ) -> dict[str, Any]:
        """Arguments of the next forward pass; `position_ids` [3, B, S] must be among `kwargs`."""
        if kwargs.get("position_ids") is None or kwargs["position_ids"].dim() != 3:
            raise ValueError("generation needs position_ids of shape [3, batch, tokens]")
        inputs = GenerationMixin.prepare_inputs_for_generation(
            self, input_ids, is_first_iteration=is_first_iteration, **kwargs
        )
        if not is_first_iteration and kwargs.get("use_cache", True):
            for name in FIRST_STEP_ONLY:
                inputs.pop(name, None)
        return inputs


def load_for_generation(
    checkpoint: str, *, revision: str | None, dtype: torch.dtype, device: torch.device, adapter: str | None = None
) -> Thinker:
    """The model of `checkpoint` (Hugging Face directory or hub id), with the PEFT adapter in folder `adapter` on it.

    Raises `UserError` when weights are missing, or the adapter does not fit.
    """
    try:
        model, report = Thinker.from_pretrained(
            checkpoint, revision=revision, dtype=dtype, device_map={"": device}, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{checkpoint}: the weights cannot be loaded: {str(error).strip().splitlines()[0]}") from error
    absent = sorted([*report["missing_keys"], *(str(key) for key in report.get("mismatched_keys", ()))])
    if absent:
        more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
        raise UserError(f"{checkpoint}: the checkpoint lacks weights of the model: {', '.join(absent[:3])}{more}")
    if adapter is not None:
        _add_adapter(model, adapter)
    return model.eval()


def _add_adapter(model: Thinker, folder: str) -> None:
    """Put the adapter's layers into `model`, in place and not merged."""
    from pathlib import Path

    from peft import PeftModel
    from safetensors import safe_open

    weights = Path(folder) / "adapter_model.safetensors"
    if not weights.is_file():
        raise UserError(f"{folder}: no adapter here (adapter_model.safetensors is missing)")
    try:
        PeftModel.from_pretrained(model, folder)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise UserError(
            f"{folder}: the adapter does not fit {type(model).__mro__[1].__name__}: "
            f"{str(error).strip().splitlines()[0]}"
        ) from error
    with safe_open(weights, "pt") as file:
        names = file.keys()
    stored = {name.removeprefix("base_model.model.") for name in names}
    made = {name.replace(".default", ""): value for name, value in model.named_parameters() if ".lora_" in name}
    strange = sorted(stored - set(made))
    # peft widens an anchored pattern to leaf names and then makes layers that were not trained; B = 0 keeps them silent
    unset = sorted(name for name in set(made) - stored if ".lora_B" in name and bool(made[name].any()))
    if strange or unset:
        raise UserError(
            f"{folder}: the adapter belongs to another model: {(strange or unset)[0]} is in only one of the two "
            f"({len(strange) + len(unset)} such tensors)"
        )
