"""What the first bytes of a coded picture say: whether decoding may start there, and whether others depend on it.

Only headers are looked at, up to the first slice. Sources: H.264 (ITU-T H.264, 7.3.1 and D.1.8), HEVC (ITU-T H.265,
7.3.1.2 and 7.4.2.2), VP8 (RFC 6386, 9.1), VP9 (bitstream specification, 6.2), AV1 (bitstream specification, 5.3 and
5.9.2), MPEG-2 (ITU-T H.262, 6.3.9), MPEG-4 (ISO 14496-2, 6.3.5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any


class Entry(Enum):
    """Whether a decoder may start at a picture."""

    NONE = 0
    OPEN = 1
    """It may, but pictures that follow it and are shown before it may depend on what came earlier."""
    CLOSED = 2
    """It may, and nothing that follows depends on what came earlier."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One coded picture. reference: whether a picture of its own `layer` may depend on it; higher layers always may.

    parameters: kinds of parameter sets that travel with it.
    """

    entry: Entry = Entry.NONE
    reference: bool = True
    layer: int = 0
    parameters: frozenset[int] = frozenset()


UNKNOWN = Unit()
_INTRA = Unit(Entry.CLOSED, reference=False)


def describer(context: Any) -> Callable[[Any], Unit]:
    """The function that reads packets (`av.Packet`) of a decoder's (`av.CodecContext`) codec.

    Of codecs that are not known here it says that every picture may depend on all before it.
    """
    if context.codec.intra_only:
        return lambda packet: _INTRA
    name, extradata = context.codec.canonical_name, context.extradata or b""
    if name in ("h264", "hevc"):
        length_at = 4 if name == "h264" else 21
        configured = len(extradata) > length_at and extradata[0] == 1  # avcC or hvcC, else start codes
        size = (extradata[length_at] & 3) + 1 if configured else 0
        read = _h264 if name == "h264" else _hevc
        needed = _PARAMETERS[name]

        def describe(packet: Any) -> Unit:
            unit = read(_nal_units(memoryview(packet), size))
            if unit.entry is not Entry.NONE and not configured and not needed <= unit.parameters:
                return replace(unit, entry=Entry.NONE)
            return unit

        return describe
    other = _OTHERS.get(name)
    return (lambda packet: UNKNOWN) if other is None else (lambda packet: other(memoryview(packet)))


def _nal_units(data: memoryview, size: int) -> Iterator[bytes | memoryview]:
    """NAL units of a packet, after lengths of `size` bytes, or between start codes when `size` is 0."""
    if size:
        at, end = 0, len(data)
        while at + size < end:
            length = int.from_bytes(data[at : at + size])
            at += size
            yield data[at : at + length]
            at += length
        return
    whole = bytes(data)
    at = whole.find(b"\0\0\1")
    while at >= 0:
        start = at + 3
        at = whole.find(b"\0\0\1", start)
        yield whole[start : at if at >= 0 else len(whole)].rstrip(b"\0")


def _h264(units: Iterator[bytes | memoryview]) -> Unit:
    parameters: set[int] = set()
    recovers = False
    for unit in units:
        if not unit:
            continue
        kind = unit[0] & 31
        if kind in (1, 5):
            entry = Entry.CLOSED if kind == 5 else Entry.OPEN if recovers else Entry.NONE
            return Unit(entry, bool(unit[0] & 0x60), 0, frozenset(parameters))
        if kind in (2, 3, 4):  # data partitions
            break
        if kind == 6:
            recovers = recovers or _is_recovery_point(bytes(unit[1:]))
        elif kind in (7, 8, 13, 15):
            parameters.add(kind)
    return Unit(parameters=frozenset(parameters))


def _is_recovery_point(message: bytes) -> bool:
    """Whether supplemental information says that this picture and all shown after it are exact."""
    message = message.replace(b"\0\0\3", b"\0\0")
    at = 0
    while at + 2 < len(message):
        numbers = []
        for _ in range(2):  # payload type, payload size
            value = 0
            while at < len(message) and message[at] == 255:
                value, at = value + 255, at + 1
            if at >= len(message):
                return False
            numbers.append(value + message[at])
            at += 1
        if numbers[0] == 6 and at < len(message):
            return message[at] & 0xC0 == 0xC0  # recovery_frame_cnt is 0, exact_match_flag is 1
        at += numbers[1]
    return False


def _hevc(units: Iterator[bytes | memoryview]) -> Unit:
    parameters: set[int] = set()
    for unit in units:
        if len(unit) < 2 or unit[0] & 1 or unit[1] >> 3:  # of another layer: a second view, transparency
            continue
        kind = unit[0] >> 1 & 63
        if kind < 32:
            entry = Entry.CLOSED if 16 <= kind <= 20 else Entry.OPEN if kind == 21 else Entry.NONE
            return Unit(entry, kind >= 16 or kind % 2 == 1, (unit[1] & 7) - 1, frozenset(parameters))
        if kind in (32, 33, 34):
            parameters.add(kind)
    return Unit(parameters=frozenset(parameters))


def _vp8(data: memoryview) -> Unit:
    return Unit(Entry.CLOSED) if len(data) and not data[0] & 1 else UNKNOWN


def _vp9(data: memoryview) -> Unit:
    if not len(data) or data[0] >> 6 != 2:
        return UNKNOWN
    last = (
        1 if data[0] & 0x30 == 0x30 else 2
    )  # bit of frame_type, after show_existing_frame; one further on in profile 3
    return UNKNOWN if data[0] >> last & 3 else Unit(Entry.CLOSED)


def _av1(data: memoryview) -> Unit:
    at, sequence = 0, False
    while at + 1 < len(data):
        header = data[at]
        kind = header >> 3 & 15
        at += 2 if header & 4 else 1  # with an extension
        size, shift = 0, 0
        if header & 2:
            while at < len(data):
                size |= (data[at] & 127) << shift
                shift += 7
                at += 1
                if not data[at - 1] & 128:
                    break
        else:
            size = len(data) - at
        if kind == 1:
            sequence = True
        elif kind in (3, 6) and at < len(data):
            shown_key_frame = data[at] >> 4 == 1  # show_existing_frame 0, frame_type 0, show_frame 1
            return Unit(Entry.CLOSED) if sequence and shown_key_frame else UNKNOWN
        at += size
    return UNKNOWN


def _mpeg2(data: memoryview) -> Unit:
    whole = bytes(data)
    at = whole.find(b"\0\0\1\0")
    if at < 0 or at + 5 >= len(whole):
        return UNKNOWN
    return Unit(reference=whole[at + 5] >> 3 & 7 != 3)


def _mpeg4(data: memoryview) -> Unit:
    whole = bytes(data)
    at = whole.find(b"\0\0\1\xb6")
    if at < 0 or at + 4 >= len(whole):
        return UNKNOWN
    return Unit(reference=whole[at + 4] >> 6 != 2)


_PARAMETERS = {"h264": frozenset((7, 8)), "hevc": frozenset((33, 34))}
"""Parameter sets (SPS, PPS) that a decoder needs to start, when they are not kept apart."""
_OTHERS: dict[str, Callable[[memoryview], Unit]] = {
    "vp8": _vp8,
    "vp9": _vp9,
    "av1": _av1,
    "mpeg2video": _mpeg2,
    "mpeg4": _mpeg4,
}
