"""Runs of a tiny Nemotron-3-Nano-Omni through AutoModel's loop, from checkpoint to export, on one and two ranks.

The recipe rule against `device: cpu` is passed by: the Mamba kernels have a stand-in (`tests/automodel/nemotron.py`).
"""

from __future__ import annotations

import json
import sys
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from avlm.recipe.schema import Recipe
from avlm.stacks import set_dotted
from tests.automodel.conftest import lines, losses, train_here, train_on_two_ranks
from tests.avlm.data import clips

pytestmark = [pytest.mark.upstream, pytest.mark.distributed]

# what rank 0 and rank 1 get in each step when nothing is packed
STEPS = [("video", "text"), ("text", "wide"), ("audio", "silent"), ("text", "text"), ("image", "mixed")]
FILES = {
    "text": [],
    "video": ["sound.mp4"],
    "wide": ["wide.mp4"],
    "silent": ["silent.mp4"],
    "audio": ["tone.wav"],
    "image": ["picture.png"],
    "mixed": ["tone.wav", "picture.png", "silent.mp4", "sound.mp4"],
}
KINDS = {".mp4": "video", ".wav": "audio", ".png": "image"}
LORA = {"kind": "lora", "lora": {"rank": 4, "alpha": 8, "targets": ["attention", "mamba", "shared_experts"]}}
PACKED = {"data.packing": {"enabled": True, "pack_size": 420}, "schedule.max_steps": 2}
RUNS: dict[str, dict[str, Any]] = {"sft": {}, "lora": {"method": LORA}, "packed": PACKED}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with `model/` and `data/`, in a process that has the kernels."""
    import torch
    from PIL import Image

    from tests.automodel.nemotron import kernel_modules, write_model

    folder = tmp_path_factory.mktemp("nemotron")
    data = folder / "data"
    data.mkdir()
    clips.write(data / "sound.mp4", clips.greys(10, 64, 64), clips.tone(1.0, 16_000))
    clips.write(data / "silent.mp4", clips.greys(10, 64, 64))
    clips.write(data / "wide.mp4", clips.greys(12, 32, 96), clips.tone(0.5, 16_000))
    Image.fromarray(clips.quadrants(64, 32)).save(data / "picture.png")
    with wave.open(str(data / "tone.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes((clips.tone(0.64, 16_000, 880.0)[0] * 32767).astype(np.int16).tobytes())
    rows = []
    for number, kind in enumerate(kind for step in STEPS for kind in step):
        media = [{"type": KINDS[Path(name).suffix], "path": name} for name in FILES[kind]]
        content = [*media, {"type": "text", "text": f"question {number}"}]
        answer = {"role": "assistant", "content": f"answer {number}" * (1 + number % 3)}
        rows.append({"id": f"{number}-{kind}", "conversation": [{"role": "user", "content": content}, answer]})
    (data / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch, torch.compiler.set_stance("force_eager"):
        for name, module in kernel_modules().items():
            patch.setitem(sys.modules, name, module)
        write_model(folder / "model")
        yield folder


def recipe(home: Path, name: str, changes: dict[str, Any]) -> Recipe:
    rows = [str(home / "data/rows.jsonl")]
    raw: dict[str, Any] = {
        "name": name,
        "model": {
            "family": "nemotron_3_nano_omni",
            "checkpoint": str(home / "model"),
            "dtype": "float32",
        },
        "batch": {"global_batch_size": 2},
        "schedule": {"max_steps": len(STEPS)},
        "data": {
            "train": rows,
            "validation": rows,
            "video_root": str(home / "data"),
            "shuffle": False,
            "max_video_frames": 4,
            "video_min_pixels": 1024,
            "video_max_pixels": 4096,
            "sequence_length": 420,
            "workers": 0,
        },
        "optimizer": {"lr": 1e-3, "warmup": 0},
        "parallel": {"devices_per_node": 1},
        "logging": {"tensorboard": False},
        "device": "cpu",
        "output_dir": str(home / name),
    }
    for key, value in changes.items():
        set_dotted(raw, key, value)
    return Recipe.model_validate(raw)


@pytest.fixture(scope="module")
def one(home: Path) -> dict[str, Recipe]:
    """Each of `RUNS` on one rank, in this process."""
    runs = {name: recipe(home, f"one_{name}", changes) for name, changes in RUNS.items()}
    for run in runs.values():
        train_here(run)
    return runs


@pytest.fixture(scope="module")
def two(home: Path) -> dict[str, Recipe]:
    """Each of `RUNS` on two ranks, with FSDP2 alone and with expert parallelism, in one launch."""
    runs = {}
    for name, changes in RUNS.items():
        for how, more in (("fsdp", {}), ("ep", {"parallel.ep": 2, "memory.activation_checkpointing": "full"})):
            both = {**changes, "parallel.devices_per_node": 2, **more}
            runs[f"{name}_{how}"] = recipe(home, f"two_{name}_{how}", both)
    train_on_two_ranks(list(runs.values()), home, module="tests.automodel.nemotron_ranks")
    return runs


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {name: value for file in sorted(folder.glob("*.safetensors")) for name, value in load_file(file).items()}


def test_language_model_trains_and_nothing_else(home: Path, one: dict[str, Recipe]) -> None:
    """The export has the tensors of the checkpoint; those of towers and projectors bit for bit."""
    import torch

    before, after = weights(home / "model"), weights(Path(one["sft"].output_dir) / "export")
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    language = {name for name in before if name.startswith("language_model.")}
    assert changed <= language
    routers = {name for name in language if "e_score_correction_bias" in name}
    assert language - changed <= routers
    assert all(torch.isfinite(value).all() for value in after.values())


@pytest.mark.parametrize("name", RUNS)
def test_loss_falls(name: str, one: dict[str, Recipe]) -> None:
    found = losses(one[name])
    assert len(found) == one[name].schedule.max_steps and np.isfinite(found).all()
    validation = [entry["loss"] for entry in lines(Path(one[name].output_dir) / "validation.jsonl")]
    assert validation[-1] < found[0]


def test_every_adapter_has_learned(one: dict[str, Recipe]) -> None:
    """Those of Mamba's output layers too."""
    export = weights(Path(one["lora"].output_dir) / "export")
    b = {name: value for name, value in export.items() if ".lora_B." in name}
    layers = {name.split(".mixer.")[1].split(".lora_B")[0] for name in b}
    assert layers == {"in_proj", "out_proj", *(f"{x}_proj" for x in "qkvo"), "shared_experts.up_proj"} | {
        "shared_experts.down_proj"
    }
    assert len(b) == 2 * 2 + 4 + 2 * 2
    assert all(value.any() for value in b.values())


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("how", ["fsdp", "ep"])
def test_two_ranks_equal_one(name: str, how: str, one: dict[str, Recipe], two: dict[str, Recipe]) -> None:
    """With media of other kinds, sizes and numbers on each rank."""
    runs = one[name], two[f"{name}_{how}"]
    assert losses(runs[1]) == pytest.approx(losses(runs[0]), abs=1e-4)
    norms = [[entry["grad_norm"] for entry in lines(Path(run.output_dir) / "metrics.jsonl")] for run in runs]
    assert norms[1] == pytest.approx(norms[0], rel=1e-3)
    validation = [lines(Path(run.output_dir) / "validation.jsonl")[-1] for run in runs]
    assert validation[1]["supervised_tokens"] == validation[0]["supervised_tokens"]
    assert validation[1]["loss"] == pytest.approx(validation[0]["loss"], abs=1e-4)


def test_packing_gives_the_loss_of_the_same_rows(home: Path, one: dict[str, Recipe]) -> None:
    """All rows in one step, packed or not: the token-weighted loss and the gradient are the same."""
    apart = recipe(home, "all_apart", {"batch.global_batch_size": 10, "schedule.max_steps": 1})
    train_here(apart)
    entries = [lines(Path(run.output_dir) / "metrics.jsonl")[0] for run in (apart, one["packed"])]
    assert entries[0]["tokens"] == entries[1]["tokens"]
    assert entries[0]["supervised_tokens"] == entries[1]["supervised_tokens"]
    for key in ("loss", "grad_norm"):
        assert entries[1][key] == pytest.approx(entries[0][key], rel=1e-4)
