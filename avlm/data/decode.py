"""A picture track -> the frames that are wanted, decoding no more than they need.

What is left out is what no wanted frame can depend on, so pixels are those of decoding everything:

- packets before the last place at which the decoder may start for a wanted frame, and those after the frame itself (in
  an open group of pictures, frames shown before its first one need the group before it, too);
- pictures that are no reference for others (most B-frames), unless they are wanted themselves.

The frames that came out are compared with those that were wanted. When one is missing, or the decoder calls one
damaged, everything is decoded in order instead, and `Taken.fallback` says why.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from avlm.data.bitstream import Entry, Unit, describer

if TYPE_CHECKING:
    from av import VideoFrame


class Track(Protocol):
    """Packets of a picture track, by number in decoding order."""

    @property
    def pts(self) -> Sequence[int | None]:
        """Presentation time of each packet, in a unit of the track's own."""
        ...

    @property
    def keys(self) -> Sequence[int]:
        """Numbers of the packets that the container calls key frames, ascending."""
        ...

    def decoder(self) -> Any:
        """An `av.CodecContext` for the track."""
        ...

    def packet(self, number: int) -> Any:
        """The packet as an `av.Packet`, with its presentation time."""
        ...


@dataclass(frozen=True)
class Canvas:
    """How frames come out: height and width in pixels, upright.

    transpose, flip_rows, flip_columns: in this order, what makes a stored frame upright.
    """

    height: int
    width: int
    transpose: bool = False
    flip_rows: bool = False
    flip_columns: bool = False


@dataclass(frozen=True)
class Taken:
    """frames: [T, H, W, 3] uint8 RGB in the order asked for, or None when one of them cannot be decoded.

    damaged: how many of them the decoder calls damaged. rejected: packets that it could not decode, up to the last of
    them. fallback: why everything was decoded; empty when it was not.
    """

    frames: np.ndarray | None
    damaged: int = 0
    rejected: int = 0
    fallback: str = ""


def decode(track: Track, rejected: list[int] | None = None) -> Iterator[VideoFrame]:
    """All frames in output order; packets that the decoder rejects are passed over and added to `rejected`."""
    import av

    context = track.decoder()
    for number in (*range(len(track.pts)), None):
        try:
            yield from context.decode(None if number is None else track.packet(number))
        except (av.FFmpegError, ValueError):  # ValueError: the decoder could not be opened at all
            if rejected is not None:
                rejected.append(-1 if number is None else number)
    context.flush_buffers()


def take(track: Track, wanted: Sequence[int], canvas: Canvas, *, sparse: bool = True) -> Taken:
    """The frames shown at the times `wanted`, in the track's unit; a time may occur more than once.

    The times of the track's packets must differ. With `sparse=False` everything is decoded.
    """
    fallback = ""
    if sparse:
        taken = take_sparse(track, wanted, canvas)
        if taken.frames is not None and not taken.damaged:
            return taken
        fallback = "the decoder reports damage" if taken.damaged or taken.rejected else "a frame did not come out"
    rejected: list[int] = []
    writer = _Writer(wanted, canvas)
    for frame in decode(track, rejected):
        if writer.write(frame.pts, frame):
            break
    return writer.taken(fallback, len(rejected))


def take_numbers(track: Track, wanted: Sequence[int], canvas: Canvas) -> Taken:
    """The frames at the places `wanted` of the output order, for tracks without usable times."""
    rejected: list[int] = []
    writer = _Writer(wanted, canvas)
    for number, frame in enumerate(decode(track, rejected)):
        if writer.write(number, frame):
            break
    return writer.taken("its packets do not say when frames are shown", len(rejected))


def take_sparse(track: Track, wanted: Sequence[int], canvas: Canvas) -> Taken:
    """As `take`, without decoding everything when a frame is missing or damaged."""
    import av

    context = track.decoder()
    describe = describer(context)
    writer = _Writer(wanted, canvas)
    times = set(wanted)
    try:
        for run in plan(track.pts, track.keys, lambda number: describe(track.packet(number)), times):
            for packet in (*_needed([track.packet(number) for number in run], describe, times), None):
                for frame in context.decode(packet):
                    writer.write(frame.pts, frame)
            context.flush_buffers()
    except (av.FFmpegError, ValueError):
        context.flush_buffers()
        return Taken(None, rejected=1)
    return writer.taken()


def plan(pts: Sequence[int | None], keys: Sequence[int], unit: Callable[[int], Unit], wanted: set[int]) -> list[range]:
    """Numbers of the packets that wanted frames depend on, in runs that start afresh, ascending.

    unit: what is known of a packet; asked for the first ones of groups that hold a wanted frame.
    """
    todo = [number for number, time in enumerate(pts) if time in wanted]
    runs: list[range] = []
    while todo:
        stop = todo[-1] + 1
        group = bisect_right(keys, todo[-1]) - 1
        while group >= 0 and unit(keys[group]).entry is Entry.NONE:
            group -= 1
        start = keys[group] if group >= 0 else 0
        inside = []
        while todo and todo[-1] >= start:
            inside.append(todo.pop())
        if runs and runs[-1].start == stop:
            stop = runs.pop().stop
        runs.append(range(start, stop))
        if start and unit(start).entry is Entry.OPEN and any(_before(pts[n], pts[start]) for n in inside):
            todo.append(start - 1)
    return runs[::-1]


def _before(a: int | None, b: int | None) -> bool:
    return a is None or b is None or a < b


def _needed(packets: Sequence[Any], describe: Callable[[Any], Unit], wanted: set[int]) -> list[Any]:
    """Packets of a run without those that no wanted frame depends on."""
    units = [describe(packet) for packet in packets]
    top = max(unit.layer for unit in units)
    return [p for p, u in zip(packets, units, strict=True) if u.reference or u.layer < top or p.pts in wanted]


def resizer() -> Callable[[VideoFrame, int, int], np.ndarray]:
    """A function that makes [height, width, 3] uint8 RGB of a frame: one accurate conversion, without bias.

    Planes of green, blue and red are made rather than pixels: the numbers are the same, in half of the time.
    """
    from av.video.reformatter import Interpolation, VideoReformatter

    flags = Interpolation.BILINEAR | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT
    reformat = VideoReformatter().reformat
    return lambda frame, height, width: reformat(
        frame, width, height, "gbrp", interpolation=flags, threads=1
    ).to_ndarray()


class _Writer:
    """Puts wanted frames where they belong."""

    def __init__(self, wanted: Sequence[int], canvas: Canvas) -> None:
        self._slots: dict[int, list[int]] = {}
        for slot, key in enumerate(wanted):
            self._slots.setdefault(key, []).append(slot)
        self._canvas = canvas
        self._resized = resizer()
        self._out = np.empty((len(wanted), canvas.height, canvas.width, 3), dtype=np.uint8)
        self._damaged = 0

    def write(self, key: int | None, frame: VideoFrame) -> bool:
        """Take the frame if it is wanted. Returns whether all have been taken."""
        slots = self._slots.pop(key, None) if key is not None else None
        if slots is not None:
            canvas = self._canvas
            size = (canvas.width, canvas.height) if canvas.transpose else (canvas.height, canvas.width)
            small = self._resized(frame, *size)
            small = small.transpose(1, 0, 2) if canvas.transpose else small
            self._out[slots] = small[:: -1 if canvas.flip_rows else 1, :: -1 if canvas.flip_columns else 1]
            self._damaged += len(slots) if frame.is_corrupt else 0
        return not self._slots

    def taken(self, fallback: str = "", rejected: int = 0) -> Taken:
        """What has been taken."""
        return Taken(None if self._slots else self._out, self._damaged, rejected, fallback)
