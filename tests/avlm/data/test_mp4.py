from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from avlm.data.clip import info_of
from avlm.data.container import Demuxed, opened
from avlm.data.media import _read, probe, read_media
from avlm.data.mp4 import Mp4, Unusual
from avlm.data.types import Media, MediaInfo, MediaKind, MediaRef
from tests.avlm.data import clips
from tests.avlm.data.clips import KINDS, greys, limits, moving, ref, tone, write

LIMITS = limits(max_frames=14, fps=4.0, pixels=(1024, 64 * 96))
NO_INDEX = {"h264_fragments.mp4", "h264_edit.mp4", "h264_edit_b.mp4", "av1.mp4", "vp9.mp4", "mpeg4.mp4", "mjpeg.mov",
            "prores.mov"}  # fmt: skip
"""Kinds that are opened with FFmpeg, for one reason or another."""


def both(what: MediaRef) -> tuple[MediaInfo, MediaInfo]:
    """What the index says of a file, and what FFmpeg says of it."""
    with Mp4(what) as file, opened(what.path) as container:
        mine, other = file.clip, Demuxed(container, what).clip
        if mine.picture is not None and other.picture is not None:
            assert np.array_equal(mine.picture.times, other.picture.times)
            assert mine.picture.unit == other.picture.unit
        assert mine.sound == other.sound
        return info_of(mine, what, LIMITS), info_of(other, what, LIMITS)


def both_read(what: MediaRef) -> tuple[Media, Media]:
    with Mp4(what) as file, opened(what.path) as container:
        mine, other = _read(file, what, LIMITS, 16), _read(Demuxed(container, what), what, LIMITS, 16)
        assert mine is not None and other is not None
        return mine, other


def assert_same(what: MediaRef) -> None:
    mine, other = both(what)
    assert mine == other
    media, expected = both_read(what)
    assert media.problems == expected.problems == list(mine.problems)
    for name in ("frames", "times", "audio"):
        a, b = getattr(media, name), getattr(expected, name)
        assert (a is None and b is None) or np.array_equal(a, b), name
    assert probe(what, LIMITS).opened == ""


@pytest.mark.parametrize("kind", [k for k in KINDS if k.name.endswith(("mp4", "mov"))], ids=lambda kind: kind.name)
def test_the_index_says_what_ffmpeg_says(kind: Any, kind_of_clip: Callable[[str], Path]) -> None:
    what = ref(kind_of_clip(kind.name))
    if kind.name in NO_INDEX:
        with pytest.raises(Unusual):
            Mp4(what)
        assert probe(what).opened
    else:
        for part in (what, replace(what, start=0.9, end=2.1), replace(what, start=1.7)):
            assert_same(part)


SOUND = tone(2.3, 48_000, channels=2) * np.linspace(0.3, 1, 110_400, dtype=np.float32)
CLIPS: dict[str, dict[str, Any]] = {
    "one_frame.mp4": {"frames": greys(1)},
    "two_frames.mov": {"frames": greys(2)},
    "odd_size.mp4": {"frames": moving(20, 50, 90)},
    "tall.mp4": {"frames": moving(20, 98, 34), "sound": SOUND, "rate": 48_000},
    "wide_pixels.mp4": {"frames": moving(10), "aspect": Fraction(4, 3)},
    "narrow_pixels.mov": {"frames": moving(10), "aspect": Fraction(8, 9)},
    "strange_pixels.mp4": {"frames": moving(10), "aspect": Fraction(97, 61)},
    "late_sound.mp4": {"frames": moving(30), "sound": SOUND, "rate": 48_000, "sound_start": 24_123},
    "early_sound.mp4": {"frames": moving(30), "sound": SOUND, "rate": 48_000, "pts": range(7, 37)},
    "late_sound.mov": {"frames": moving(30), "sound": SOUND, "rate": 48_000, "sound_start": 4_000},
    "long_sound.mp4": {"frames": moving(5), "sound": SOUND, "rate": 48_000},
    "short_sound.mp4": {"frames": moving(60), "sound": SOUND, "rate": 48_000},
    "cut_sound.mp4": {"frames": moving(15), "sound": SOUND, "rate": 48_000, "sound_start": -500,
                      "options": {"use_editlist": "1", "avoid_negative_ts": "disabled"}},
    "rate_44.mp4": {"frames": moving(30), "sound": SOUND, "rate": 44_100},
    "rate_32.mp4": {"frames": moving(30), "sound": SOUND[:1], "rate": 32_000},
    "rate_16.mp4": {"frames": moving(30), "sound": SOUND[:1], "rate": 16_000},
    "no_edits.mp4": {"frames": moving(30), "sound": SOUND, "rate": 48_000, "bframes": False,
                     "options": {"use_editlist": "0"}},
    "negative_shift.mp4": {"frames": moving(30), "sound": SOUND, "rate": 48_000,
                           "options": {"movflags": "negative_cts_offsets"}},
    "fine_unit.mp4": {"frames": moving(30), "unit": Fraction(1, 90_000), "pts": [i * 3_003 for i in range(30)]},
    "uneven.mp4": {"frames": moving(9), "unit": Fraction(1, 1_000), "pts": [0, 33, 67, 100, 133, 400, 433, 467, 900]},
    "hevc_sizes.mp4": {"frames": moving(12, 74, 58), "codec": "libx265", "aspect": Fraction(16, 11)},
}  # fmt: skip


@pytest.mark.parametrize("name", CLIPS)
def test_clips(name: str, tmp_path: Path) -> None:
    assert_same(ref(write(tmp_path / name, **CLIPS[name])))


@pytest.mark.parametrize(("degrees", "hflip"), [(90, False), (180, False), (-90, True), (0, True)])
def test_turned_clips(degrees: int, hflip: bool, tmp_path: Path) -> None:
    plain = write(tmp_path / "plain.mp4", moving(10), aspect=Fraction(4, 3))
    assert_same(ref(clips.rotate(plain, tmp_path / "turned.mp4", degrees, hflip)))


@pytest.mark.parametrize("rate", [48_000, 44_100, 32_000])
def test_sound_files(rate: int, tmp_path: Path) -> None:
    path = write(tmp_path / "a.m4a", None, SOUND[:, : 2 * rate], rate=rate)
    for part in ((None, None), (1.2, 1.9), (0.4, None)):
        assert_same(replace(ref(path, "audio"), start=part[0], end=part[1]))


def test_colors_are_those_of_the_container(tmp_path: Path) -> None:
    """The picture does not say which matrix turns it into RGB, the container does."""
    plain = write(tmp_path / "plain.mp4", moving(4))
    colored = tmp_path / "colored.mp4"
    with av.open(str(plain)) as old, av.open(str(colored), "w") as new:
        copy = new.add_stream_from_template(old.streams.video[0])
        context = copy.codec_context
        context.color_primaries, context.color_trc, context.colorspace = 1, 1, 1
        for packet in old.demux(video=0):
            if packet.size:
                packet.stream = copy
                new.mux(packet)
    assert b"colrnclx" in colored.read_bytes(), "a useless test"
    assert_same(ref(colored))
    a, b = read_media(ref(plain), LIMITS, 16).frames, read_media(ref(colored), LIMITS, 16).frames
    assert a is not None and b is not None and np.abs(a.astype(int) - b).max() > 5


def test_first_tracks_count(tmp_path: Path) -> None:
    """Two sound tracks: FFmpeg and we take the first one."""
    one = write(tmp_path / "one.mp4", moving(20), SOUND, rate=48_000)
    two = write(tmp_path / "two.m4a", None, tone(1, 44_100), rate=44_100)
    both_tracks = tmp_path / "both.mp4"
    with av.open(str(one)) as a, av.open(str(two)) as b, av.open(str(both_tracks), "w") as new:
        sources = [(b, b.streams.audio[0]), (a, a.streams.audio[0]), (a, a.streams.video[0])]
        copies = [new.add_stream_from_template(stream) for _, stream in sources]
        for (container, stream), copy in zip(sources, copies, strict=True):
            container.seek(0)
            for packet in container.demux(stream):
                if packet.size:
                    packet.stream = copy
                    new.mux(packet)
    assert both(ref(both_tracks))[0].audio_samples == pytest.approx(16_000, abs=600)
    assert_same(ref(both_tracks))


# ---- what is left to FFmpeg


def index_of(data: bytes, *path: bytes) -> tuple[int, int]:
    """Start and size of the box at this path of the only `moov`."""
    start, end = 0, len(data)
    for kind in path:
        at = start
        while data[at + 4 : at + 8] != kind:
            at += struct.unpack_from(">I", data, at)[0]
            assert at < end, kind
        size = struct.unpack_from(">I", data, at)[0]
        start, end = at + 8, at + size
    return start - 8, end - start + 8


STBL = (b"moov", b"trak", b"mdia", b"minf", b"stbl")


def test_cut_files_are_left_to_ffmpeg(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", moving(20), SOUND, rate=48_000, options={"movflags": "faststart"})
    path.write_bytes(path.read_bytes()[:-2_000])
    with pytest.raises(Unusual, match="past the end of the file"):
        Mp4(ref(path))
    media = read_media(ref(path), LIMITS, 16)
    assert media.problems and "truncated" in media.problems[0]


def test_sound_before_the_start_is_left_to_ffmpeg(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", moving(30), SOUND, rate=48_000, options={"use_editlist": "0"})
    info = probe(ref(path))
    assert info.opened == "sound packets of different lengths" and info.frames == 30


@pytest.mark.parametrize(
    ("where", "offset", "change", "reason"),
    [
        ((*STBL, b"stsz"), 16, (1 << 32) - 1, "does not fit"),
        ((*STBL, b"stsz"), 12, 60_000, "not in the file"),
        ((*STBL, b"stsz"), 20, 0, "not in the file"),
        ((*STBL, b"stts"), 12, 1_000_000, "does not fit"),
        ((*STBL, b"stts"), 16, 21, "another number"),
        ((*STBL, b"stts"), 20, 0, "take no time"),
        ((*STBL, b"stco"), 16, (1 << 32) - 1, "not in the file"),
        ((*STBL, b"stsc"), 20, 1_000, "another number"),
        ((*STBL, b"stsc"), 16, 2, "contradicts"),
        ((*STBL, b"stsc"), 24, 2, "several descriptions"),
        ((*STBL, b"stss"), 16, 0, "key frames"),
        ((*STBL, b"ctts"), 20, 0x7FFFFFFF, "another time"),
        ((*STBL, b"stsd"), 12, 2, "several sample descriptions"),
        ((b"moov", b"trak", b"mdia", b"mdhd"), 20, 0, "no time scale"),
        ((b"moov", b"mvhd"), 20, 0, "no time scale"),
        ((b"moov", b"mvhd"), 44, 0, "turned movie"),
        ((b"moov", b"trak", b"tkhd"), 48, 5, "another angle"),
        ((b"moov", b"trak", b"edts", b"elst"), 16, 1, "hides frames"),
        ((b"moov", b"trak", b"edts", b"elst"), 12, 7, "7 edits"),
        ((b"moov", b"trak"), 0, 8, "boxes"),
        ((b"moov", b"trak"), 0, 1 << 30, "does not fit"),
    ],
)
def test_strange_indexes_are_left_to_ffmpeg(
    where: tuple[bytes, ...], offset: int, change: int, reason: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.mp4", greys(20))
    data = bytearray(path.read_bytes())
    start, _ = index_of(data, *where)
    struct.pack_into(">I", data, start + offset, change)
    path.write_bytes(data)
    with pytest.raises(Unusual, match=reason):
        Mp4(ref(path))


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"", "no index"), (b"\0\0\0\x08ftyp", "no index"), (b"RIFF" * 100, "no MP4"), (b"\0" * 100, "no MP4"),
     (b"\0\0\0\x08free" * 50 + b"\0\0\0\x04free", "past the end"), (b"\0\0\0\x01ftyp" + b"\xff" * 16, "past the end")],
)  # fmt: skip
def test_other_files(data: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(data)
    with pytest.raises(Unusual, match=reason):
        Mp4(ref(tmp_path / "a.mp4"))


@pytest.mark.parametrize("kind", ["video", "audio"])
def test_a_missing_track(kind: MediaKind, tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", **({"sound": SOUND, "rate": 48_000} if kind == "video" else {"frames": greys(4)}))
    with pytest.raises(Unusual, match="no picture" if kind == "video" else "no sound"):
        Mp4(ref(path, kind))


def test_damage_is_left_to_ffmpeg(tmp_path: Path) -> None:
    """A packet that cannot be decoded: frames are chosen among the others, and the reader says so."""
    path = write(tmp_path / "a.mp4", moving(20), options={"movflags": "faststart"})
    with Mp4(ref(path)) as file:
        table = file.track._track.table
        start, size = int(table.offsets[10]), int(table.sizes[10])
    data = bytearray(path.read_bytes())
    data[start : start + size] = bytes(size)
    path.write_bytes(data)
    media = read_media(ref(path), LIMITS, 16)
    assert media.fallback and media.frames is not None
    assert media.problems == ["packets of the picture that cannot be decoded: 1"]


def test_nothing_stays_open(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", greys(5))
    (tmp_path / "b.mp4").write_bytes(b"\0" * 100)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        read_media(ref(path), LIMITS, 16)
        with pytest.raises(Unusual):
            Mp4(ref(tmp_path / "b.mp4"))
        with pytest.raises(FileNotFoundError):
            Mp4(ref(tmp_path / "gone.mp4"))
    assert len(os.listdir("/proc/self/fd")) == before


def test_only_what_is_needed_is_read(tmp_path: Path) -> None:
    """The part of a long file: neither the packets before nor those after it."""
    noise = np.random.default_rng(0).integers(0, 255, (300, 64, 64, 3), np.uint8)
    path = write(tmp_path / "a.mp4", noise, bframes=False)
    with Mp4(replace(ref(path), start=20.0, end=21.0)) as file:
        seen: list[int] = []
        packet = file.track.packet
        file.track.packet = lambda number: seen.append(number) or packet(number)  # type: ignore[method-assign,func-returns-value]
        media = _read(file, replace(ref(path), start=20.0, end=21.0), LIMITS, 16)
        assert media is not None and media.frames is not None
        assert max(seen) < 215
