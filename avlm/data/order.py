"""The global order: which rows an epoch has, in which packs, in which order, and who computes them.

Everything here is a pure function of the seed, the epoch and the dataset (number, lengths and costs of its rows), the
same on every rank. Each optimizer step takes the next items of the order, however many ranks share the work, so losses
do not depend on that number.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from avlm.data.balance import deal
from avlm.data.packing import Packs, pack

FORMAT = 1
"""Raised whenever the same arguments give another order."""
_REMEMBERED = 3
"""Epochs that are kept, not worked out again."""
_FRACTION, _PACKING, _PACKS = 1, 2, 3  # streams of random numbers besides the order of an epoch


@dataclass(frozen=True)
class Slot:
    """Place of an item in a micro-batch: a row, or the rows of a pack.

    `real` is false for one that only fills the batch: it has no labels.
    """

    rows: tuple[int, ...]
    real: bool = True


MicroBatch = tuple[Slot, ...]


@dataclass(frozen=True)
class Part:
    """Rows `start` to `stop` - 1 of the dataset, from one source, each seen `weight` times an epoch on average."""

    start: int
    stop: int
    weight: float = 1.0

    @property
    def rows(self) -> int:
        """Number of different rows."""
        return self.stop - self.start

    @property
    def _split(self) -> tuple[int, int]:
        """How often every row is seen, and how many rows are seen once more."""
        weight = Fraction(repr(float(self.weight)))
        whole = int(weight)
        more = round((weight - whole) * self.rows)
        return whole, max(more, 1) if self.rows and whole == 0 else more

    @property
    def per_epoch(self) -> int:
        """Rows seen in an epoch; the same number in each, and at least one."""
        whole, more = self._split
        return whole * self.rows + more

    def draw(self, number: int, seed: int, epoch: int) -> np.ndarray:
        """[per_epoch] int32 rows of `epoch`, in file order for each pass. `number`: which part of the dataset this is.

        The whole part of the weight takes every row so often. The rest takes the next rows of one fixed random order of
        the part, going round: other rows each epoch, until all have been seen equally often.
        """
        whole, more = self._split
        passes = [np.arange(self.start, self.stop, dtype=np.int32)] * whole
        if more:
            fixed = _random(seed, number, _FRACTION).permutation(self.rows)
            passes.append(np.sort(fixed[(epoch * more + np.arange(more)) % self.rows]).astype(np.int32) + self.start)
        return np.concatenate(passes) if passes else np.zeros(0, np.int32)


def epoch_order(n: int, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
    """[n] int64: 0 … n - 1 in the order of an epoch; ascending without `shuffle`.

    Drawn from NumPy's `RandomState`, whose stream does not change between NumPy versions.
    """
    return _random(seed, epoch).permutation(n) if shuffle else np.arange(n)


def _random(*stream: int) -> np.random.RandomState:
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence(stream)))


class Epochs:
    """The items of every epoch: rows, or packs of rows, in their global order.

    Rows are shuffled first and packed then, so that packs are mixed however the files are sorted, and differ between
    epochs; then the packs are shuffled, since the packer puts the longest rows first. Without `shuffle` rows and packs
    are in file order.

    Args:
        lengths: [rows] tokens of each row.
        costs: [rows] compute cost of each row (`avlm.data.balance`), or None when all count as equal.
        parts: the sources of the rows, one after the other; None: one source of weight 1.
        seed, shuffle: of the order.
        pack_size: tokens in a pack, or None when items are single rows.
    """

    def __init__(
        self,
        lengths: np.ndarray | Sequence[int],
        *,
        costs: np.ndarray | None = None,
        parts: Sequence[Part] | None = None,
        seed: int = 0,
        shuffle: bool = True,
        pack_size: int | None = None,
    ) -> None:
        self.lengths = np.asarray(lengths, np.int32)
        self.parts = tuple(parts) if parts is not None else (Part(0, len(self.lengths)),)
        if [0, *(p.stop for p in self.parts)] != [*(p.start for p in self.parts), len(self.lengths)]:
            raise ValueError(f"{self.parts} are not {len(self.lengths)} rows one after the other")
        self.pack_size = pack_size
        self._costs = costs
        self._seed, self._shuffle = seed, shuffle
        self._known: OrderedDict[int, Packs] = OrderedDict()
        self._counts: dict[int, int] = {}

    def items(self, epoch: int) -> Packs:
        """The items of an epoch in their order, as groups of row numbers."""
        if epoch not in self._known:
            self._known[epoch] = self._work_out(epoch)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(epoch)
        return self._known[epoch]

    def _work_out(self, epoch: int) -> Packs:
        rows = np.concatenate([part.draw(i, self._seed, epoch) for i, part in enumerate(self.parts)])
        rows = rows[epoch_order(len(rows), self._seed, epoch, self._shuffle)]
        if self.pack_size is None:
            return Packs.single(rows)
        choices = int(_random(self._seed, epoch, _PACKING).randint(2**31))
        packs = pack(self.lengths[rows], self.pack_size, seed=choices)
        if self._shuffle:
            packs = packs.reordered(_random(self._seed, epoch, _PACKS).permutation(len(packs)))
        return Packs(rows[packs.members], packs.starts)

    def count(self, epoch: int) -> int:
        """Number of items of an epoch."""
        if self.pack_size is None:
            return sum(part.per_epoch for part in self.parts)
        if epoch not in self._counts:
            self._counts[epoch] = len(self.items(epoch))
        return self._counts[epoch]

    def steps(self, epoch: int, global_batch: int) -> int:
        """Optimizer steps of an epoch of `global_batch` items each; the last one may have fewer."""
        return -(-self.count(epoch) // global_batch)

    def fill(self, epoch: int) -> float:
        """Share of the epoch's pack tokens that are tokens of rows. 1 without packs."""
        if self.pack_size is None:
            return 1.0
        items = self.items(epoch)
        return int(self.lengths[items.members].sum(dtype=np.int64)) / (len(items) * self.pack_size)

    def plan(self, epoch: int, step: int, ranks: int, micro_batches: int, micro_batch: int) -> list[list[MicroBatch]]:
        """Who computes an optimizer step: `plan(…)[k][r]` is the k-th micro-batch of rank r.

        The step has the next `ranks · micro_batches · micro_batch` items of the epoch's order. Where the epoch ends,
        the row of fewest tokens fills the places that are left, without labels, so that every row counts exactly once
        and all ranks compute equally many micro-batches.
        """
        items = self.items(epoch)
        size = ranks * micro_batches * micro_batch
        slots = [Slot(items[i]) for i in range(step * size, min((step + 1) * size, len(items)))]
        if len(slots) < size:
            slots += [Slot((int(self.lengths.argmin()),), real=False)] * (size - len(slots))
        dealt = np.arange(size).reshape(micro_batches, ranks, micro_batch)
        if self._costs is not None and ranks * micro_batches > 1:
            dealt = deal(self._step_costs(slots), ranks, micro_batches, micro_batch)
        return [[tuple(slots[i] for i in hand) for hand in hands] for hands in dealt.tolist()]

    def _step_costs(self, slots: Sequence[Slot]) -> np.ndarray:
        """[slots] cost of each item. The padding of a pack costs its tokens."""
        assert self._costs is not None
        groups = Packs.of([slot.rows for slot in slots])
        costs = groups.sums(self._costs)
        return costs if self.pack_size is None else costs + (self.pack_size - groups.sums(self.lengths))


def fingerprint(ids: np.ndarray, lengths: np.ndarray) -> str:
    """What the order of a dataset depends on, in 16 hexadecimal digits.

    ids: [rows] uint64 hashes of the rows' ids (`avlm.data.index.id_hash`). lengths: [rows] tokens of each row.
    """
    digest = hashlib.sha256(ids.astype("<u8").tobytes())
    digest.update(lengths.astype("<i4").tobytes())
    return digest.hexdigest()[:16]
