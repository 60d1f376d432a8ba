"""The global order of items, and which rank takes which of them.

The order is a pure function of seed, epoch and number of items, the same on every rank. Each optimizer step takes the
next `global_batch` items of it, however many ranks share the work, so losses do not depend on that number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Slot:
    """Place of an item in a micro-batch. `real` is false for a copy that only fills the batch: it has no labels."""

    item: int
    real: bool = True


MicroBatch = tuple[Slot, ...]


def epoch_order(n: int, seed: int, epoch: int, shuffle: bool) -> list[int]:
    """Indices 0 … n - 1 in the order of an epoch; the file order without `shuffle`.

    Drawn from NumPy's `RandomState`, whose stream does not change between NumPy versions.
    """
    if not shuffle:
        return list(range(n))
    random = np.random.RandomState(np.random.MT19937(np.random.SeedSequence([seed, epoch])))
    return random.permutation(n).tolist()


def plan(order: Sequence[int], micro_batch: int, dp_size: int, grad_accumulation: int) -> list[list[MicroBatch]]:
    """Micro-batches of each rank for one epoch: `plan(…)[rank]` is a list of them, equally long on all ranks.

    Micro-step k takes the k-th `micro_batch * dp_size` items of the order, rank r the r-th `micro_batch` of these. The
    last optimizer step is filled up with copies of the last item that are not real, so each item counts exactly once.
    """
    step = micro_batch * dp_size * grad_accumulation
    slots = [Slot(item) for item in order]
    if slots:
        slots += [Slot(order[-1], real=False)] * (-len(slots) % step)
    groups = [tuple(slots[at : at + micro_batch]) for at in range(0, len(slots), micro_batch)]
    return [groups[rank::dp_size] for rank in range(dp_size)]
