"""Scale of what Nemotron's sound encoder is given.

Defect: `nemo_automodel/components/models/nemotron_omni/model.py:426` builds the Parakeet encoder without `scale_input`,
whose default multiplies its input by sqrt(hidden size), 32. The published encoder does not scale:
`models/nemotron_h_omni/configuration_nemotron_h_omni.py` of transformers 5.24,
`models/nemotron_omni/nemotron_omni_sound.py` of Megatron-Bridge.
Versions: nemo-automodel 0.6.0.
Repair: the scale is 1.
Guard: `tests/automodel/test_nemotron.py::test_upstream_still_scales_the_sound`.
"""

from __future__ import annotations

from typing import Any


def apply(model: Any) -> None:
    """Take the scale off the sound encoder of this model instance, if it has one."""
    if model.sound_encoder is not None:
        model.sound_encoder.input_scale = 1.0
