from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from avlm.data.parameter_sets import BadParameterSet, h264_shape, hevc_shape

X265 = "log-level=none:pools=none:frame-threads=1"
CASES: list[tuple[str, int, int, str, str | None, dict[str, str]]] = [
    ("libx264", 96, 64, "yuv420p", None, {}),
    ("libx264", 1920, 1080, "yuv420p", None, {}),
    ("libx264", 90, 50, "yuv420p", "4/3", {}),
    ("libx264", 90, 50, "yuv420p", "97/61", {}),
    ("libx264", 90, 52, "yuv420p", "12/11", {"x264-params": "tff=1"}),
    ("libx264", 91, 51, "yuv444p", None, {}),
    ("libx264", 90, 50, "yuv422p", None, {}),
    ("libx264", 90, 50, "yuv420p10le", "2/1", {}),
    ("libx264", 90, 50, "gray", None, {}),
    ("libx264", 90, 50, "yuv420p", "4/3", {"x264-params": "cqm=jvt"}),
    ("libx264", 90, 50, "yuv420p", None, {"profile": "baseline"}),
    ("libx265", 96, 64, "yuv420p", None, {"x265-params": X265}),
    ("libx265", 1920, 1080, "yuv420p", None, {"x265-params": X265}),
    ("libx265", 90, 50, "yuv420p", "4/3", {"x265-params": X265}),
    ("libx265", 90, 50, "yuv420p", "97/61", {"x265-params": X265 + ":scaling-list=default"}),
    ("libx265", 91, 51, "yuv444p", "16/11", {"x265-params": X265}),
    ("libx265", 90, 50, "yuv422p10le", None, {"x265-params": X265}),
    ("libx265", 90, 50, "yuv420p", "4/3", {"x265-params": X265 + ":temporal-layers=3:bframes=4:b-adapt=0"}),
    ("libx265", 90, 50, "yuv420p", "4/3", {"x265-params": X265 + ":multi-pass-opt-rps=1:ref=5"}),
]


def parameter_set(path: Path, codec: str, width: int, height: int, form: str, aspect: str | None,
                  options: dict[str, str]) -> bytes:  # fmt: skip
    """The sequence parameter set of a clip, from its codec's configuration."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25, options={"preset": "ultrafast"} | options)
        stream.width, stream.height, stream.pix_fmt = width, height, form
        if aspect:
            stream.codec_context.sample_aspect_ratio = Fraction(aspect)
        for _ in range(2):
            frame = av.VideoFrame.from_ndarray(np.zeros((height, width, 3), np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with av.open(str(path)) as container:
        data = bytes(container.streams.video[0].codec_context.extradata or b"")
    if codec == "libx264":
        return data[8 : 8 + int.from_bytes(data[6:8])]
    at = data.index(b"\x42\x01")
    return data[at : at + int.from_bytes(data[at - 2 : at])]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_shape(case: Any, tmp_path: Path) -> None:
    codec, width, height, _, aspect, _ = case
    unit = parameter_set(tmp_path / "a.mp4", *case)
    shape = (h264_shape if codec == "libx264" else hevc_shape)(unit)
    assert (shape.width, shape.height) == (width, height)
    assert shape.aspect == pytest.approx(float(Fraction(aspect)) if aspect else 0.0)


@pytest.mark.parametrize("case", [CASES[5], CASES[14]], ids=str)
def test_cut_and_changed_bits_never_do_harm(case: Any, tmp_path: Path) -> None:
    unit = parameter_set(tmp_path / "a.mp4", *case)
    read = h264_shape if case[0] == "libx264" else hevc_shape
    rng = np.random.default_rng(0)
    raised = 0
    for trial in range(600):
        data = bytearray(unit[: trial % len(unit)] if trial < 100 else unit)
        for place in rng.integers(0, max(len(data), 1), trial % 4) if data else ():
            data[place] = int(rng.integers(256))
        try:
            shape = read(bytes(data))
        except BadParameterSet:
            raised += 1
        else:
            assert 0 < shape.width < 1 << 16 and 0 < shape.height < 1 << 16
    assert raised > 50
