"""Work in other processes, which may crash or hang without taking the program along."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import batched
from typing import Any

AHEAD = 2
"""Batches that wait for each process, so that none runs dry."""


@dataclass(frozen=True)
class Died:
    """The process that worked on an item ended before it was done: it crashed, or was stopped after the time limit."""


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End this process, whatever it is doing, when the block takes longer. For processes made to work for others.

    An alarm without a handler: the kernel ends the process even inside a library that never returns. Only the main
    thread may use it; limits do not nest. Signal 14 (SIGALRM) tells such an end from others.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def each[Item, Result](
    function: Callable[[Item], Result], items: Iterable[Item], *, jobs: int, seconds: float, together: int = 16
) -> Iterator[tuple[Item, Result | Died]]:
    """Items with what `function` returns for them, as they are done.

    function: importable, its argument and result can be pickled. jobs: processes, started anew (nothing is inherited).
    seconds: most that one item may take. together: items that are sent to a process at a time.
    An exception of `function` is raised here.
    """
    waiting: deque[Sequence[Item]] = deque(batched(items, together))
    while waiting:
        running: dict[Future[list[Result]], Sequence[Item]] = {}
        pool = _pool(jobs)
        try:
            while waiting or running:
                while waiting and len(running) < jobs * AHEAD:
                    running[pool.submit(_work, function, waiting[0], seconds)] = waiting[0]
                    waiting.popleft()
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    results = future.result()
                    yield from zip(running.pop(future), results, strict=True)
        except BrokenProcessPool:  # one of these batches is to blame: each gets a process of its own
            pool.shutdown(wait=True, cancel_futures=True)
            for future, batch in running.items():
                if future.done() and future.exception() is None:
                    yield from zip(batch, future.result(), strict=True)
                else:
                    yield from _alone(function, batch, seconds)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _alone[Item, Result](
    function: Callable[[Item], Result], batch: Sequence[Item], seconds: float
) -> Iterator[tuple[Item, Result | Died]]:
    with _pool(1) as pool:
        try:
            results: Sequence[Result | Died] = pool.submit(_work, function, batch, seconds).result()
        except BrokenProcessPool:
            results = [Died()] if len(batch) == 1 else []
    if results:
        yield from zip(batch, results, strict=True)
    else:
        for item in batch:
            yield from _alone(function, (item,), seconds)


def _pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))


def _work(function: Callable[[Any], Any], items: Sequence[Any], seconds: float) -> list[Any]:
    results = []
    for item in items:
        with time_limit(seconds):
            results.append(function(item))
    return results
