from __future__ import annotations

import random

import numpy as np
import pytest

from avlm.data.sampling import frame_count, frame_size, patch_times, picks
from tests.avlm.data.clips import limits


def test_picks_of_a_steady_clip_are_the_rounded_linspace() -> None:
    times = np.arange(380) / 30
    chosen = picks(times, 8)
    assert chosen == [0, 54, 108, 162, 217, 271, 325, 379]
    assert patch_times(times[chosen]) == pytest.approx([0.9, 4.5, 8.1, 11.7], abs=0.05)


@pytest.mark.parametrize("n", [2, 4, 6, 16, 46, 128])
@pytest.mark.parametrize("frames", [2, 3, 7, 18, 100, 381])
def test_picks_equal_rounding_for_every_even_count(n: int, frames: int) -> None:
    assert picks(np.arange(frames) / 29.97, n) == np.round(np.linspace(0, frames - 1, n)).astype(int).tolist()


def test_times_of_given_frames() -> None:
    assert patch_times(np.array([0, 30, 90, 120, 150, 210, 300, 360]) / 30) == pytest.approx([0.5, 3.5, 6.0, 11.0])
    assert patch_times(np.array([300]) / 30) == pytest.approx([10.0])


def test_picks_are_even_in_time_not_in_number() -> None:
    times = [0.0, 1.0, 2.0, 3.0, *np.arange(3.01, 4.0, 0.01)]
    assert np.array(times)[picks(times, 5)].round(1).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_of_two_frames_equally_near_the_earlier_one_is_taken() -> None:
    assert picks([0, 2, 4], 5) == [0, 0, 1, 1, 2]


def test_few_frames_are_repeated_in_order() -> None:
    assert picks([0.0], 2) == [0, 0]
    assert picks([0.0, 0.1, 0.2], 4) == [0, 1, 1, 2]
    with pytest.raises(ValueError, match="0 frames"):
        picks([], 2)


def test_sampled_clip_keeps_its_frames() -> None:
    count = frame_count(46.6, 46, limits(fps=1.0))
    assert count == 46
    assert picks(np.arange(46) * 46.6 / 46, count) == list(range(46))
    assert len(patch_times(range(46))) == 23


@pytest.mark.parametrize(
    ("duration", "frames", "fps", "cap", "expected"),
    [
        (0.4, 10, 2.0, 128, 2),  # shorter than half a second
        (0.04, 1, 2.0, 128, 2),  # one frame, taken twice
        (3.0, 3, 10.0, 128, 4),  # three frames: one of them twice
        (2.0, 60, 4.0, 128, 8),
        (2.5, 60, 4.0, 128, 10),
        (2.7, 60, 4.0, 128, 10),  # 10.8: the nearest even number
        (600.0, 18000, 2.0, 128, 128),
        (600.0, 18000, 2.0, 127, 126),  # an odd cap is not exceeded
        (10.0, 5, 2.0, 128, 6),
    ],
)
def test_frame_count(duration: float, frames: int, fps: float, cap: int, expected: int) -> None:
    assert frame_count(duration, frames, limits(cap, fps)) == expected


def test_frame_count_is_even_and_never_zero() -> None:
    rng = random.Random(0)
    for _ in range(2000):
        frames = rng.randrange(1, 500)
        cap = rng.randrange(2, 200)
        count = frame_count(rng.uniform(0, 60), frames, limits(cap, rng.uniform(0.1, 60)))
        assert count % 2 == 0 and 2 <= count <= max(2, min(cap, frames + 1))


def test_frame_count_needs_a_frame() -> None:
    with pytest.raises(ValueError, match="at least one frame"):
        frame_count(1.0, 0, limits())


def test_frame_size_is_the_rule_of_transformers() -> None:
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    rng = random.Random(1)
    for _ in range(3000):
        height, width = round(10 ** rng.uniform(0.7, 3.7)), round(10 ** rng.uniform(0.7, 3.7))
        if max(height, width) / min(height, width) > 200:
            continue
        factor = rng.choice([16, 28, 32])
        low = rng.choice([factor**2, 4 * factor**2, 128 * 32 * 32])
        high = rng.choice([low, 4 * low, 768 * 32 * 32])
        assert frame_size(height, width, factor, low, high) == smart_resize(height, width, factor, low, high)


def test_frame_size_rejects_a_line() -> None:
    with pytest.raises(ValueError, match="200 times"):
        frame_size(10, 2001, 32, 1024, 4096)
