from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch

from avlm.data.loader import Loader
from avlm.data.order import Epochs, Part
from avlm.data.types import IGNORE, Row, Sample
from avlm.errors import RunError, UserError
from tests.avlm.data.toy import SHORT, toy_row


def rows(n: int) -> list[Row]:
    return [toy_row(SHORT, id=str(i), line=i + 1) for i in range(n)]


def make_sample(row: Row) -> Sample:
    token = torch.tensor([int(row.id)])
    return Sample(row.id, token, token.clone(), torch.zeros(1))


def ids(samples: list[Any]) -> list[str]:
    """A "batch": the ids, in brackets where the sample only fills the batch."""
    packs = [s if isinstance(s, list) else [s] for s in samples]
    return ["+".join(s.id if (s.labels != IGNORE).any() else f"({s.id})" for s in pack) for pack in packs]


def loader(
    items: list[Row],
    micro: int = 2,
    total: int = 2,
    collate: Any = ids,
    make: Any = make_sample,
    *,
    seed: int = 0,
    shuffle: bool = True,
    epochs: Epochs | None = None,
    **keys: Any,
) -> Loader:
    epochs = epochs or Epochs([1] * len(items), seed=seed, shuffle=shuffle)
    return Loader(items, epochs, make, collate, micro_batch_size=micro, global_batch_size=total, **keys)


def mixture() -> Epochs:
    """Packs that differ between epochs, of two sources with weights, dealt by cost."""
    lengths = np.arange(40, dtype=np.int32) % 9 + 1
    parts = [Part(0, 25, 1.5), Part(25, 40)]
    return Epochs(lengths, costs=lengths.astype(np.float32) ** 2, parts=parts, seed=3, pack_size=16)


def take(source: Loader, count: int) -> list[list[str]]:
    """Batches as a training loop takes them: it stops while the loader is suspended."""
    out: list[list[str]] = []
    while len(out) < count:
        for batch in source:
            out.append(batch)
            if len(out) == count:
                break
    return out


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [0, 1, 2, 5, 7])
def test_case_d1_resume_continues_exactly(workers: int, stop: int) -> None:
    reference = take(loader(rows(10), seed=7, workers=workers), 10)
    first, second = list(chain(*reference[:5])), list(chain(*reference[5:]))
    assert sorted(map(int, first)) == sorted(map(int, second)) == list(range(10))
    assert first != second

    stopped = loader(rows(10), seed=7, workers=workers)
    done = take(stopped, stop)
    state = stopped.state_dict()
    assert set(state) == {"epoch", "samples"}
    resumed = loader(rows(10), seed=7, workers=workers)
    resumed.load_state_dict(state)
    assert done + take(resumed, 10 - stop) == reference


def test_state_counts_batches_that_were_taken_not_those_read_ahead() -> None:
    source = loader(rows(10), seed=7, workers=2)
    for number, _ in enumerate(source, 1):
        assert source.state_dict() == {"epoch": 0, "samples": 2 * number}
    assert source.state_dict() == {"epoch": 1, "samples": 0}


def test_resume_in_a_loop_that_sets_the_epoch() -> None:
    def run(source: Loader, start: int) -> Iterator[list[str]]:
        for epoch in range(start, 3):
            source.sampler.set_epoch(epoch)
            yield from source

    reference = list(run(loader(rows(6)), 0))
    stopped = loader(rows(6))
    batches = run(stopped, 0)
    done = [next(batches) for _ in range(6)]  # the last batch of epoch 1
    assert stopped.state_dict() == {"epoch": 1, "samples": 6}
    resumed = loader(rows(6))
    resumed.load_state_dict(stopped.state_dict())
    assert done + list(run(resumed, 1)) == reference


def test_set_epoch_starts_another_epoch_and_can_go_back() -> None:
    source = loader(rows(6))
    epoch0, epoch1 = list(source), list(source)
    source.set_epoch(0)
    assert list(source) == epoch0
    source.set_epoch(1)
    assert list(source) == epoch1


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("packed", [False, True])
def test_resume_on_another_number_of_ranks(ranks: int, packed: bool) -> None:
    """Global batch 8; after two steps the run goes on with other ranks and the same items in each step."""

    def steps(size: int, state: dict[str, int] | None, count: int) -> tuple[list[list[str]], dict[str, int]]:
        epochs = mixture() if packed else None
        sources = [loader(rows(40), 1, 8, dp_rank=r, dp_size=size, epochs=epochs) for r in range(size)]
        for source in sources:
            if state:
                source.load_state_dict(state)
        micro = [take(source, count * 8 // size) for source in sources]
        flat = [id for batches in zip(*micro, strict=True) for batch in batches for id in batch]
        assert len({tuple(s.state_dict().items()) for s in sources}) == 1
        return [sorted(flat[at : at + 8]) for at in range(0, len(flat), 8)], sources[0].state_dict()

    reference, _ = steps(1, None, 10)
    done, state = steps(2, None, 2)
    assert done + steps(ranks, state, 8)[0] == reference


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [1, 2, 3, 4, 6])
def test_resume_with_packs_and_mixture_continues_exactly(workers: int, stop: int) -> None:
    """Four packs a step on two ranks; epochs of different lengths in packs."""
    reference = take(loader(rows(40), 1, 4, epochs=mixture(), dp_size=2), 16)
    stopped = loader(rows(40), 1, 4, epochs=mixture(), dp_size=2, workers=workers)
    done = take(stopped, 2 * stop)
    resumed = loader(rows(40), 1, 4, epochs=mixture(), dp_size=2)
    resumed.load_state_dict(stopped.state_dict())
    assert done + take(resumed, 16 - 2 * stop) == reference


def test_resume_inside_a_step_is_refused() -> None:
    source = loader(rows(12), 2, 4)
    with pytest.raises(UserError, match=r"6 samples into epoch 0, is not a multiple of batch.global_batch_size = 4"):
        source.load_state_dict({"epoch": 0, "samples": 6})


@pytest.mark.parametrize("total", [4, 8])
def test_case_d3_tail(total: int) -> None:
    ranks = [loader(rows(5), 2, total, dp_rank=r, dp_size=2, shuffle=False) for r in (0, 1)]
    batches = [list(source) for source in ranks]
    assert [len(b) for b in batches] == [2, 2] == [len(source) for source in ranks]
    assert batches[0] == [["0", "1"], ["4", "(0)"]]
    assert batches[1] == [["2", "3"], ["(0)", "(0)"]]


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9])
def test_length(n: int) -> None:
    source = loader(rows(n), 2, 4, dp_size=2)
    assert len(source) == len(list(source))


@pytest.mark.parametrize("workers", [0, 2])
def test_packs(workers: int) -> None:
    epochs = Epochs([7, 10, 6, 3, 4], shuffle=False, pack_size=10)
    source = loader(rows(5), 1, 2, epochs=epochs, workers=workers)
    assert list(source) == [["0+3"], ["1"], ["2+4"], ["(3)"]]
    assert len(source) == 4


def test_length_is_that_of_the_epoch() -> None:
    epochs = Epochs(np.arange(10, 100, 3), parts=[Part(0, 30, 0.5)], pack_size=100)
    counts = [epochs.count(epoch) for epoch in range(20)]
    assert len(set(counts)) > 1
    source = loader(rows(30), 1, 1, epochs=epochs)
    for count in counts:
        assert len(source) == count == len(list(source))


def test_the_same_row_twice_in_a_batch() -> None:
    epochs = Epochs([1, 1], shuffle=False, parts=[Part(0, 2, 2)])
    assert list(loader(rows(2), 4, 4, epochs=epochs)) == [["0", "1", "0", "1"]]


def fails_on_three(row: Row) -> Sample:
    if row.id == "3":
        raise UserError("clip.mp4: cannot be read")
    if row.id == "5":
        raise ZeroDivisionError("bug")
    return make_sample(row)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_item_is_named(workers: int) -> None:
    source = loader(rows(6), shuffle=False, workers=workers, make=fails_on_three)
    with pytest.raises(UserError) as caught:
        list(source)
    assert str(caught.value) == "toy.jsonl:4: row '3': clip.mp4: cannot be read"
    epochs = Epochs([1] * 5, pack_size=5)
    packed = loader(rows(5), 1, 1, epochs=epochs, workers=workers, make=fails_on_three)
    with pytest.raises(UserError, match=r"toy.jsonl:4: row '3'"):
        list(packed)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bug_is_a_failed_run_with_its_row(workers: int) -> None:
    source = loader(rows(6)[4:], shuffle=False, workers=workers, make=fails_on_three)
    with pytest.raises(RunError, match=r"(?s)toy.jsonl:6: row '5': ZeroDivisionError: bug.*fails_on_three"):
        list(source)


def broken_collate(samples: list[Sample]) -> None:
    raise ValueError("do not fit")


def test_a_batch_that_cannot_be_collated_is_named() -> None:
    with pytest.raises(RunError, match="batch of 0, 1: ValueError: do not fit"):
        list(loader(rows(2), shuffle=False, collate=broken_collate))


def threads(samples: list[Sample]) -> int:
    return torch.get_num_threads()


def test_workers_use_one_thread() -> None:
    assert list(loader(rows(2), collate=threads, workers=1)) == [1]


def test_batch_sizes_must_fit() -> None:
    with pytest.raises(UserError, match=r"batch.global_batch_size: 6 is not a multiple"):
        loader(rows(2), 2, 6, dp_size=2)


def deadly(row: Row) -> Sample:
    if row.id == "3":
        ctypes.PyDLL(None).sleep(1000)  # a library that never returns and keeps the interpreter's lock
    if row.id == "5":
        os.kill(os.getpid(), signal.SIGSEGV)
    return make_sample(row)


@pytest.mark.timeout(60)
def test_a_reader_that_hangs_is_stopped() -> None:
    hanging = loader(rows(8)[:5], shuffle=False, make=deadly, workers=2, read_timeout=1.0)
    with pytest.raises(RunError, match=r"toy.jsonl:4: row '3': reading it took more than data.read_timeout = 1 s"):
        list(hanging)
    assert hanging.state_dict()["samples"] <= 2


@pytest.mark.timeout(60)
def test_a_reader_that_crashes_is_named() -> None:
    items = [row for row in rows(8) if row.id != "3"]
    with pytest.raises(RunError, match=r"toy.jsonl:6: row '5': reading it ended the process"):
        list(loader(items, shuffle=False, make=deadly, workers=2))


@pytest.mark.timeout(60)
def test_time_limits_are_for_each_row_and_only_for_workers() -> None:
    assert len(list(loader(rows(12), make=slow, workers=2, read_timeout=0.5))) == 6
    assert len(list(loader(rows(4), make=slow, workers=0, read_timeout=0.01))) == 2


def slow(row: Row) -> Sample:
    time.sleep(0.1)
    return make_sample(row)
