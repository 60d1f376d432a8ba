"""Taking one input away, to see what answers depend on. The token layout stays that of the untouched row."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, get_args

from avlm.data.types import Media

if TYPE_CHECKING:
    import numpy as np

Ablation = Literal["mute_audio", "blank_video", "shuffle_frames"]
ABLATIONS: tuple[Ablation, ...] = get_args(Ablation)
_TRIES = 100


def ablate(media: Sequence[Media], ablation: Ablation, row_id: str) -> list[Media]:
    """Copies of a row's media with one input taken away; shapes and times stay.

    mute_audio: all samples are 0. blank_video: all pixels are 0 (clips and images). shuffle_frames: frames of each clip
    in an order that depends on `row_id` and the clip's place in the row alone, and shows something else than before
    whenever the frames differ.
    """
    return [_one(item, ablation, f"{row_id}\n{place}") for place, item in enumerate(media)]


def _one(item: Media, ablation: Ablation, key: str) -> Media:
    import numpy as np

    if ablation == "mute_audio":
        return replace(item, audio=None if item.audio is None else np.zeros_like(item.audio))
    if item.frames is None:
        return item
    if ablation == "blank_video":
        return replace(item, frames=np.zeros_like(item.frames))
    return replace(item, frames=item.frames[frame_order(item.frames, key)])


def frame_order(frames: np.ndarray, key: str) -> list[int]:
    """A permutation of the indices of [T, …] `frames`, drawn from `key`, that changes what is shown if any can."""
    import numpy as np

    order = list(range(len(frames)))
    other = np.flatnonzero((frames != frames[0]).reshape(len(frames), -1).any(1))
    if not other.size:
        return order
    rng = random.Random(int.from_bytes(hashlib.sha256(key.encode()).digest()))
    for _ in range(_TRIES):
        rng.shuffle(order)
        if not np.array_equal(frames[order], frames):
            return order
    order = list(range(len(frames)))
    order[0], order[other[0]] = order[other[0]], order[0]
    return order
