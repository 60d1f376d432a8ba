"""Any file that FFmpeg can open -> its packets and what they say. A clip is demultiplexed once, picture and sound.

What a container asks for is done here because FFmpeg's libraries leave it to the caller: rotation and mirroring
(display matrix), non-square pixels, edit lists, encoder delay, streams that start late. Nothing stays open after a
call, so files can be read in worker processes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from avlm.data.clip import Clip, MediaError, Picture, Sound, square, starts
from avlm.data.decode import decode
from avlm.data.types import SAMPLE_RATE, MediaRef

if TYPE_CHECKING:
    import av


@contextmanager
def opened(path: Path) -> Iterator[av.container.InputContainer]:
    """The file, opened. Raises `MediaError` when that, or what is done with it, fails."""
    import av

    try:
        if os.path.getsize(path) == 0:
            raise MediaError(path, "the file is empty")
        with av.open(os.fspath(path)) as container:
            yield container
    except FileNotFoundError:
        raise MediaError(path, "no such file") from None
    except (av.FFmpegError, OSError) as error:
        reason = f"cannot be read ({getattr(error, 'strerror', None) or error})"
        hint = "; it is damaged, cut off, or no media file" if isinstance(error, av.InvalidDataError) else ""
        raise MediaError(path, reason + hint) from None


class PacketTrack:
    """A picture track (`avlm.data.decode.Track`) whose packets are in memory."""

    def __init__(self, stream: Any, packets: Sequence[Any]) -> None:
        self._stream, self._packets = stream, packets
        self.pts: list[int | None] = [packet.pts for packet in packets]
        changes = any(packet.has_sidedata("new_extradata") for packet in packets)
        self.keys = [] if changes else [number for number, packet in enumerate(packets) if packet.is_keyframe]

    def decoder(self) -> Any:
        """See `Track.decoder`."""
        return _decoder(self._stream)

    def packet(self, number: int) -> Any:
        """See `Track.packet`."""
        return self._packets[number]


class PacketSound:
    """A sound track (`avlm.data.sound.SoundTrack`) whose packets are in memory."""

    head = 0
    """FFmpeg drops what comes before the start."""

    def __init__(self, stream: Any, packets: Sequence[Any], start: float, seconds: float) -> None:
        self._stream, self._packets = stream, packets
        self.start, self.seconds = start, seconds

    @cached_property
    def times(self) -> list[float | None]:
        """See `SoundTrack.times`."""
        base = float(self._stream.time_base)
        return [None if packet.pts is None else packet.pts * base for packet in self._packets]

    def decoder(self) -> Any:
        """See `SoundTrack.decoder`."""
        return _decoder(self._stream)

    def packet(self, number: int) -> Any:
        """See `SoundTrack.packet`."""
        return self._packets[number]


def _can_be_decoded(stream: Any) -> bool:
    context = stream.codec_context
    return context is not None and context.codec is not None and bool(stream.type != "audio" or context.sample_rate)


def _decoder(stream: Any) -> Any:
    context = stream.codec_context
    if not context.is_open:
        context.thread_count = 1
    return context


class Demuxed:
    """The first picture and the first sound track of an open file.

    clip: what is known of them. numbered: whether frames are known by their place in the output of the decoder, because
    packets do not tell when they are shown. orientation: transpose, then flip rows, then flip columns makes a stored
    frame upright.
    """

    def __init__(self, container: av.container.InputContainer, ref: MediaRef) -> None:
        import av
        from av.stream import Disposition

        self.path = ref.path
        video = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
        self._video: Any = video[0] if video and ref.kind == "video" else None
        self._sound: Any = container.streams.audio[0] if container.streams.audio else None
        if ref.kind == "video" and self._video is None:
            raise MediaError(ref.path, "has no picture; use a part of type 'audio' for a sound file")
        if ref.kind == "audio" and self._sound is None:
            raise MediaError(ref.path, "has no sound")
        notes: tuple[str, ...] = ()
        if self._video is not None and not _can_be_decoded(self._video):
            raise MediaError(ref.path, "its picture is in a codec that is not known")
        if self._sound is not None and not _can_be_decoded(self._sound):
            if ref.kind == "audio":
                raise MediaError(ref.path, "its sound is in a codec that is not known")
            self._sound, notes = None, ("its sound is in a codec that is not known",)
        self._pictures: list[Any] = []
        self._sounds: list[Any] = []
        try:
            for packet in container.demux([s for s in (self._video, self._sound) if s is not None]):
                if packet.size:
                    (self._pictures if packet.stream is self._video else self._sounds).append(packet)
        except av.FFmpegError:
            pass  # the end of a truncated file; what was read before it is counted against what was promised
        self._has_index = "mov" in container.format.name  # the index there says how many packets to expect
        shown = [packet.pts for packet in self._pictures if not packet.is_discard]
        self._timed = bool(shown) and None not in shown and len(set(shown)) == len(shown)
        self.numbered = self._video is not None and not (self._timed and self._in_order(container.format.name))
        self._sound_start, self._sound_seconds = math.inf, 0.0
        if self._sound is not None:
            self._sound_start, self._sound_seconds = _sound_span(self._sound, self._sounds)
        samples = round(self._sound_seconds * SAMPLE_RATE)
        if ref.kind == "audio" and not samples:
            raise MediaError(ref.path, "its sound track is empty")
        picture_start = self._picture_start() if self._video is not None else math.inf
        first_time, silence = starts(ref.path, picture_start, self._sound_start)
        sound = None
        if self._sound is not None and samples:
            seconds = float((self._sound.duration or 0) * self._sound.time_base) if self._has_index else 0.0
            sound = Sound(samples, silence, seconds)
        picture = self._picture(first_time) if self._video is not None else None
        self.clip = Clip(ref.path, picture, sound, notes)

    @cached_property
    def track(self) -> PacketTrack:
        """The packets of the picture track."""
        return PacketTrack(self._video, self._pictures)

    @property
    def orientation(self) -> tuple[bool, bool, bool]:
        """How stored frames become upright (ISO 14496-12, 6.2.2)."""
        matrix = self._video.codec_context.coded_side_data.get("display_matrix") if self._video is not None else None
        return upright(np.frombuffer(matrix, dtype="<i4").tolist()) if matrix is not None else (False, False, False)

    def decodable(self) -> Picture:
        """The picture track with only those frames that can be decoded."""
        assert self.clip.picture is not None
        return self._decoded(self.clip.picture.start, self.clip.picture)

    def _in_order(self, container: str) -> bool:
        """Whether a frame comes out of the decoder with the time of its own packet.

        AVI has no presentation times; FFmpeg counts packets instead, which come in decoding order.
        """
        return container != "avi" or self._video.codec_context.codec.intra_only

    def _picture_start(self) -> float:
        base = self._video.time_base
        if self._timed:
            return float(min(p.pts for p in self._pictures if not p.is_discard) * base)
        return math.inf if self._video.start_time is None else float(self._video.start_time * base)

    def _picture(self, first_time: float) -> Picture:
        if not self._timed:
            return self._decoded(first_time, None)
        shown = [p for p in self._pictures if not p.is_discard]
        pts = np.array(sorted(p.pts for p in shown), np.int64)
        base = Fraction(self._video.time_base)
        final = max(shown, key=lambda p: p.pts)
        duration = int(pts[-1] - pts[0]) * base + ((final.duration or 0) * base or self._frame_seconds)
        return Picture(*self._size, pts, base, first_time, float(duration), self._declared)

    def _decoded(self, first_time: float, known: Picture | None) -> Picture:
        """The track as its decoder gives it. known: what its packets say."""
        out = [frame.pts for frame in decode(self.track)]
        if not out:
            raise MediaError(self.path, "no frame can be decoded")
        if None not in out and out == sorted(set(out)):
            pts, unit = np.array(out, np.int64), Fraction(self._video.time_base)
            first_time += 0.0 if known is None or self.numbered else float(int(pts[0] - known.pts[0]) * unit)
        else:
            pts, unit = np.arange(len(out)), self._frame_seconds
        duration = known.duration if known is not None else float(int(pts[-1] - pts[0]) * unit + self._frame_seconds)
        return Picture(*self._size, pts, unit, first_time, duration, self._declared)

    @property
    def _frame_seconds(self) -> Fraction:
        """How long a frame is shown when its packet does not say."""
        rate = self._video.average_rate or self._video.guessed_rate
        return 1 / Fraction(rate) if rate else Fraction(1, 25)

    @property
    def _declared(self) -> int:
        return sum(not entry.is_discard for entry in self._video.index_entries) if self._has_index else 0

    @cached_property
    def _size(self) -> tuple[int, int]:
        context = self._video.codec_context
        aspect = self._video.sample_aspect_ratio
        height, width = square(self.path, context.height, context.width, float(aspect) if aspect else 0.0)
        return (width, height) if self.orientation[0] else (height, width)

    @property
    def sound(self) -> PacketSound:
        """The packets of the sound track."""
        return PacketSound(self._sound, self._sounds, self._sound_start, self._sound_seconds)


def upright(matrix: Sequence[int]) -> tuple[bool, bool, bool]:
    """Transpose, flip rows, flip columns, of a display matrix: x' = a x + c y, y' = b x + d y."""
    a, b, _, c, d, *_ = matrix
    if abs(a) >= abs(b):
        return False, d < 0, a < 0
    return True, b < 0, c < 0


def _sound_span(stream: Any, packets: Sequence[Any]) -> tuple[float, float]:
    """Start and length in seconds of the sound that the decoder returns: encoder delay and padding are cut off."""
    kept = [p for p in packets if not p.is_discard and p.pts is not None]
    if not kept:
        return math.inf, 0.0
    base = float(stream.time_base)
    durations = [p.duration or 0 for p in kept]
    early = packets[: packets.index(kept[0])]  # dropped whole, on account of the samples to drop
    head = sum(_skipped(p)[0] for p in (*early, kept[0])) / stream.rate - sum(p.duration or 0 for p in early) * base
    head, tail = max(0.0, head), 0.0
    if durations[-1] == max(durations):  # else the container has cut the last packet already
        tail = _skipped(kept[-1])[1] / stream.rate
    start = kept[0].pts * base + head
    return start, max(0.0, (kept[-1].pts + durations[-1]) * base - tail - start)


def _skipped(packet: Any) -> tuple[int, int]:
    """Samples that the decoder drops at the start and at the end of a packet (AV_PKT_DATA_SKIP_SAMPLES)."""
    for data in packet.iter_sidedata():
        if data.data_type == "skip_samples":
            head, tail = np.frombuffer(bytes(data)[:8], dtype="<u4").tolist()
            return head, tail
    return 0, 0
