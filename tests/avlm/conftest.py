from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3-Omni-MoE checkpoint with random weights; do not write to it."""
    from avlm.models.qwen3_omni_moe.tiny import make_tiny

    folder = tmp_path_factory.mktemp("tiny") / "qwen3_omni_moe"
    make_tiny(folder, 0)
    return folder
