"""A tiny model, a few clips and a way to train on them with AutoModel's own loop, in this process or on two ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from avlm.data.demo import make_demo
from avlm.models.qwen3_omni_moe.tiny import make_tiny
from avlm.recipe.load import save_resolved
from avlm.recipe.schema import Recipe
from avlm.stacks import set_dotted

Overrides = Mapping[str, Any]


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model/` (tiny Qwen3-Omni) and `data/` (demo clips), shared by all tests."""
    folder = tmp_path_factory.mktemp("automodel")
    make_tiny(folder / "model", seed=0)
    make_demo(folder / "data", seed=0, clips=40)
    return folder


@pytest.fixture(scope="module", autouse=True)
def no_process_group() -> None:
    """Each module starts without the process group that training in another one has left."""
    import torch

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.fixture(scope="session")
def recipe_of(workplace: Path) -> Callable[..., Recipe]:
    """`recipe_of(name, {"parallel.ep": 2, …})`: a small recipe that writes to `<workplace>/<name>`."""

    def make(name: str, overrides: Overrides | None = None) -> Recipe:
        raw: dict[str, Any] = {
            "name": name,
            "model": {"family": "qwen3_omni_moe", "checkpoint": str(workplace / "model"), "dtype": "float32"},
            "freeze": {
                "vision_encoder": False,
                "vision_projector": False,
                "audio_encoder": False,
                "audio_projector": False,
            },
            "batch": {"global_batch_size": 4, "micro_batch_size": 4},
            "schedule": {"max_steps": 10},
            "data": {
                "train": [str(workplace / "data/train.jsonl")],
                "validation": [str(workplace / "data/validation.jsonl")],
                "video_root": str(workplace / "data"),
                "max_video_frames": 4,
                "video_sample_fps": 2.0,
                "video_min_pixels": 1024,
                "video_max_pixels": 4096,
                "sequence_length": 1024,
                "workers": 0,
            },
            "optimizer": {"lr": 1e-3, "warmup": 2},
            "parallel": {"devices_per_node": 1},
            "logging": {"tensorboard": False},
            "device": "cpu",
            "output_dir": str(workplace / name),
        }
        for key, value in (overrides or {}).items():
            set_dotted(raw, key, value)
        return Recipe.model_validate(raw)

    return make


def lines(path: Path) -> list[dict[str, Any]]:
    """Entries of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def losses(recipe: Recipe) -> list[float]:
    """Training loss of every step of a run."""
    return [entry["loss"] for entry in lines(Path(recipe.output_dir) / "metrics.jsonl")]


def train_here(recipe: Recipe) -> Any:
    """Train in this process, which then has AutoModel imported; returns the finished `Finetune`."""
    from automodel.train import run_recipe

    return run_recipe(recipe)


def train_on_two_ranks(
    recipes: list[Recipe],
    folder: Path,
    stopped: tuple[tuple[Recipe, int], ...] = (),
    module: str = "tests.automodel.ranks",
) -> None:
    """Train each recipe in turn in one pair of processes (importing AutoModel takes half a minute).

    stopped: recipes that are stopped after a step, then resumed. module: what the ranks run.
    """
    files = []
    for recipe in [*recipes, *(recipe for recipe, _ in stopped)]:
        save_resolved(recipe, folder / f"{recipe.name}.yaml")
    files += [str(folder / f"{recipe.name}.yaml") for recipe in recipes]
    for recipe, step in stopped:
        files += [f"{folder / recipe.name}.yaml@{step}", f"{folder / recipe.name}.yaml"]
    command = [sys.executable, "-m", "avlm.launch.ranks", "2", module, *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1100, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
