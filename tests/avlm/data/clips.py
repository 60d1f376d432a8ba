"""Tiny media files for tests, written with PyAV."""

from __future__ import annotations

from collections.abc import Sequence
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
