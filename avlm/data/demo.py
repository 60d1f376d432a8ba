"""The demo dataset: short clips of a moving square with a tone, and questions that need one modality, or both.

Four classes of questions, asked of every clip:

- picture: which two colors the square has. Neither the sound nor the order of the frames tells.
- order: which color comes first. The colors come in pairs, each in both orders, so a set of frames leaves two.
- sound: how high the tone is. The pictures do not tell.
- joint: whether red is seen, and whether the tone is high or low. Either one alone leaves two of four answers.

Color pair, order and pitch are drawn as a full factorial design (32 combinations), so that answers are balanced, also
given one of the modalities. Everything else about a clip (size, rate, length, path of the square, brightness, phase,
loudness, noise) is random.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np

from avlm.data.types import SAMPLE_RATE, MediaLimits, MediaRef
from avlm.errors import RunError, UserError
from avlm.utils.folder import build_folder

FORMAT = 1
"""Raised whenever the files made from the same settings change."""

COLORS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 220), "white": (240, 240, 240)}
PAIRS = (("red", "green"), ("green", "blue"), ("blue", "white"), ("white", "red"))
TONES = {"low": 220.0, "middle": 550.0, "high": 1400.0, "top": 3200.0}
"""Mean frequency in Hz."""
JITTER = 0.06
"""Largest relative deviation from the mean frequency."""
CLASSES = ("picture", "order", "sound", "joint")
DESIGN = 2 * len(PAIRS) * len(TONES)
"""Combinations of color pair, order and pitch."""
X264 = {"crf": "18", "preset": "fast", "threads": "1", "x264-params": "mbtree=0"}
"""Encoder settings. With macroblock-tree rate control, x264 reads memory that it has not set: at 64 × 64 pixels equal
frames then do not give equal bytes."""
MIN_CLIPS = 10
VALIDATION_SHARE = 5
"""One clip in so many is a validation clip."""


@dataclass(frozen=True)
class Clip:
    """What is seen and heard in a clip. Lengths in pixels, path as fractions of the free width and height."""

    index: int
    first: str
    second: str
    tone: str
    side: int
    fps: int
    frames: int
    square: float
    start: tuple[float, float]
    end: tuple[float, float]
    background: int
    frequency: float
    phase: float
    loudness: float
    noise: float

    @property
    def file(self) -> str:
        """Path below the dataset's folder."""
        return f"clips/{self.index:04d}.mp4"

    @property
    def seconds(self) -> float:
        """Length of picture and sound."""
        return self.frames / self.fps


def make_demo(
    folder: str | Path, seed: int = 0, clips: int = 320, progress: Callable[[int, int], None] | None = None
) -> Literal["written", "reused"]:
    """Write `clips` MP4 files (H.264, AAC) and `train.jsonl`, `validation.jsonl` to `folder`; one clip in five is
    for validation. Equal settings give equal files. `video_root` is the folder itself.

    `progress` is called with the number of clips done and in all. Returns "reused" when the folder already holds
    this set; raises `UserError` when it holds anything else, `RunError` when a written clip does not read back.
    """
    if clips < MIN_CLIPS:
        raise UserError(f"--clips: {clips} is too few; at least {MIN_CLIPS} are needed")
    settings = {"kind": "demo dataset", "format": FORMAT, "seed": seed, "clips": clips}
    return build_folder(Path(folder), settings, partial(_build, seed=seed, clips=clips, progress=progress))


def _build(folder: Path, seed: int, clips: int, progress: Callable[[int, int], None] | None) -> None:
    (folder / "clips").mkdir()
    validation = clips // VALIDATION_SHARE
    plan = plan_clips(seed, clips - validation, validation)
    everything = [clip for split in plan.values() for clip in split]
    # Processes are started afresh: a forked one could inherit locks of threads that it does not have.
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for done, _ in enumerate(pool.map(partial(_make_clip, folder, seed), everything, chunksize=8), start=1):
            if progress is not None:
                progress(done, len(everything))
    for split, members in plan.items():
        lines = [json.dumps(row) for clip in members for row in rows_of(split, clip)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")


def plan_clips(seed: int, train: int, validation: int) -> dict[str, list[Clip]]:
    """The clips of both splits, each split balanced by itself."""
    plan: dict[str, list[Clip]] = {}
    index = itertools.count(1)
    for split, size in (("train", train), ("validation", validation)):
        rng = random.Random(f"{seed} {split}")
        plan[split] = [_draw(next(index), i, rng) for i in range(size)]
    return plan


def _draw(index: int, cell: int, rng: random.Random) -> Clip:
    """Clip number `index`; `cell` chooses the combination. Runs of 4, 8, 16 and 32 cells are balanced in turn."""
    cell %= DESIGN
    pair = PAIRS[cell % 4]
    tone = list(TONES)[(cell + cell // 4) % 4]
    first, second = pair if (cell + cell // 4 + cell // 16) % 2 == 0 else pair[::-1]
    fps = rng.choice((8, 10, 12))
    return Clip(
        index=index,
        first=first,
        second=second,
        tone=tone,
        side=rng.choice((64, 80, 96)),
        fps=fps,
        frames=round(fps * rng.choice((2.0, 2.5)) / 2) * 2,
        square=rng.uniform(0.22, 0.36),
        start=(rng.random(), rng.random()),
        end=(rng.random(), rng.random()),
        background=rng.randrange(10, 50),
        frequency=TONES[tone] * (1 + rng.uniform(-JITTER, JITTER)),
        phase=rng.uniform(0, 2 * np.pi),
        loudness=rng.uniform(0.2, 0.4),
        noise=rng.uniform(0.01, 0.03),
    )


# ---- questions


def rows_of(split: str, clip: Clip) -> list[dict[str, Any]]:
    """One row for each class."""
    rows = []
    for name in CLASSES:
        question, answer = question_of(name, clip)
        user = [{"type": "video", "path": clip.file}, {"type": "text", "text": question}]
        assistant = [{"type": "text", "text": answer}]
        rows.append(
            {
                "id": f"{split}-{clip.index:04d}-{name}",
                "class": name,
                "conversation": [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}],
            }
        )
    return rows


def question_of(name: str, clip: Clip) -> tuple[str, str]:
    """Question and right answer. Options keep their letters, so that a tiny model can learn them."""
    if name == "picture":
        options = [f"{a} and {b}" for a, b in PAIRS]
        right = next(i for i, pair in enumerate(PAIRS) if set(pair) == {clip.first, clip.second})
        return _choice("Which two colors does the square have?", options, right)
    if name == "order":
        return "Which color comes first? Answer with one word.", clip.first
    if name == "sound":
        return "How high is the tone: low, middle, high or top? Answer with one word.", clip.tone
    if name == "joint":
        options = ["red, low or middle", "red, high or top", "no red, low or middle", "no red, high or top"]
        red = "red" in (clip.first, clip.second)
        return _choice("Which of these fits the square and the tone?", options, 2 * (not red) + _is_high(clip.tone))
    raise ValueError(f"unknown class {name!r}")


def _is_high(tone: str) -> bool:
    return tone in ("high", "top")


def _choice(question: str, options: list[str], right: int) -> tuple[str, str]:
    lines = [f"{letter}. {option}" for letter, option in zip("ABCD", options, strict=True)]
    return "\n".join([question, *lines]), "ABCD"[right]


# ---- clips


def _make_clip(folder: Path, seed: int, clip: Clip) -> None:
    path = folder / clip.file
    rng = np.random.default_rng([seed, clip.index])
    write_clip(path, draw_frames(clip), draw_sound(clip, rng), clip.fps)
    _verify(path, clip)


def draw_frames(clip: Clip) -> np.ndarray:
    """[frames, side, side, 3] uint8: a square on a straight path that changes its color half way through."""
    video = np.full((clip.frames, clip.side, clip.side, 3), clip.background, dtype=np.uint8)
    square = round(clip.side * clip.square)
    for i, frame in enumerate(video):
        part = i / (clip.frames - 1)
        x, y = (round((a + (b - a) * part) * (clip.side - square)) for a, b in zip(clip.start, clip.end, strict=True))
        frame[y : y + square, x : x + square] = COLORS[clip.first if i < clip.frames // 2 else clip.second]
    return video


def draw_sound(clip: Clip, rng: np.random.Generator) -> np.ndarray:
    """[samples] float32 at 16 kHz: a sine in noise."""
    time = np.arange(round(clip.seconds * SAMPLE_RATE)) / SAMPLE_RATE
    sine = clip.loudness * np.sin(2 * np.pi * clip.frequency * time + clip.phase)
    return (sine + clip.noise * rng.standard_normal(len(time))).astype(np.float32)


def write_clip(path: Path, frames: np.ndarray, sound: np.ndarray, fps: int) -> None:
    """Encode frames [T, H, W, 3] uint8 and sound [N] float32 at 16 kHz as MP4."""
    import av

    with av.open(str(path), "w", format="mp4") as container:
        video = container.add_stream("libx264", rate=fps, options=X264)
        video.height, video.width = frames.shape[1:3]
        video.pix_fmt = "yuv420p"
        audio = container.add_stream("aac", rate=SAMPLE_RATE, layout="mono")
        audio.bit_rate = 64_000
        for i, pixels in enumerate(frames):
            picture = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            picture.pts, picture.time_base = i, Fraction(1, fps)
            container.mux(video.encode(picture))
        container.mux(video.encode(None))
        samples = av.AudioFrame.from_ndarray(sound[None], format="fltp", layout="mono")
        samples.rate, samples.pts, samples.time_base = SAMPLE_RATE, 0, Fraction(1, SAMPLE_RATE)
        container.mux(audio.encode(samples))
        container.mux(audio.encode(None))


def _verify(path: Path, clip: Clip) -> None:
    """Read the clip as training does, and look for what was planned. Raises `RunError`."""
    from avlm.data.media import probe, read_media

    info = probe(MediaRef("video", path, clip.file))
    limits = MediaLimits(clip.frames, clip.fps, 32 * 32, 96 * 96, audio_in_video=True)
    media = read_media(MediaRef("video", path, clip.file), limits, factor=16, strict=True)
    frames, sound = media.frames, media.audio
    assert frames is not None
    wrong = []
    if (info.frames, info.duration, len(frames)) != (clip.frames, clip.seconds, clip.frames):
        wrong.append(f"{info.frames} frames, {info.duration} s instead of {clip.frames} frames, {clip.seconds} s")
    if sound is None or len(sound) != round(clip.seconds * SAMPLE_RATE):
        wrong.append(f"{0 if sound is None else len(sound)} samples instead of {round(clip.seconds * SAMPLE_RATE)}")
    else:
        peak = np.abs(np.fft.rfft(sound)).argmax() * SAMPLE_RATE / len(sound)
        if abs(peak - clip.frequency) > 5:
            wrong.append(f"a tone of {peak:.0f} Hz instead of {clip.frequency:.0f} Hz")
    for frame, name in ((frames[0], clip.first), (frames[-1], clip.second)):
        distance = np.abs(frame.astype(int) - COLORS[name]).sum(axis=-1).min()
        if distance > 60:
            wrong.append(f"no {name} square in a frame that has one")
    if wrong:
        raise RunError(f"{clip.file} does not read back as planned ({asdict(clip)}): {'; '.join(wrong)}")
