"""Native entries and the look-up of stacks."""

from __future__ import annotations

import sys

import pytest

from avlm.errors import UserError
from avlm.recipe.fields import schema_fields
from avlm.recipe.load import load_recipe
from avlm.recipe.schema import Recipe
from avlm.stacks import Native, build, flatten, get_stack, set_dotted


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return load_recipe("tiny_omni/sft").recipe


def test_build_nests_and_leaves_out(recipe: Recipe) -> None:
    entries = (
        Native("a.b.c", ("seed",), lambda r: r.seed),
        Native("a.d", (), lambda r: [1]),
        Native("gone", (), lambda r: 1, when=lambda r: r.device == "cuda"),
    )
    assert build(entries, recipe) == {"a": {"b": {"c": 0}, "d": [1]}}


def test_replaceable() -> None:
    assert Native("k", (), lambda r: 1).replaceable
    assert not Native("k", ("seed",), lambda r: 1).replaceable
    assert Native("k", ("seed",), lambda r: 1, open=True).replaceable


def test_flatten_undoes_set_dotted() -> None:
    config: dict[str, object] = {}
    values = {"a.b": 1, "a.c.d": [2], "e": {}, "f": None}
    for key, value in values.items():
        set_dotted(config, key, value)
    assert config == {"a": {"b": 1, "c": {"d": [2]}}, "e": {}, "f": None}
    assert flatten(config) == values


def test_automodel_is_found_without_its_upstream() -> None:
    stack = get_stack("automodel")
    assert (stack.name, stack.train_module) == ("automodel", "automodel.train")
    keys = [entry.key for entry in stack.entries]
    assert len(keys) == len(set(keys)), "one line per native key"
    assert {field for entry in stack.entries for field in entry.fields} <= set(schema_fields())


def test_unknown_stack() -> None:
    with pytest.raises(UserError, match="'automodl' is unknown; known stacks: automodel, megatron_bridge"):
        get_stack("automodl")


def test_stack_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zero_offload", None)  # import raises ModuleNotFoundError
    with pytest.raises(UserError, match="zero_offload is not part of this installation"):
        get_stack("zero_offload")
