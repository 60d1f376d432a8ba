"""Row -> media -> `Sample`, the same way for training, validation and inference, and exact token counts.

Each model family has one `Processor`, named by its `Family.processing` and imported on first use.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from avlm.data.rows import where
from avlm.data.sampling import frame_count, frame_size, takes_sound
from avlm.data.types import SAMPLE_RATE, Media, MediaInfo, MediaKind, MediaLimits, MediaRef, Row, Sample
from avlm.errors import UserError
from avlm.models.base import get_family
from avlm.models.checkpoint import check_checkpoint
from avlm.utils.quiet import quiet_loading

if TYPE_CHECKING:
    from avlm.recipe.schema import Data, Recipe


@dataclass(frozen=True)
class TokenCount:
    """Exact tokens of a sample. media: placeholders. prompt: tokens before the first supervised one."""

    total: int
    media: int
    prompt: int


class Processor(Protocol):
    """What a model family does with rows. Built by `load_processor`; can be sent to worker processes."""

    tokenizer: Any
    """The checkpoint's tokenizer."""
    limits: MediaLimits
    """How much of each file is taken."""
    factor: int
    """Height and width of frames are multiples of this, in pixels."""
    pad_id: int
    """Token id that fills a batch."""
    end_of_turn_ids: tuple[int, ...]
    """Token ids that end a turn: generation stops at them."""

    def encode(self, row: Row, media: Sequence[Media], *, with_answer: bool = True) -> Sample:
        """Turn a row and its media, in reading order, into a sample.

        With `with_answer=False` the sample ends with the header of the last assistant turn, ready for generation, and
        no label is set. Raises `UserError` when the text or the media cannot be encoded.
        """
        ...

    def measure(self, row: Row, infos: Sequence[MediaInfo]) -> TokenCount:
        """Tokens of `encode(row, …)`, from what `probe(ref, limits)` says of the row's media in reading order."""
        ...

    def count(self, row: Row, infos: Sequence[MediaInfo]) -> int:
        """The total of `measure`."""
        ...

    def save_pretrained(self, directory: str | Path) -> None:
        """Write tokenizer, processor and chat template as Hugging Face files."""
        ...


@dataclass(frozen=True)
class MediaShape:
    """All that token counts and positions depend on: what was read, or what will be.

    frames, height, width: of the frames after resizing, 0 without a picture. seconds_per_frame: their mean distance.
    audio_samples: at 16 kHz, 0 without sound. times: when the frames are shown, in seconds; of a plan only when the
    clip was probed with limits.
    """

    kind: MediaKind
    frames: int = 0
    height: int = 0
    width: int = 0
    seconds_per_frame: float = 0.0
    audio_samples: int = 0
    times: tuple[float, ...] = ()


def shape_of(media: Media) -> MediaShape:
    """The shape of media that was read."""
    frames, height, width = media.frames.shape[:3] if media.frames is not None else (0, 0, 0)
    samples = len(media.audio) if media.audio is not None else 0
    times = () if media.times is None else tuple(media.times.tolist())
    return MediaShape(media.kind, frames, height, width, media.seconds_per_frame, samples, times)


def planned_shape(info: MediaInfo, limits: MediaLimits, factor: int) -> MediaShape:
    """The shape that reading the file will give, by the rules that the reader itself uses.

    `seconds_per_frame` stays 0: it moves tokens but does not change their number.
    """
    samples = info.audio_samples if takes_sound(info, limits) else 0
    if limits.max_audio_seconds is not None:
        samples = min(samples, round(limits.max_audio_seconds * SAMPLE_RATE))
    if info.kind == "audio":
        return MediaShape("audio", audio_samples=samples)
    height, width = frame_size(info.height, info.width, factor, limits.min_pixels, limits.max_pixels)
    if info.kind == "image":
        return MediaShape("image", 1, height, width)
    frames = frame_count(info.duration, info.frames, limits, given=info.given)
    return MediaShape("video", frames, height, width, audio_samples=samples, times=info.times)


def limits_of(recipe: Recipe) -> MediaLimits:
    """The media budget of the recipe's `data` block."""
    return media_limits(recipe.data)


def media_limits(data: Data) -> MediaLimits:
    """The media budget of a `data` block."""
    return MediaLimits(
        max_frames=data.max_video_frames,
        sample_fps=data.video_sample_fps,
        min_pixels=data.video_min_pixels,
        max_pixels=data.video_max_pixels,
        audio_in_video=data.audio_in_video,
        max_audio_seconds=data.max_audio_seconds,
    )


def load_processor(recipe: Recipe, checkpoint: str | Path | None = None) -> Processor:
    """The processor of the recipe's model family, from its checkpoint (or another `checkpoint`, such as an export).

    Raises `UserError` when the checkpoint is missing or of another model.
    """
    family = get_family(recipe.model.family)
    check_checkpoint(str(checkpoint or recipe.model.checkpoint), family, "" if checkpoint else "model.checkpoint: ")
    module, name = family.processing.split(":")
    kind = getattr(importlib.import_module(module), name)
    with quiet_loading():
        if checkpoint is not None:
            return kind(str(checkpoint), limits_of(recipe))
        return kind(recipe.model.checkpoint, limits_of(recipe), revision=recipe.model.revision)


def make_sample(row: Row, processor: Processor, limits: MediaLimits, *, with_answer: bool = True) -> Sample:
    """Read the row's media and encode it. Raises `UserError`, naming row and line, for bad media or text."""
    from avlm.data.media import read_media

    try:
        media = [read_media(ref, limits, processor.factor) for ref in row.media]
    except UserError as error:
        raise UserError(f"{where(row)}: {error}") from error
    return processor.encode(row, media, with_answer=with_answer)


def measure_rows(
    rows: Sequence[Row], processor: Processor, known: dict[MediaRef, MediaInfo] | None = None
) -> list[TokenCount]:
    """Exact tokens of each row's sample, without decoding media; a file that many rows share is probed once.

    What metadata beside the rows' JSONL file says is believed as long as the media have not changed since; other media
    are probed. known: media looked up before; new ones are added.
    Raises `UserError`, naming row and line, for a file that cannot be probed.
    """
    from avlm.data.metadata import look_up

    known = {} if known is None else known
    new = {ref: row.source for row in reversed(rows) for ref in row.media if ref not in known}
    failed: dict[MediaRef, UserError] = {}
    for ref, info in look_up(new, processor.limits):
        if isinstance(info, UserError):
            failed[ref] = info
        else:
            known[ref] = info
    counts = []
    for row in rows:
        for ref in row.media:
            if ref in failed:
                raise UserError(f"{where(row)}: {failed[ref]}")
        counts.append(processor.measure(row, [known[ref] for ref in row.media]))
    return counts
