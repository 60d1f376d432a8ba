"""`avlm demo` from nothing: the accuracy that the README promises, and nothing done twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.upstream, pytest.mark.timeout(1500)]


def demo(folder: Path) -> str:
    """Run the demo in `folder`; returns what it printed."""
    command = [sys.executable, "-c", "from avlm.cli import main; main()", "demo", "tiny_omni/sft"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the demo has run."""
    folder = tmp_path_factory.mktemp("demo")
    assert "Accuracy on held-out clips" in demo(folder)
    return folder


@pytest.fixture(scope="module")
def metrics(folder: Path) -> dict[str, Any]:
    """`metrics.json` of the demo."""
    found: dict[str, Any] = json.loads((folder / "outputs/demo/metrics.json").read_text())
    return found


def test_it_learns_all_four_classes_from_chance(metrics: dict[str, Any]) -> None:
    before, after = metrics["accuracy"]["before"], metrics["accuracy"]["after"]
    assert set(after) == {"picture", "order", "sound", "joint"}
    assert max(before.values()) <= 0.35
    assert min(after["picture"], after["sound"]) >= 0.95
    assert min(after["order"], after["joint"]) >= 0.90
    assert metrics["loss"]["last"] < metrics["loss"]["first"]


def test_answers_depend_on_what_they_should(metrics: dict[str, Any]) -> None:
    accuracy = metrics["accuracy"]
    assert accuracy["mute_audio"]["picture"] >= 0.90 and accuracy["mute_audio"]["sound"] <= 0.45
    assert accuracy["blank_video"]["sound"] >= 0.90 and accuracy["blank_video"]["picture"] <= 0.45
    assert accuracy["shuffle_frames"]["order"] <= accuracy["after"]["order"] - 0.20


def test_the_report_is_one_file(folder: Path) -> None:
    page = (folder / "outputs/demo/report.html").read_text(encoding="utf-8")
    assert "tiny_omni_sft" in page
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page


def test_a_second_run_reuses_everything(folder: Path) -> None:
    (weights,) = (folder / "outputs/demo/export").glob("*.safetensors")
    predictions = folder / "outputs/demo/predictions/after.jsonl"
    before = [path.stat().st_mtime_ns for path in (weights, predictions)]
    assert "all 800 steps are done" in demo(folder)
    assert [path.stat().st_mtime_ns for path in (weights, predictions)] == before
