"""The schema as a flat table: dotted field -> type in words, default, description. For messages, tables and docs."""

from __future__ import annotations

import builtins
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from avlm.recipe.schema import Recipe, Section

_BOUNDS = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
_WORDS: dict[Any, str] = {bool: "true or false", int: "whole number", float: "number", str: "text", type(None): "null"}


@dataclass(frozen=True)
class SchemaField:
    """One field of the recipe.

    path: dotted name (`optimizer.lr`). type: what it takes, in words. default: its default, or `REQUIRED`.
    section: the block's class if the field is a block, else None. free: a block of free keys (`automodel:`).
    """

    path: str
    type: str
    default: Any
    description: str
    section: builtins.type[Section] | None = None
    free: bool = False
    annotation: Any = None

    @property
    def required(self) -> bool:
        """Whether a recipe must give it."""
        return self.default is PydanticUndefined


def _limits(metadata: Sequence[Any]) -> tuple[list[str], int | None, int | None]:
    """Bounds in words, and the shortest and longest length, of a type's metadata."""
    flat: list[Any] = []
    for item in metadata:
        flat += item.metadata if isinstance(item, FieldInfo) else [item]
    found = [(sign, getattr(m, name)) for name, sign in _BOUNDS for m in flat if hasattr(m, name)]
    bounds = [f"{sign} {value:,}" if isinstance(value, int) else f"{sign} {value:g}" for sign, value in found]
    least = next((m.min_length for m in flat if hasattr(m, "min_length")), None)
    most = next((m.max_length for m in flat if hasattr(m, "max_length")), None)
    return bounds, least, most


def describe(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """What a field of this type takes, in words: "whole number ≥ 1", "one of sft, lora", "list of text"."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return describe(arguments[0], [*arguments[1:], *metadata])
    if origin in (Union, types.UnionType):
        return " or ".join(describe(a, metadata if a is not type(None) else ()) for a in arguments)
    if origin is Literal:
        return "one of " + ", ".join(str(a) for a in arguments)
    bounds, least, most = _limits(metadata)
    if origin is list:
        items = describe_entry(arguments[0]).removeprefix("one of ")
        count = f", exactly {least}" if least is not None and least == most else f", at least {least}" if least else ""
        return f"list of {items}{count}"
    if origin is dict:
        return "block of native keys"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "block of keys"
    word = ("non-empty " if annotation is str and least else "") + _WORDS[annotation]
    return " ".join([word, " and ".join(bounds)]).strip()


def describe_entry(annotation: Any) -> str:
    """What an entry of a list takes, in words; a block is `{path, weight}`."""
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(map(describe_entry, get_args(annotation)))
    if get_origin(annotation) is Annotated and _section_of(annotation):
        return describe_entry(get_args(annotation)[0])
    section = _section_of(annotation)
    return f"{{{', '.join(section.model_fields)}}}" if section else describe(annotation)


def _section_of(annotation: Any) -> type[Section] | None:
    if get_origin(annotation) is Annotated:
        return _section_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return next((s for a in get_args(annotation) if (s := _section_of(a))), None)
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def _walk(section: type[Section], prefix: str) -> Iterator[SchemaField]:
    for name, info in section.model_fields.items():
        path, inner = prefix + name, _section_of(info.annotation)
        default = info.get_default(call_default_factory=True)
        yield SchemaField(
            path=path,
            type=describe(info.annotation, info.metadata),
            default=default,
            description=" ".join((info.description or (inner.__doc__ if inner else "") or "").split()),
            section=inner,
            free=get_origin(info.annotation) is dict,
            annotation=info.annotation,
        )
        if inner:
            yield from _walk(inner, f"{path}.")


@cache
def schema_fields() -> dict[str, SchemaField]:
    """Every field and block of the recipe by its dotted name, in the order of the schema."""
    return {f.path: f for f in _walk(Recipe, "")}


def entry_fields(field: SchemaField, position: int) -> dict[str, SchemaField]:
    """Fields of a block that stands in the list `field`, by dotted name (`data.train.0.weight`); empty for no block."""
    section = next((s for a in get_args(field.annotation) if (s := _section_of(a))), None)
    if get_origin(field.annotation) is not list or section is None:
        return {}
    return {f.path: f for f in _walk(section, f"{field.path}.{position}.")}


def keys_of(block: str) -> list[str]:
    """Names of the keys that the block takes; `""` is the recipe itself."""
    prefix = f"{block}." if block else ""
    return [p.removeprefix(prefix) for p in schema_fields() if p.startswith(prefix) and "." not in p[len(prefix) :]]


def get_value(recipe: Recipe, path: str) -> Any:
    """The recipe's value of a dotted field; None below a block that is null."""
    value: Any = recipe
    for name in path.split("."):
        value = getattr(value, name, None)
    return value
