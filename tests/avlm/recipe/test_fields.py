"""The schema as a table."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import Field

from avlm.recipe.fields import describe, get_value, keys_of, schema_fields
from avlm.recipe.load import load_recipe
from avlm.recipe.schema import FileOrBlock


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int, "whole number"),
        (Annotated[int, Field(ge=1)], "whole number ≥ 1"),
        (Annotated[float, Field(gt=0, le=1)] | None, "number > 0 and ≤ 1 or null"),
        (Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0, lt=1)], "whole number ≥ 0 or number ≥ 0 and < 1"),
        (Literal["a", "b"], "one of a, b"),
        (Annotated[list[Literal["a"]], Field(min_length=1)], "list of a, at least 1"),
        (Annotated[list[float], Field(min_length=2, max_length=2)], "list of number, exactly 2"),
        (list[FileOrBlock], "list of non-empty text or {path, weight}"),
        (bool, "true or false"),
    ],
)
def test_types_in_words(annotation: object, words: str) -> None:
    assert describe(annotation) == words


def test_every_field_is_described() -> None:
    assert [f.path for f in schema_fields().values() if not f.description and f.path not in ("name",)] == []


def test_required_fields() -> None:
    required = [f.path for f in schema_fields().values() if f.required]
    assert required == [
        *("name", "model", "model.family", "model.checkpoint", "batch", "batch.global_batch_size", "schedule"),
        *("data", "data.train", "output_dir"),
    ]


def test_keys_of() -> None:
    assert keys_of("batch") == ["global_batch_size", "micro_batch_size"]
    assert keys_of("")[:3] == ["name", "model", "method"]
    assert keys_of("batch.global_batch_size") == []


def test_get_value() -> None:
    recipe = load_recipe("tiny_omni/sft").recipe
    assert get_value(recipe, "model.family") == "qwen3_omni_moe"
    assert get_value(recipe, "method.lora.rank") is None
