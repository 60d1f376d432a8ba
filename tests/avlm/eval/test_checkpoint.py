"""Which weights are meant, found out without loading any."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from avlm.errors import UserError
from avlm.eval.checkpoint import Weights, choose, identity
from avlm.recipe.schema import Batch, Data, Model, Recipe, Schedule


def folder(path: Path, model_type: str = "qwen3_omni_moe", name: str = "config.json") -> Path:
    path.mkdir(parents=True)
    (path / name).write_text(json.dumps({"model_type": model_type}))
    return path


def recipe_of(tmp_path: Path, checkpoint: str | None = None) -> Recipe:
    return Recipe(
        name="test",
        model=Model(family="qwen3_omni_moe", checkpoint=checkpoint or str(folder(tmp_path / "base")), revision="r1"),
        batch=Batch(global_batch_size=1),
        schedule=Schedule(max_steps=1),
        data=Data(train=["x.jsonl"]),
        output_dir=str(tmp_path / "run"),
    )


def test_base_until_there_is_an_export(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path)
    base = str(tmp_path / "base")
    assert choose(recipe) == Weights(base, "r1", None, trained=False)
    export = folder(tmp_path / "run" / "export", "qwen3_omni_moe_thinker")
    assert choose(recipe) == Weights(str(export), None, None)
    assert choose(recipe, base) == Weights(base, "r1", None, trained=False)


def test_adapter_export_goes_on_the_base(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path)
    export = folder(tmp_path / "run" / "export", name="adapter_config.json")
    expected = Weights(str(tmp_path / "base"), "r1", str(export))
    assert choose(recipe) == choose(recipe, str(export)) == choose(recipe, None, str(export)) == expected
    other = str(folder(tmp_path / "other"))
    assert choose(recipe, other, str(export)) == Weights(other, None, str(export))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p / "nowhere", "no such checkpoint"),
        (lambda p: folder(p / "llama", "llama"), "model_type is llama, the recipe's model.family is qwen3_omni_moe"),
    ],
)
def test_what_is_not_a_checkpoint(tmp_path: Path, make: object, message: str) -> None:
    recipe = recipe_of(tmp_path)
    with pytest.raises(UserError, match=message):
        choose(recipe, str(make(tmp_path)))  # type: ignore[operator]
    with pytest.raises(UserError, match="not an adapter's folder"):
        choose(recipe, None, str(tmp_path))


def test_hub_ids_are_left_to_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = recipe_of(tmp_path, "owner/name")
    assert choose(recipe) == Weights("owner/name", "r1", None, trained=False)
    assert identity(choose(recipe)) == {"checkpoint": "owner/name@r1", "adapter": None}


def test_identity_is_that_of_the_content(tmp_path: Path) -> None:
    first, second = folder(tmp_path / "1"), folder(tmp_path / "2")
    for path in (first, second):
        (path / "model.safetensors").write_bytes(b"x" * 100)
    os.utime(second / "model.safetensors", (1, 1))
    assert identity(Weights(str(first))) == identity(Weights(str(second)))
    (second / "model.safetensors").write_bytes(b"x" * 99 + b"y")
    assert identity(Weights(str(first))) != identity(Weights(str(second)))
    assert identity(Weights(str(first), adapter=str(second)))["adapter"] is not None
