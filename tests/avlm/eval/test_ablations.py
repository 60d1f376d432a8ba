"""Inputs taken away without moving a token."""

from __future__ import annotations

import numpy as np
import pytest

from avlm.data.types import Media
from avlm.eval.ablations import ABLATIONS, ablate, frame_order


def clip(count: int = 8) -> Media:
    frames = np.arange(1, count + 1, dtype=np.uint8)[:, None, None, None] * np.ones((1, 4, 4, 3), np.uint8)
    return Media("video", frames, np.arange(count) * 0.5, 0.5, np.ones(100, np.float32))


def test_mute_and_blank() -> None:
    before = clip()
    (muted,) = ablate([before], "mute_audio", "r")
    assert not muted.audio.any() and muted.audio.shape == (100,) and muted.audio.dtype == np.float32
    assert muted.frames is before.frames
    (blank,) = ablate([before], "blank_video", "r")
    assert not blank.frames.any() and blank.frames.shape == before.frames.shape and blank.frames.dtype == np.uint8
    assert blank.audio is before.audio and blank.times is before.times


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_input_is_left_alone_and_layout_kept(ablation: str) -> None:
    before, same = clip(), clip()
    (after,) = ablate([before], ablation, "r")
    assert np.array_equal(before.frames, same.frames) and np.array_equal(before.audio, same.audio)
    assert (after.kind, after.seconds_per_frame, after.frames.shape, after.audio.shape) == (
        before.kind,
        before.seconds_per_frame,
        before.frames.shape,
        before.audio.shape,
    )


@pytest.mark.parametrize("count", [2, 3, 8])
def test_shuffle_is_a_permutation_that_changes_something_and_repeats(count: int) -> None:
    before = clip(count)
    for row in map(str, range(50)):
        (after,) = ablate([before], "shuffle_frames", row)
        assert sorted(after.frames[:, 0, 0, 0]) == sorted(before.frames[:, 0, 0, 0])
        assert not np.array_equal(after.frames, before.frames)
        assert np.array_equal(after.frames, ablate([clip(count)], "shuffle_frames", row)[0].frames)
    orders = {tuple(frame_order(before.frames, str(row))) for row in range(50)}
    assert len(orders) >= min(5, count - 1)


def test_two_clips_of_a_row_are_shuffled_apart() -> None:
    first, second = ablate([clip(40), clip(40)], "shuffle_frames", "r")
    assert not np.array_equal(first.frames, second.frames)


def test_one_frame_that_differs_moves() -> None:
    frames = np.zeros((8, 4, 4, 3), np.uint8)
    frames[5] = 1
    for row in range(200):
        assert frame_order(frames, str(row))[5] != 5


def test_nothing_to_shuffle_and_media_without_frames() -> None:
    still = Media("image", np.ones((1, 4, 4, 3), np.uint8))
    same = Media("video", np.ones((4, 4, 4, 3), np.uint8))
    sound = Media("audio", audio=np.ones(10, np.float32))
    for item in (still, same):
        assert np.array_equal(ablate([item], "shuffle_frames", "r")[0].frames, item.frames)
    assert ablate([sound], "blank_video", "r") == [sound]
    assert ablate([still], "mute_audio", "r")[0].audio is None
    assert ablate([], "mute_audio", "r") == []
