"""A run's folder that no training wrote: every file of `docs/architecture.md`, with numbers made by a formula."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from avlm.data.demo import draw_frames, draw_sound, plan_clips, rows_of, write_clip
from avlm.eval.metrics import evaluate
from avlm.recipe.load import save_resolved
from avlm.recipe.schema import Batch, Data, Model, Recipe, Schedule

RIGHT = {
    "before": {"picture": 4, "order": 4, "sound": 5, "joint": 3},
    "after": {"picture": 50, "order": 50, "sound": 50, "joint": 20},
    "mute_audio": {"picture": 50, "order": 40, "sound": 4, "joint": 3},
    "blank_video": {"picture": 4, "order": 3, "sound": 50, "joint": 4},
    "shuffle_frames": {"picture": 50, "order": 2, "sound": 50, "joint": 20},
}
"""Of so many answers in a row, one is wrong (from 20 on) or right (below)."""


def recipe(folder: Path) -> Recipe:
    return Recipe(
        name="tiny_omni demo",
        model=Model(family="qwen3_omni_moe", checkpoint=str(folder / "tiny")),
        batch=Batch(global_batch_size=16),
        schedule=Schedule(max_steps=400),
        data=Data(
            train=[str(folder / "data" / "train.jsonl")],
            validation=[str(folder / "data" / "validation.jsonl")],
            video_root=str(folder / "data"),
            max_video_frames=8,
            video_sample_fps=4.0,
            video_min_pixels=32 * 32,
            video_max_pixels=64 * 64,
            sequence_length=512,
        ),
        output_dir=str(folder / "run"),
        device="cpu",
    )


def make_clips(folder: Path, count: int = 8) -> list[dict[str, Any]]:
    """Demo clips and rows below `folder`/data."""
    (folder / "data" / "clips").mkdir(parents=True)
    rows = []
    for clip in plan_clips(0, 0, count)["validation"]:
        write_clip(folder / "data" / clip.file, draw_frames(clip), draw_sound(clip, np.random.default_rng(0)), clip.fps)
        rows += rows_of("validation", clip)
    text = "\n".join(json.dumps(row) for row in rows) + "\n"
    for name in ("train", "validation"):
        (folder / "data" / f"{name}.jsonl").write_text(text)
    return rows


def predict(rows: list[dict[str, Any]], name: str, copies: int = 1) -> list[dict[str, Any]]:
    lines = []
    for number in range(copies):
        for index, row in enumerate(rows):
            period = RIGHT[name][row["class"]]
            turn = (index // 4 + number * 8) % period
            right = turn != 0 if period >= 20 else turn == 0
            user, assistant = row["conversation"]
            reference = assistant["content"][0]["text"]
            wrong = {"A": "B", "B": "C", "C": "D", "D": "A", "low": "top", "red": "white"}.get(reference, "red")
            lines.append(
                {
                    "id": row["id"] + (f"-{number}" if number else ""),
                    "class": row["class"],
                    "question": user["content"][1]["text"],
                    "answer": reference if right else wrong if name != "before" else ["the the", wrong, ""][index % 3],
                    "reference": reference,
                    "choices": None,
                    "media": [user["content"][0]],
                }
            )
    return lines


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def make_run(folder: Path, copies: int = 8) -> Path:
    """Clips, and everything a finished run has. Returns the run's folder."""
    rows = make_clips(folder)
    run = folder / "run"
    run.mkdir()
    save_resolved(recipe(folder), run / "recipe.yaml")
    rng = np.random.default_rng(0)
    metrics = []
    for step in range(1, 401):
        lr = 3e-3 * (step / 40 if step <= 40 else 0.5 * (1 + math.cos(math.pi * (step - 40) / 360)))
        loss = 0.02 + 3.2 * math.exp(-step / 60) * math.exp(0.15 * rng.standard_normal())
        metrics.append(
            {"step": step, "epoch": 0, "loss": loss, "lr": lr, "grad_norm": 1.0, "tokens": 3000}
            | {"supervised_tokens": 40, "tokens_per_second": 5200.0, "seconds": 0.58}
        )
    write_lines(run / "metrics.jsonl", metrics)
    steps = range(50, 401, 50)
    validation = [{"step": s, "loss": 0.03 + 3 * math.exp(-s / 60), "supervised_tokens": 500} for s in steps]
    write_lines(run / "validation.jsonl", validation)
    reason = "700 tokens, data.sequence_length is 512"
    write_lines(run / "skipped.jsonl", [{"id": "long", "source": "train.jsonl", "line": 7, "reason": reason}])
    (run / "versions.json").write_text(json.dumps({"stack": "automodel", "python": "3.12.1", "torch": "2.13.0"}))
    (run / "lengths.json").write_text(json.dumps([int(n) for n in rng.normal(180, 25, 1024).clip(100)]))
    (run / "eval").mkdir()
    for name in RIGHT:
        predictions = predict(rows, name, copies)
        write_lines(run / "predictions" / f"{name}.jsonl", predictions)
        result = evaluate(predictions, name, None if name in ("before", "after") else name)
        (run / "eval" / f"{name}.json").write_text(json.dumps(result))
    return run
