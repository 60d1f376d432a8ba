"""How long the rows of a dataset are, in tokens, frames and seconds, by the rules that training uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from avlm.data.processing import load_processor, measure_rows, planned_shape
from avlm.data.rows import read_rows
from avlm.data.types import SAMPLE_RATE, MediaInfo, MediaRef, Row

if TYPE_CHECKING:
    from rich.console import Console

    from avlm.data.processing import Processor
    from avlm.recipe.schema import Recipe

BINS = 20
"""Bars of a histogram."""
WIDTH = 50
"""Length of its longest bar, in characters."""


@dataclass(frozen=True)
class RowStats:
    """One row: tokens in all and for media, frames taken, seconds of the files and of the sound taken."""

    id: str
    label: str | None
    tokens: int
    media_tokens: int
    frames: int
    picture_seconds: float
    sound_seconds: float


@dataclass(frozen=True)
class Stats:
    """Rows of each split, and the recipe's token limit."""

    splits: dict[str, list[RowStats]]
    sequence_length: int

    def summary(self, split: str) -> dict[str, float]:
        """Counts, sums and quantiles of one split."""
        rows = self.splits[split]
        tokens = np.array([r.tokens for r in rows])
        low, median, high = np.quantile(tokens, [0.05, 0.5, 0.95], method="nearest").tolist()
        return {
            "rows": len(rows),
            "tokens": int(tokens.sum()),
            "media_tokens": sum(r.media_tokens for r in rows),
            "shortest": int(tokens.min()),
            "quantile_5": low,
            "median": median,
            "quantile_95": high,
            "longest": int(tokens.max()),
            "over_limit": int((tokens > self.sequence_length).sum()),
            "frames": sum(r.frames for r in rows),
            "picture_seconds": sum(r.picture_seconds for r in rows),
            "sound_seconds": sum(r.sound_seconds for r in rows),
        }

    def to_json(self) -> dict[str, Any]:
        """Plain values for a machine: the summary of each split and the length of each row."""
        return {
            "sequence_length": self.sequence_length,
            "splits": {
                name: {**self.summary(name), "lengths": [r.tokens for r in rows]} for name, rows in self.splits.items()
            },
        }

    def print(self, console: Console) -> None:
        """A table of the splits, and a histogram of token counts for each."""
        from rich.table import Table

        table = Table("", *self.splits)
        summaries = [self.summary(name) for name in self.splits]
        for key, title in TITLES.items():
            table.add_row(title, *(_number(s[key]) for s in summaries))
        console.print(table)
        for name, rows in self.splits.items():
            console.print(f"\ntokens per row, {name} (limit {self.sequence_length:,})", highlight=False)
            for line in histogram([r.tokens for r in rows]):
                console.print(line, highlight=False)


TITLES = {
    "rows": "rows",
    "tokens": "tokens",
    "media_tokens": "… of media",
    "shortest": "shortest row",
    "quantile_5": "5 % are at most",
    "median": "half are at most",
    "quantile_95": "95 % are at most",
    "longest": "longest row",
    "over_limit": "over the limit",
    "frames": "frames",
    "picture_seconds": "seconds of picture",
    "sound_seconds": "seconds of sound",
}


def dataset_stats(recipe: Recipe, progress: Callable[[int, int], None] | None = None) -> Stats:
    """Lengths of all rows of a recipe's training and validation files. Media are probed, not decoded.

    progress: called with rows done and in all. Raises `UserError` for bad rows, bad media or an unreadable checkpoint.
    """
    data = recipe.data
    sources = {"train": data.train_paths, "validation": data.validation}
    splits = {name: read_rows(files, data.video_root) for name, files in sources.items() if files}
    processor = load_processor(recipe)
    known: dict[MediaRef, MediaInfo] = {}
    total = sum(map(len, splits.values()))
    result: dict[str, list[RowStats]] = {}
    done = 0
    for name, rows in splits.items():
        result[name] = []
        for row in rows:
            result[name].append(row_stats(row, processor, known))
            done += 1
            if progress is not None:
                progress(done, total)
    return Stats(result, data.sequence_length)


def row_stats(row: Row, processor: Processor, known: dict[MediaRef, MediaInfo]) -> RowStats:
    """Lengths of one row. known: media looked up before; new ones are added."""
    (count,) = measure_rows([row], processor, known)
    infos = [known[ref] for ref in row.media]
    shapes = [planned_shape(info, processor.limits, processor.factor) for info in infos]
    return RowStats(
        row.id,
        row.label,
        count.total,
        count.media,
        sum(s.frames for s in shapes),
        sum(i.duration for i in infos if i.kind == "video"),
        sum(s.audio_samples for s in shapes) / SAMPLE_RATE,
    )


def histogram(values: Sequence[int], bins: int = BINS, width: int = WIDTH) -> list[str]:
    """Lines of text, one a bar: range (both ends belong to it), bar, count. Bars have equal widths in whole numbers."""
    low, high = min(values), max(values)
    step = -(-(high - low + 1) // bins)
    counts = np.bincount([(v - low) // step for v in values]).tolist()
    digits = len(f"{low + len(counts) * step:,}")
    lines = []
    for i, count in enumerate(counts):
        start = low + i * step
        label = f"{start:>{digits},}" if step == 1 else f"{start:>{digits},} – {start + step - 1:>{digits},}"
        bar = "█" * max(round(count / max(counts) * width), count > 0)
        lines.append(f"{label} {bar}{' ' if bar else ''}{count}")
    return lines


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
