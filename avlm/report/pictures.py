"""Small pictures of what the model was given: its frames side by side, its sound as a spectrogram."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from avlm.data.types import SAMPLE_RATE, Media

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

FRAMES = 8
"""Most frames in a strip; of more, evenly spread ones are shown."""
STRIP_WIDTH = 880
"""Pixels; about twice the width on the page, for sharp screens."""
MAX_HEIGHT = 240


@dataclass(frozen=True)
class View:
    """A picture for the page: its data URI, its description, and whether it shows sound."""

    uri: str
    alt: str
    sound: bool = False


def views(media: Media, name: str) -> list[View]:
    """Pictures of a file as the model got it: a strip of frames if it has frames, a spectrogram if it has sound."""
    found = []
    if media.frames is not None:
        found.append(frame_strip(media.frames, media.times, name))
    if media.audio is not None and media.audio.size:
        found.append(spectrogram(media.audio, name))
    return found


def frame_strip(frames: np.ndarray, times: np.ndarray | None, name: str) -> View:
    """Up to `FRAMES` of [T, H, W, 3] uint8 frames in one row, from left to right in time."""
    import numpy as np
    from PIL import Image

    total = len(frames)
    shown = [int(i) for i in np.linspace(0, total - 1, min(total, FRAMES)).round()]
    gap = 4
    width = min((STRIP_WIDTH - gap * (len(shown) - 1)) // len(shown), STRIP_WIDTH // 2)
    height = max(1, min(MAX_HEIGHT, round(width * frames.shape[1] / frames.shape[2])))
    strip = Image.new("RGB", (STRIP_WIDTH, height), (13, 15, 18))
    nearest = frames.shape[2] < width
    for place, index in enumerate(shown):
        picture = Image.fromarray(np.ascontiguousarray(frames[index]))
        if nearest:
            picture = picture.resize((width, height), Image.Resampling.NEAREST)
        else:
            picture.thumbnail((width, height), Image.Resampling.LANCZOS)
        strip.paste(picture, (place * (width + gap), (height - picture.height) // 2))
    if total == 1:
        return View(_jpeg(strip), f"{name}: the picture as the model saw it")
    which = "all" if len(shown) == total else f"{len(shown)} of"
    span = "" if times is None else f", {times[shown[0]]:.1f} to {times[shown[-1]]:.1f} s"
    return View(_jpeg(strip), f"{name}: {which} {total} frames as the model saw them, in order{span}")


def spectrogram(audio: np.ndarray, name: str) -> View:
    """Loudness over time (left to right) and pitch (up, 80 Hz to 8 kHz, logarithmic) of [N] samples at 16 kHz."""
    import numpy as np
    from PIL import Image

    window, columns, rows = 1024, 440, 44
    sound = audio.astype(np.float32)
    padded = np.pad(sound, window // 2, mode="reflect" if len(sound) > window else "constant")
    starts = np.linspace(0, len(padded) - window, columns).astype(int)
    power = np.abs(np.fft.rfft(padded[starts[:, None] + np.arange(window)] * np.hanning(window), axis=1)) ** 2
    edges = np.geomspace(80, SAMPLE_RATE / 2, rows + 1) / (SAMPLE_RATE / window)
    bands = [power[:, round(low) : max(round(low) + 1, round(high))].mean(1) for low, high in pairwise(edges)]
    level = 10 * np.log10(np.stack(bands[::-1]) + 1e-6)
    top = float(level.max())
    silent = not np.abs(audio).max() > 0
    shade = np.zeros_like(level) if silent else np.clip((level - (top - 40)) / 40, 0, 1)
    dark, light = np.array([13, 15, 18]), np.array([255, 214, 140])
    picture = Image.fromarray((dark + shade[..., None] * (light - dark)).astype(np.uint8))
    seconds = len(audio) / SAMPLE_RATE
    kind = "silence" if silent else "sound"
    return View(
        _jpeg(picture), f"{name}: spectrogram of {seconds:.1f} s of {kind}, low pitch at the bottom", sound=True
    )


def _jpeg(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=78, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
