"""Thumbnails and spectrograms."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from avlm.data.types import Media
from avlm.report.pictures import STRIP_WIDTH, View, views


def opened(view: View) -> Image.Image:
    head, data = view.uri.split(",", 1)
    assert head == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")


def coloured(count: int, size: tuple[int, int] = (64, 64)) -> np.ndarray:
    frames = np.zeros((count, *size, 3), np.uint8)
    for index, frame in enumerate(frames):
        frame[...] = (255, 0, 0) if index < count / 2 else (0, 0, 255)
    return frames


@pytest.mark.parametrize(("count", "said"), [(1, "the picture"), (2, "all 2 frames"), (8, "all 8"), (40, "8 of 40")])
def test_strip_runs_from_first_to_last_frame(count: int, said: str) -> None:
    times = np.arange(count) * 0.5
    (view,) = views(Media("video", coloured(count), times), "a.mp4")
    assert said in view.alt and "a.mp4" in view.alt and not view.sound
    picture = opened(view)
    assert picture.width == STRIP_WIDTH
    middle = picture.height // 2
    red, blue = picture.getpixel((5, middle)), picture.getpixel((picture.width - 12, middle))
    assert red[0] > 200 and red[2] < 60
    if count in (8, 40):
        assert blue[2] > 200 and blue[0] < 60


@pytest.mark.parametrize("size", [(32, 1024), (1024, 32), (720, 1280), (16, 16)])
def test_strip_of_any_shape_stays_small(size: tuple[int, int]) -> None:
    (view,) = views(Media("video", coloured(8, size), np.arange(8.0)), "a.mp4")
    assert opened(view).height <= 240 and len(view.uri) < 100_000


@pytest.mark.parametrize(("hertz", "low", "high"), [(220, 0.6, 1.0), (1400, 0.3, 0.6), (5000, 0.0, 0.3)])
def test_pitch_is_up(hertz: float, low: float, high: float) -> None:
    tone = np.sin(2 * np.pi * hertz * np.arange(32_000) / 16_000).astype(np.float32)
    (view,) = views(Media("audio", audio=tone), "a.wav")
    assert view.sound and "2.0 s of sound" in view.alt
    brightness = np.asarray(opened(view).convert("L")).mean(1)
    assert low <= brightness.argmax() / len(brightness) <= high


@pytest.mark.parametrize("samples", [1, 100, 16_000])
def test_silence_is_dark_and_said(samples: int) -> None:
    (view,) = views(Media("audio", audio=np.zeros(samples, np.float32)), "a.wav")
    assert "silence" in view.alt
    assert np.asarray(opened(view)).max() < 40


def test_clip_with_sound_has_two_pictures_and_empty_sound_none() -> None:
    clip = Media("video", coloured(4), np.arange(4.0), audio=np.ones(100, np.float32))
    assert [view.sound for view in views(clip, "a.mp4")] == [False, True]
    assert views(Media("audio", audio=np.zeros(0, np.float32)), "a.wav") == []
