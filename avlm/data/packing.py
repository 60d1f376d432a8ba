"""Which rows fit, and which share a sequence. Decided from exact token counts, before any media is decoded."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from avlm.data.processing import TokenCount
from avlm.data.rows import SHOWN, where
from avlm.data.types import Row
from avlm.errors import UserError

WINDOW = 64
"""Packs that are open at a time, so the rows of a pack lie near each other in the data."""


@dataclass(frozen=True)
class Skipped:
    """A row that is left out, with the reason."""

    row: Row
    tokens: int
    reason: str

    def as_dict(self) -> dict[str, str | int]:
        """One line of `skipped.jsonl`."""
        row = self.row
        return {"id": row.id, "source": row.source, "line": row.line, "tokens": self.tokens, "reason": self.reason}

    def __str__(self) -> str:
        return f"{where(self.row)}: {self.tokens} tokens: {self.reason}"


def fitting(
    rows: Sequence[Row], counts: Sequence[TokenCount], limit: int, too_long: Literal["error", "report"]
) -> tuple[list[int], list[Skipped]]:
    """Indices of the rows of at most `limit` tokens, and the others with their reasons; together they are all rows.

    A row is used whole or not at all: cutting one would part media tokens from their features, or lose the answer.
    With `error` a row that is too long raises one `UserError` naming it (the first 20 of many). So does a dataset of
    which no row is left.
    """
    kept: list[int] = []
    skipped: list[Skipped] = []
    for index, (row, count) in enumerate(zip(rows, counts, strict=True)):
        if count.total <= limit:
            kept.append(index)
        else:
            skipped.append(Skipped(row, count.total, _reason(count, limit)))
    if skipped and (too_long == "error" or not kept):
        raise UserError(_too_long(skipped, len(rows), limit))
    return kept, skipped


def _reason(count: TokenCount, limit: int) -> str:
    if count.media > limit:
        return f"its media alone take {count.media} tokens and do not fit in {limit}"
    if count.prompt >= limit:
        return f"no target would be left: the answer starts after {count.prompt} tokens, the limit is {limit}"
    return f"its answer ends after the limit of {limit}"


def _too_long(skipped: Sequence[Skipped], total: int, limit: int) -> str:
    lines = [f"data.sequence_length: {len(skipped)} of {total} rows have more than {limit} tokens:"]
    lines += [f"  {s}" for s in skipped[:SHOWN]]
    if len(skipped) > SHOWN:
        lines.append(f"  … and {len(skipped) - SHOWN} more")
    if len(skipped) < total:
        lines.append("Raise the limit, take fewer or smaller frames, or set data.too_long: report to leave them out")
    else:
        lines.append("No row is left. Raise the limit, or take fewer or smaller frames")
    return "\n".join(lines)


def pack(lengths: Sequence[int], pack_size: int, *, window: int = WINDOW) -> list[list[int]]:
    """Put items into packs of at most `pack_size` tokens: best fit, in data order.

    Each item goes into the open pack that it fills up most (of equal ones the oldest), or opens a new one; the last
    `window` packs are open. Returns the packs as lists of indices, ascending inside a pack and ordered
    by their first item. Every item is in exactly one pack. Raises `ValueError` for an item longer than a pack.
    """
    packs: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (free tokens, pack), ascending
    for index, length in enumerate(lengths):
        if length > pack_size:
            raise ValueError(f"item {index} has {length} tokens and does not fit in a pack of {pack_size}")
        at = bisect_left(room, (length, 0))
        if at < len(room):
            free, number = room.pop(at)
            packs[number].append(index)
        else:
            free, number = pack_size, len(packs)
            packs.append([index])
            room = [(tokens, open) for tokens, open in room if open > number - window]
        insort(room, (free - length, number))
    return packs
