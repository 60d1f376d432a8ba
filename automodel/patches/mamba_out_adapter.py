"""Adapters on the output layer of Mamba mixers.

Defect: `nemo_automodel/components/models/nemotron_v3/layers.py:448` hands `out_proj.weight` to a fused kernel and never
calls `out_proj`. An adapter on it takes no part in training: it gets no gradient and its B stays zero, while it counts
as trainable and is written to the checkpoint. (In generation the layer is called.)
Versions: nemo-automodel 0.6.0.
Repair: where `out_proj` has an adapter, the kernel is given no output weight, and the layer is called on what it
returns.
Guard: `tests/automodel/test_nemotron.py::test_upstream_still_passes_over_the_adapter_of_the_output_layer`.
"""

from __future__ import annotations

from types import MethodType
from typing import Any


class _NoWeight:
    """In the place of `out_proj` while the kernel runs, which then returns its input to it."""

    weight = None
    bias = None


def _calling_out_proj(upstream: Any) -> Any:
    def forward(self: Any, hidden_states: Any, *args: Any, past_key_values: Any = None, **kwargs: Any) -> Any:
        if past_key_values is not None:
            return upstream(hidden_states, *args, past_key_values=past_key_values, **kwargs)
        out_proj = self.out_proj
        self.__dict__["out_proj"] = _NoWeight()  # is found before the submodule
        try:
            inner = upstream(hidden_states, *args, **kwargs)
        finally:
            del self.__dict__["out_proj"]
        return out_proj(inner)

    return forward


def apply(model: Any) -> None:
    """Wrap the forward pass of every Mamba mixer of this model instance whose output layer has an adapter."""
    from nemo_automodel.components._peft.lora import LinearLoRA
    from nemo_automodel.components.models.nemotron_v3.layers import NemotronV3Mamba2Mixer

    for module in model.modules():
        if isinstance(module, NemotronV3Mamba2Mixer) and isinstance(module.out_proj, LinearLoRA):
            if module.cp is not None:
                raise RuntimeError("context parallelism is not supported for this family")
            module.forward = MethodType(_calling_out_proj(module.forward), module)
