"""The values that flow through the data path: row -> media -> sample -> batch. Plain data, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    import torch

Role = Literal["system", "user", "assistant"]
MediaKind = Literal["video", "audio", "image"]


@dataclass(frozen=True)
class Text:
    """A piece of text in a turn."""

    text: str


@dataclass(frozen=True)
class MediaRef:
    """A media file in a turn. `path` is absolute and inside `video_root`; `name` is what the row wrote.

    start, end: seconds from the clip's start that picture and sound are cut to; None: not cut there.
    audio_in_video: whether a clip's sound is taken, instead of what the recipe says; a clip without sound is a clip
    without sound either way. frames, times: a clip given as images (absolute paths; `path` is the first) with the
    seconds at which they are shown.
    """

    kind: MediaKind
    path: Path
    name: str
    start: float | None = None
    end: float | None = None
    audio_in_video: bool | None = None
    frames: tuple[Path, ...] = ()
    times: tuple[float, ...] = ()

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files that are read."""
        return self.frames or (self.path,)


@dataclass(frozen=True)
class Turn:
    """One message: who speaks and what, in order."""

    role: Role
    parts: tuple[Text | MediaRef, ...]


@dataclass(frozen=True)
class Row:
    """One line of a JSONL file, checked. `source` and `line` say where it stands (1-based)."""

    id: str
    turns: tuple[Turn, ...]
    source: str
    line: int
    label: str | None = None
    """The row's `class`, for reports."""

    @property
    def media(self) -> tuple[MediaRef, ...]:
        """All media of the row, in reading order."""
        return tuple(p for t in self.turns for p in t.parts if isinstance(p, MediaRef))


@dataclass(frozen=True)
class MediaLimits:
    """How much of a file is taken; from the recipe's `data` block, the same in training and inference."""

    max_frames: int
    sample_fps: float
    min_pixels: int
    max_pixels: int
    audio_in_video: bool
    max_audio_seconds: float | None = None


@dataclass(frozen=True)
class MediaInfo:
    """What is known, without decoding, of the part of a file that a `MediaRef` names.

    Sizes are upright and with square pixels; times are in seconds.
    """

    kind: MediaKind
    width: int = 0
    height: int = 0
    frames: int = 0
    """Frames that are there; `declared_frames` are those that the container's index promises (0: it has none)."""
    declared_frames: int = 0
    fps: float = 0.0
    duration: float = 0.0
    has_audio: bool = False
    audio_samples: int = 0
    """Samples at 16 kHz mono that the reader returns."""
    times: tuple[float, ...] = ()
    """Of a clip probed with limits: when the frames that the reader takes are shown, in seconds as in `Media.times`."""
    problems: tuple[str, ...] = ()
    """What is seen to be damaged without decoding; `Media.problems` may know more."""
    audio_in_video: bool | None = None
    """`MediaRef.audio_in_video`."""
    given: bool = False
    """Whether the frames were chosen beforehand: then `MediaLimits.sample_fps` does not apply."""
    opened: str = field(default="", compare=False)
    """Why the file had to be opened with FFmpeg; empty when its own index was enough."""


@dataclass
class Media:
    """A file after reading.

    frames: [T, H, W, 3] uint8 RGB after resizing (T = 1 for an image), or None.
    times: [T] float64 seconds from the start of the clip, or of the part that was asked for, at which the frames are
    shown, or None.
    seconds_per_frame: mean distance of two chosen frames, in seconds.
    audio: [N] float32 in [-1, 1], 16 kHz mono, or None when the file has no sound or it was not asked for.
    cut_seconds: sound left out at the end because of `max_audio_seconds`.
    problems: what is damaged about the file; empty for a sound one.
    fallback: why everything had to be decoded; empty when only what the frames depend on was.
    """

    kind: MediaKind
    frames: np.ndarray | None = None
    times: np.ndarray | None = None
    seconds_per_frame: float = 0.0
    audio: np.ndarray | None = None
    cut_seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    fallback: str = ""


@dataclass
class Sample:
    """One row, ready for a model; the unit that is padded or packed.

    input_ids: [S] int64. labels: [S] int64, aligned with `input_ids` (not shifted), IGNORE where not supervised.
    position_ids: [3, S] int64 or float32 for families with 3-D positions, else [S] int64.
    media: model argument name -> tensor, concatenated over the row's media along dim 0, in reading order.
    audio: list of [mel_bins, F] float32, one per sound, F differs.
    """

    id: str
    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor
    media: dict[str, torch.Tensor] = field(default_factory=dict)
    audio: list[torch.Tensor] = field(default_factory=list)


IGNORE = -100
"""Label of a token without loss."""
SAMPLE_RATE = 16_000
"""Rate of every sound that reaches a model, in Hz."""
