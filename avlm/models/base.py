"""What a model family must say about itself so that every stack treats it alike."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

from avlm.errors import UserError
from avlm.recipe.schema import Component, LoraTarget


@dataclass(frozen=True)
class Family:
    """Names of a model family. Parameter paths are those of the Hugging Face module that is trained.

    components: component -> prefixes of parameter names ("visual.merger."). The longest matching prefix wins, so a
        projector may live inside its encoder. Together the prefixes cover every parameter exactly once.
    lora_targets: LoRA target -> regular expressions that match whole module names inside the language model.
    model_types: `model_type` of its checkpoints' `config.json`.
    processing: "module:Class" of the family's `avlm.data.processing.Processor`, imported on first use.
    flops: "module:function" that gives the `avlm.models.flops.Flops` of a checkpoint, imported on first use.
    """

    name: str
    components: Mapping[Component, tuple[str, ...]]
    lora_targets: Mapping[LoraTarget, tuple[str, ...]]
    model_types: tuple[str, ...]
    processing: str
    flops: str

    def component_of(self, parameter: str) -> Component:
        """Component that a parameter belongs to. Raises `KeyError` for a name that no prefix covers."""
        found = [
            (len(prefix), component)
            for component, prefixes in self.components.items()
            for prefix in prefixes
            if parameter.startswith(prefix)
        ]
        if not found:
            raise KeyError(f"{parameter} belongs to no component of {self.name}")
        return max(found)[1]


FAMILIES = ("qwen3_omni_moe", "nemotron_3_nano_omni")


def get_family(name: str) -> Family:
    """The family called `name`, from `avlm/models/<name>/`. Raises `UserError` for an unknown one."""
    if name not in FAMILIES:
        raise UserError(f"model.family: {name!r} is unknown; known families: {', '.join(FAMILIES)}")
    return importlib.import_module(f"avlm.models.{name}").FAMILY
