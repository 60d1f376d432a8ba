"""Files with the shapes of published checkpoints."""

from __future__ import annotations

import pytest

from avlm.models.architecture import known_architecture, known_checkpoints
from avlm.models.base import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
def test_every_file_says_where_its_numbers_come_from(family: str) -> None:
    assert known_checkpoints(family)
    for checkpoint in known_checkpoints(family):
        described = known_architecture(family, checkpoint)
        assert described is not None
        assert described["sources"] and described["published"]


def test_unknown_checkpoint() -> None:
    assert known_architecture("qwen3_omni_moe", "someone/else") is None
