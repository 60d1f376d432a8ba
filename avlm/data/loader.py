"""Batches of one rank, read by worker processes, that can be continued exactly after a stop."""

from __future__ import annotations

import multiprocessing
import os
import re
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from avlm.data.order import Epochs, MicroBatch, Slot
from avlm.data.rows import where
from avlm.data.types import IGNORE, Row, Sample
from avlm.errors import RunError, UserError
from avlm.utils.processes import time_limit


class Loader:
    """Micro-batches of one rank for one epoch after the other.

    rows: all rows; they are read in the workers. epochs: which of them are the items of an epoch, singly or in packs.
    make_sample: row -> `Sample`, called in the worker, which also opens the media. collate: list of samples (lists of
    samples for packs) -> batch.

    Iterating yields what is left of the current epoch, then moves on to the next one; `set_epoch` chooses another. Each
    optimizer step is the next `global_batch_size` items over all ranks; the last step of an epoch is filled up with
    items whose labels are all `IGNORE`. The state is the epoch and the number of items that all ranks together have
    been given in it: batches that workers have read ahead do not count. It can be loaded between two optimizer steps,
    by any rank of any number of ranks.

    An item that fails raises `UserError` (bad input) or `RunError` (anything else), naming row, file and line. So does
    a worker that crashes, or that takes more than `read_timeout` seconds for a row and is stopped: some damaged file
    always finds a library that never returns.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        epochs: Epochs,
        make_sample: Callable[[Row], Sample],
        collate: Callable[[list[Any]], Any],
        *,
        micro_batch_size: int,
        global_batch_size: int,
        dp_rank: int = 0,
        dp_size: int = 1,
        workers: int = 0,
        read_timeout: float = 600.0,
    ) -> None:
        self._micro_step = micro_batch_size * dp_size
        if global_batch_size % self._micro_step:
            raise UserError(
                f"batch.global_batch_size: {global_batch_size} is not a multiple of micro_batch_size × data-parallel "
                f"size = {micro_batch_size} × {dp_size}"
            )
        if not 0 <= dp_rank < dp_size:
            raise ValueError(f"rank {dp_rank} of {dp_size}")
        self._epochs = epochs
        self._board = _Board(workers, read_timeout)
        self._reader = _Reader(rows, make_sample, collate, self._board, packed=epochs.pack_size is not None)
        self._micro_batch, self._global_batch = micro_batch_size, global_batch_size
        self._rank, self._ranks = dp_rank, dp_size
        self._workers = workers
        self.epoch = 0
        self._given = 0

    def __len__(self) -> int:
        """Micro-batches of the whole current epoch on this rank; the same on every rank. Packed epochs may differ."""
        return self._epochs.steps(self.epoch, self._global_batch) * self._micro_batches

    @property
    def _micro_batches(self) -> int:
        """Of one rank in one optimizer step."""
        return self._global_batch // self._micro_step

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

        Raises `UserError` when it is not between two optimizer steps of this run.
        """
        if state["samples"] % self._global_batch:
            raise UserError(
                f"the data position of the checkpoint, {state['samples']} samples into epoch {state['epoch']}, is not "
                f"a multiple of batch.global_batch_size = {self._global_batch}; resume with the global batch size that "
                "it was made with"
            )
        self.epoch, self._given = state["epoch"], state["samples"]

    def micro_batches(self, first: int = 0) -> Iterator[MicroBatch]:
        """What this rank reads in the current epoch, from its `first` micro-batch on."""
        epoch, skip = self.epoch, first % self._micro_batches
        for step in range(first // self._micro_batches, self._epochs.steps(epoch, self._global_batch)):
            dealt = self._epochs.plan(epoch, step, self._ranks, self._micro_batches, self._micro_batch)
            yield from (hands[self._rank] for hands in dealt[skip:])
            skip = 0

    def __iter__(self) -> Iterator[Any]:
        from torch.utils.data import DataLoader

        first = self._given // self._micro_step
        reader = DataLoader(
            self._reader,
            sampler=self.micro_batches(first),
            batch_size=None,
            num_workers=min(self._workers, len(self) - first),
            collate_fn=_unchanged,
            worker_init_fn=_start_worker,
        )
        batches = iter(reader)
        while (batch := self._next(batches)) is not _END:
            if isinstance(batch, _Failure):
                raise batch.error()
            self._given += self._micro_step
            yield batch
        self.epoch, self._given = self.epoch + 1, 0

    def _next(self, batches: Iterator[Any]) -> Any:
        try:
            return next(batches, _END)
        except RuntimeError as error:
            raise self.explained(error) or error from error

    def explained(self, error: RuntimeError) -> RunError | None:
        """What PyTorch's message about a dead worker means; None for any other error.

        PyTorch raises it when the worker ends, which may be while the training process does something else.
        """
        said = re.search(r"DataLoader worker \(pid\D*([\d, ]+)\)", str(error))
        for process in re.findall(r"\d+", said[1]) if said else ():
            found = self._board.read_by(int(process))
            if found is None:
                continue
            number, seconds = found
            place = where(self._reader.rows[number])
            if seconds >= self._board.read_timeout:
                return RunError(
                    f"{place}: reading it took more than data.read_timeout = {self._board.read_timeout:g} s and was "
                    "stopped; its media may be damaged, or their storage slow"
                )
            return RunError(f"{place}: reading it ended the process ({error}); its media may be damaged")
        return None


_END = object()


class _Board:
    """Which row each worker reads, in memory that all processes see."""

    def __init__(self, workers: int, read_timeout: float) -> None:
        self.read_timeout = read_timeout
        self._cells = multiprocessing.RawArray("q", 3 * workers)  # of each worker: process, row + 1, since when

    @contextmanager
    def reading(self, number: int) -> Iterator[None]:
        """The block reads a row; in a worker it may not take more than the time limit."""
        from torch.utils.data import get_worker_info

        worker = get_worker_info()
        if worker is None:
            yield
            return
        cell = 3 * worker.id
        self._cells[cell : cell + 3] = [os.getpid(), number + 1, time.monotonic_ns()]
        try:
            with time_limit(self.read_timeout):
                yield
        finally:  # not reached when the process ends
            self._cells[cell + 1] = 0

    def read_by(self, process: int) -> tuple[int, float] | None:
        """The row that a process has not finished, and the seconds since it began with it."""
        for cell in range(0, len(self._cells), 3):
            worker, row, since = self._cells[cell : cell + 3]
            if worker == process and row:
                return row - 1, (time.monotonic_ns() - since) / 1e9
        return None


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
        self,
        rows: Sequence[Row],
        make_sample: Callable[[Row], Sample],
        collate: Callable[[list[Any]], Any],
        board: _Board,
        *,
        packed: bool,
    ) -> None:
        self.rows, self._make_sample, self._collate, self._packed = rows, make_sample, collate, packed
        self._board = board

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, batch: MicroBatch) -> Any:
        made: dict[Slot, list[Sample]] = {}
        for slot in dict.fromkeys(batch):
            made[slot] = []
            for row in slot.rows:
                sample = self._make(row)
                if isinstance(sample, _Failure):
                    return sample
                made[slot].append(sample if slot.real else _without_labels(sample))
        items = [made[slot] for slot in batch]
        try:
            return self._collate(items if self._packed else [sample for item in items for sample in item])
        except Exception as error:
            ids = ", ".join(sample.id for item in items for sample in item)
            return _Failure(f"batch of {ids}: {type(error).__name__}: {error}\n{traceback.format_exc()}", user=False)

    def _make(self, number: int) -> Sample | _Failure:
        place = ""
        try:
            row = self.rows[number]
            place = where(row)
            with self._board.reading(number):
                return self._make_sample(row)
        except UserError as error:
            message = str(error)
            return _Failure(message if message.startswith(place) else f"{place}: {message}", user=True)
        except Exception as error:
            place = place or f"row {number}"
            return _Failure(f"{place}: {type(error).__name__}: {error}\n{traceback.format_exc()}", user=False)


def _without_labels(sample: Sample) -> Sample:
    return replace(sample, labels=sample.labels.new_full(sample.labels.shape, IGNORE))


def _unchanged(batch: Any) -> Any:
    return batch


def _start_worker(_: int) -> None:
    import torch

    torch.set_num_threads(1)
