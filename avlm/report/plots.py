"""Charts as small inline SVG: no scripts, no files, colours and type from the page's style sheet.

Coordinates are percentages of the box, so that a chart follows the width of the page while its type stays readable.
All functions return markup that is safe to put on the page; texts are escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

POINTS = 600
"""Most points of a curve; longer ones are averaged over equal stretches."""


@dataclass(frozen=True)
class Curve:
    """A curve: `kind` is a style ("line", "faint", "dots"); `css` names its colour in the style sheet."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    kind: Literal["line", "faint", "dots"] = "line"
    css: str = "after"


def number(value: float) -> str:
    """Up to three significant digits, without a needless exponent: 0.25, 12, 3e-05 -> "3e-5"."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.3g}"
    if 1e-3 <= abs(value) < 1e6:
        text = f"{value:.3g}"
        return f"{value:,.0f}" if "e" in text or abs(value) >= 1000 else text
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{float(mantissa):.3g}e{int(exponent)}"


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round values in steps of 1, 2 or 5 × 10ⁿ whose first and last enclose [low, high]; about `count` of them."""
    if not high > low:
        low, high = (low - 0.5, high + 0.5) if low else (0.0, 1.0)
    rough = (high - low) / max(1, count - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{i * step:.9g}") for i in range(first, last + 1)]


def thin(x: Sequence[float], y: Sequence[float], most: int = POINTS) -> tuple[list[float], list[float], int]:
    """At most `most` points: means over `k` neighbours. Returns x, y and k. Values that are not finite are left out."""
    pairs = [(a, b) for a, b in zip(x, y, strict=True) if math.isfinite(a) and math.isfinite(b)]
    k = max(1, -(-len(pairs) // most))
    groups = [pairs[i : i + k] for i in range(0, len(pairs), k)]
    return [sum(a for a, _ in g) / len(g) for g in groups], [sum(b for _, b in g) / len(g) for g in groups], k


def smooth(y: Sequence[float], span: float) -> list[float]:
    """Exponential moving average over about `span` values, without bias towards zero at its start."""
    keep, total, weight, out = 1 - 2 / (max(span, 1.0) + 1), 0.0, 0.0, []
    for value in y:
        total, weight = keep * total + value, keep * weight + 1
        out.append(total / weight)
    return out


def _percent(value: float) -> str:
    return f"{100 * value:.2f}".rstrip("0").rstrip(".") + "%"


def line_chart(
    curves: Sequence[Curve], *, description: str, x_label: str, from_zero: bool = True, y_format: Callable = number
) -> str:
    """Curves over a shared x axis. `description` is read out instead of the picture."""
    points = [(a, b) for c in curves for a, b in zip(c.x, c.y, strict=True) if math.isfinite(a) and math.isfinite(b)]
    xs, ys = [a for a, _ in points], [b for _, b in points]
    if not points:
        return '<p class="none">No finite value to draw.</p>'
    y_ticks = ticks(min(0.0, *ys) if from_zero else min(ys), max(ys))
    x_low, x_high = min(xs), max(xs)
    x_span = (x_high - x_low) or 1.0
    y_span = y_ticks[-1] - y_ticks[0]

    def at(x: float) -> float:
        return (x - x_low) / x_span

    def up(y: float) -> float:
        return 1 - (y - y_ticks[0]) / y_span

    out = [_axes([(up(t), y_format(t)) for t in y_ticks])]
    marks = [t for t in ticks(x_low, x_high) if x_low <= t <= x_high]
    for t in marks:
        out.append(f'<text class="tick" x="{_percent(at(t))}" y="100%" dy="18" text-anchor="middle">{number(t)}</text>')
    for curve in curves:
        x, y, _ = thin(curve.x, curve.y)
        if curve.kind == "dots":
            out += [
                f'<circle class="{curve.css}" cx="{_percent(at(a))}" cy="{_percent(up(b))}" r="3.5">'
                f"<title>{escape(curve.name)}: {y_format(b)} at {escape(x_label)} {number(a)}</title></circle>"
                for a, b in zip(x, y, strict=True)
            ]
        if len(x) > 1:
            path = " ".join(f"{1000 * at(a):.1f},{1000 * up(b):.1f}" for a, b in zip(x, y, strict=True))
            out.append(
                '<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" width="100%" height="100%">'
                f'<polyline class="{curve.kind} {curve.css}" points="{path}"/></svg>'
            )
        elif curve.kind != "dots" and x:
            out.append(f'<circle class="{curve.css}" cx="{_percent(at(x[0]))}" cy="{_percent(up(y[0]))}" r="3"/>')
    return _figure(out, description, x_label)


def _axes(y_ticks: Sequence[tuple[float, str]]) -> str:
    out = []
    for place, text in y_ticks:
        y = _percent(place)
        out.append(f'<line class="grid" x1="0" x2="100%" y1="{y}" y2="{y}"/>')
        out.append(f'<text class="tick" x="-8" y="{y}" dy="4" text-anchor="end">{escape(text)}</text>')
    return "".join(out)


def _figure(parts: Sequence[str], description: str, x_label: str) -> str:
    return (
        f'<div class="plot" role="img" aria-label="{escape(description, quote=True)}">'
        f'<svg width="100%" height="100%" aria-hidden="true">{"".join(parts)}</svg></div>'
        f'<p class="axis" aria-hidden="true">{escape(x_label)}</p>'
    )


def histogram(
    values: Sequence[int], *, description: str, x_label: str, limit: int | None = None, bins: int = 30
) -> str:
    """Counts of whole numbers in equal bins; `limit` is drawn as a line when it lies in sight."""
    low, high = min(values), max(values)
    width = max(1, math.ceil((high - low + 1) / bins))
    counts = [0] * math.ceil((high - low + 1) / width)
    for value in values:
        counts[(value - low) // width] += 1
    end = low + width * len(counts)
    near = limit is not None and limit <= end + 0.5 * (end - low)
    right = max(end, limit + 1) if limit is not None and near else end
    top = max(counts)
    y_ticks = [t for t in ticks(0, top, 4) if t <= top and t == int(t)]

    def at(x: float) -> float:
        return (x - low) / (right - low)

    out = [_axes([(1 - t / top, number(t)) for t in y_ticks])]
    for i, count in enumerate(counts):
        if count:
            first, last = low + i * width, low + (i + 1) * width - 1
            name = f"{first:,} tokens" if first == last else f"{first:,}–{last:,} tokens"
            out.append(
                f'<rect class="bar" x="{_percent(at(first))}" width="{_percent(0.92 * width / (right - low))}" '
                f'y="{_percent(1 - count / top)}" height="{_percent(count / top)}">'
                f"<title>{name}: {count:,} rows</title></rect>"
            )
    for t in ticks(low, right):
        if low <= t <= right:
            place = _percent(at(t + (0.5 if width == 1 else 0)))
            out.append(f'<text class="tick" x="{place}" y="100%" dy="18" text-anchor="middle">{number(t)}</text>')
    if limit is not None and near:
        place = _percent(at(limit))
        out.append(f'<line class="limit" x1="{place}" x2="{place}" y1="0" y2="100%"/>')
        out.append(f'<text class="tick" x="{place}" y="0" dx="-6" dy="12" text-anchor="end">limit {limit:,}</text>')
    return _figure(out, description, x_label)


def interval_row(points: Sequence[tuple[str, float, float, float]]) -> str:
    """Proportions of one class on a 0–100 % track: (style, value, low, high), drawn from above to below.

    Each is a dot with its interval as a bar. Decorative: the numbers stand beside it.
    """
    out = [f'<line class="grid" x1="{x}%" x2="{x}%" y1="0" y2="100%"/>' for x in (0, 25, 50, 75, 100)]
    for index, (css, value, low, high) in enumerate(points):
        y = _percent((index + 1) / (len(points) + 1))
        out.append(f'<line class="interval {css}" x1="{_percent(low)}" x2="{_percent(high)}" y1="{y}" y2="{y}"/>')
        out.append(f'<circle class="{css}" cx="{_percent(value)}" cy="{y}" r="5"/>')
    return f'<svg class="track" width="100%" height="100%" aria-hidden="true">{"".join(out)}</svg>'
