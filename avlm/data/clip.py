"""What is known of a clip before decoding, and what of it a row asks for: the one rule for reading and for planning.

Times count from the clip's start: the earlier one of the first frame and the first sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import numpy as np

from avlm.data.sampling import MAX_ASPECT, frame_count, picks
from avlm.data.types import SAMPLE_RATE, MediaInfo, MediaLimits, MediaRef
from avlm.errors import UserError

TOGETHER = 0.002
"""Streams that start within this many seconds of each other start together (containers round to 1 ms)."""
SLACK = 0.1
"""Seconds by which decoded sound may differ from its length in the container before it counts as damaged."""
LONGEST_GAP = 3600.0
"""Seconds between the starts of picture and sound that can be believed."""
PAST_END = 1.0
"""Seconds by which a part may end after its clip: annotations are often rounded to whole seconds."""
INSTANT = 1e-6
"""Seconds by which a time may differ from what was meant (decimal numbers in rows)."""


class MediaError(UserError):
    """A media file cannot be used. The message names the file and the reason."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True)
class Picture:
    """The picture track of a clip.

    height, width: of upright frames with square pixels. pts: [frames] int64, when each frame is shown, ascending, in
    units of `unit` seconds. start: when the first one is shown, in seconds from the clip's start. duration: seconds
    from there to the end of the last frame. declared: frames that the container's index promises, 0 when it has none.
    """

    height: int
    width: int
    pts: np.ndarray
    unit: Fraction
    start: float
    duration: float
    declared: int = 0

    @cached_property
    def times(self) -> np.ndarray:
        """[frames] float64, when each frame is shown, in seconds from the clip's start."""
        return (self.pts - self.pts[0]) * float(self.unit) + self.start


@dataclass(frozen=True)
class Sound:
    """The sound track of a clip: 16 kHz samples of sound, and of silence before it from the clip's start on.

    declared_seconds: its length in the container's index, 0 when it has none.
    """

    samples: int
    silence: int = 0
    declared_seconds: float = 0.0


@dataclass(frozen=True)
class Clip:
    """A clip, or a sound file (then `picture` is None). notes: problems that its tracks do not tell."""

    path: Path
    picture: Picture | None
    sound: Sound | None
    notes: tuple[str, ...] = ()

    def problems(self, usable: int | None = None) -> tuple[str, ...]:
        """What is damaged. usable: frames that can be decoded, where that is known; else all that are there."""
        found = list(self.notes)
        if self.picture is not None:
            usable = len(self.picture.pts) if usable is None else usable
            promised = max(len(self.picture.pts), self.picture.declared)
            if usable < promised:
                found.append(f"only {usable} of {promised} frames are usable; is the file truncated?")
        if self.sound is not None:
            seconds, promised_seconds = self.sound.samples / SAMPLE_RATE, self.sound.declared_seconds
            if seconds < promised_seconds - SLACK:
                text = f"only {seconds:.2f} of {promised_seconds:.2f} s of sound are there; is the file truncated?"
                found.append(text)
        return tuple(found)


def starts(path: Path, picture: float, sound: float) -> tuple[float, int]:
    """When tracks that start at these times, in seconds (inf: there is none), start relative to each other.

    Returns the first frame's time in seconds, and the silence before the sound in 16 kHz samples.
    """
    if math.isinf(picture) or math.isinf(sound) or abs(picture - sound) < TOGETHER:
        return 0.0, 0
    if abs(picture - sound) > LONGEST_GAP:
        raise MediaError(path, f"its picture starts at {picture:.0f} s and its sound at {sound:.0f} s; it is damaged")
    start = min(picture, sound)
    return picture - start, round((sound - start) * SAMPLE_RATE)


@dataclass(frozen=True)
class Part:
    """What a row takes of a clip.

    first, stop: frames, by number. duration: seconds that these frames fill. sound: first and last (exclusive) 16 kHz
    sample, silence included. offset: seconds from the clip's start to the part's. problems: what is wrong with it.
    """

    first: int
    stop: int
    duration: float
    sound: tuple[int, int]
    offset: float = 0.0
    given: bool = False
    problems: tuple[str, ...] = ()

    def choose(self, pts: np.ndarray, limits: MediaLimits) -> list[int]:
        """Numbers of the frames that are taken within `limits`; pts: [frames], of the whole clip."""
        count = frame_count(self.duration, self.stop - self.first, limits, given=self.given)
        return [self.first + number for number in picks(pts[self.first : self.stop], count)]

    def times(self, picture: Picture, chosen: Sequence[int]) -> np.ndarray:
        """[T] float64, when these frames are shown, in seconds from the part's start."""
        return np.maximum(picture.times[list(chosen)] - self.offset, 0.0)


def part_of(clip: Clip, picture: Picture | None, ref: MediaRef) -> Part:
    """What `ref` takes of a clip. picture: its frames, or those of them that can be decoded.

    A part from `start` to `end` has the frames that are shown first at `start` or later and before `end`, or, if there
    is none, the one that is on view at `start`; and the sound in between. Raises `MediaError` for a part that starts
    after the end; one that ends after the end ends there, which is a problem when it is more than `PAST_END` seconds.
    """
    samples = clip.sound.silence + clip.sound.samples if clip.sound is not None else 0
    seconds = samples / SAMPLE_RATE
    picture_end = picture.start + picture.duration if picture is not None else seconds
    given = bool(ref.frames)
    if ref.start is None and ref.end is None:
        if picture is None:
            return Part(0, 0, seconds, (0, samples))
        return Part(0, len(picture.pts), picture.duration, (0, samples), given=given)
    start, end, last = ref.start or 0.0, math.inf if ref.end is None else ref.end, max(picture_end, seconds)
    if start >= picture_end:
        what = "picture" if picture is not None else "sound"
        raise MediaError(clip.path, f"start is {start:g} s, but its {what} ends at {picture_end:.2f} s")
    problems: tuple[str, ...] = ()
    if ref.end is not None and end > last + PAST_END:
        problems = (f"end is {end:g} s, but it ends at {last:.2f} s",)
    sound = min(round(start * SAMPLE_RATE), samples), samples if end >= seconds else round(end * SAMPLE_RATE)
    if picture is None:
        return Part(0, 0, (sound[1] - sound[0]) / SAMPLE_RATE, sound, start, problems=problems)
    first, stop = np.searchsorted(picture.times, [start - INSTANT, end - INSTANT]).tolist()
    if first == stop:
        first = max(0, first - 1)
        stop = first + 1
    shown_from = max(start, float(picture.times[first]))
    shown_until = min(end, float(picture.times[stop]) if stop < len(picture.pts) else picture_end)
    duration = max(shown_until - shown_from, INSTANT)
    return Part(first, stop, duration, sound, start, given, problems)


def info_of(clip: Clip, ref: MediaRef, limits: MediaLimits | None = None) -> MediaInfo:
    """What reading `ref` will find; with `limits` also when the frames that it takes are shown."""
    part = part_of(clip, clip.picture, ref)
    samples = part.sound[1] - part.sound[0]
    problems = clip.problems() + part.problems
    if clip.picture is None:
        return MediaInfo("audio", duration=part.duration, has_audio=True, audio_samples=samples, problems=problems)
    times = () if limits is None else part.times(clip.picture, part.choose(clip.picture.pts, limits)).tolist()
    frames = part.stop - part.first
    return MediaInfo(
        "video",
        width=clip.picture.width,
        height=clip.picture.height,
        frames=frames,
        declared_frames=clip.picture.declared,
        fps=frames / part.duration,
        duration=part.duration,
        has_audio=samples > 0,
        audio_samples=samples,
        times=tuple(times),
        problems=problems,
        audio_in_video=ref.audio_in_video,
        given=part.given,
    )


def square(path: Path, height: int, width: int, aspect: float) -> tuple[int, int]:
    """Height and width with square pixels of a picture whose pixels are `aspect` times as wide as high (0: unknown).

    The height is kept and the width follows, so the pixel budget applies to the picture as it is shown.
    """
    if aspect:
        width = max(1, round(width * aspect))
    if not height or not width:
        raise MediaError(path, "the size of its picture is unknown; the file may be damaged")
    check_size(path, height, width)
    return height, width


def check_size(path: Path, height: int, width: int) -> None:
    """Raises `MediaError` for a picture that is all but a line."""
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise MediaError(path, f"its picture is {width} × {height} pixels: over {MAX_ASPECT} times as long as wide")
