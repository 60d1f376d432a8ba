"""Which weights are evaluated, checked and identified before anything heavy is imported."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from avlm.errors import UserError
from avlm.models.base import get_family
from avlm.models.checkpoint import ADAPTER_CONFIG, check_checkpoint
from avlm.recipe.schema import Recipe
from avlm.utils.folder import file_hash

_COUNTED = (".safetensors", ".bin", ".json", ".jinja", ".txt", ".model")
"""Endings of files that can change what a checkpoint answers."""


@dataclass(frozen=True)
class Weights:
    """A checkpoint (folder or hub id) and, for LoRA, the folder of an adapter on it.

    trained: whether these are the run's own results (or others that were named), not the weights it started from.
    """

    checkpoint: str
    revision: str | None = None
    adapter: str | None = None
    trained: bool = True

    def __str__(self) -> str:
        return self.checkpoint if self.adapter is None else f"{self.checkpoint} with adapter {self.adapter}"


def choose(recipe: Recipe, checkpoint: str | None = None, adapter: str | None = None) -> Weights:
    """The weights that the flags name; by default the run's export, or the model it started from.

    An adapter's folder given as `checkpoint` is used on the recipe's base model. Raises `UserError` for a folder that
    is missing or is not a checkpoint of the recipe's family.
    """
    base, revision = recipe.model.checkpoint, recipe.model.revision
    if checkpoint is None and adapter is None:
        export = Path(recipe.output_dir) / "export"
        if export.is_dir():
            checkpoint = str(export)
    if checkpoint is not None and adapter is None and (Path(checkpoint) / ADAPTER_CONFIG).is_file():
        checkpoint, adapter = None, checkpoint
    trained = checkpoint not in (None, base) or adapter is not None
    if checkpoint not in (None, base):
        base, revision = str(checkpoint), None
    field = "model.checkpoint: " if base == recipe.model.checkpoint else ""
    check_checkpoint(base, get_family(recipe.model.family), field)
    if adapter is not None and not (Path(adapter) / ADAPTER_CONFIG).is_file():
        raise UserError(f"{adapter}: is not an adapter's folder ({ADAPTER_CONFIG} is missing)")
    return Weights(base, revision, adapter, trained)


def identity(weights: Weights) -> dict[str, str | None]:
    """What tells these weights from others: SHA-256 of a folder's files, name and revision of a hub id."""
    return {
        "checkpoint": _folder_hash(Path(weights.checkpoint)) or f"{weights.checkpoint}@{weights.revision or 'main'}",
        "adapter": None if weights.adapter is None else _folder_hash(Path(weights.adapter)),
    }


def _folder_hash(folder: Path) -> str | None:
    if not folder.is_dir():
        return None
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.suffix in _COUNTED)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # hashing lets other threads run
        hashes = list(pool.map(file_hash, files))
    total = hashlib.sha256()
    for path, one in zip(files, hashes, strict=True):
        total.update(f"{path.name}\0{one}\n".encode())
    return total.hexdigest()
