from __future__ import annotations

import json
from pathlib import Path

import pytest

from avlm.cli import run


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "demo"
    assert run(["data", "make-demo", str(folder), "--clips", "10", "--seed", "5"]) == 0
    return folder


def test_make_demo_again_says_reused(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "make-demo", str(demo), "--clips", "10", "--seed", "5"]) == 0
    assert capsys.readouterr().out == f"{demo}: reused\n"


def test_make_demo_refuses_other_settings(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "make-demo", str(demo), "--clips", "10"]) == 2
    assert "seed 5 instead of 0" in capsys.readouterr().err


def test_check_of_a_jsonl_file(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "check", str(demo / "train.jsonl"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] and report["splits"]["train"]["rows"] == 32


def test_check_exits_with_2(demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text((demo / "train.jsonl").read_text() + "{}\n")
    assert run(["data", "check", str(path), "--video-root", str(demo), "--fast"]) == 2
    assert f"{path}:33: " in capsys.readouterr().out
    assert run(["data", "check", str(path)]) == 2, "media are looked for beside the file"
    assert run(["data", "check", str(tmp_path / "gone.jsonl")]) == 2
    assert "no such file" in capsys.readouterr().err
    assert run(["data", "check", str(tmp_path / "a\udce4.jsonl")]) == 2
    assert "is not UTF-8; rename it" in capsys.readouterr().err


def test_check_and_stats_of_a_recipe(demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["model", "tiny", str(tmp_path / "model")]) == 0
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"""
name: r
model: {{family: qwen3_omni_moe, checkpoint: {tmp_path / "model"}, dtype: float32}}
batch: {{global_batch_size: 1}}
schedule: {{max_steps: 1}}
data:
  train: {demo / "train.jsonl"}
  validation: {demo / "validation.jsonl"}
  video_root: {demo}
  video_min_pixels: 1024
  video_max_pixels: 4096
parallel: {{devices_per_node: 1}}
device: cpu
output_dir: {tmp_path / "out"}
""")
    capsys.readouterr()
    assert run(["data", "check", str(recipe), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["splits"]) == {"train", "validation"}
    assert run(["data", "stats", str(recipe), "data.max_video_frames=4", "--json"]) == 0
    splits = json.loads(capsys.readouterr().out)["splits"]
    assert splits["validation"]["rows"] == 8 and splits["validation"]["frames"] == 32
