"""Folders that are no checkpoint, or not a whole one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from avlm.errors import UserError
from avlm.models.base import FAMILIES, get_family
from avlm.models.checkpoint import check_checkpoint, check_weights

QWEN = get_family("qwen3_omni_moe")


def said(folder: Path | str, field: str = "model.checkpoint: ") -> str:
    """What is wrong with the folder."""
    with pytest.raises(UserError) as caught:
        check_checkpoint(str(folder), QWEN, field)
    return str(caught.value).replace(str(folder), "F")


@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_knows_its_own(name: str, tmp_path: Path) -> None:
    family = get_family(name)
    for model_type in family.model_types:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
        check_checkpoint(str(tmp_path), family)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "model.checkpoint: F: is not a Hugging Face checkpoint (config.json is missing)"),
        ({"adapter_config.json": "{}"}, "(it is an adapter; name the model that it belongs to)"),
        ({"config.json": "{"}, "F/config.json: does not say which model this is (no model_type)"),
        ({"config.json": "[]"}, "F/config.json: does not say which model this is (no model_type)"),
        ({"config.json": "{}"}, "F/config.json: does not say which model this is (no model_type)"),
        (
            {"config.json": '{"model_type": "llama"}'},
            "model.checkpoint: F: is a checkpoint of another model: its model_type is llama, the recipe's model.family "
            "is qwen3_omni_moe (qwen3_omni_moe or qwen3_omni_moe_thinker)",
        ),
    ],
)
def test_other_folders(content: dict[str, str], message: str, tmp_path: Path) -> None:
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    assert said(tmp_path).endswith(message)


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").touch()
    check_checkpoint("owner/name", QWEN)
    missing = "F: no such checkpoint; give a Hugging Face folder or a hub id (owner/name)"
    for name in ("gone", "./gone", "a/b/c", str(tmp_path / "gone")):
        assert said(name, "") == missing
    assert said("notes") == "model.checkpoint: F: is not a Hugging Face checkpoint (is a file, not a folder)"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A checkpoint of two files and an index."""
    import torch
    from safetensors.torch import save_file

    for name in "ab":
        save_file({f"{name}.weight": torch.ones(3, 4)}, tmp_path / f"{name}.safetensors", metadata={"format": "pt"})
    index = {"weight_map": {"a.weight": "a.safetensors", "b.weight": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def test_whole_weights(weights: Path) -> None:
    check_weights(str(weights))
    (weights / "model.safetensors.index.json").unlink()
    check_weights(str(weights))
    check_weights("owner/name")


def test_weights_that_are_not_whole(weights: Path) -> None:
    file, index = weights / "b.safetensors", weights / "model.safetensors.index.json"
    content = file.read_bytes()

    def message() -> str:
        with pytest.raises(UserError) as caught:
            check_weights(str(weights))
        return str(caught.value).replace(str(weights), "F")

    file.write_bytes(content[:-10])
    size = len(content)
    assert message() == f"F/b.safetensors: has {size - 10} bytes instead of {size}; copy it anew"
    for damaged in (b"", content[:5], content[:40], b"version https://git-lfs.github.com/spec/v1"):
        file.write_bytes(damaged)
        assert message() == f"F/b.safetensors: is not a whole safetensors file ({len(damaged)} bytes); copy it anew"
    file.unlink()
    assert (
        message() == "model.checkpoint: F: b.safetensors is missing, which model.safetensors.index.json names; copy it"
    )
    index.write_text("[]")
    assert message() == "F/model.safetensors.index.json: is not an index of weights; copy it anew"
    index.unlink()
    (weights / "a.safetensors").unlink()
    assert message() == "model.checkpoint: F: has no weights (*.safetensors); copy them into this folder"
