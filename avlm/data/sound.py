"""A sound track -> 16 kHz mono.

Each channel is resampled before the average is taken: a downmix inside the resampler would scale it by sqrt(2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from avlm.data.clip import SLACK, TOGETHER, Clip, MediaError, Part
from avlm.data.types import SAMPLE_RATE, Media

PREROLL = 1.0
"""Seconds that are decoded before the part that is wanted, for decoders and resamplers need what came before."""
MOST_CHANNELS = 16
"""A frame with more is rubbish that a damaged packet has become."""
BLOCK = 16_384
"""Samples that are resampled at a time."""


class SoundTrack(Protocol):
    """A sound track that can be decoded."""

    @property
    def start(self) -> float:
        """When its first sample is heard, in seconds on the time line of its packets."""
        ...

    @property
    def head(self) -> int:
        """Samples (at its own rate) before that one which come out of the decoder all the same."""
        ...

    @property
    def seconds(self) -> float:
        """From the start to the end; what comes out of the decoder after that is padding."""
        ...

    @property
    def times(self) -> Sequence[float | None]:
        """When its packets are heard, in seconds."""
        ...

    def decoder(self) -> Any:
        """An `av.CodecContext`."""
        ...

    def packet(self, number: int) -> Any:
        """The packet as an `av.Packet`, with its time."""
        ...


def read_sound(track: SoundTrack, clip: Clip, part: Part, longest: float | None, media: Media) -> np.ndarray | None:
    """[N] float32 at 16 kHz: the part's sound, as long as the container says, in step with the picture.

    None when there is none. longest: seconds that are taken at most; what is cut is counted in `media.cut_seconds`.
    Damage is listed in `media.problems`. Raises `MediaError` when nothing can be decoded.
    """
    first, stop = part.sound
    if clip.sound is None or first >= stop:
        return None
    silence = clip.sound.silence
    until = stop if longest is None else min(stop, first + round(longest * SAMPLE_RATE))
    media.cut_seconds = (stop - until) / SAMPLE_RATE
    at, decoded = 0, np.zeros(0, np.float32)
    if until > silence:
        at, decoded = _decoded(track, max(0, first - silence), until - silence)
        if not len(decoded):
            raise MediaError(clip.path, "its sound cannot be decoded")
        have = max(silence + at + len(decoded), first)
        if have < until - SLACK * SAMPLE_RATE:  # before memory is asked for: a damaged file may promise any length
            there, promised = (have - first) / SAMPLE_RATE, (stop - first) / SAMPLE_RATE
            media.problems.append(f"only {there:.2f} of {promised:.2f} s of sound are usable")
            until = have
    out = np.zeros(until - first, dtype=np.float32)
    start = max(first, silence)
    piece = decoded[max(0, start - silence - at) :][: max(0, until - start)]
    out[start - first : start - first + len(piece)] = piece
    return np.clip(out, -1.0, 1.0, out=out)


def _decoded(track: SoundTrack, first: int, stop: int) -> tuple[int, np.ndarray]:
    """Mono sound at 16 kHz that covers samples [first, stop) as far as it can be decoded, and the sample it starts at.

    Decoding starts a little before `first`, at a place where both rates have a sample, so what comes out is what
    decoding from the start gives.
    """
    frames = _from_middle(track, first) or _from_start(track)
    blocks: list[np.ndarray] = []
    at, have = None, 0
    mono = _Mono()
    for before, frame in frames:
        if at is None:
            at = before * SAMPLE_RATE // frame.sample_rate
        total = round(track.seconds * frame.sample_rate)
        if before + frame.samples > total:
            frame = _cut(frame, 0, max(0, total - before))
        for block in mono.feed(frame) if frame is not None else ():
            blocks.append(block)
            have += len(block)
        if at + have >= stop + SLACK * SAMPLE_RATE:
            break
    blocks += mono.finish()
    return at or 0, np.concatenate([np.zeros(0, np.float32), *blocks])


Placed = tuple[int, Any]
"""A frame after the samples (at its own rate) between the track's start and it."""


def _from_start(track: SoundTrack) -> Iterator[Placed]:
    at = -track.head
    for frame in _frames(track, 0):
        if at + frame.samples > 0:
            yield max(at, 0), _cut(frame, max(-at, 0), frame.samples)
        at += frame.samples


def _from_middle(track: SoundTrack, first: int) -> Iterator[Placed] | None:
    """Frames from a little before sample `first`; None when that is near the start, or where it is cannot be known."""
    earliest = track.start + first / SAMPLE_RATE - PREROLL
    times = track.times
    number = max((n for n, time in enumerate(times) if time is not None and time <= earliest), default=0)
    if not number or times[0] is None:
        return None
    frames = _frames(track, number)
    for frame in frames:
        if frame.time is None:
            break
        step = frame.sample_rate // math.gcd(frame.sample_rate, SAMPLE_RATE)  # each has a 16 kHz sample
        before = round((frame.time - track.start) * frame.sample_rate)
        counted = number * frame.samples + round((times[0] - track.start) * frame.sample_rate)
        if abs(counted - before) <= TOGETHER * frame.sample_rate:  # times may be rounded, packets of equal size are not
            before = counted
        skipped = -before % step
        if skipped < frame.samples and before + skipped >= 0:
            return _placed(before, skipped, frame, frames)
    track.decoder().flush_buffers()
    return None


def _placed(before: int, skipped: int, first: Any, others: Iterator[Any]) -> Iterator[Placed]:
    yield before + skipped, _cut(first, skipped, first.samples)
    at = before + first.samples
    for frame in others:
        yield at, frame
        at += frame.samples


def _frames(track: SoundTrack, first: int) -> Iterator[Any]:
    """Decoded frames from a packet on; packets that the decoder rejects, or makes rubbish of, are passed over."""
    import av

    context = track.decoder()
    for number in (*range(first, len(track.times)), None):
        try:
            for frame in context.decode(None if number is None else track.packet(number)):
                if frame.layout.nb_channels <= MOST_CHANNELS:
                    yield frame
        except (av.FFmpegError, ValueError):  # ValueError: the decoder could not be opened at all
            continue
    context.flush_buffers()


def _cut(frame: Any, first: int, stop: int) -> Any:
    """Samples `first` to `stop` (exclusive) of a frame; None when there is none."""
    import av

    if first == 0 and stop == frame.samples:
        return frame
    if first >= stop:
        return None
    wave = frame.to_ndarray()  # [channels, samples], or [1, samples × channels]
    step = 1 if frame.format.is_planar else len(frame.layout.channels)
    wave = np.ascontiguousarray(wave[:, first * step : stop * step])
    part = av.AudioFrame.from_ndarray(wave, frame.format.name, frame.layout.name)
    part.sample_rate = frame.sample_rate
    return part


class _Mono:
    """Resamples frames, block by block; the format of the sound may change on the way."""

    def __init__(self) -> None:
        self._format: tuple[str, str, int] | None = None
        self._resampler: Any = None
        self._fifo: Any = None

    def feed(self, frame: Any) -> Iterator[np.ndarray]:
        """Take a frame; gives what is ready, [samples] float32."""
        import av

        form = frame.format.name, frame.layout.name, frame.sample_rate
        if form != self._format:
            yield from self.finish()
            self._format, self._fifo = form, av.AudioFifo()
            self._resampler = av.AudioResampler(format="fltp", layout=frame.layout, rate=SAMPLE_RATE)
        frame.pts = None
        self._fifo.write(frame)
        while (block := self._fifo.read(BLOCK)) is not None:
            yield from self._resampled(block)

    def finish(self) -> Iterator[np.ndarray]:
        """Gives the rest."""
        if self._resampler is not None:
            rest = self._fifo.read(partial=True)
            if rest is not None:
                yield from self._resampled(rest)
            yield from self._resampled(None)

    def _resampled(self, block: Any) -> Iterator[np.ndarray]:
        for piece in self._resampler.resample(block):
            yield piece.to_ndarray().mean(axis=0)
