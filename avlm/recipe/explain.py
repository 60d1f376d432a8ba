"""Where each value of a recipe comes from and what it becomes in a stack's native configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from avlm.recipe import yaml12
from avlm.recipe.fields import get_value, schema_fields
from avlm.recipe.load import COMMAND_LINE, Loaded
from avlm.recipe.schema import Section
from avlm.stacks import Stack, flatten

OWN = "read by avlm itself"
"""What the fields without a native key become."""


@dataclass(frozen=True)
class Line:
    """One field: its dotted name, its value as YAML, where it was written, and the native keys it goes into."""

    field: str
    value: str
    origin: str
    native: tuple[str, ...]


def explain(loaded: Loaded, stack: Stack, steps: int | None = None) -> list[Line]:
    """A line for every field of the recipe, in the order of the schema.

    Args:
        loaded: the recipe and the places of its values; it must have passed the checks for the stack.
        stack: the stack whose native keys are shown.
        steps: the run's horizon, if known.
    """
    recipe, native = loaded.recipe, flatten(stack.translate(loaded.recipe, steps))
    reached: dict[str, list[str]] = {}
    for entry in stack.entries:
        if entry.when(recipe):
            for name in entry.fields:
                reached.setdefault(name, []).append(f"{entry.key} = {show(native[entry.key])}")
    lines = []
    for path, field in schema_fields().items():
        value = get_value(recipe, path)
        if field.free:
            for key, native_value in flatten(value or {}).items():
                origin = _origin(f"{path}.{key}", loaded)
                lines.append(Line(f"{path}.{key}", show(native_value), origin, (key,) if path == stack.name else ()))
            continue
        if isinstance(value, Section) or (value is None and _below_null(path, loaded)):
            continue
        lines.append(Line(path, show(value), _origin(path, loaded), tuple(reached.get(path, ()))))
    return lines


def show(value: Any) -> str:
    """A value on one line of YAML."""
    if isinstance(value, list):
        return f"[{', '.join(map(show, value))}]"
    if isinstance(value, Section):
        value = value.model_dump()
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {show(item)}' for key, item in value.items())}}}"
    if isinstance(value, float):
        text = f"{value:.12g}"
        return text if "." in text or "e" in text else f"{text}.0"
    return yaml12.dump([value])[2:].rstrip("\n")


def _below_null(path: str, loaded: Loaded) -> bool:
    """Whether a block above is null, so that the field does not exist in this recipe."""
    block = path.rpartition(".")[0]
    return bool(block) and get_value(loaded.recipe, block) is None


def _origin(path: str, loaded: Loaded) -> str:
    place = loaded.places.get(path)
    if place is None:
        return "default"
    if place == COMMAND_LINE or place.file == loaded.path:
        return str(place)
    return f"base {place}"
