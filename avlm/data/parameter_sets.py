"""Picture size and pixel shape from the sequence parameter set of H.264 and HEVC, as their decoders report them.

Sources: ITU-T H.264, 7.3.2.1.1 and E.1.1; ITU-T H.265, 7.3.2.2, 7.3.3, 7.3.4, 7.3.7 and E.2.1.
"""

from __future__ import annotations

from dataclasses import dataclass

ASPECTS = (
    (0, 1), (1, 1), (12, 11), (10, 11), (16, 11), (40, 33), (24, 11), (20, 11), (32, 11), (80, 33), (18, 11), (15, 11),
    (64, 33), (160, 99), (4, 3), (3, 2), (2, 1),
)  # fmt: skip
"""Width : height of a pixel by `aspect_ratio_idc`."""
_EXTENDED = 255
_WITH_CHROMA = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)
"""H.264 profiles that say more about chroma."""


class BadParameterSet(ValueError):
    """The bits are not those of a parameter set."""


@dataclass(frozen=True)
class Shape:
    """Size of the visible picture in pixels, and the width of a pixel over its height (0: not said)."""

    width: int
    height: int
    aspect: float


class _Bits:
    """Reads bits, most significant first, without emulation prevention bytes."""

    def __init__(self, unit: bytes) -> None:
        data = unit.replace(b"\0\0\3", b"\0\0")
        self._value, self._left = int.from_bytes(data), len(data) * 8

    def u(self, bits: int) -> int:
        self._left -= bits
        if self._left < 0:
            raise BadParameterSet("it ends too early")
        return self._value >> self._left & (1 << bits) - 1

    def ue(self) -> int:
        zeros = 0
        while not self.u(1):
            zeros += 1
            if zeros > 32:
                raise BadParameterSet("a number is too long")
        return (1 << zeros) - 1 + self.u(zeros)

    def se(self) -> int:
        value = self.ue()
        return (value + 1) // 2 * (1 if value % 2 else -1)


def h264_shape(unit: bytes) -> Shape:
    """Of a NAL unit of type 7. Raises `BadParameterSet`."""
    bits = _Bits(unit[1:])
    profile = bits.u(8)
    bits.u(16)  # constraints, level
    bits.ue()
    chroma = 1
    if profile in _WITH_CHROMA:
        chroma = bits.ue()
        if chroma == 3 and bits.u(1):
            chroma = 0  # separate planes are cropped like grey
        bits.ue()
        bits.ue()
        bits.u(1)
        if bits.u(1):
            for size in (16,) * 6 + (64,) * (6 if chroma == 3 else 2):
                _skip_h264_scaling(bits, size)
    bits.ue()
    order = bits.ue()
    if order == 0:
        bits.ue()
    elif order == 1:
        bits.u(1)
        bits.se()
        bits.se()
        for _ in range(_few(bits.ue(), 255)):
            bits.se()
    bits.ue()
    bits.u(1)
    width, height = 16 * (bits.ue() + 1), 16 * (bits.ue() + 1)
    frames_only = bits.u(1)
    if not frames_only:
        height *= 2
        bits.u(1)
    bits.u(1)
    left = right = top = bottom = 0
    if bits.u(1):
        left, right, top, bottom = bits.ue(), bits.ue(), bits.ue(), bits.ue()
    across = 2 if chroma in (1, 2) else 1
    down = (2 if chroma == 1 else 1) * (1 if frames_only else 2)
    aspect = _aspect(bits) if bits.u(1) else 0.0
    return _shape(width - across * (left + right), height - down * (top + bottom), aspect)


def _skip_h264_scaling(bits: _Bits, size: int) -> None:
    if not bits.u(1):
        return
    last = following = 8
    for _ in range(size):
        if following:
            following = (last + bits.se()) % 256
        last = following or last


def hevc_shape(unit: bytes) -> Shape:
    """Of a NAL unit of type 33. Raises `BadParameterSet`."""
    bits = _Bits(unit[2:])
    bits.u(4)
    layers = bits.u(3)  # highest temporal sub-layer
    bits.u(1)
    _skip_profile(bits, layers)
    bits.ue()
    chroma = bits.ue()
    if chroma == 3 and bits.u(1):
        chroma = 0
    width, height = bits.ue(), bits.ue()
    if bits.u(1):
        across, down = 2 if chroma in (1, 2) else 1, 2 if chroma == 1 else 1
        left, right, top, bottom = bits.ue(), bits.ue(), bits.ue(), bits.ue()
        width, height = width - across * (left + right), height - down * (top + bottom)
    bits.ue()
    bits.ue()
    order_bits = bits.ue() + 4
    for _ in range(layers + 1 if bits.u(1) else 1):
        bits.ue()
        bits.ue()
        bits.ue()
    for _ in range(6):
        bits.ue()
    if bits.u(1) and bits.u(1):
        _skip_hevc_scaling(bits)
    bits.u(2)
    if bits.u(1):
        bits.u(8)
        bits.ue()
        bits.ue()
        bits.u(1)
    sets: list[int] = []  # number of pictures in each reference picture set
    for number in range(_few(bits.ue(), 64)):
        sets.append(_skip_reference_set(bits, number, sets))
    if bits.u(1):
        for _ in range(_few(bits.ue(), 32)):
            bits.u(order_bits)
            bits.u(1)
    bits.u(2)
    aspect = _aspect(bits) if bits.u(1) else 0.0
    return _shape(width, height, aspect)


def _skip_profile(bits: _Bits, layers: int) -> None:
    bits.u(88)
    bits.u(8)
    present = [(bits.u(1), bits.u(1)) for _ in range(layers)]
    if layers:
        bits.u(2 * (8 - layers))
    for profile, level in present:
        bits.u(88 * profile + 8 * level)


def _skip_hevc_scaling(bits: _Bits) -> None:
    for size in range(4):
        for _ in range(0, 6, 3 if size == 3 else 1):
            if not bits.u(1):
                bits.ue()
                continue
            if size > 1:
                bits.se()
            for _ in range(min(64, 1 << (4 + (size << 1)))):
                bits.se()


def _skip_reference_set(bits: _Bits, number: int, sets: list[int]) -> int:
    if number and bits.u(1):
        bits.u(1)
        bits.ue()
        count = 0
        for _ in range(sets[number - 1] + 1):
            if bits.u(1) or bits.u(1):  # used by the current picture, or kept
                count += 1
        return _few(count, 16)
    before, after = bits.ue(), bits.ue()
    for _ in range(_few(before + after, 16)):
        bits.ue()
        bits.u(1)
    return before + after


def _aspect(bits: _Bits) -> float:
    """From the start of the usability information."""
    if not bits.u(1):
        return 0.0
    kind = bits.u(8)
    width, height = (bits.u(16), bits.u(16)) if kind == _EXTENDED else ASPECTS[kind] if kind < len(ASPECTS) else (0, 1)
    return width / height if height else 0.0


def _few(count: int, most: int) -> int:
    if count > most:
        raise BadParameterSet(f"it lists {count} of something")
    return count


def _shape(width: int, height: int, aspect: float) -> Shape:
    if not (0 < width < 1 << 16 and 0 < height < 1 << 16):
        raise BadParameterSet(f"its picture is {width} × {height}")
    return Shape(width, height, aspect)
