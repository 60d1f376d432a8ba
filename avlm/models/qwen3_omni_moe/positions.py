"""Order and 3-D rotary positions of the tokens of a Qwen3-Omni sequence.

A sequence is a list of spans: text, and what a media placeholder stands for. Counts, token order and positions all come
from that list. The rules are those of `get_rope_index` in transformers' `models/qwen3_omni_moe/`: text and sound count
up by one in all three axes; vision tokens get (time, row, column), time in units of 1 / `per_second` seconds; what
follows starts one above the largest position before it. Sound of a clip is merged with its pictures by time, the
picture first when times are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TextSpan:
    """Token ids as the tokenizer gave them, media brackets included."""

    ids: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class MediaSpan:
    """Placeholders of one media file, without the brackets around them.

    vision: (time, rows, columns) of tokens after the spatial merge, or None for sound alone.
    seconds_per_grid: distance of two time steps, in seconds (0 for an image).
    sound: number of sound tokens.
    """

    vision: tuple[int, int, int] | None = None
    seconds_per_grid: float = 0.0
    sound: int = 0

    @property
    def vision_tokens(self) -> int:
        """Number of vision tokens."""
        return int(np.prod(self.vision)) if self.vision else 0

    def __len__(self) -> int:
        return self.vision_tokens + self.sound


Span = TextSpan | MediaSpan


def sound_tokens(mel_frames: int) -> int:
    """Tokens that the audio tower makes of `mel_frames` frames: 100 become 13, the rest is halved three times.

    Source: `_get_feat_extract_output_lengths` of transformers' `modeling_qwen3_omni_moe.py`.
    """
    blocks, rest = divmod(mel_frames, 100)
    for _ in range(3):
        rest = (rest + 1) // 2
    return blocks * 13 + rest


def rope_positions(spans: Sequence[Span], per_second: float) -> tuple[np.ndarray, np.ndarray]:
    """Positions and kinds of all tokens of `spans`.

    per_second: time units in a second (`position_id_per_seconds` of the checkpoint).
    Returns positions [3, S] float32 (time, row, column) and is_sound [S] bool, True on sound tokens.
    """
    positions: list[np.ndarray] = [np.zeros((3, 0), np.float32)]
    is_sound: list[np.ndarray] = [np.zeros(0, bool)]
    start = np.float32(0)
    for span in spans:
        if len(span) == 0:
            continue
        if isinstance(span, TextSpan) or span.vision is None:
            block, sound = _counting(len(span), start), np.full(len(span), isinstance(span, MediaSpan))
            last = block
        else:
            block, sound = _merged(span, start, per_second)
            last = _tail(block, sound)
        positions.append(block)
        is_sound.append(sound)
        start = last.max() + np.float32(1)
    return np.concatenate(positions, 1), np.concatenate(is_sound)


def _counting(count: int, start: np.float32) -> np.ndarray:
    return np.broadcast_to(np.arange(count, dtype=np.float32) + start, (3, count))


def _merged(span: MediaSpan, start: np.float32, per_second: float) -> tuple[np.ndarray, np.ndarray]:
    """Vision tokens in time order with the sound tokens between them; float32, so that ties are those of upstream."""
    assert span.vision is not None
    time, row, column = np.indices(span.vision, dtype=np.float32).reshape(3, -1)
    time = time * np.float32(span.seconds_per_grid) * np.float32(per_second)
    vision = np.stack([time, row, column]) + start
    sound = _counting(span.sound, start)
    block = np.empty((3, len(span)), np.float32)
    is_sound = np.zeros(len(span), bool)
    at = np.arange(span.sound) + np.searchsorted(vision[0], sound[0], side="right")
    is_sound[at] = True
    block[:, is_sound] = sound
    block[:, ~is_sound] = vision
    return block, is_sound


def _tail(block: np.ndarray, is_sound: np.ndarray) -> np.ndarray:
    """The last run of one kind. Upstream continues from its maximum, not from that of the whole clip."""
    other = np.flatnonzero(is_sound != is_sound[-1])
    return block[:, other[-1] + 1 :] if len(other) else block
