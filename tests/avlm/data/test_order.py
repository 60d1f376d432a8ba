from __future__ import annotations

import pytest

from avlm.data.order import epoch_order, plan


def test_order_is_a_permutation_of_its_own_for_every_seed_and_epoch() -> None:
    orders = [epoch_order(50, seed, epoch, True) for seed in (0, 1) for epoch in (0, 1)]
    assert all(sorted(o) == list(range(50)) for o in orders)
    assert len({tuple(o) for o in orders}) == 4
    assert epoch_order(50, 1, 1, True) == orders[3]


def test_order_does_not_change_between_releases() -> None:
    assert epoch_order(10, 7, 0, True) == [4, 5, 9, 8, 1, 7, 6, 0, 2, 3]


def test_file_order_without_shuffle() -> None:
    assert epoch_order(5, 3, 2, False) == [0, 1, 2, 3, 4]


def step_items(order: list[int], micro: int, ranks: int, steps: int) -> list[list[int]]:
    """Items of every optimizer step over all ranks, in the order of the data."""
    batches = plan(order, micro, ranks, steps)
    assert len({len(b) for b in batches}) == 1
    out: list[list[int]] = []
    for k in range(len(batches[0])):
        if k % steps == 0:
            out.append([])
        out[-1] += [slot.item for rank in batches for slot in rank[k] if slot.real]
    return out


@pytest.mark.parametrize(("micro", "ranks", "steps"), [(8, 1, 1), (1, 1, 8), (2, 2, 2), (1, 4, 2), (4, 2, 1)])
@pytest.mark.parametrize("rows", [24, 21, 3])
def test_steps_hold_the_same_items_whatever_the_ranks(micro: int, ranks: int, steps: int, rows: int) -> None:
    order = epoch_order(rows, 0, 0, True)
    assert step_items(order, micro, ranks, steps) == [order[at : at + 8] for at in range(0, rows, 8)]


def test_case_d3_all_ranks_run_equally_long_and_rows_count_once() -> None:
    ranks = plan(list(range(5)), 2, 2, 1)
    assert [len(batches) for batches in ranks] == [2, 2]
    assert [[[s.item for s in batch] for batch in batches] for batches in ranks] == [[[0, 1], [4, 4]], [[2, 3], [4, 4]]]
    real = [slot.item for batches in ranks for batch in batches for slot in batch if slot.real]
    assert sorted(real) == [0, 1, 2, 3, 4]


def test_no_items_no_batches() -> None:
    assert plan([], 2, 2, 3) == [[], []]
