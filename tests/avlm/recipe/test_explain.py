"""The explain table."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from avlm.recipe.explain import explain, show
from avlm.recipe.fields import schema_fields
from avlm.recipe.load import load_recipe
from avlm.recipe.schema import TrainFile
from avlm.stacks import flatten, get_stack
from tests.avlm.recipe.conftest import MINIMAL


def test_origins_and_native_keys(write: Callable[..., str]) -> None:
    write(MINIMAL + "optimizer: {lr: 1e-3}", "base.yaml")
    child = write("base: base.yaml\nseed: 3\nautomodel:\n  model.backend.attn: te\n", "child.yaml")
    lines = {line.field: line for line in explain(load_recipe(child, ["data.workers=0"]), get_stack("automodel"))}
    assert lines["seed"].origin == "child.yaml:2"
    assert lines["seed"].native == ("seed = 3",)
    assert lines["optimizer.lr"].origin == "base base.yaml:8"
    assert "optimizer.lr = 0.001" in lines["optimizer.lr"].native
    assert (lines["data.workers"].origin, lines["data.workers"].native) == ("command line", ())
    assert lines["optimizer.eps"].origin == "default"
    assert lines["automodel.model.backend.attn"].origin == "child.yaml:4"
    assert lines["automodel.model.backend.attn"].native == ("model.backend.attn",)
    assert lines["method.lora"].value == "null"
    assert "method.lora.rank" not in lines


def test_every_field_has_a_line() -> None:
    lines = [line.field for line in explain(load_recipe("tiny_omni/lora"), get_stack("automodel"))]
    wanted = [f.path for f in schema_fields().values() if not f.section and not f.free]
    assert lines == wanted


def test_native_values_are_those_of_the_translation() -> None:
    loaded, stack = load_recipe("qwen3_omni_30b_a3b/lora"), get_stack("automodel")
    native = flatten(stack.translate(loaded.recipe, 100))
    shown = {item for line in explain(loaded, stack, 100) for item in line.native}
    assert "lr_scheduler.lr_decay_steps = 100" in shown
    for item in shown:
        key, _, value = item.partition(" = ")
        assert value == show(native[key])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5e-5, "5e-05"),
        (0.0, "0.0"),
        (3, "3"),
        (None, "null"),
        ("no", "'no'"),
        ([1, "a"], "[1, a]"),
        ([], "[]"),
        (True, "true"),
        ([TrainFile(path="a.jsonl", weight=2), "b.jsonl"], "[{path: a.jsonl, weight: 2.0}, b.jsonl]"),
    ],
)
def test_show(value: object, text: str) -> None:
    assert show(value) == text
