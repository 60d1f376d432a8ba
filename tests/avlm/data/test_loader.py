from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
import torch

from avlm.data.loader import Loader
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
    items: Any, micro: int = 2, total: int = 2, collate: Any = ids, make: Any = make_sample, **keys: Any
) -> Loader:
    return Loader(items, make, collate, micro_batch_size=micro, global_batch_size=total, **keys)


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
def test_resume_on_another_number_of_ranks(ranks: int) -> None:
    """Global batch 8; after two steps the run goes on with other ranks and the same items in each step."""

    def steps(size: int, state: dict[str, int] | None, count: int) -> tuple[list[list[str]], dict[str, int]]:
        sources = [loader(rows(40), 1, 8, dp_rank=r, dp_size=size) for r in range(size)]
        for source in sources:
            if state:
                source.load_state_dict(state)
        micro = [take(source, count * 8 // size) for source in sources]
        flat = [id for batches in zip(*micro, strict=True) for batch in batches for id in batch]
        assert len({tuple(s.state_dict().items()) for s in sources}) == 1
        return [flat[at : at + 8] for at in range(0, len(flat), 8)], sources[0].state_dict()

    reference, _ = steps(1, None, 10)
    done, state = steps(2, None, 2)
    assert done + steps(ranks, state, 8)[0] == reference


def test_resume_where_micro_batches_do_not_meet() -> None:
    source = loader(rows(12), 4, 4)
    with pytest.raises(UserError, match="6 samples into epoch 0"):
        source.load_state_dict({"epoch": 0, "samples": 6})


@pytest.mark.parametrize("total", [4, 8])
def test_case_d3_tail(total: int) -> None:
    ranks = [loader(rows(5), 2, total, dp_rank=r, dp_size=2, shuffle=False) for r in (0, 1)]
    batches = [list(source) for source in ranks]
    assert [len(b) for b in batches] == [2, 2] == [len(source) for source in ranks]
    assert batches[0] == [["0", "1"], ["4", "(4)"]]
    assert batches[1] == [["2", "3"], ["(4)", "(4)"]]


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9])
def test_length(n: int) -> None:
    source = loader(rows(n), 2, 4, dp_size=2)
    assert len(source) == len(list(source))


@pytest.mark.parametrize("workers", [0, 2])
def test_packs(workers: int) -> None:
    r = rows(5)
    source = loader([[r[0], r[3]], [r[1]], [r[2], r[4]]], 1, 2, shuffle=False, workers=workers)
    assert list(source) == [["0+3"], ["1"], ["2+4"], ["(2)+(4)"]]


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
    packed = loader([rows(6)[2:4]], 1, 1, workers=workers, make=fails_on_three)
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
