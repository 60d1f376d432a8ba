"""Rows of every kind together: in one batch, and one kind per rank (case D4)."""

from __future__ import annotations

import json
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from avlm.recipe.schema import Recipe
from tests.automodel.conftest import lines, losses, train_here, train_on_two_ranks
from tests.avlm.data import clips

pytestmark = [pytest.mark.upstream, pytest.mark.distributed, pytest.mark.timeout(1200)]

# what rank 0 and rank 1 get in each step
STEPS = [("video", "text"), ("text", "video"), ("audio", "silent"), ("text", "text"), ("image", "mixed")]
FROZEN = {f"freeze.{part}": True for part in ("vision_encoder", "vision_projector", "audio_encoder", "audio_projector")}


def media(kind: str) -> list[dict[str, str]]:
    """Content items of a row of this kind."""
    items = {
        "text": [],
        "video": [("video", "sound.mp4")],
        "silent": [("video", "silent.mp4")],
        "audio": [("audio", "tone.wav")],
        "image": [("image", "picture.png")],
        "mixed": [("image", "picture.png"), ("video", "silent.mp4"), ("video", "sound.mp4"), ("audio", "tone.wav")],
    }[kind]
    return [{"type": medium, "path": path} for medium, path in items]


@pytest.fixture(scope="module")
def data(workplace: Path) -> Path:
    """`rows.jsonl` with the rows of `STEPS` in order, and their media."""
    from PIL import Image

    folder = workplace / "mixed"
    folder.mkdir()
    frames = clips.greys(10, 64, 64)
    clips.write(folder / "sound.mp4", frames, clips.tone(1.0, 16_000))
    clips.write(folder / "silent.mp4", frames)
    Image.fromarray(clips.quadrants(64, 64)).save(folder / "picture.png")
    with wave.open(str(folder / "tone.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes((clips.tone(0.7, 16_000, 880.0)[0] * 32767).astype(np.int16).tobytes())
    rows = []
    for number, kind in enumerate(kind for step in STEPS for kind in step):
        content = [*media(kind), {"type": "text", "text": f"question {number}"}]
        rows.append(
            {"id": f"{number}-{kind}", "conversation": [
                {"role": "user", "content": content},
                {"role": "assistant", "content": f"answer {number}" * (1 + number % 3)},
            ]}
        )  # fmt: skip
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def runs(data: Path, recipe_of: Callable[..., Recipe], workplace: Path) -> dict[str, Recipe]:
    """One rank with batches of two, and two ranks with batches of one; towers trainable and frozen."""
    common: dict[str, Any] = {
        "data.train": [str(data / "rows.jsonl")],
        "data.validation": [str(data / "rows.jsonl")],
        "data.video_root": str(data),
        "data.shuffle": False,
        "batch.global_batch_size": 2,
        "schedule.max_steps": len(STEPS),
    }
    two = {"parallel.devices_per_node": 2, "batch.micro_batch_size": 1}
    made = {}
    for towers, freeze in (("trainable", {}), ("frozen", FROZEN)):
        made[f"one_{towers}"] = recipe_of(f"mixed_one_{towers}", {**common, **freeze, "batch.micro_batch_size": 2})
        made[f"two_{towers}"] = recipe_of(f"mixed_two_{towers}", {**common, **freeze, **two})
        train_here(made[f"one_{towers}"])
    train_on_two_ranks([made["two_trainable"], made["two_frozen"]], workplace)
    return made


@pytest.mark.parametrize("towers", ["trainable", "frozen"])
def test_ranks_with_different_media_equal_one_batch(towers: str, runs: dict[str, Recipe]) -> None:
    one, two = runs[f"one_{towers}"], runs[f"two_{towers}"]
    assert len(losses(one)) == len(STEPS)
    assert all(np.isfinite(losses(one)))
    assert losses(two) == pytest.approx(losses(one), abs=1e-4)
    # a wrong share of a tower's gradient would show in the norm, in the first step already
    norms = [[entry["grad_norm"] for entry in lines(Path(r.output_dir) / "metrics.jsonl")] for r in (one, two)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-3)
    validation = [lines(Path(r.output_dir) / "validation.jsonl")[-1] for r in (one, two)]
    assert validation[0]["supervised_tokens"] == validation[1]["supervised_tokens"]
    assert validation[1]["loss"] == pytest.approx(validation[0]["loss"], abs=1e-4)


def test_text_alone_is_bit_equal_with_the_dummies(recipe_of: Callable[..., Recipe], data: Path) -> None:
    import torch

    from automodel import towers
    from avlm.data.collate import collate
    from avlm.data.processing import load_processor, make_sample
    from avlm.data.rows import read_rows

    recipe = recipe_of("dummies", {"schedule.max_steps": 1, "optimizer.warmup": 0})
    model = train_here(recipe).model_parts[0].eval()
    processor = load_processor(recipe)
    row = next(row for row in read_rows([data / "rows.jsonl"], data) if not row.media)
    batch = collate([make_sample(row, processor, processor.limits)], processor.pad_id)
    del batch["labels"]
    with torch.no_grad():
        plain = model(**batch)
        calls: list[str] = []
        for name in ("visual", "audio_tower"):
            getattr(model, name).register_forward_hook(lambda *args, name=name: calls.append(name))
        towers.keep_in_step(model, {"audio", "image", "video"})
        with_dummies = model(**batch)
    assert calls == ["audio_tower", "visual", "visual"]
    assert torch.equal(plain, with_dummies)
