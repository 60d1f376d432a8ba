"""MP4 and MOV files read without a demultiplexer: the index (`moov`) says where every packet is and when it is shown.

Parsing it takes a hundredth of the time of opening the file with FFmpeg, and reading a few packets needs no more of the
file than these. What FFmpeg would say of the file is said here, too; a file that asks for more than the plain rules
below raises `Unusual`, and is opened with FFmpeg instead. Source: ISO 14496-12, 14496-14, 14496-15; for edit lists
(8.6.6), what `libavformat/mov.c` makes of them.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np

from avlm.data.clip import Clip, Picture, Sound, square, starts
from avlm.data.container import upright
from avlm.data.parameter_sets import BadParameterSet, Shape, h264_shape, hevc_shape
from avlm.data.types import SAMPLE_RATE, MediaRef

LARGEST_INDEX = 1 << 28
"""Bytes of an index that are read into memory."""
HEAD = 1 << 15
"""Bytes that are read first; the index is often among them."""
READ_AHEAD = 1 << 20
"""Bytes that are read at a time."""
CODECS = {b"avc1": "h264", b"avc3": "h264", b"hvc1": "hevc", b"hev1": "hevc"}
CONFIGS = {"h264": b"avcC", "hevc": b"hvcC"}
IDENTITY = (1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
AAC_RATES = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000, 7350)
OTHER_TRACKS = (b"tmcd", b"text", b"sbtl", b"subt", b"clcp", b"meta", b"hint", b"odsm", b"sdsm")
"""Handlers of tracks that are neither picture nor sound."""
AAC_FRAME = 1024
"""Samples in a packet of AAC."""


class Unusual(Exception):
    """The file is not one of the plain kind that is read here; the reason."""


@dataclass(frozen=True)
class Table:
    """Packets of a track in decoding order; times in units of `unit` seconds, those that FFmpeg gives them.

    durations: how long each one is shown or heard. keys: numbers of the key frames. start, end: of what is heard of a
    sound track. length: what the index says of the whole track.
    """

    unit: Fraction
    offsets: np.ndarray
    sizes: np.ndarray
    dts: np.ndarray
    pts: np.ndarray
    durations: np.ndarray
    keys: np.ndarray
    start: int
    end: int
    length: int


@dataclass(frozen=True)
class Color:
    """What the container says of colors, in the numbers of ITU-T H.273. wide: full range; None: not said."""

    primaries: int
    transfer: int
    matrix: int
    wide: bool | None


@dataclass(frozen=True)
class PictureTrack:
    """A picture track: its packets, the decoder that they need, and how its frames become upright."""

    table: Table
    codec: str
    config: bytes
    shape: Shape
    aspect: float
    orientation: tuple[bool, bool, bool]
    color: Color | None


@dataclass(frozen=True)
class AacTrack:
    """A sound track of AAC. early: time before its start that the decoder returns all the same."""

    table: Table
    config: bytes
    rate: int
    early: int


class Mp4:
    """The first picture and the first sound track of an MP4 or MOV file, which stays open until `close`.

    clip: what is known of them. Raises `Unusual` for a file that has to be opened with FFmpeg, and `OSError`.
    """

    def __init__(self, ref: MediaRef) -> None:
        self._file = open(ref.path, "rb", buffering=0)  # noqa: SIM115 - closed by `close`
        try:
            self._read(ref)
        except (struct.error, ValueError, IndexError, OverflowError) as error:
            self.close()
            raise Unusual(f"its index cannot be read ({error})") from None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Mp4:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read(self, ref: MediaRef) -> None:
        size = os.fstat(self._file.fileno()).st_size
        movie = _movie(_index(self._file, size), size, want_picture=ref.kind == "video")
        self._picture, self._sound = movie
        picture, sound = self._picture, self._sound
        if ref.kind == "video" and picture is None:
            raise Unusual("no picture")
        if ref.kind == "audio" and sound is None:
            raise Unusual("no sound")
        infinite = float("inf")
        samples, sound_start = 0, infinite
        if sound is not None:
            unit = float(sound.table.unit)
            sound_start = sound.table.start * unit
            samples = round(max(0.0, sound.table.end * unit - sound_start) * SAMPLE_RATE)
            if not samples:
                raise Unusual("an empty sound track")
        picture_start = float(int(picture.table.pts.min()) * picture.table.unit) if picture is not None else infinite
        first_time, silence = starts(ref.path, picture_start, sound_start)
        self.clip = Clip(
            ref.path,
            _picture_of(ref.path, picture, first_time) if picture is not None else None,
            Sound(samples, silence, float(sound.table.length * sound.table.unit)) if sound is not None else None,
        )

    @property
    def orientation(self) -> tuple[bool, bool, bool]:
        """How stored frames become upright: transpose, then flip rows, then flip columns."""
        return self._picture.orientation if self._picture is not None else (False, False, False)

    @cached_property
    def track(self) -> Packets:
        """The packets of the picture track."""
        assert self._picture is not None
        return Packets(_Reader(self._file), self._picture)

    @cached_property
    def sound(self) -> SoundPackets:
        """The packets of the sound track."""
        assert self._sound is not None
        return SoundPackets(_Reader(self._file), self._sound)


class Packets:
    """A picture track (`avlm.data.decode.Track`) whose packets are read when they are asked for."""

    def __init__(self, reader: _Reader, track: PictureTrack) -> None:
        self._reader, self._track = reader, track
        self.pts: list[int | None] = track.table.pts.tolist()
        self.keys: list[int] = track.table.keys.tolist()

    @cached_property
    def _decoder(self) -> Any:
        import av

        context = av.CodecContext.create(self._track.codec, "r")
        context.extradata = self._track.config
        context.thread_count = 1
        context.options = {"strict": "strict"}  # H.264 that does not say how far it reorders: as far as it may
        color = self._track.color
        if color is not None:
            context.color_primaries, context.color_trc = color.primaries, color.transfer
            context.colorspace = color.matrix
            if color.wide is not None:
                context.color_range = 2 if color.wide else 1
        return context

    def decoder(self) -> Any:
        """See `Track.decoder`."""
        return self._decoder

    def packet(self, number: int) -> Any:
        """See `Track.packet`."""
        return _packet(self._reader, self._track.table, number)


class SoundPackets:
    """A sound track (`avlm.data.sound.SoundTrack`) whose packets are read when they are asked for."""

    def __init__(self, reader: _Reader, track: AacTrack) -> None:
        self._reader, self._track = reader, track
        self.start = track.table.start * float(track.table.unit)
        self.head = track.early
        self.seconds = float((track.table.end - track.table.start) * track.table.unit)

    @cached_property
    def times(self) -> list[float | None]:
        """See `SoundTrack.times`."""
        return (self._track.table.pts * float(self._track.table.unit)).tolist()

    @cached_property
    def _decoder(self) -> Any:
        import av

        context = av.CodecContext.create("aac", "r")
        context.extradata = self._track.config
        context.thread_count = 1
        return context

    def decoder(self) -> Any:
        """See `SoundTrack.decoder`."""
        return self._decoder

    def packet(self, number: int) -> Any:
        """See `SoundTrack.packet`."""
        return _packet(self._reader, self._track.table, number)


def _packet(reader: _Reader, table: Table, number: int) -> Any:
    import av

    packet = av.Packet(reader.read(int(table.offsets[number]), int(table.sizes[number])))
    packet.time_base = table.unit
    packet.pts, packet.dts = int(table.pts[number]), int(table.dts[number])
    return packet


class _Reader:
    """Reads parts of a file, ahead of what is asked for."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._start, self._data = 0, b""

    def read(self, offset: int, size: int) -> bytes:
        at = offset - self._start
        if not 0 <= at <= len(self._data) - size:
            self._start, self._data = offset, _pread(self._file, max(size, READ_AHEAD), offset)
            at = 0
        return self._data[at : at + size]


def _pread(file: IO[bytes], size: int, offset: int) -> bytes:
    """`size` bytes, or fewer at the end of the file."""
    parts: list[bytes] = []
    while size > 0:
        part = os.pread(file.fileno(), size, offset)
        if not part:
            break
        parts.append(part)
        size, offset = size - len(part), offset + len(part)
    return b"".join(parts) if len(parts) != 1 else parts[0]


def _picture_of(path: Path, track: PictureTrack, first_time: float) -> Picture:
    table = track.table
    last = int(table.pts.argmax())
    pts = np.sort(table.pts)
    duration = float((int(pts[-1] - pts[0]) + int(table.durations[last])) * table.unit)
    height, width = square(path, track.shape.height, track.shape.width, track.aspect)
    if track.orientation[0]:
        height, width = width, height
    return Picture(height, width, pts, table.unit, first_time, duration, len(pts))


# ---- boxes


def _boxes(data: memoryview, at: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Type, start and end of the content of each box between two places."""
    while at + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, at)
        body = at + 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", data, body)
            body += 8
        elif size == 0:
            size = end - at
        if size < body - at or at + size > end:
            raise Unusual(f"a box {kind!r} of {size} bytes does not fit")
        yield kind, body, at + size
        at += size


class _Box:
    """Boxes inside a box, by type."""

    def __init__(self, data: memoryview, start: int, end: int) -> None:
        self.data, self.start, self.end = data, start, end

    @cached_property
    def _children(self) -> dict[bytes, list[_Box]]:
        children: dict[bytes, list[_Box]] = {}
        for kind, start, end in _boxes(self.data, self.start, self.end):
            children.setdefault(kind, []).append(_Box(self.data, start, end))
        return children

    def __contains__(self, kind: bytes) -> bool:
        return kind in self._children

    def all(self, kind: bytes) -> list[_Box]:
        return self._children.get(kind, [])

    def one(self, *kinds: bytes) -> _Box:
        """The box at this path. Raises `Unusual` when one is missing or there is more than one."""
        box = self
        for kind in kinds:
            found = box.all(kind)
            if len(found) != 1:
                raise Unusual(f"{len(found)} boxes {kind!r}")
            box = found[0]
        return box

    def unpack(self, form: str, at: int = 0) -> tuple[Any, ...]:
        if self.start + at + struct.calcsize(form) > self.end:
            raise Unusual("a box is too short")
        return struct.unpack_from(form, self.data, self.start + at)

    def table(self, columns: int, at: int = 8, kind: str = ">u4") -> np.ndarray:
        """[rows, columns] int64; the number of rows is the number before `at`."""
        (rows,) = self.unpack(">I", at - 4)
        size = rows * columns * np.dtype(kind).itemsize
        if self.start + at + size > self.end:
            raise Unusual(f"a table of {rows} rows does not fit in its box")
        raw = np.frombuffer(self.data, kind, rows * columns, self.start + at)
        return raw.astype(np.int64).reshape(rows, columns)


def _is_wide(box: _Box) -> bool:
    """Whether times in the box take 64 bits (version 1) rather than 32 (version 0)."""
    (version,) = box.unpack(">B")
    if version > 1:
        raise Unusual(f"a box of version {version}")
    return version == 1


def _index(file: IO[bytes], size: int) -> _Box:
    """The content of the box `moov`. Raises `Unusual` when there is not exactly one, or fragments."""
    head = _pread(file, HEAD, 0)
    found, at, first = None, 0, True
    while at + 8 <= size:
        header = head[at : at + 16] if at + 16 <= len(head) else _pread(file, 16, at)
        length, kind = struct.unpack_from(">I4s", header)
        if first and kind not in (b"ftyp", b"moov", b"wide", b"free", b"skip", b"mdat", b"pnot"):
            raise Unusual("no MP4 or MOV file")
        first, body = False, 8
        if length == 1:
            (length,) = struct.unpack_from(">Q", header, 8)
            body = 16
        elif length == 0:
            length = size - at
        if length < body or at + length > size:
            raise Unusual("a box reaches past the end of the file")
        if kind in (b"moof", b"sidx", b"styp") or (kind == b"moov" and found is not None):
            raise Unusual("fragments")
        if kind == b"moov":
            found = at + body, at + length
        at += length
    if found is None:
        raise Unusual("no index")
    if found[1] - found[0] > LARGEST_INDEX:
        raise Unusual("a huge index")
    content = head[found[0] : found[1]] if found[1] <= len(head) else _pread(file, found[1] - found[0], found[0])
    return _Box(memoryview(content), 0, len(content))


def _movie(moov: _Box, size: int, *, want_picture: bool) -> tuple[PictureTrack | None, AacTrack | None]:
    """The first picture track, if it is wanted, and the first sound track."""
    for kind in (b"mvex", b"cmov", b"rmra"):
        if kind in moov:
            raise Unusual(f"a box {kind!r}")
    header = moov.one(b"mvhd")
    wide = _is_wide(header)
    (scale,) = header.unpack(">I", 20 if wide else 12)
    if not scale:
        raise Unusual("no time scale")
    if header.unpack(">9i", 48 if wide else 36) != IDENTITY:
        raise Unusual("a turned movie")
    picture, sound = None, None
    for track in moov.all(b"trak"):
        if any(kind in box for box in track.all(b"tref") for kind in (b"chap", b"thmb")):
            raise Unusual("chapters")
        handler = track.one(b"mdia", b"hdlr").unpack(">4s", 8)[0]
        if handler == b"vide" and picture is None and want_picture:
            picture = _picture_track(track, scale, size)
        elif handler == b"soun" and sound is None:
            sound = _aac_track(track, scale, size)
        elif handler not in (b"vide", b"soun", *OTHER_TRACKS):
            raise Unusual(f"a track of kind {handler!r}")
    if sound is not None and _mentions(moov, b"iTunSMPB"):
        raise Unusual("iTunes gapless information")
    return picture, sound


def _mentions(moov: _Box, word: bytes) -> bool:
    return any(word in bytes(box.data[box.start : box.end]) for box in moov.all(b"udta"))


# ---- tracks


def _picture_track(track: _Box, scale: int, size: int) -> PictureTrack:
    kind, entry = _entry(track)
    codec = CODECS.get(kind)
    if codec is None:
        raise Unusual(f"picture codec {kind!r}")
    width, height = entry.unpack(">HH", 24)
    extra = _Box(entry.data, entry.start + 78, entry.end)
    box = extra.one(CONFIGS[codec])
    config = bytes(box.data[box.start : box.end])
    shape = _shape(codec, config)
    if (shape.width, shape.height) != (width, height):
        raise Unusual("two sizes of the picture")
    header = track.one(b"tkhd")
    at = 52 if _is_wide(header) else 40
    matrix = header.unpack(">9i", at)
    shown_width, shown_height = (side >> 16 for side in header.unpack(">II", at + 36))
    if sorted(map(abs, matrix[:2])) != [0, 1 << 16] or sorted(map(abs, matrix[3:5])) != [0, 1 << 16]:
        raise Unusual("a picture that is turned by another angle or scaled")
    if bool(matrix[0]) == bool(matrix[3]):
        raise Unusual("a picture that is squeezed to a line")
    aspect = shape.aspect
    if b"pasp" in extra:
        across, down = extra.one(b"pasp").unpack(">II")
        if not across or not down or max(across, down) >= 1 << 31:
            raise Unusual("a strange pixel shape")
        aspect = across / down
    elif shown_width and shown_height and (shown_width, shown_height) != (width, height):
        aspect = height * shown_width / (width * shown_height)
        if not 1 / 8 < aspect < 8:
            raise Unusual("a strange pixel shape")
    table = _table(track, scale, size)
    if len(np.unique(table.pts)) < len(table.pts):
        raise Unusual("frames that are shown at the same time")
    return PictureTrack(table, codec, config, shape, aspect, upright(matrix), _color(extra))


def _color(entry: _Box) -> Color | None:
    if b"colr" not in entry:
        return None
    box = entry.one(b"colr")
    (kind,) = box.unpack(">4s")
    if kind not in (b"nclx", b"nclc"):
        return None
    numbers = box.unpack(">HHH", 4)
    if not all(number < 23 for number in numbers):
        raise Unusual("strange colors")
    wide = bool(box.unpack(">B", 10)[0] & 128) if kind == b"nclx" else None
    return Color(numbers[0], numbers[1], numbers[2], wide)


def _shape(codec: str, config: bytes) -> Shape:
    """Size and pixel shape from the parameter sets in the codec's configuration (ISO 14496-15, 5.3.3.1 and 8.3.3.1)."""
    try:
        if codec == "h264":
            if config[0] != 1 or not config[5] & 31:
                raise Unusual("no parameter set")
            length = int.from_bytes(config[6:8])
            return h264_shape(config[8 : 8 + length])
        at = 23
        for _ in range(config[22]):
            kind, count = config[at] & 63, int.from_bytes(config[at + 1 : at + 3])
            at += 3
            for _ in range(count):
                length = int.from_bytes(config[at : at + 2])
                if kind == 33:
                    return hevc_shape(config[at + 2 : at + 2 + length])
                at += 2 + length
    except (BadParameterSet, IndexError) as error:
        raise Unusual(f"a parameter set that cannot be read ({error})") from None
    raise Unusual("no parameter set")


def _aac_track(track: _Box, scale: int, size: int) -> AacTrack:
    kind, entry = _entry(track)
    if kind != b"mp4a":
        raise Unusual(f"sound codec {kind!r}")
    (version,) = entry.unpack(">H", 8)
    if version > 1:
        raise Unusual("a sound description of version 2")
    extra = _Box(entry.data, entry.start + 28 + 16 * version, entry.end)
    if b"wave" in extra:
        extra = extra.one(b"wave")
    config = _aac_config(extra.one(b"esds"))
    table = _table(track, scale, size, is_sound=True)
    rate = _aac_rate(config)
    if table.unit != Fraction(1, rate):
        raise Unusual("a time scale that is not the sample rate")
    if (table.durations[:-1] != AAC_FRAME).any():
        raise Unusual("sound packets of different lengths")
    return AacTrack(table, config, rate, table.start - int(table.pts[0]))


def _aac_config(box: _Box) -> bytes:
    """The decoder's configuration from an ES descriptor (ISO 14496-1, 7.2.6)."""
    data = bytes(box.data[box.start + 4 : box.end])
    at = 0

    def descriptor(tag: int) -> int:
        nonlocal at
        if data[at] != tag:
            raise Unusual("an ES descriptor of another kind")
        at, length = at + 1, 0
        while True:
            at, length = at + 1, length << 7 | data[at] & 127
            if not data[at - 1] & 128:
                return length

    descriptor(3)
    if data[at + 2]:
        raise Unusual("an ES descriptor with options")
    at += 3
    descriptor(4)
    if data[at] != 0x40:
        raise Unusual("MP4 sound that is not AAC")
    at += 13
    length = descriptor(5)
    return data[at : at + length]


def _aac_rate(config: bytes) -> int:
    """The sample rate of plain AAC (ISO 14496-3, 1.6.2.1). Raises `Unusual` for what is, or may be, anything else."""
    if len(config) < 2:
        raise Unusual("no AAC configuration")
    bits = int.from_bytes(config[:2])
    kind, index, channels, rest = bits >> 11, bits >> 7 & 15, bits >> 3 & 15, bits & 7
    if kind != 2 or index >= len(AAC_RATES) or channels not in (1, 2, 3, 4, 5, 6, 7) or rest:
        raise Unusual("AAC of an unusual kind")
    extension = int.from_bytes(config[2:5].ljust(3, b"\0"))
    named = extension >> 13 == 0x2B7 and extension >> 8 & 31 == 5
    if named and extension >> 7 & 1:
        raise Unusual("AAC with spectral band replication")
    rate = AAC_RATES[index]
    if not named and rate <= 24_000:
        raise Unusual("AAC that may have spectral band replication")
    return rate


def _entry(track: _Box) -> tuple[bytes, _Box]:
    """Type and content of the only sample description."""
    media = track.one(b"mdia", b"minf")
    for reference in media.all(b"dinf"):
        sources = reference.one(b"dref")
        entries = list(_boxes(sources.data, sources.start + 8, sources.end))
        if len(entries) != sources.unpack(">I", 4)[0] or any(
            kind not in (b"url ", b"alis") or end - start < 4 or not sources.data[start + 3] & 1
            for kind, start, end in entries
        ):
            raise Unusual("data in another file")
    descriptions = media.one(b"stbl", b"stsd")
    if descriptions.unpack(">I", 4)[0] != 1:
        raise Unusual("several sample descriptions")
    for kind, start, end in _boxes(descriptions.data, descriptions.start + 8, descriptions.end):
        return kind, _Box(descriptions.data, start, end)
    raise Unusual("no sample description")


def _table(track: _Box, scale: int, file_size: int, *, is_sound: bool = False) -> Table:
    header = track.one(b"mdia", b"mdhd")
    wide = _is_wide(header)
    unit, length = header.unpack(">IQ" if wide else ">II", 20 if wide else 12)
    if not 0 < unit < 1 << 31:
        raise Unusual("no time scale")
    tables = track.one(b"mdia", b"minf", b"stbl")
    for kind in (b"stz2", b"stps", b"senc"):
        if kind in tables:
            raise Unusual(f"a box {kind!r}")
    sizes = _sizes(tables.one(b"stsz"), file_size)
    count = len(sizes)
    offsets = _offsets(tables, sizes)
    if not count or (sizes < 1).any() or (offsets < 0).any() or int((offsets + sizes).max()) > file_size:
        raise Unusual("packets that are not in the file")
    durations = _runs(tables.one(b"stts").table(2), count)
    if (durations < 1).any() or (durations >= 1 << 31).any():
        raise Unusual("packets that take no time")
    dts = np.concatenate([[0], np.cumsum(durations)[:-1]])
    shift = _runs(_signed(tables.one(b"ctts").table(2)), count) if b"ctts" in tables else np.zeros(count, np.int64)
    if (np.abs(shift) >= 1 << 28).any():
        raise Unusual("a packet that is shown at another time")
    keys = _keys(tables, count)
    end = int(durations.sum())
    table = Table(Fraction(1, unit), offsets, sizes, dts, dts + shift, durations, keys, 0, end, min(length, end))
    edit = _edits(track, unit, scale)
    if edit is None:
        return table
    return _edited_sound(edit, table) if is_sound else _edited_picture(edit, table)


def _sizes(box: _Box, file_size: int) -> np.ndarray:
    same, count = box.unpack(">II", 4)
    if same and same * count > file_size:
        raise Unusual("packets that are not in the file")
    return np.full(count, same, np.int64) if same else box.table(1, 12)[:, 0]


def _offsets(tables: _Box, sizes: np.ndarray) -> np.ndarray:
    """[packets] int64: where each begins in the file."""
    far = b"co64" in tables
    chunks = tables.one(b"co64" if far else b"stco").table(1, kind=">u8" if far else ">u4")[:, 0]
    runs = tables.one(b"stsc").table(3)
    if not len(runs) or runs[0, 0] != 1 or (np.diff(runs[:, 0]) < 1).any() or runs[-1, 0] > len(chunks):
        raise Unusual("a table of chunks that contradicts itself")
    if (runs[:, 2] != 1).any() or (runs[:, 1] < 1).any():
        raise Unusual("chunks of several descriptions")
    lengths = np.diff(np.append(runs[:, 0], len(chunks) + 1))
    per_chunk = np.repeat(runs[:, 1], lengths)
    if int(per_chunk.sum()) != len(sizes):
        raise Unusual("chunks that hold another number of packets")
    firsts = np.cumsum(per_chunk) - per_chunk
    before = np.cumsum(sizes) - sizes
    return np.repeat(chunks - before[firsts], per_chunk) + before


def _runs(table: np.ndarray, count: int) -> np.ndarray:
    """A run-length table (count, value), written out."""
    if int(table[:, 0].sum()) != count:
        raise Unusual("a table for another number of packets")
    return np.repeat(table[:, 1], table[:, 0])


def _signed(table: np.ndarray) -> np.ndarray:
    table[:, 1] = (table[:, 1] + (1 << 31)) % (1 << 32) - (1 << 31)
    return table


def _keys(tables: _Box, count: int) -> np.ndarray:
    if b"stss" not in tables:
        return np.arange(count)
    keys = tables.one(b"stss").table(1)[:, 0] - 1
    if not len(keys) or (np.diff(keys) < 1).any() or keys[0] < 0 or keys[-1] >= count:
        raise Unusual("a strange table of key frames")
    return keys


# ---- edit lists


@dataclass(frozen=True)
class _Edit:
    """Nothing for `empty`, then the track from `start` on for `length`; in the track's own unit."""

    empty: int
    start: int
    length: int


def _edits(track: _Box, unit: int, scale: int) -> _Edit | None:
    if b"edts" not in track:
        return None
    box = track.one(b"edts", b"elst")
    wide = _is_wide(box)
    (count,) = box.unpack(">I", 4)
    if not 1 <= count <= 2:
        raise Unusual(f"an edit list of {count} edits")
    rows = [box.unpack(">Qqi" if wide else ">Iii", 8 + (20 if wide else 12) * i) for i in range(count)]
    empty = _rescaled(rows.pop(0)[0], unit, scale) if rows[0][1] == -1 else 0
    if len(rows) != 1 or rows[0][1] < 0 or rows[0][2] != 1 << 16:
        raise Unusual("an edit list that cuts or changes speed")
    return _Edit(empty, rows[0][1], _rescaled(rows[0][0], unit, scale))


def _rescaled(value: int, unit: int, scale: int) -> int:
    """value × unit / scale, rounded to the nearest, halves up."""
    return (2 * value * unit + scale) // (2 * scale)


def _edited_sound(edit: _Edit, table: Table) -> Table:
    """The time line that an edit list wants. Raises `Unusual` when it hides more than the first and the last packet."""
    until = edit.start + edit.length
    if edit.start >= 2 * table.durations[0] or (table.pts[:-1] + table.durations[:-1] >= until).any():
        raise Unusual("an edit list that hides sound")
    shift = edit.empty - edit.start
    return replace(
        table,
        pts=table.pts + shift,
        dts=table.dts + shift,
        start=edit.empty,
        end=min(table.end + shift, edit.empty + edit.length),
        length=min(table.length, edit.empty + edit.length),
    )


def _edited_picture(edit: _Edit, table: Table) -> Table:
    """The time line that an edit list wants. Raises `Unusual` when it hides a frame."""
    until = edit.start + edit.length
    if table.keys[0] or (table.pts < edit.start).any() or (table.pts >= until).any():
        raise Unusual("an edit list that hides frames")
    before_last = table.keys[table.keys < len(table.pts) - 1]
    starts_later = (table.pts[table.keys[1:]] <= edit.start).any()
    if starts_later or (table.pts[before_last] + table.durations[before_last] >= until).any():
        raise Unusual("an edit list that hides packets")
    shift = edit.empty - max(0, int(table.pts.min()))
    return replace(table, pts=table.pts + shift, dts=table.dts + shift)
