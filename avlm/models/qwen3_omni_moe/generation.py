"""Qwen3-Omni's thinker for generation in plain transformers, with the positions that training used.

Defect (transformers 5.12.1, `models/qwen3_omni_moe/modeling_qwen3_omni_moe.py`): `prepare_inputs_for_generation` of
`Qwen3OmniMoeThinkerForConditionalGeneration` throws `position_ids` away, and `forward` then computes them again from
one `use_audio_in_video` flag for the whole batch. In a batch of clips with and without sound one of the two kinds gets
wrong positions. The generic code of `GenerationMixin` handles 3-D positions well: it slices them, and each new token
gets the last position plus one in all three axes, which is what a full forward pass over prompt and answer has there.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationMixin, Qwen3OmniMoeThinkerForConditionalGeneration

from avlm.errors import UserError
from avlm.models.checkpoint import check_weights

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
        placed = {} if device.type == "cpu" else {"device_map": {"": device}}
        model, report = Thinker.from_pretrained(
            checkpoint, revision=revision, dtype=dtype, output_loading_info=True, **placed
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
    """Put the adapter's layers into `model`, not merged, and see that each of its tensors found its place."""
    from peft import PeftConfig, PeftModel
    from safetensors import safe_open

    file = Path(folder) / "adapter_model.safetensors"
    if not file.is_file():
        raise UserError(f"{folder}: no adapter here ({file.name} is missing)")
    check_weights(folder, "")
    with safe_open(file, "pt") as tensors:
        names = tensors.keys()
    try:
        config = PeftConfig.from_pretrained(folder)
        config.inference_mode = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what they say is checked below
            wrapped = PeftModel(_whole(model) if any("thinker." in name for name in names) else model, config)
            result = wrapped.load_adapter(folder, "default")
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise UserError(f"{folder}: the adapter does not fit the checkpoint: {reason}") from error
    made = dict(wrapped.named_parameters())
    # peft widens a pattern to the last part of module names and makes layers that were not trained; B = 0 is silent
    unset = [name for name in result.missing_keys if ".lora_B" in name and bool(made[name].any())]
    strange = [*result.unexpected_keys, *unset]
    if strange:
        raise UserError(
            f"{folder}: the adapter belongs to another model: {strange[0]} is in only one of the two "
            f"({len(strange)} such tensors)"
        )


def _whole(model: Thinker) -> torch.nn.Module:
    """`model` as the thinker of the whole Qwen3-Omni, whose names adapters of a released checkpoint have."""
    from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

    config = Qwen3OmniMoeConfig(thinker_config=model.config.to_dict(), enable_audio_output=False)
    with torch.device("meta"):
        whole = Qwen3OmniMoeForConditionalGeneration(config)
    whole.thinker = model
    return whole
