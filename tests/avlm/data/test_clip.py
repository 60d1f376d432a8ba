from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from avlm.data.clip import Clip, MediaError, Picture, Sound, info_of, part_of, square, starts
from avlm.data.types import MediaRef
from tests.avlm.data.clips import limits

PATH = Path("/m/a.mp4")


def clip(seconds: float = 10.0, fps: int = 10, sound: float = 10.0, start: float = 0.0, silence: float = 0.0) -> Clip:
    picture = Picture(48, 64, np.arange(round(seconds * fps)), Fraction(1, fps), start, seconds)
    return Clip(PATH, picture, Sound(round(sound * 16_000), round(silence * 16_000)) if sound else None)


def ref(start: float | None = None, end: float | None = None, **keys: Any) -> MediaRef:
    return MediaRef("video", PATH, "a.mp4", start, end, **keys)


@pytest.mark.parametrize(
    ("start", "end", "frames", "duration", "sound"),
    [
        (None, None, (0, 100), 10.0, (0, 160_000)),
        (2.0, 4.0, (20, 40), 2.0, (32_000, 64_000)),
        (None, 4.0, (0, 40), 4.0, (0, 64_000)),
        (7.5, None, (75, 100), 2.5, (120_000, 160_000)),
        (0.1, 0.3, (1, 3), 0.2, (1_600, 4_800)),  # 0.1 + 0.2 is not 0.3 in binary
        (2.05, 2.25, (21, 23), 0.15, (32_800, 36_000)),
        (2.01, 2.09, (20, 21), 0.08, (32_160, 33_440)),  # between two frames: the one on view
        (9.5, 10.9, (95, 100), 0.5, (152_000, 160_000)),
    ],
)
def test_part(
    start: float | None, end: float | None, frames: tuple[int, int], duration: float, sound: tuple[int, int]
) -> None:
    part = part_of(clip(), clip().picture, ref(start, end))
    assert (part.first, part.stop) == frames
    assert part.duration == pytest.approx(duration)
    assert part.sound == sound
    assert part.problems == ()


def test_times_count_from_the_start_of_the_part() -> None:
    whole = clip()
    assert whole.picture is not None
    part = part_of(whole, whole.picture, ref(2.05, 6.0))
    chosen = part.choose(whole.picture.pts, limits(max_frames=4, fps=10.0))
    assert chosen == [21, 34, 46, 59]
    assert part.times(whole.picture, chosen) == pytest.approx([0.05, 1.35, 2.55, 3.85])
    on_view = part_of(whole, whole.picture, ref(2.01, 2.09))
    assert on_view.times(whole.picture, [20]).tolist() == [0.0]


def test_part_that_ends_after_the_end() -> None:
    assert part_of(clip(), clip().picture, ref(8, 10.9)).problems == ()
    assert part_of(clip(), clip().picture, ref(8, 20)).problems == ("end is 20 s, but it ends at 10.00 s",)
    assert part_of(clip(sound=25.0), clip().picture, ref(8, 20)).problems == (), "there is sound"


def test_part_that_starts_after_the_end() -> None:
    with pytest.raises(MediaError, match=r"a.mp4: start is 12 s, but its picture ends at 10.00 s"):
        part_of(clip(sound=20.0), clip().picture, ref(12, 14))
    sound = Clip(PATH, None, Sound(32_000))
    with pytest.raises(MediaError, match=r"start is 3 s, but its sound ends at 2.00 s"):
        part_of(sound, None, MediaRef("audio", PATH, "a", 3.0))


def test_sound_that_ends_before_the_part() -> None:
    short = clip(sound=3.0)
    info = info_of(short, ref(5.0, 8.0))
    assert (info.has_audio, info.audio_samples, info.frames) == (False, 0, 30)


def test_picture_that_starts_late() -> None:
    late = clip(start=2.0)
    part = part_of(late, late.picture, ref(0.5, 3.0))
    assert (part.first, part.stop) == (0, 10) and part.duration == pytest.approx(1.0)
    assert late.picture is not None and part.times(late.picture, [0]).tolist() == [1.5]
    before = part_of(late, late.picture, ref(0.5, 1.0))
    assert (before.first, before.stop) == (0, 1), "there is always a frame"


def test_info_of_a_part() -> None:
    info = info_of(clip(), ref(2.0, 4.0, audio_in_video=False), limits(max_frames=4))
    assert (info.frames, info.duration, info.fps, info.audio_samples) == (20, 2.0, 10.0, 32_000)
    assert info.times == pytest.approx((0.0, 0.6, 1.3, 1.9))
    assert info.audio_in_video is False


def test_starts() -> None:
    assert starts(PATH, 1.0, 1.0015) == (0.0, 0)
    assert starts(PATH, 1.5, 1.0) == (0.5, 0)
    assert starts(PATH, 1.0, 1.5) == (0.0, 8_000)
    assert starts(PATH, math.inf, 3.0) == starts(PATH, 3.0, math.inf) == (0.0, 0)
    with pytest.raises(MediaError, match="is damaged"):
        starts(PATH, 0.0, 95_443.7)  # the clock of MPEG-TS came round


def test_pixels_that_are_not_square() -> None:
    assert square(PATH, 480, 720, 0.0) == (480, 720)
    assert square(PATH, 480, 720, 32 / 27) == (480, 853)
    assert square(PATH, 480, 720, 8 / 9) == (480, 640)
    with pytest.raises(MediaError, match="unknown"):
        square(PATH, 0, 720, 1.0)
    with pytest.raises(MediaError, match="200 times"):
        square(PATH, 16, 16, 1e6)
