"""File -> `Media`: frames and sound of a clip, a sound file or an image.

A clip is demultiplexed once, for picture and sound together. Times come from the packets, so the frames to take are
known before the first one is decoded, and decoding ends after the last of them. All times count from the clip's
start: the earlier one of the first frame and the first sample. What a container asks for is done here because
FFmpeg's libraries leave it to the caller: rotation and mirroring (display matrix), non-square pixels, edit lists,
encoder delay, streams that start late.

Nothing stays open after a call, so files can be read in worker processes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from avlm.data.sampling import MAX_ASPECT, frame_count, frame_size, picks
from avlm.data.types import SAMPLE_RATE, Media, MediaInfo, MediaLimits, MediaRef
from avlm.errors import UserError

if TYPE_CHECKING:
    import av
    from PIL import Image

TOGETHER = 0.002
"""Streams that start within this many seconds of each other start together (containers round to 1 ms)."""
SLACK = 0.1
"""Seconds by which decoded sound may differ from its length in the container before it counts as damaged."""


class MediaError(UserError):
    """A media file cannot be used. The message names the file and the reason."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


def read_media(ref: MediaRef, limits: MediaLimits, factor: int, *, strict: bool = False) -> Media:
    """Read a file within `limits`; height and width become multiples of `factor`.

    Damage that leaves something usable (a truncated file) is listed in `Media.problems`; with `strict` it is an
    error. Raises `MediaError` for a file that is missing, unreadable or lacks the medium that `ref.kind` names.
    """
    if ref.kind == "image":
        media = _read_image(ref, limits, factor)
    else:
        with _open(ref.path) as container:
            clip = _Clip.demux(container, ref)
            media = _read_clip(clip, limits, factor) if ref.kind == "video" else Media("audio")
            if ref.kind == "audio" or limits.audio_in_video:
                media.audio = _read_sound(clip, limits, media)
    if strict and media.problems:
        raise MediaError(ref.path, "; ".join(media.problems))
    return media


def probe(ref: MediaRef, limits: MediaLimits | None = None) -> MediaInfo:
    """What a file holds, from its packets, without decoding; with `limits` also which frames of a clip are taken.

    Raises `MediaError` as `read_media` does.
    """
    if ref.kind == "image":
        with _open_image(ref.path) as image:
            width, height = _upright_size(image)
        _check_size(ref.path, height, width)
        return MediaInfo("image", width=width, height=height, frames=1)
    with _open(ref.path) as container:
        clip = _Clip.demux(container, ref)
        if ref.kind == "audio":
            return MediaInfo(
                "audio",
                duration=clip.samples / SAMPLE_RATE,
                has_audio=True,
                audio_samples=clip.samples,
                problems=tuple(clip.sound_problems()),
            )
        times = clip.times if clip.times is not None else _decoded_times(clip)
        if not len(times):
            raise MediaError(ref.path, "no frame can be decoded")
        duration = _duration(clip, times)
        taken = () if limits is None else tuple(times[_chosen(clip, times, limits)].tolist())
        height, width = clip.size
        return MediaInfo(
            "video",
            width=width,
            height=height,
            frames=len(times),
            declared_frames=clip.declared_frames,
            fps=len(times) / duration,
            duration=duration,
            has_audio=clip.samples > 0,
            audio_samples=clip.silence + clip.samples,
            times=taken,
            problems=(*clip.picture_problems(len(times)), *clip.sound_problems()),
        )


def _check_size(path: Path, height: int, width: int) -> None:
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise MediaError(path, f"its picture is {width} × {height} pixels: over {MAX_ASPECT} times as long as wide")


# ---- containers


@contextmanager
def _open(path: Path) -> Iterator[av.container.InputContainer]:
    import av

    try:
        if os.path.getsize(path) == 0:
            raise MediaError(path, "the file is empty")
        with av.open(os.fspath(path)) as container:
            yield container
    except FileNotFoundError:
        raise MediaError(path, "no such file") from None
    except (av.FFmpegError, OSError) as error:
        raise MediaError(path, f"cannot be read ({getattr(error, 'strerror', None) or error})") from None


@dataclass
class _Clip:
    """The packets of a file. Times are in seconds from the clip's start.

    pts: presentation times of the frames that are shown, ascending, in the stream's unit; None when packets carry no
        usable times, and then so is `times`.
    declared_frames, declared_seconds: frames and sound that the container's index promises; 0 when it has none.
    samples, silence: 16 kHz samples of sound, and of silence before it.
    """

    path: Path
    video_stream: Any
    audio_stream: Any
    video: list[Any]
    audio: list[Any]
    pts: list[int] | None = None
    times: np.ndarray | None = None
    first_time: float = 0.0
    declared_frames: int = 0
    declared_seconds: float = 0.0
    samples: int = 0
    silence: int = 0

    @classmethod
    def demux(cls, container: av.container.InputContainer, ref: MediaRef) -> _Clip:
        import av
        from av.stream import Disposition

        video = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
        clip = cls(
            ref.path,
            video[0] if video and ref.kind == "video" else None,
            container.streams.audio[0] if container.streams.audio else None,
            [],
            [],
        )
        if ref.kind == "video" and clip.video_stream is None:
            raise MediaError(ref.path, "has no picture; use a part of type 'audio' for a sound file")
        if ref.kind == "audio" and clip.audio_stream is None:
            raise MediaError(ref.path, "has no sound")
        streams = [s for s in (clip.video_stream, clip.audio_stream) if s is not None]
        try:
            for packet in container.demux(streams):
                if packet.size:
                    (clip.video if packet.stream is clip.video_stream else clip.audio).append(packet)
        except av.FFmpegError:
            pass  # the end of a truncated file; what was read before it is counted against what was promised
        clip._set_times("mov" in container.format.name)
        if ref.kind == "audio" and not clip.samples:
            raise MediaError(ref.path, "its sound track is empty")
        return clip

    def _set_times(self, has_index: bool) -> None:
        picture_start, sound_start = math.inf, math.inf
        if self.video_stream is not None:
            base = float(self.video_stream.time_base)
            pts = [p.pts for p in self.video if not p.is_discard]
            if None not in pts and len(set(pts)) == len(pts):
                self.pts = sorted(pts)
                if pts:
                    picture_start = self.pts[0] * base
            elif self.video_stream.start_time is not None:
                picture_start = self.video_stream.start_time * base
            if has_index:
                self.declared_frames = self.video_stream.frames - sum(p.is_discard for p in self.video)
        if self.audio_stream is not None:
            sound_start, seconds = _sound_span(self.audio_stream, self.audio)
            self.samples = round(seconds * SAMPLE_RATE)
            if has_index:
                self.declared_seconds = float((self.audio_stream.duration or 0) * self.audio_stream.time_base)
        start = min(picture_start, sound_start)
        if math.isinf(start) or abs(picture_start - sound_start) < TOGETHER:
            start = picture_start if self.video_stream is not None and not math.isinf(picture_start) else sound_start
        if self.samples and sound_start - start > TOGETHER:
            self.silence = round((sound_start - start) * SAMPLE_RATE)
        self.first_time = 0.0 if math.isinf(picture_start) else picture_start - start
        if self.pts:
            self.times = (np.asarray(self.pts) - self.pts[0]) * base + self.first_time
        elif self.pts is not None:
            self.times = np.zeros(0)

    def picture_problems(self, usable: int) -> list[str]:
        """What is wrong when `usable` frames are there."""
        promised = max(self.declared_frames, len(self.pts or ()))
        if usable >= promised:
            return []
        return [f"only {usable} of {promised} frames are usable; is the file truncated?"]

    def sound_problems(self) -> list[str]:
        """What is wrong with the sound, judged by its packets."""
        seconds = self.samples / SAMPLE_RATE
        if seconds >= self.declared_seconds - SLACK:
            return []
        return [f"only {seconds:.2f} of {self.declared_seconds:.2f} s of sound are there; is the file truncated?"]

    @property
    def orientation(self) -> tuple[bool, bool, bool]:
        """Transpose, then flip rows, then flip columns: how stored frames become upright (ISO 14496-12, 6.2.2)."""
        matrix = self.video_stream.codec_context.coded_side_data.get("display_matrix")
        if matrix is None:
            return False, False, False
        a, b, _, c, d, *_ = np.frombuffer(matrix, dtype="<i4").tolist()  # x' = a x + c y, y' = b x + d y
        if abs(a) >= abs(b):
            return False, d < 0, a < 0
        return True, b < 0, c < 0

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of upright frames with square pixels."""
        context = self.video_stream.codec_context
        height, width = context.height, context.width
        aspect = self.video_stream.sample_aspect_ratio
        if aspect:
            width = max(1, round(width * float(aspect)))
        if not height or not width:
            raise MediaError(self.path, "the size of its picture is unknown; the file may be damaged")
        _check_size(self.path, height, width)
        return (width, height) if self.orientation[0] else (height, width)


def _sound_span(stream: Any, packets: list[Any]) -> tuple[float, float]:
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


def _duration(clip: _Clip, times: np.ndarray) -> float:
    """Seconds from the first frame's start to the last one's end."""
    rate = clip.video_stream.average_rate or clip.video_stream.guessed_rate
    last = 1 / Fraction(rate) if rate else Fraction(1, 25)
    if not clip.pts:
        return float(times[-1] - times[0]) + float(last)
    base = Fraction(clip.video_stream.time_base)
    final = max((p for p in clip.video if not p.is_discard), key=lambda p: p.pts)
    return float((clip.pts[-1] - clip.pts[0]) * base + ((final.duration or 0) * base or last))


# ---- picture


def _decode(stream: Any, packets: list[Any]) -> Iterator[Any]:
    """Frames in output order; packets that the decoder rejects are passed over."""
    import av

    context = stream.codec_context
    if not context.is_open:
        context.thread_count = 1
    for packet in (*packets, None):
        try:
            yield from context.decode(packet)
        except av.FFmpegError:
            continue
    context.flush_buffers()


def _decoded_times(clip: _Clip) -> np.ndarray:
    """Times of the frames that can be decoded, in output order, for files whose packets do not tell."""
    rate = float(clip.video_stream.average_rate or clip.video_stream.guessed_rate or 25)
    base = float(clip.video_stream.time_base)
    pts = [frame.pts for frame in _decode(clip.video_stream, clip.video)]
    if pts and None not in pts and pts == sorted(set(pts)):
        return (np.asarray(pts) - pts[0]) * base + clip.first_time
    return np.arange(len(pts)) / rate + clip.first_time


def _chosen(clip: _Clip, times: np.ndarray, limits: MediaLimits) -> list[int]:
    """Indices of the frames that are taken, of those shown at `times` seconds."""
    return picks(clip.pts if clip.pts else times, frame_count(_duration(clip, times), len(times), limits))


def _read_clip(clip: _Clip, limits: MediaLimits, factor: int) -> Media:
    """The chosen frames of a clip, upright and resized."""
    size = frame_size(*clip.size, factor, limits.min_pixels, limits.max_pixels)
    frames, times = None, clip.times
    if clip.pts and times is not None:
        chosen = _chosen(clip, times, limits)
        frames = _take(clip, [clip.pts[i] for i in chosen], lambda _, frame: frame.pts, size)
    if frames is None:  # no times in the packets, or a chosen frame cannot be decoded: choose among those that can
        times = _decoded_times(clip)
        if not len(times):
            raise MediaError(clip.path, "no frame can be decoded")
        chosen = picks(times, frame_count(_duration(clip, times), len(times), limits))
        frames = _take(clip, chosen, lambda index, _: index, size)
    assert times is not None and frames is not None
    times_chosen = times[chosen]
    spread = float(times_chosen[-1] - times_chosen[0])
    media = Media("video", frames=frames, times=times_chosen)
    media.seconds_per_frame = spread / (len(chosen) - 1) if spread else 1 / limits.sample_fps
    media.problems += clip.picture_problems(len(times))
    return media


def _take(clip: _Clip, keys: list[int], key_of: Callable[[int, Any], int], size: tuple[int, int]) -> np.ndarray | None:
    """The frames with these keys, [T, H, W, 3] uint8, or None when one of them is not decoded."""
    from av.video.reformatter import Interpolation, VideoReformatter

    flags = Interpolation.BILINEAR | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT
    slots: dict[int, list[int]] = {}
    for slot, key in enumerate(keys):
        slots.setdefault(key, []).append(slot)
    transpose, flip_rows, flip_columns = clip.orientation
    height, width = size[::-1] if transpose else size
    out = np.empty((len(keys), *size, 3), dtype=np.uint8)
    reformatter = VideoReformatter()
    for index, frame in enumerate(_decode(clip.video_stream, clip.video)):
        for slot in slots.pop(key_of(index, frame), ()):
            small = reformatter.reformat(frame, width, height, "rgb24", interpolation=flags, threads=1).to_ndarray()
            small = small.transpose(1, 0, 2) if transpose else small
            out[slot] = small[:: -1 if flip_rows else 1, :: -1 if flip_columns else 1]
        if not slots:
            clip.video_stream.codec_context.flush_buffers()
            return out
    return None


# ---- sound


def _read_sound(clip: _Clip, limits: MediaLimits, media: Media) -> np.ndarray | None:
    """[N] float32 at 16 kHz, channels averaged, as long as the container says, aligned with the picture.

    Each channel is resampled before the average is taken: a downmix inside the resampler would scale it by sqrt(2).
    """
    import av

    if not clip.samples:
        return None
    media.problems += clip.sound_problems()
    resampler = None
    chunks = [np.zeros((1, clip.silence), dtype=np.float32)]
    total, cap = clip.silence + clip.samples, math.inf
    if limits.max_audio_seconds is not None:
        cap = round(limits.max_audio_seconds * SAMPLE_RATE)
    have = clip.silence
    for frame in (*_decode(clip.audio_stream, clip.audio), None):
        if frame is None and resampler is None:
            break
        if resampler is None:
            resampler = av.AudioResampler(format="fltp", layout=frame.layout, rate=SAMPLE_RATE)
        for piece in resampler.resample(frame):
            chunks.append(piece.to_ndarray().mean(axis=0, keepdims=True))
            have += piece.samples
        if have >= min(cap, total + SLACK * SAMPLE_RATE):
            break
    sound = np.concatenate(chunks, axis=1)[0]
    wanted = min(total, cap)
    if have - clip.silence == 0:
        raise MediaError(clip.path, "its sound cannot be decoded")
    if len(sound) < wanted - SLACK * SAMPLE_RATE:
        media.problems.append(f"only {len(sound) / SAMPLE_RATE:.2f} of {total / SAMPLE_RATE:.2f} s of sound are usable")
        wanted = len(sound)
    media.cut_seconds = max(0.0, (total - cap) / SAMPLE_RATE)
    out = np.zeros(int(wanted), dtype=np.float32)
    out[: len(sound)] = sound[: len(out)]
    return np.clip(out, -1.0, 1.0)


# ---- images


@contextmanager
def _open_image(path: Path) -> Iterator[Image.Image]:
    from PIL import Image

    try:
        with Image.open(path) as image:
            yield image
    except FileNotFoundError:
        raise MediaError(path, "no such file") from None
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise MediaError(path, f"cannot be read as an image ({error})") from None


def _upright_size(image: Image.Image) -> tuple[int, int]:
    transposed = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)  # Orientation: a quarter turn
    return (image.height, image.width) if transposed else (image.width, image.height)


def _read_image(ref: MediaRef, limits: MediaLimits, factor: int) -> Media:
    """An image upright, on white where it is transparent, resized like a frame."""
    import av
    from av.video.reformatter import Interpolation, VideoReformatter
    from PIL import Image, ImageOps

    with _open_image(ref.path) as image:
        upright = ImageOps.exif_transpose(image)
        if upright.has_transparency_data:
            layer = upright.convert("RGBA")
            upright = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
        pixels = np.ascontiguousarray(upright.convert("RGB"))
    height, width = pixels.shape[:2]
    _check_size(ref.path, height, width)
    height, width = frame_size(height, width, factor, limits.min_pixels, limits.max_pixels)
    flags = Interpolation.BILINEAR | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT
    frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
    small = VideoReformatter().reformat(frame, width, height, "rgb24", interpolation=flags, threads=1).to_ndarray()
    return Media("image", frames=small[None], times=np.zeros(1))
