from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from avlm.data.collate import collate
from avlm.data.loader import Loader
from avlm.data.order import Epochs
from avlm.data.processing import Processor, limits_of, load_processor, make_sample, measure_rows
from avlm.data.rows import read_rows
from avlm.data.types import IGNORE, Row
from avlm.errors import UserError
from avlm.recipe.schema import Batch, Data, Model, Recipe, Schedule


def write_clip(path: Path, seconds: float, fps: int = 10, sound: bool = True) -> None:
    """64 × 48 MJPEG in MOV, with a 16 kHz mono PCM sine."""
    import av

    with av.open(str(path), "w") as container:
        picture = container.add_stream("mjpeg", rate=fps, width=64, height=48, pix_fmt="yuvj420p")
        track = container.add_stream("pcm_s16le", rate=16_000, layout="mono") if sound else None
        for number in range(round(seconds * fps)):
            pixels = np.full((48, 64, 3), 20 * number % 256, np.uint8)
            container.mux(picture.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(picture.encode(None))
        if track is not None:
            container.mux(track.encode(_sine(seconds)))
            container.mux(track.encode(None))


def write_sound(path: Path, seconds: float) -> None:
    import av

    with av.open(str(path), "w") as container:
        track = container.add_stream("pcm_s16le", rate=16_000, layout="mono")
        container.mux(track.encode(_sine(seconds)))
        container.mux(track.encode(None))


def _sine(seconds: float) -> Any:
    import av

    wave = (np.sin(np.arange(round(seconds * 16_000)) / 6) * 8000).astype(np.int16)
    frame = av.AudioFrame.from_ndarray(wave[None], format="s16", layout="mono")
    frame.sample_rate = 16_000
    return frame


MEDIA: list[list[Any]] = [
    [("video", "av.mov")],
    [("video", "silent.mov")],
    [("audio", "tone.wav")],
    [("image", "picture.png")],
    [],
    [("video", "long.mov"), ("image", "picture.png"), ("audio", "tone.wav"), ("video", "silent.mov")],
    [("video", "short.mov")],
    [("video", "long.mov", {"start": 1.23, "end": 4.5}), ("video", "av.mov", {"audio_in_video": False})],
    [("video", "av.mov", {"audio_in_video": True, "end": 0.04}), ("audio", "tone.wav", {"start": 0.77})],
    [("video", None, {"frames": ["picture.png"] * 5, "times": [0, 0.5, 1, 2, 4.5]})],
    [("video", "long.mov", {"start": 9.27}), ("video", "silent.mov", {"audio_in_video": True, "start": 3})],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from PIL import Image

    root = tmp_path_factory.mktemp("media")
    write_clip(root / "av.mov", 4.0)
    write_clip(root / "silent.mov", 4.0, sound=False)
    write_clip(root / "long.mov", 9.3)
    write_clip(root / "short.mov", 0.3)
    write_sound(root / "tone.wav", 2.5)
    Image.new("RGB", (100, 70), "red").save(root / "picture.png")
    rows = []
    for items in MEDIA:
        content: list[dict[str, Any]] = [{"type": "text", "text": "What?"}]
        for kind, path, *keys in items[::-1]:
            content.insert(0, {"type": kind} | ({"path": path} if path else {}) | (keys[0] if keys else {}))
        rows.append({"conversation": [{"role": "user", "content": content}, {"role": "assistant", "content": "red"}]})
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def recipe_for(checkpoint: Path, folder: Path, **data: Any) -> Recipe:
    return Recipe(
        name="test",
        model=Model(family="qwen3_omni_moe", checkpoint=str(checkpoint)),
        batch=Batch(global_batch_size=4),
        schedule=Schedule(max_steps=1),
        data=Data(
            train=[str(folder / "rows.jsonl")],
            video_root=str(folder),
            max_video_frames=8,
            video_min_pixels=32 * 32,
            video_max_pixels=96 * 96,
            **data,
        ),
        output_dir="out",
    )


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[Row]:
    return read_rows([folder / "rows.jsonl"], folder)


SETTINGS = [{}, {"audio_in_video": False}, {"max_audio_seconds": 1.37}, {"video_sample_fps": 3.7}]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_counts_from_metadata_are_the_lengths_of_the_samples(
    tiny_checkpoint: Path, folder: Path, rows: list[Row], settings: dict[str, Any]
) -> None:
    recipe = recipe_for(tiny_checkpoint, folder, **settings)
    processor = load_processor(recipe)
    assert processor.limits == limits_of(recipe)
    samples = [make_sample(row, processor, processor.limits) for row in rows]
    counts = measure_rows(rows, processor)
    assert [c.total for c in counts] == [len(s.input_ids) for s in samples]
    assert [c.prompt for c in counts] == [int((s.labels != IGNORE).nonzero()[0]) for s in samples]
    for sample, count in zip(samples, counts, strict=True):
        names = ("<|video_pad|>", "<|image_pad|>", "<|audio_pad|>")
        ids = torch.tensor(processor.tokenizer.convert_tokens_to_ids(list(names)))
        assert int(torch.isin(sample.input_ids, ids).sum()) == count.media
        features = sum(len(v) // 4 for k, v in sample.media.items() if k.startswith("pixel_values"))
        sounds = int((sample.input_ids == ids[2]).sum())
        assert count.media == features + sounds


def processor_of(tiny_checkpoint: Path, folder: Path) -> Processor:
    return load_processor(recipe_for(tiny_checkpoint, folder))


def test_media_reach_the_sample(tiny_checkpoint: Path, folder: Path, rows: list[Row]) -> None:
    processor = processor_of(tiny_checkpoint, folder)
    samples = [make_sample(row, processor, processor.limits) for row in rows]
    assert [m.shape[1] for m in samples[0].audio] == [400]
    assert int((samples[0].input_ids == processor.tokenizer.convert_tokens_to_ids("<|audio_pad|>")).sum()) == 52
    assert samples[1].audio == []
    assert samples[0].media["video_second_per_grid"].tolist() == pytest.approx([2 * 3.9 / 7])
    assert [m.shape[1] for m in samples[5].audio] == [930, 250]
    assert samples[5].media["video_grid_thw"].tolist() == [[4, 4, 4], [4, 4, 4]]
    prompt = make_sample(rows[0], processor, processor.limits, with_answer=False)
    assert torch.equal(prompt.input_ids, samples[0].input_ids[: len(prompt.input_ids)])


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_to_batches(tiny_checkpoint: Path, folder: Path, rows: list[Row], workers: int) -> None:
    processor, rows = processor_of(tiny_checkpoint, folder), rows[:7]
    loader = Loader(
        rows,
        Epochs([count.total for count in measure_rows(rows, processor)], shuffle=False),
        partial(make_sample, processor=processor, limits=processor.limits),
        partial(collate, pad_id=processor.pad_id),
        micro_batch_size=4,
        global_batch_size=4,
        workers=workers,
    )
    first, second = list(loader)
    assert first["input_features"].shape == (2, 128, 400)
    assert len(first["video_grid_thw"]) == 2 and len(first["image_grid_thw"]) == 1
    assert (first["labels"] != IGNORE).any(1).tolist() == [True] * 4
    assert (second["labels"] != IGNORE).any(1).tolist() == [True, True, True, False]


def test_an_unreadable_file_is_named_with_its_row(tiny_checkpoint: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.mp4").write_bytes(b"not a video")
    row = {"conversation": [{"role": "user", "content": [{"type": "video", "path": "bad.mp4"}]}]}
    row["conversation"].append({"role": "assistant", "content": "red"})  # type: ignore[dict-item]
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row))
    processor = processor_of(tiny_checkpoint, folder)
    rows = read_rows([file], tmp_path)
    with pytest.raises(UserError, match=r"rows.jsonl:1: row 'rows:1': .*bad.mp4"):
        make_sample(rows[0], processor, processor.limits)
    with pytest.raises(UserError, match=r"rows.jsonl:1: row 'rows:1': .*bad.mp4"):
        measure_rows(rows, processor)


def test_a_missing_checkpoint(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model.checkpoint: .*none: no such checkpoint"):
        load_processor(recipe_for(tmp_path / "none", folder))
