from __future__ import annotations

from pathlib import Path

import pytest

from avlm.cli import run


def test_tiny(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "model"
    assert run(["model", "tiny", str(folder), "--seed", "1"]) == 0
    assert (folder / "model.safetensors").exists()
    assert run(["model", "tiny", str(folder), "--seed", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{folder}: written", f"{folder}: reused"]
    assert run(["model", "tiny", str(folder)]) == 2
    assert "seed 1 instead of 0" in capsys.readouterr().err
