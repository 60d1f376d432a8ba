from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.avlm.data.clips import KINDS, write_kind


@pytest.fixture(scope="session")
def kind_of_clip(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Gives the file of a kind in `KINDS`, written when it is first asked for; do not write to it."""
    folder = tmp_path_factory.mktemp("kinds")
    kinds = {kind.name: kind for kind in KINDS}

    def path(name: str) -> Path:
        file = folder / name
        if not file.exists():
            write_kind(kinds[name], file)
        return file

    return path
