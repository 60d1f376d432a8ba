"""Which rows fit, and which share a sequence. Decided from exact token counts, before any media is decoded."""

from __future__ import annotations

import random
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from avlm.data.processing import TokenCount
from avlm.data.rows import SHOWN, where
from avlm.data.types import Row
from avlm.errors import UserError

WINDOW = 4096
"""Items that wait for a pack at a time."""
CANDIDATES = 32
"""Items that are tried for the last places of a pack."""
FINE = 8
"""The last places: room for so many items of mean length."""
SUMS = 1 << 15
"""Different sums that are told apart; packs of more tokens are measured in coarser units."""


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
    counted: Iterable[tuple[Row, TokenCount]], limit: int, too_long: Literal["error", "report"]
) -> tuple[np.ndarray, np.ndarray, list[Skipped]]:
    """Numbers (from 0, int32) and tokens (int32) of the rows of at most `limit` tokens, and the others with reasons.

    A row is used whole or not at all: cutting one would part media tokens from their features, or lose the answer.
    Rows are looked at as a stream and only those left out are kept. With `error` rows that are too long raise one
    `UserError` naming them (the first 20 of many). So does a dataset of which no row is left.
    """
    kept, tokens = array("i"), array("i")
    skipped: list[Skipped] = []
    total = 0
    for row, count in counted:
        if count.total <= limit:
            kept.append(total)
            tokens.append(count.total)
        else:
            skipped.append(Skipped(row, count.total, _reason(count, limit)))
        total += 1
    if skipped and (too_long == "error" or not kept):
        raise UserError(_too_long(skipped, total, limit))
    return np.array(kept, np.int32), np.array(tokens, np.int32), skipped


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


@dataclass(frozen=True)
class Packs:
    """Groups of numbers: group i is `members[starts[i] : starts[i + 1]]`.

    members: [n] int32. starts: [groups + 1] int64, from 0 to n. No group is empty.
    """

    members: np.ndarray
    starts: np.ndarray

    @classmethod
    def single(cls, members: np.ndarray) -> Packs:
        """Groups of one."""
        return cls(members.astype(np.int32), np.arange(len(members) + 1))

    @classmethod
    def of(cls, groups: Iterable[Sequence[int]]) -> Packs:
        """These groups."""
        members, sizes = array("i"), array("q", [0])
        for group in groups:
            members.extend(group)
            sizes.append(len(group))
        return cls(np.array(members, np.int32), np.cumsum(np.array(sizes)))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, group: int) -> tuple[int, ...]:
        if not 0 <= group < len(self):
            raise IndexError(f"group {group} of {len(self)}")
        return tuple(self.members[self.starts[group] : self.starts[group + 1]].tolist())

    def sums(self, values: np.ndarray) -> np.ndarray:
        """[groups] sums of `values`, which has one for every number. Sums of int32 are int64, of float32 float64."""
        own = values[self.members].astype(np.float64 if values.dtype.kind == "f" else np.int64)
        return np.add.reduceat(own, self.starts[:-1]) if len(self) else own

    def reordered(self, order: np.ndarray) -> Packs:
        """The same groups in another order."""
        sizes = np.diff(self.starts)[order]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        at = np.arange(len(self.members)) + np.repeat(self.starts[:-1][order] - starts[:-1], sizes)
        return Packs(self.members[at], starts)


def pack(lengths: np.ndarray | Sequence[int], pack_size: int, *, seed: int = 0, window: int = WINDOW) -> Packs:
    """Put items into nearly full packs of at most `pack_size` tokens.

    A pool is filled up from the items in their order. Each pack starts with the longest item of the pool, which is the
    hardest to place. While there is room for many it takes items at random. The last ones are the subset of up to 32
    candidates, spread evenly over the lengths that fit, that leaves the least room (minimum bin slack: Gupta & Ho,
    1999, Production Planning & Control 10(6)); the reachable sums are the bits of one integer.

    Args:
        lengths: [n] tokens of each item.
        pack_size: tokens in a pack.
        seed: of the random choices. The result is a pure function of the arguments.
        window: items in the pool; more of them cost more time and memory and fill packs better.

    Returns:
        Packs of item numbers 0 … n - 1: every item is in exactly one; ascending inside a pack; ordered by their first.

    Raises:
        ValueError: an item does not fit in a pack.
    """
    lengths = np.asarray(lengths)
    if len(lengths) and lengths.max() > pack_size:
        item = int(np.argmax(lengths > pack_size))
        raise ValueError(f"item {item} has {lengths[item]} tokens and does not fit in a pack of {pack_size}")
    pool = _Pool(pack_size, seed)
    members, sizes = array("i"), array("q", [0])
    taken = 0
    while taken < len(lengths) or pool.keys:
        if taken < len(lengths) and len(pool.keys) <= window // 2:
            until = min(taken + window - len(pool.keys), len(lengths))
            pool.add(lengths[taken:until], taken)
            taken = until
        group = sorted(pool.next_pack())
        members.extend(group)
        sizes.append(len(group))
    packs = Packs(np.array(members, np.int32), np.cumsum(np.array(sizes)))
    return packs.reordered(np.argsort(packs.members[packs.starts[:-1]]))


class _Pool:
    """Items that wait. keys: one for each, `length << 32 | item`, ascending; sum of their lengths: `tokens`."""

    def __init__(self, pack_size: int, seed: int) -> None:
        self.keys: list[int] = []
        self.tokens = 0
        self._pack_size = pack_size
        self._unit = -(-pack_size // SUMS)
        self._near = pack_size // 1000
        self._random = random.Random(seed).random

    def add(self, lengths: np.ndarray, first: int) -> None:
        """Put in the items `first`, `first` + 1, …"""
        self.keys += (lengths.astype(np.int64) << 32 | np.arange(first, first + len(lengths))).tolist()
        self.keys.sort()
        self.tokens += int(lengths.sum(dtype=np.int64))

    def next_pack(self) -> list[int]:
        """Take out the items of one pack."""
        keys = self.keys
        chosen = [keys.pop()]
        room = self._pack_size - (chosen[0] >> 32)
        self.tokens -= chosen[0] >> 32
        while room * len(keys) > FINE * self.tokens:
            fit = self._fit(room)
            if not fit:
                break
            key = keys.pop(int(self._random() * fit))
            chosen.append(key)
            room -= key >> 32
            self.tokens -= key >> 32
        for place in self._best(room):
            key = keys.pop(place)
            chosen.append(key)
            self.tokens -= key >> 32
        return [key & 0xFFFFFFFF for key in chosen]

    def _fit(self, room: int) -> int:
        """How many items fit: they are the first ones."""
        keys = self.keys
        return len(keys) if not keys or keys[-1] >> 32 <= room else bisect_left(keys, (room + 1) << 32)

    def _best(self, room: int) -> list[int]:
        """Places, descending, of candidates that together fill `room` best. Enough is within a thousandth of a pack."""
        fit = self._fit(room)
        start, step = self._random(), max(fit / CANDIDATES, 1.0)
        places = [int((start + i) * step) for i in range(min(fit, CANDIDATES) - 1, -1, -1)]
        if fit <= CANDIDATES:  # they are the same each time: begin with another one
            first = int(self._random() * fit)
            places = places[first:] + places[:first]
        space = room // self._unit
        all_sums, enough = (1 << space + 1) - 1, space - self._near // self._unit
        sums = 1  # bit s is set when some of the candidates so far have the sum s
        before: list[tuple[int, int, int]] = []
        for place in places:
            size = -(-(self.keys[place] >> 32) // self._unit)
            before.append((sums, size, place))
            sums |= sums << size & all_sums
            if sums.bit_length() > enough:
                break
        best = sums.bit_length() - 1
        chosen = []
        for sums, size, place in reversed(before):
            if not sums >> best & 1:  # not reachable without this candidate
                chosen.append(place)
                best -= size
        return sorted(chosen, reverse=True)
