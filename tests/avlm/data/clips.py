"""Tiny media files for tests, written with PyAV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from avlm.data.types import MediaKind, MediaLimits, MediaRef

QUADRANTS = ((220, 30, 30), (30, 200, 30), (30, 30, 220), (240, 240, 240))
"""Red, green, blue, white: top left, top right, bottom left, bottom right."""


def ref(path: Path, kind: MediaKind = "video") -> MediaRef:
    return MediaRef(kind, path, path.name)


def limits(
    max_frames: int = 128,
    fps: float = 10.0,
    pixels: tuple[int, int] = (1024, 10**7),
    sound: bool = True,
    seconds: float | None = None,
) -> MediaLimits:
    return MediaLimits(max_frames, fps, *pixels, audio_in_video=sound, max_audio_seconds=seconds)


def quadrants(height: int, width: int) -> np.ndarray:
    """[H, W, 3] uint8: a quarter of the picture in each of the four colors."""
    picture = np.empty((height, width, 3), np.uint8)
    for i, color in enumerate(QUADRANTS):
        rows = slice(None, height // 2) if i < 2 else slice(height // 2, None)
        columns = slice(None, width // 2) if i % 2 == 0 else slice(width // 2, None)
        picture[rows, columns] = color
    return picture


def corners(frame: np.ndarray) -> list[tuple[int, int, int]]:
    """Color in the middle of each quarter, in the order of `QUADRANTS`."""
    h, w = frame.shape[:2]
    return [tuple(frame[y, x].tolist()) for y in (h // 4, 3 * h // 4) for x in (w // 4, 3 * w // 4)]


def greys(n: int, height: int = 32, width: int = 32) -> np.ndarray:
    """[n, H, W, 3] uint8: frame i has the grey `level(i)`."""
    return np.stack([np.full((height, width, 3), level(i), np.uint8) for i in range(n)])


def level(i: int) -> int:
    return 16 + 5 * i


def shown(frames: np.ndarray) -> list[int]:
    """Numbers of the frames of `greys` that these are."""
    return [round((float(f.mean()) - 16) / 5) for f in frames]


def tone(seconds: float, rate: int, frequency: float = 440.0, channels: int = 1) -> np.ndarray:
    """[channels, samples] float32, amplitude 0.3."""
    time = np.arange(round(seconds * rate)) / rate
    return np.repeat(0.3 * np.sin(2 * np.pi * frequency * time)[None], channels, axis=0).astype(np.float32)


def pitch(sound: np.ndarray) -> float:
    """Strongest frequency in Hz of 16 kHz sound."""
    return float(np.abs(np.fft.rfft(sound)).argmax() * 16_000 / len(sound))


def write(
    path: Path,
    frames: np.ndarray | None = None,
    sound: np.ndarray | None = None,
    *,
    fps: int = 10,
    rate: int = 16_000,
    codec: str = "libx264",
    sound_codec: str = "aac",
    pts: Sequence[int] | None = None,
    unit: Fraction | None = None,
    sound_start: int = 0,
    aspect: Fraction | None = None,
    bframes: bool = True,
    options: dict[str, str] | None = None,
) -> Path:
    """Write frames [T, H, W, 3] uint8 and sound [channels, N] float32; the name's end chooses the container.

    pts: times of the frames in `unit` seconds (default: 0, 1, … in 1 / fps). sound_start: first sample's time, in
    samples.
    """
    unit = unit or Fraction(1, fps)
    settings = {"libx264": {"crf": "10", "threads": "1"} | ({} if bframes else {"x264-params": "bframes=0"})}
    with av.open(str(path), "w", options=options or {}) as container:
        if frames is not None:
            video = container.add_stream(codec, rate=fps, options=settings.get(codec, {}))
            video.height, video.width = frames.shape[1:3]
            video.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
            video.codec_context.time_base = unit
            if aspect is not None:
                video.codec_context.sample_aspect_ratio = aspect
        if sound is not None:
            layout = "stereo" if len(sound) == 2 else "mono"
            audio = container.add_stream(sound_codec, rate=rate, layout=layout)
        if frames is not None:
            for i, pixels in enumerate(frames):
                picture = av.VideoFrame.from_ndarray(pixels, format="rgb24")
                picture.pts, picture.time_base = (i if pts is None else pts[i]), unit
                container.mux(video.encode(picture))
            container.mux(video.encode(None))
        if sound is not None:
            samples = av.AudioFrame.from_ndarray(np.ascontiguousarray(sound), format="fltp", layout=layout)
            samples.rate, samples.pts, samples.time_base = rate, sound_start, Fraction(1, rate)
            resampler = av.AudioResampler(audio.codec_context.format.name, layout, rate)
            for piece in (*resampler.resample(samples), *resampler.resample(None)):
                container.mux(audio.encode(piece))
            container.mux(audio.encode(None))
    return path


def rotate(source: Path, path: Path, degrees: int, hflip: bool = False) -> Path:
    """Copy the picture with a display matrix that turns it counterclockwise."""
    with av.open(str(source)) as old, av.open(str(path), "w") as new:
        stream = old.streams.video[0]
        copy = new.add_stream_from_template(stream)
        copy.set_display_rotation(degrees, hflip=hflip)
        for packet in old.demux(stream):
            if packet.size:
                packet.stream = copy
                new.mux(packet)
    return path


# ---- kinds of files


def moving(n: int, height: int = 64, width: int = 96, seed: int = 0) -> np.ndarray:
    """[n, H, W, 3] uint8: a textured picture that moves, with a square that moves the other way."""
    texture = np.random.default_rng(seed).integers(0, 255, (height // 8 + 2, width // 8 + n // 4 + 2, 3), np.uint8)
    wide = texture.repeat(8, 0).repeat(8, 1)
    frames = np.stack([wide[i % 5 : i % 5 + height, 2 * i : 2 * i + width] for i in range(n)])
    for i, frame in enumerate(frames):
        frame[8:24, (width - 16 - 3 * i) % (width - 16) :][:, :16] = (250, 250 - 4 * i % 200, 10)
    return frames


@dataclass(frozen=True)
class Kind:
    """How to write one kind of clip. skips: whether some of its packets need no decoding to take a few frames.

    numbered: whether its packets do not say when frames are shown.
    """

    name: str
    codec: str = "libx264"
    options: dict[str, str] = field(default_factory=dict)
    pix_fmt: str = "yuv420p"
    skips: bool = True
    numbered: bool = False
    sound_codec: str | None = "aac"
    container: dict[str, str] = field(default_factory=dict)
    pts: Sequence[int] | None = None
    fps: int = 25


def _x264(**params: object) -> dict[str, str]:
    text = ":".join(f"{key.replace('_', '-')}={value}" for key, value in params.items())
    return {"preset": "veryfast", "crf": "18", "x264-params": f"threads=1:{text}"}


def _x265(**params: object) -> dict[str, str]:
    text = ":".join(f"{key.replace('_', '-')}={value}" for key, value in params.items())
    return {
        "preset": "ultrafast",
        "x265-params": f"log-level=none:pools=none:frame-threads=1:bframes=3:keyint=12:{text}",
    }


KINDS = [
    Kind("h264.mp4", options=_x264(keyint=12)),
    Kind("h264_no_b.mp4", options=_x264(keyint=12, bframes=0)),
    Kind("h264_one_group.mp4", options=_x264(keyint=999, bframes=3)),
    Kind("h264_pyramid.mp4", options=_x264(keyint=24, bframes=7, b_pyramid="normal", b_adapt=0, ref=4)),
    Kind("h264_open.mp4", options=_x264(keyint=12, bframes=3, b_adapt=0, open_gop=1, scenecut=0)),
    Kind("h264_open.mkv", options=_x264(keyint=12, bframes=3, b_adapt=0, open_gop=1, scenecut=0)),
    Kind("h264_open.ts", options=_x264(keyint=12, bframes=3, b_adapt=0, open_gop=1, scenecut=0)),
    Kind("h264_refresh.mp4", options=_x264(keyint=12, intra_refresh=1), skips=False),
    Kind("h264_interlaced.mp4", options=_x264(keyint=12, tff=1, bframes=2)),
    Kind("h264_slices.mp4", options=_x264(keyint=12, slices=4)),
    Kind("h264_10bit.mp4", options=_x264(keyint=12), pix_fmt="yuv420p10le"),
    Kind("h264_444.mp4", options=_x264(keyint=12), pix_fmt="yuv444p"),
    Kind("h264.mov", options=_x264(keyint=12)),
    Kind("h264.mkv", options=_x264(keyint=12)),
    Kind("h264.ts", options=_x264(keyint=12)),
    Kind("h264.flv", options=_x264(keyint=12)),
    Kind("h264.avi", options=_x264(keyint=12), skips=False, numbered=True, sound_codec="libmp3lame"),
    Kind("h264_fragments.mp4", options=_x264(keyint=12), container={"movflags": "frag_keyframe+empty_moov"}),
    Kind("h264_faststart.mp4", options=_x264(keyint=12), container={"movflags": "faststart"}),
    Kind("h264_vfr.mp4", options=_x264(keyint=12, bframes=0), pts=[i * i // 8 + i for i in range(60)]),
    Kind("h264_vfr_b.mp4", options=_x264(keyint=12, bframes=3), pts=[i * i // 8 + i for i in range(60)]),
    Kind("h264_vfr.mkv", options=_x264(keyint=12, bframes=3), pts=[i * i // 8 + i for i in range(60)]),
    Kind("h264_late.mp4", options=_x264(keyint=12), pts=range(20, 80)),
    Kind("h264_late.mkv", options=_x264(keyint=12), pts=range(20, 80)),
    Kind("h264_edit.mp4", options=_x264(keyint=12, bframes=0), pts=range(-5, 55),
         container={"use_editlist": "1", "avoid_negative_ts": "disabled"}),
    Kind("h264_edit_b.mp4", options=_x264(keyint=12, bframes=3), pts=range(-17, 43),
         container={"use_editlist": "1", "avoid_negative_ts": "disabled"}),
    Kind("h264_silent.mp4", options=_x264(keyint=12), sound_codec=None),
    Kind("h264_ntsc.mp4", options=_x264(keyint=12), fps=24),
    Kind("hevc.mp4", "libx265", _x265(open_gop=0)),
    Kind("hevc_open.mp4", "libx265", _x265(open_gop=1, b_adapt=0, scenecut=0)),
    Kind("hevc_open.mkv", "libx265", _x265(open_gop=1, b_adapt=0, scenecut=0)),
    Kind("hevc_open.ts", "libx265", _x265(open_gop=1, b_adapt=0, scenecut=0)),
    Kind("hevc_layers.mp4", "libx265", _x265(open_gop=0, temporal_layers=3)),
    Kind("hevc_10bit.mp4", "libx265", _x265(open_gop=0), pix_fmt="yuv420p10le"),
    Kind("vp9.webm", "libvpx-vp9", {"g": "12", "deadline": "realtime", "cpu-used": "8"}, sound_codec="libopus"),
    Kind("vp9.mp4", "libvpx-vp9", {"g": "12", "deadline": "realtime", "cpu-used": "8"}),
    Kind("vp8.webm", "libvpx", {"g": "12", "deadline": "realtime", "cpu-used": "8"}, sound_codec="libopus"),
    Kind("av1.mkv", "libsvtav1", {"preset": "12", "svtav1-params": "keyint=12:lp=1"}, sound_codec="libopus"),
    Kind("av1.mp4", "libsvtav1", {"preset": "12", "svtav1-params": "keyint=12:lp=1"}),
    Kind("mpeg2.ts", "mpeg2video", {"g": "12", "bf": "2"}, sound_codec="mp2"),
    Kind("mpeg4.mp4", "mpeg4", {"g": "12", "bf": "2"}),
    Kind("mjpeg.avi", "mjpeg", pix_fmt="yuvj420p", sound_codec="pcm_s16le"),
    Kind("mjpeg.mov", "mjpeg", pix_fmt="yuvj420p", sound_codec="pcm_s16le"),
    Kind("prores.mov", "prores_ks", pix_fmt="yuv422p10le", sound_codec="pcm_s16le"),
    Kind("ffv1.mkv", "ffv1", skips=False, sound_codec="flac"),
]  # fmt: skip
"""Clips of 60 frames of `moving`, 25 a second where `pts` does not say otherwise."""


def write_kind(kind: Kind, path: Path, frames: int = 60, height: int = 64, width: int = 96) -> Path:
    """Write a clip of this kind, with a stereo tone as long as the picture."""
    with av.open(str(path), "w", options=kind.container) as container:
        video = container.add_stream(kind.codec, rate=kind.fps, options=kind.options)
        video.height, video.width, video.pix_fmt = height, width, kind.pix_fmt
        unit = Fraction(1, kind.fps)
        video.codec_context.time_base = unit
        audio = container.add_stream(kind.sound_codec, rate=48_000, layout="stereo") if kind.sound_codec else None
        for i, pixels in enumerate(moving(frames, height, width)):
            picture = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            picture.pts, picture.time_base = (i if kind.pts is None else kind.pts[i]), unit
            container.mux(video.encode(picture))
        container.mux(video.encode(None))
        if audio is not None:
            wave = tone(frames / 25, 48_000, channels=2)
            wave[1] *= np.linspace(1, 0, wave.shape[1])
            samples = av.AudioFrame.from_ndarray(wave, format="fltp", layout="stereo")
            samples.rate, samples.pts, samples.time_base = 48_000, 0, Fraction(1, 48_000)
            resampler = av.AudioResampler(audio.codec_context.format.name, "stereo", 48_000)
            for piece in (*resampler.resample(samples), *resampler.resample(None)):
                container.mux(audio.encode(piece))
            container.mux(audio.encode(None))
    return path
