"""Shapes of published checkpoints: small files in the families' folders, so that models can be counted offline."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any


def known_architecture(family: str, checkpoint: str) -> dict[str, Any] | None:
    """The file in `avlm/models/<family>/` that describes the hub id `checkpoint`; None when there is none."""
    for file in sorted(resources.files(f"avlm.models.{family}").iterdir(), key=lambda entry: entry.name):
        if file.name.startswith("architecture") and file.name.endswith(".json"):
            described: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            if checkpoint in described["checkpoints"]:
                return described
    return None


def known_checkpoints(family: str) -> list[str]:
    """Hub ids that `known_architecture` knows."""
    files = (entry for entry in resources.files(f"avlm.models.{family}").iterdir() if entry.name.endswith(".json"))
    return sorted(
        name for file in files for name in json.loads(file.read_text(encoding="utf-8")).get("checkpoints", [])
    )
