"""Charts: scales, what is drawn, what is said."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from avlm.report.plots import Curve, histogram, interval_row, line_chart, number, smooth, thin, ticks


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.25, "0.25"),
        (12, "12"),
        (3e-5, "3e-5"),
        (1500, "1,500"),
        (123456, "123,456"),
        (2e6, "2e6"),
        (-0.5, "-0.5"),
        (float("nan"), "nan"),
    ],
)
def test_number(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("low", "high", "values"),
    [
        (0, 4, [0, 1, 2, 3, 4]),
        (0, 3e-3, [0, 0.001, 0.002, 0.003]),
        (0, 7e-15, [0, 2e-15, 4e-15, 6e-15, 8e-15]),
        (1, 400, [0, 100, 200, 300, 400]),
        (0, 0, [0, 0.5, 1]),
        (2, 2, [1.5, 2, 2.5]),
    ],
)
def test_ticks(low: float, high: float, values: list[float]) -> None:
    assert ticks(low, high) == values


@pytest.mark.parametrize("span", [1e-9, 0.3, 7, 12345.6])
def test_ticks_enclose(span: float) -> None:
    marks = ticks(3 * span, 4.1 * span)
    assert marks[0] <= 3.0001 * span and marks[-1] >= 4.0999 * span and 2 <= len(marks) <= 9


def test_thin_keeps_the_mean_and_leaves_out_what_is_not_finite() -> None:
    x, y, k = thin(range(10_000), [float(i % 2) for i in range(10_000)], 500)
    assert k == 20 and len(x) == 500 and set(y) == {0.5}
    assert thin([1, 2, 3], [1.0, float("nan"), 3.0]) == ([1, 3], [1.0, 3.0], 1)


def test_smooth_starts_unbiased() -> None:
    assert smooth([2.0, 2.0, 2.0], 10) == pytest.approx([2, 2, 2])
    assert smooth([1.0, 5.0], 1) == [1.0, 5.0]


def parsed(markup: str) -> ET.Element:
    return ET.fromstring(f"<div>{markup}</div>")


def test_line_chart_places_points() -> None:
    chart = line_chart([Curve("loss", [0, 10], [4.0, 0.0])], description='from "4" to 0', x_label="step")
    root = parsed(chart)
    line = next(e for e in root.iter() if e.tag == "polyline")
    assert line.get("points") == "0.0,0.0 1000.0,1000.0"
    plot = next(e for e in root.iter() if e.get("role") == "img")
    assert plot.get("aria-label") == 'from "4" to 0'


def test_line_chart_of_one_point_and_of_none() -> None:
    assert "<circle" in line_chart([Curve("loss", [1], [2.0])], description="d", x_label="step")
    assert "No finite value" in line_chart([Curve("loss", [1], [float("nan")])], description="d", x_label="step")


def test_histogram_counts_every_value_once() -> None:
    values = [10, 10, 11, 40, 99]
    chart = histogram(values, description="d", x_label="tokens", limit=120)
    root = parsed(chart)
    assert sum(int(m) for m in re.findall(r": (\d+) rows?<", chart)) == len(values)
    assert "limit 120" in chart
    assert all(float(e.get("x", "0").rstrip("%")) <= 100 for e in root.iter() if e.tag == "rect")
    assert "limit" not in histogram(values, description="d", x_label="tokens", limit=10_000)
    parsed(histogram([7], description="d", x_label="tokens"))


def test_interval_row_is_to_scale() -> None:
    root = parsed(interval_row([("before", 0.25, 0.1, 0.4), ("after", 1.0, 0.9, 1.0)]))
    dots = [e for e in root.iter() if e.tag == "circle"]
    assert [(e.get("class"), e.get("cx")) for e in dots] == [("before", "25%"), ("after", "100%")]
    bars = [e for e in root.iter() if e.get("class") == "interval before"]
    assert (bars[0].get("x1"), bars[0].get("x2")) == ("10%", "40%")
