"""What can be told of a checkpoint's folder at once, before anything heavy is imported."""

from __future__ import annotations

import json
from pathlib import Path

from avlm.errors import UserError
from avlm.models.base import Family

ADAPTER_CONFIG = "adapter_config.json"
INDEX = "model.safetensors.index.json"


def check_checkpoint(checkpoint: str, family: Family, field: str = "model.checkpoint: ") -> None:
    """Look whether a checkpoint is one of `family`; a hub id is looked at when it is loaded. `field` starts messages.

    Raises `UserError` for a folder that is missing, is none of Hugging Face's, or holds another model.
    """
    folder = Path(checkpoint)
    if not folder.exists():
        if folder.is_absolute() or checkpoint.startswith((".", "~")) or checkpoint.count("/") != 1:
            raise UserError(
                f"{field}{checkpoint}: no such checkpoint; give a Hugging Face folder or a hub id (owner/name)"
            )
        return
    config = folder / "config.json"
    if not config.is_file():
        why = "is a file, not a folder" if folder.is_file() else "config.json is missing"
        if (folder / ADAPTER_CONFIG).is_file():
            why = "it is an adapter; name the model that it belongs to"
        raise UserError(f"{field}{checkpoint}: is not a Hugging Face checkpoint ({why})")
    try:
        found = json.loads(config.read_text(encoding="utf-8"))["model_type"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{config}: does not say which model this is (no model_type)") from None
    if found not in family.model_types:
        raise UserError(
            f"{field}{checkpoint}: is a checkpoint of another model: its model_type is {found}, the recipe's "
            f"model.family is {family.name} ({' or '.join(family.model_types)})"
        )


def check_weights(checkpoint: str, field: str = "model.checkpoint: ") -> None:
    """Look whether the safetensors files of a local checkpoint are all there and whole, by their headers.

    Raises `UserError` naming a file that is missing or cut off. A hub id passes.
    """
    folder = Path(checkpoint)
    if not folder.is_dir():
        return
    files = sorted(folder.glob("*.safetensors"))
    if (folder / INDEX).is_file():
        try:
            names = set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"{folder / INDEX}: is not an index of weights; copy it anew") from None
        files = sorted(folder / str(name) for name in names)
    if not files:
        raise UserError(f"{field}{checkpoint}: has no weights (*.safetensors); copy them into this folder")
    for file in files:
        if not file.is_file():
            raise UserError(f"{field}{checkpoint}: {file.name} is missing, which {INDEX} names; copy it")
        wanted, there = _length(file), file.stat().st_size
        if wanted is None:
            raise UserError(f"{file}: is not a whole safetensors file ({there:,} bytes); copy it anew")
        if wanted != there:
            raise UserError(f"{file}: has {there:,} bytes instead of {wanted:,}; copy it anew")


def _length(file: Path) -> int | None:
    """Bytes that a safetensors file must have: 8, its header, its tensors. None when the header cannot be read."""
    with file.open("rb") as content:
        size = int.from_bytes(content.read(8), "little")
        if size > file.stat().st_size:
            return None
        try:
            header = json.loads(content.read(size))
            ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            return None
    return 8 + size + max(ends, default=0)
