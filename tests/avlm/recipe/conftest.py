"""Recipe files for tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

MINIMAL = """\
name: small
model: {family: qwen3_omni_moe, checkpoint: outputs/tiny, dtype: float32}
batch: {global_batch_size: 8}
schedule: {max_steps: 10}
data: {train: [rows.jsonl]}
device: cpu
output_dir: out
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes a file into an empty working folder and returns its name."""
    monkeypatch.chdir(tmp_path)

    def write_file(text: str = MINIMAL, name: str = "r.yaml") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return name

    return write_file
