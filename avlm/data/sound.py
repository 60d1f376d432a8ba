"""A sound track -> 16 kHz mono.

Each channel is resampled before the average is taken: a downmix inside the resampler would scale it by sqrt(2).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from avlm.data.clip import SLACK, Clip, MediaError, Part
from avlm.data.types import SAMPLE_RATE, Media


class SoundTrack(Protocol):
    """A sound track that can be decoded."""

    def sound_decoder(self) -> Any:
        """An `av.CodecContext`."""
        ...

    def sound_packets(self) -> Iterator[Any]:
        """Its packets (`av.Packet`), in order."""
        ...


def read_sound(track: SoundTrack, clip: Clip, part: Part, longest: float | None, media: Media) -> np.ndarray | None:
    """[N] float32 at 16 kHz, as long as the container says, in step with the picture; None when there is no sound.

    longest: seconds that are taken at most; what is cut is counted in `media.cut_seconds`, damage is listed in
    `media.problems`. Raises `MediaError` when nothing can be decoded.
    """
    if clip.sound is None:
        return None
    silence, total = clip.sound.silence, clip.sound.silence + clip.sound.samples
    wanted = total if longest is None else min(total, round(longest * SAMPLE_RATE))
    decoded = _decoded(track, wanted + SLACK * SAMPLE_RATE - silence)
    if not len(decoded):
        raise MediaError(clip.path, "its sound cannot be decoded")
    have = silence + len(decoded)
    media.cut_seconds = (total - wanted) / SAMPLE_RATE
    if have < wanted - SLACK * SAMPLE_RATE:
        media.problems.append(f"only {have / SAMPLE_RATE:.2f} of {total / SAMPLE_RATE:.2f} s of sound are usable")
        wanted = have
    out = np.zeros(wanted, dtype=np.float32)
    out[silence:have] = decoded[: max(0, wanted - silence)]
    return np.clip(out, -1.0, 1.0, out=out)


def _decoded(track: SoundTrack, enough: float) -> np.ndarray:
    """[N] float32 mono at 16 kHz, at least `enough` samples if there are so many."""
    import av

    resampler = None
    chunks = [np.zeros((1, 0), np.float32)]
    have = 0
    for frame in (*_frames(track), None):
        if resampler is None:
            if frame is None:
                break
            resampler = av.AudioResampler(format="fltp", layout=frame.layout, rate=SAMPLE_RATE)
        for piece in resampler.resample(frame):
            chunks.append(piece.to_ndarray().mean(axis=0, keepdims=True))
            have += piece.samples
        if have >= enough:
            break
    return np.concatenate(chunks, axis=1)[0]


def _frames(track: SoundTrack) -> Iterator[Any]:
    """Decoded frames; packets that the decoder rejects are passed over."""
    import av

    context = track.sound_decoder()
    for packet in (*track.sound_packets(), None):
        try:
            yield from context.decode(packet)
        except av.FFmpegError:
            continue
    context.flush_buffers()
