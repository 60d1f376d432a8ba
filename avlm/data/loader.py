"""Batches of one rank, read by worker processes, that can be continued exactly after a stop."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from avlm.data.order import MicroBatch, epoch_order, plan
from avlm.data.rows import where
from avlm.data.types import IGNORE, Row, Sample
from avlm.errors import RunError, UserError

Item = Row | Sequence[Row]
"""A row, or the rows of a pack."""


class Loader:
    """Micro-batches of one rank for one epoch after the other.

    items: rows, or lists of rows (packs). make_sample: row -> `Sample`, called in the worker, which also opens the
    media. collate: list of samples (lists of samples for packs) -> batch.

    Iterating yields what is left of the current epoch, then moves on to the next one; `set_epoch` chooses another. Each
    optimizer step is `global_batch_size` consecutive items over all ranks; the last step of an epoch is filled up with
    copies whose labels are all `IGNORE`. The state is the epoch and the number of items that all ranks together have
    been given in it: batches that workers have read ahead do not count, and another number of ranks can go on from it.

    An item that fails raises `UserError` (bad input) or `RunError` (anything else), naming row, file and line.
    """

    def __init__(
        self,
        items: Sequence[Item],
        make_sample: Callable[[Row], Sample],
        collate: Callable[[list[Any]], Any],
        *,
        micro_batch_size: int,
        global_batch_size: int,
        dp_rank: int = 0,
        dp_size: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        workers: int = 0,
    ) -> None:
        self._micro_step = micro_batch_size * dp_size
        if global_batch_size % self._micro_step:
            raise UserError(
                f"batch.global_batch_size: {global_batch_size} is not a multiple of micro_batch_size × data-parallel "
                f"size = {micro_batch_size} × {dp_size}"
            )
        if not 0 <= dp_rank < dp_size:
            raise ValueError(f"rank {dp_rank} of {dp_size}")
        self.items = items
        self._reader = _Reader(items, make_sample, collate)
        self._micro_batch, self._global_batch = micro_batch_size, global_batch_size
        self._rank, self._ranks = dp_rank, dp_size
        self._seed, self._shuffle, self._workers = seed, shuffle, workers
        self.epoch = 0
        self._given = 0

    def __len__(self) -> int:
        """Micro-batches of a whole epoch on this rank; the same on every rank."""
        return -(-len(self.items) // self._global_batch) * self._global_batch // self._micro_step

    @property
    def sampler(self) -> Loader:
        """The object whose `set_epoch` a training loop calls."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of `epoch`; nothing changes when the loader is in it already, so a resumed run goes on."""
        if epoch != self.epoch:
            self.epoch, self._given = epoch, 0

    def state_dict(self) -> dict[str, int]:
        """Epoch, and items given out in it over all ranks (fillers included)."""
        return {"epoch": self.epoch, "samples": self._given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from `state`, which may come from another rank or number of ranks.

        Raises `UserError` when the micro-batches of this run do not start where the other one stopped.
        """
        if state["samples"] % self._micro_step:
            raise UserError(
                f"the data position of the checkpoint, {state['samples']} samples into epoch {state['epoch']}, is not "
                f"a multiple of micro_batch_size × data-parallel size = {self._micro_step}; resume with sizes that "
                "divide it"
            )
        self.epoch, self._given = state["epoch"], state["samples"]

    def micro_batches(self) -> list[MicroBatch]:
        """Which items this rank reads in the current epoch, from its start."""
        order = epoch_order(len(self.items), self._seed, self.epoch, self._shuffle)
        return plan(order, self._micro_batch, self._ranks, self._global_batch // self._micro_step)[self._rank]

    def __iter__(self) -> Iterator[Any]:
        from torch.utils.data import DataLoader

        todo = self.micro_batches()[self._given // self._micro_step :]
        reader = DataLoader(
            self._reader,
            sampler=todo,
            batch_size=None,
            num_workers=min(self._workers, len(todo)),
            collate_fn=_unchanged,
            worker_init_fn=_start_worker,
        )
        for batch in reader:
            if isinstance(batch, _Failure):
                raise batch.error()
            self._given += self._micro_step
            yield batch
        self.epoch, self._given = self.epoch + 1, 0


@dataclass(frozen=True)
class _Failure:
    """An exception on its way out of a worker, where tracebacks would be lost or pasted into the message."""

    message: str
    user: bool

    def error(self) -> Exception:
        return UserError(self.message) if self.user else RunError(self.message)


class _Reader:
    """Reads micro-batches; a map-style dataset whose keys are `MicroBatch`es."""

    def __init__(
        self, items: Sequence[Item], make_sample: Callable[[Row], Sample], collate: Callable[[list[Any]], Any]
    ) -> None:
        self._items, self._make_sample, self._collate = items, make_sample, collate

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, batch: MicroBatch) -> Any:
        done: dict[int, Any] = {}
        made: list[Any] = []
        for slot in batch:
            item = self._items[slot.item]
            if slot.item not in done:
                result = self._make(item)
                if isinstance(result, _Failure):
                    return result
                done[slot.item] = result
            sample = done[slot.item]
            made.append(sample if slot.real else _without_labels(sample))
        try:
            return self._collate(made)
        except Exception as error:
            ids = ", ".join(sample.id for sample in _flat(made))
            return _Failure(f"batch of {ids}: {type(error).__name__}: {error}\n{traceback.format_exc()}", user=False)

    def _make(self, item: Item) -> Any:
        if not isinstance(item, Row):
            made = [self._make(row) for row in item]
            return next((m for m in made if isinstance(m, _Failure)), made)
        place = where(item)
        try:
            return self._make_sample(item)
        except UserError as error:
            message = str(error)
            return _Failure(message if message.startswith(place) else f"{place}: {message}", user=True)
        except Exception as error:
            return _Failure(f"{place}: {type(error).__name__}: {error}\n{traceback.format_exc()}", user=False)


def _flat(items: list[Any]) -> Iterator[Sample]:
    for item in items:
        yield from item if isinstance(item, list) else [item]


def _without_labels(sample: Any) -> Any:
    if isinstance(sample, list):
        return [_without_labels(s) for s in sample]
    return replace(sample, labels=sample.labels.new_full(sample.labels.shape, IGNORE))


def _unchanged(batch: Any) -> Any:
    return batch


def _start_worker(_: int) -> None:
    import torch

    torch.set_num_threads(1)
