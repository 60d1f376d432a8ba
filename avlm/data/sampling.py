"""Which frames are taken of a clip, and at which size: the one rule for training, inference and planning.

Frames are chosen by their timestamps, evenly over the whole clip, so clips with a variable frame rate are treated
like all others. The number of frames is even, because vision towers join two frames into one temporal patch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from avlm.data.types import MediaInfo, MediaLimits, MediaRef

TEMPORAL_PATCH = 2
"""Frames in one temporal patch."""
MAX_ASPECT = 200
"""Largest ratio of the two sides of a picture."""


def frame_count(duration: float, frames: int, limits: MediaLimits, *, given: bool = False) -> int:
    """How many frames are taken of a clip: even, at least 2.

    The nearest even number to `duration` (seconds) × `limits.sample_fps`, at most `limits.max_frames` and at most
    `frames` (those that the clip has, one more if that is odd: a frame is then taken twice). Frames that are `given`
    were chosen beforehand and are all taken, up to `limits.max_frames`.
    Raises `ValueError` for a clip without frames.
    """
    if frames < 1:
        raise ValueError("a clip needs at least one frame")
    wanted = frames + 1 if given else math.floor(duration * limits.sample_fps / 2 + 0.5) * 2
    return max(2, min(wanted, limits.max_frames // 2 * 2, (frames + 1) // 2 * 2))


def takes_sound(what: MediaRef | MediaInfo, limits: MediaLimits) -> bool:
    """Whether the sound of a file is taken, if it has any: that of a clip when its row, or else the recipe, says so."""
    return what.kind == "audio" or (limits.audio_in_video if what.audio_in_video is None else what.audio_in_video)


def picks(timestamps: Sequence[float] | np.ndarray, n: int) -> list[int]:
    """Indices of `n` frames, spread evenly in time over [first, last]; a frame may occur twice when there are few.

    timestamps: [frames], seconds or any other unit, in presentation order. Each of `n` equally spaced points in time
    takes the nearest frame, the earlier one of two equally near. At a constant frame rate this is
    round(linspace(0, frames - 1, n)).
    """
    times = np.asarray(timestamps, dtype=np.float64)
    if times.size == 0 or n < 1:
        raise ValueError(f"cannot take {n} of {times.size} frames")
    targets = np.linspace(times[0], times[-1], n)
    after = np.clip(np.searchsorted(times, targets), 0, times.size - 1)
    before = np.maximum(after - 1, 0)
    nearest = np.where(targets - times[before] <= times[after] - targets, before, after)
    return [int(i) for i in nearest]


def mean_distance(times: np.ndarray, limits: MediaLimits) -> float:
    """Mean distance of frames that are shown at these times, in seconds; for a single one that of the limits."""
    spread = float(times[-1] - times[0])
    return spread / (len(times) - 1) if spread else 1 / limits.sample_fps


def patch_times(times: Sequence[float] | np.ndarray, patch: int = TEMPORAL_PATCH) -> list[float]:
    """Time of each temporal patch, in the unit of `times`: the mean of its frames. A last patch may be short."""
    values = np.asarray(times, dtype=np.float64)
    return [float(values[i : i + patch].mean()) for i in range(0, values.size, patch)]


def frame_size(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Height and width after resizing: multiples of `factor`, area within [min_pixels, max_pixels], aspect kept.

    The rule is `smart_resize` of transformers (`models/qwen2_vl/image_processing_qwen2_vl.py`).
    Raises `ValueError` for an aspect ratio over `MAX_ASPECT`.
    """
    if min(height, width) < 1 or max(height, width) / min(height, width) > MAX_ASPECT:
        raise ValueError(f"a picture of {width} × {height} pixels: one side is over {MAX_ASPECT} times the other")
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    if new_height * new_width > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        new_height = max(factor, math.floor(height / shrink / factor) * factor)
        new_width = max(factor, math.floor(width / shrink / factor) * factor)
    elif new_height * new_width < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        new_height = math.ceil(height * grow / factor) * factor
        new_width = math.ceil(width * grow / factor) * factor
    return new_height, new_width
