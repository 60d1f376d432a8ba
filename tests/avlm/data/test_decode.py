from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.video.reformatter import Interpolation

from avlm.data.bitstream import UNKNOWN, Entry, Unit, describer
from avlm.data.container import Demuxed, opened
from avlm.data.decode import Canvas, decode, plan, take
from avlm.data.media import read_media
from avlm.data.sampling import picks
from tests.avlm.data.clips import KINDS, limits, ref

ACCURATE = Interpolation.BILINEAR | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT


@functools.cache
def sequential(path: Path, height: int, width: int) -> tuple[list[int] | None, float, np.ndarray]:
    """Everything decoded in order by PyAV alone: times in their unit, the unit, pixels [frames, H, W, 3]."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = list(container.decode(stream))
        pts = [frame.pts for frame in frames]
        pixels = [f.reformat(width, height, "rgb24", interpolation=ACCURATE).to_ndarray() for f in frames]
        known = None not in pts and pts == sorted(set(pts))
        return pts if known else None, float(stream.time_base), np.stack(pixels)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_frames_are_those_of_decoding_everything(kind: Any, kind_of_clip: Callable[[str], Path]) -> None:
    path = kind_of_clip(kind.name)
    pts, unit, pixels = sequential(path, 64, 96)
    for count in (2, 4, 8, 14, 22, 60):
        media = read_media(ref(path), limits(max_frames=count, fps=100.0), 32)
        assert media.frames is not None and media.times is not None
        chosen = picks(pts if pts is not None else range(len(pixels)), len(media.frames))
        assert np.array_equal(media.frames, pixels[chosen]), count
        assert media.problems == [], count
        assert bool(media.fallback) == kind.numbered, count
        if pts is not None:
            times = (np.array(pts)[chosen] - pts[0]) * unit
            assert media.times - media.times[0] == pytest.approx(times, abs=1e-9)


@pytest.mark.parametrize("kind", [k for k in KINDS if k.skips], ids=lambda kind: kind.name)
def test_packets_that_are_not_needed_are_not_decoded(kind: Any, kind_of_clip: Callable[[str], Path]) -> None:
    with opened(kind_of_clip(kind.name)) as container:
        source = Demuxed(container, ref(kind_of_clip(kind.name)))
        assert source.clip.picture is not None
        counted = Counted(source.track)
        pts = source.clip.picture.pts
        take(counted, pts[picks(pts, 4)].tolist(), Canvas(32, 48))
        assert 4 <= counted.decoded < len(source.track.pts) * 0.8


class Counted:
    """A track whose decoder counts its packets."""

    def __init__(self, track: Any) -> None:
        self._track, self._decoder = track, track.decoder()
        self.pts, self.keys, self.packet = track.pts, track.keys, track.packet
        self.codec, self.extradata = self._decoder.codec, self._decoder.extradata
        self.flush_buffers = self._decoder.flush_buffers
        self.decoded = 0

    def decoder(self) -> Any:
        return self

    def decode(self, packet: Any) -> Any:
        self.decoded += packet is not None
        return self._decoder.decode(packet)


class Spoiled(Counted):
    """A track whose first packets in decoding order are lost."""

    def __init__(self, track: Any, lost: int) -> None:
        super().__init__(track)
        self._lost = lost

    def decode(self, packet: Any) -> Any:
        self.decoded += 1
        return [] if packet is not None and self.decoded <= self._lost else self._decoder.decode(packet)


def test_a_missing_frame_leads_to_decoding_everything(kind_of_clip: Callable[[str], Path]) -> None:
    path = kind_of_clip("h264.mp4")
    with opened(path) as container:
        source = Demuxed(container, ref(path))
        assert source.clip.picture is not None
        wanted = source.clip.picture.pts[[0, 30, 59]].tolist()
        whole = take(source.track, wanted, Canvas(64, 96), sparse=False)
        assert whole.fallback == "" and whole.frames is not None
        taken = take(Spoiled(source.track, 1), wanted, Canvas(64, 96))
        assert taken.fallback == "the decoder reports damage"
        assert taken.frames is not None and np.array_equal(taken.frames, whole.frames)
        assert take(Spoiled(source.track, 10_000), wanted, Canvas(64, 96)).frames is None


def test_a_frame_may_be_wanted_twice(kind_of_clip: Callable[[str], Path]) -> None:
    path = kind_of_clip("h264.mp4")
    with opened(path) as container:
        source = Demuxed(container, ref(path))
        assert source.clip.picture is not None
        times = source.clip.picture.pts[[3, 3, 1]].tolist()
        frames = take(source.track, times, Canvas(64, 96)).frames
    pixels = sequential(path, 64, 96)[2]
    assert frames is not None and np.array_equal(frames, pixels[[3, 3, 1]])


def test_decoding_may_not_start_at_a_gradual_refresh(kind_of_clip: Callable[[str], Path]) -> None:
    """Key frames of the container whose pictures are whole only some frames later."""
    path = kind_of_clip("h264_refresh.mp4")
    with opened(path) as container:
        track = Demuxed(container, ref(path)).track
        describe = describer(track.decoder())
        assert [describe(track.packet(key)).entry for key in track.keys[:1]] == [Entry.CLOSED]
        assert all(describe(track.packet(key)).entry is Entry.NONE for key in track.keys[1:])


@pytest.mark.parametrize(
    ("name", "entry"),
    [("h264.mp4", Entry.CLOSED), ("h264_open.mp4", Entry.OPEN), ("h264_open.ts", Entry.OPEN),
     ("hevc.mp4", Entry.CLOSED), ("hevc_open.mkv", Entry.OPEN), ("vp9.webm", Entry.CLOSED), ("vp8.webm", Entry.CLOSED),
     ("av1.mkv", Entry.CLOSED), ("av1.mp4", Entry.CLOSED), ("mjpeg.avi", Entry.CLOSED), ("mpeg4.mp4", Entry.NONE)],
)  # fmt: skip
def test_entries(name: str, entry: Entry, kind_of_clip: Callable[[str], Path]) -> None:
    path = kind_of_clip(name)
    with opened(path) as container:
        track = Demuxed(container, ref(path)).track
        describe = describer(track.decoder())
        keys = [describe(track.packet(key)).entry for key in track.keys]
        assert len(keys) >= 4 and set(keys[1:]) == {entry}


@pytest.mark.parametrize("name", ["h264.mp4", "h264.ts", "hevc.mp4", "hevc_layers.mp4", "mpeg2.ts", "mpeg4.mp4"])
def test_pictures_without_dependents(name: str, kind_of_clip: Callable[[str], Path]) -> None:
    path = kind_of_clip(name)
    with opened(path) as container:
        track = Demuxed(container, ref(path)).track
        describe = describer(track.decoder())
        units = [describe(track.packet(i)) for i in range(len(track.pts))]
        assert 10 < sum(not unit.reference for unit in units) < 50
        assert {unit.layer for unit in units} == ({0, 1, 2} if "layers" in name else {0})


# ---- the plan, on made-up groups: I0 P3 B1 B2 | I6 B4 B5 P9 B7 B8 | I12 ...

PTS = [0, 3, 1, 2, 6, 4, 5, 9, 7, 8, 12, 10, 11]
KEYS = [0, 4, 10]


def runs(entries: dict[int, Entry], wanted: set[int]) -> list[range]:
    return plan(PTS, KEYS, lambda number: Unit(entries.get(number, Entry.NONE)), wanted)


def test_plan() -> None:
    closed = dict.fromkeys(KEYS, Entry.CLOSED)
    opened = dict.fromkeys(KEYS, Entry.OPEN)
    assert runs(closed, {0}) == [range(0, 1)]
    assert runs(closed, {1, 9}) == [range(0, 3), range(4, 8)]
    assert runs(closed, {1, 2, 6}) == [range(0, 5)], "runs that touch are one"
    assert runs(closed, {4}) == [range(4, 6)]
    assert runs(opened, {9}) == [range(4, 8)]
    assert runs(opened, {4}) == [range(0, 6)], "shown before the key frame: needs the group before"
    assert runs(opened, {10, 12}) == [range(4, 12)], "that group starts at its own key frame"
    assert runs({0: Entry.CLOSED, 10: Entry.CLOSED}, {9, 12}) == [range(0, 8), range(10, 11)]
    assert runs({}, {12}) == [range(0, 11)]
    assert runs(closed, set()) == []
    assert plan(PTS, [], lambda number: UNKNOWN, {9}) == [range(0, 8)]


def test_decode_gives_all_frames_in_order(kind_of_clip: Callable[[str], Path]) -> None:
    path = kind_of_clip("h264.mkv")
    with opened(path) as container:
        track = Demuxed(container, ref(path)).track
        assert [frame.pts for frame in decode(track)] == sequential(path, 64, 96)[0]
