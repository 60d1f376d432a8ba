"""`avlm report`."""

from __future__ import annotations

from pathlib import Path

import pytest

from avlm.cli import run


def test_report_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0, "lr": 0.1}\n')
    assert run(["report", str(tmp_path)]) == 0
    assert "report.html" in capsys.readouterr().out
    assert run(["report", str(tmp_path), "--out", str(tmp_path / "x" / "page.html")]) == 0
    assert (tmp_path / "x" / "page.html").read_text() == (tmp_path / "report.html").read_text()


def test_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(tmp_path)]) == 2
    assert run(["report", str(tmp_path / "nowhere")]) == 2
    error = capsys.readouterr().err
    assert "holds no run" in error and "no such folder" in error
