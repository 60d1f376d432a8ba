"""Rows for comparing with upstream's processor, whose answers lie in `tests/golden/nemotron_3_nano_omni/`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from avlm.data.types import Media, MediaRef, Role, Row, Text, Turn

Part = str | Media
ANSWER: tuple[Role, str] = ("assistant", "red, then green")


def sound(samples: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randn(samples).astype(np.float32) * 0.1


def pixels(frames: int, height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, 256, (frames, height, width, 3), dtype=np.uint8)


def video(frames: int = 4, size: tuple[int, int] = (64, 64), samples: int = 0, seed: int = 0, step: int = 13) -> Media:
    """A clip of 25 frames per second of which every `step`-th frame is taken."""
    times = np.arange(frames) * step / 25
    return Media("video", pixels(frames, *size, seed), times, step / 25, sound(samples, seed) if samples else None)


def audio(samples: int = 16_000, seed: int = 1) -> Media:
    return Media("audio", audio=sound(samples, seed))


def image(height: int = 64, width: int = 96, seed: int = 2) -> Media:
    return Media("image", pixels(1, height, width, seed), np.zeros(1))


def make_row(*turns: tuple[Role, Part | Sequence[Part]], id: str = "row") -> tuple[Row, list[Media]]:
    media: list[Media] = []

    def part(value: Part) -> Text | MediaRef:
        if isinstance(value, str):
            return Text(value)
        media.append(value)
        return MediaRef(value.kind, Path(f"/media/{len(media)}"), str(len(media)))

    def parts(content: Part | Sequence[Part]) -> tuple[Text | MediaRef, ...]:
        return tuple(part(p) for p in ([content] if isinstance(content, str | Media) else content))

    return Row(id, tuple(Turn(role, parts(content)) for role, content in turns), "rows.jsonl", 1), media


CASES: dict[str, tuple[tuple[Role, Any], ...]] = {
    "text": (("user", "Which comes first?"), ANSWER),
    "text, many turns": (("system", "Be brief."), ("user", "Hi"), ("assistant", "Yes"), ("user", "One?"), ANSWER),
    "other languages": (("user", ["\n 色は？  \n\n\tÉté 🎈"]), ("assistant", "赤です。")),
    "image": (("user", [image(), "What is shown?"]), ANSWER),
    "image behind text": (("user", ["Look: ", image(), " what is shown?"]), ANSWER),
    "two images": (("user", [image(), image(32, 32, 4), "Which?"]), ANSWER),
    "video": (("user", [video(), "What is shown?"]), ANSWER),
    "wide video": (("user", [video(6, (32, 128)), "What?"]), ANSWER),
    "video of odd length": (("user", [video(5), "What?"]), ANSWER),
    "video over ten seconds": (("user", [video(12, step=26), "What?"]), ANSWER),
    "video with sound": (("user", [video(samples=32_000), "What?"]), ANSWER),
    "video with sound, whole seconds": (("user", [video(samples=12_800), "What?"]), ANSWER),
    "audio": (("user", [audio(), "What is heard?"]), ANSWER),
    "audio, multiple of 80 ms": (("user", [audio(20_480), "What is heard?"]), ANSWER),
    "audio, odd length": (("user", [audio(20_001), "What is heard?"]), ANSWER),
    "shortest audio": (("user", [audio(320), "What is heard?"]), ANSWER),
    "two sounds": (("user", [audio(), audio(30_000, 5), "Which?"]), ANSWER),
    "video and audio": (("user", [video(), audio(), "Do they fit?"]), ANSWER),
    "audio before video with sound": (("user", [audio(24_000), video(samples=32_000, seed=7), "Fit?"]), ANSWER),
    "image and audio": (("user", [image(), audio(), "Do they fit?"]), ANSWER),
    "media in two turns": (("user", [image(), "What?"]), ("assistant", "Red."), ("user", [audio(), "And?"]), ANSWER),
}


def digest(values: Any) -> dict[str, Any]:
    """Shape, mean size and one weighted sum of a tensor, which tells transposed or shifted values apart."""
    import torch

    weights = torch.cos(torch.arange(values.numel(), dtype=torch.float64) * 0.37).view(values.shape)
    return {
        "shape": list(values.shape),
        "size": round(float(values.double().abs().mean()), 5),
        "sum": round(float((values.double() * weights).sum()), 2),
    }
