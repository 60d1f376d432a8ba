from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from avlm.data.order import Epochs, Part, Slot, epoch_order, fingerprint


def lengths_of(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 100, rows).astype(np.int32)


def rows_of(epochs: Epochs, epoch: int) -> list[int]:
    return epochs.items(epoch).members.tolist()


def step_rows(epochs: Epochs, epoch: int, step: int, ranks: int, micro_batches: int, micro: int) -> list[int]:
    """Rows that count in a step, sorted; all ranks have as many places."""
    plan = epochs.plan(epoch, step, ranks, micro_batches, micro)
    assert [[len(batch) for batch in hands] for hands in plan] == [[micro] * ranks] * micro_batches
    return sorted(row for hands in plan for batch in hands for slot in batch if slot.real for row in slot.rows)


def test_order_is_a_permutation_of_its_own_for_every_seed_and_epoch() -> None:
    orders = [epoch_order(50, seed, epoch, True).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert all(sorted(o) == list(range(50)) for o in orders)
    assert len({tuple(o) for o in orders}) == 4
    assert epoch_order(50, 1, 1, True).tolist() == orders[3]


def test_order_does_not_change_between_releases() -> None:
    """When this fails, raise `avlm.data.order.FORMAT`: runs of an earlier release cannot be continued."""
    assert epoch_order(10, 7, 0, True).tolist() == [4, 5, 9, 8, 1, 7, 6, 0, 2, 3]
    lengths = [7, 3, 5, 2, 9, 4, 6, 8, 1, 5, 3, 7]
    packed = Epochs(lengths, seed=7, pack_size=12, parts=[Part(0, 8, 1.5), Part(8, 12)])
    assert list(packed.items(1)) == [(7, 5), (0, 2), (11, 9), (4, 10), (6, 6), (1, 8, 5), (3, 0, 1)]


def test_file_order_without_shuffle() -> None:
    assert epoch_order(5, 3, 2, False).tolist() == [0, 1, 2, 3, 4]
    assert rows_of(Epochs([1] * 5, shuffle=False), 2) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("micro", "ranks", "micro_batches"), [(8, 1, 1), (1, 1, 8), (2, 2, 2), (1, 4, 2), (4, 2, 1)])
@pytest.mark.parametrize("rows", [24, 21, 3])
@pytest.mark.parametrize("balanced", [False, True])
def test_steps_hold_the_same_rows_whatever_the_ranks(
    micro: int, ranks: int, micro_batches: int, rows: int, balanced: bool
) -> None:
    lengths = lengths_of(rows)
    epochs = Epochs(lengths, costs=lengths.astype(np.float32) if balanced else None)
    order = rows_of(epochs, 0)
    assert epochs.steps(0, 8) == -(-rows // 8)
    for step in range(epochs.steps(0, 8)):
        assert step_rows(epochs, 0, step, ranks, micro_batches, micro) == sorted(order[8 * step : 8 * step + 8])


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_every_row_once_an_epoch_in_packs_on_any_number_of_ranks(ranks: int) -> None:
    lengths = lengths_of(301)
    epochs = Epochs(lengths, costs=lengths.astype(np.float32), pack_size=256, seed=3)
    for epoch in (0, 1):
        steps = [step_rows(epochs, epoch, k, ranks, 8 // ranks, 1) for k in range(epochs.steps(epoch, 8))]
        assert sorted(row for step in steps for row in step) == list(range(301))
        reference = [step_rows(epochs, epoch, k, 1, 8, 1) for k in range(epochs.steps(epoch, 8))]
        assert steps == reference


def test_case_d3_all_ranks_run_equally_long_and_rows_count_once() -> None:
    epochs = Epochs([3, 3, 1, 3, 3], shuffle=False)
    plans = [epochs.plan(0, step, 2, 1, 2) for step in range(epochs.steps(0, 4))]
    assert plans[0] == [[(Slot((0,)), Slot((1,))), (Slot((2,)), Slot((3,)))]]
    filler = Slot((2,), real=False)  # the shortest row
    assert plans[1] == [[(Slot((4,)), filler), (filler, filler)]]


def test_no_rows_no_steps() -> None:
    assert Epochs([]).steps(0, 4) == Epochs([], pack_size=10).steps(0, 4) == 0


def test_packs_are_mixed_and_differ_between_epochs() -> None:
    """Files sorted by class: a pack has rows from all over, other ones each epoch, and steps are alike."""
    lengths = np.full(600, 20, np.int32) + np.arange(600, dtype=np.int32) // 100
    epochs = Epochs(lengths, pack_size=256, seed=1)
    first, second = epochs.items(0), epochs.items(1)
    classes = [len({row // 100 for row in pack}) for pack in first]
    assert np.mean(classes) > 4
    together = [{(a, b) for pack in packs for a in pack for b in pack if a < b} for packs in (first, second)]
    assert len(together[0] & together[1]) < 0.1 * len(together[0])
    rows_in_pack = np.diff(first.starts)
    assert abs(rows_in_pack[:20].mean() - rows_in_pack[-20:].mean()) < 1  # not the longest rows first


def test_few_rows_of_different_lengths_are_mixed_too() -> None:
    """All rows fit into the packer's pool, which is sorted by length: its random choices make the difference."""
    epochs = Epochs(np.arange(10, 130, 3), pack_size=400, seed=1)
    packs = [{frozenset(pack) for pack in epochs.items(epoch)} for epoch in range(4)]
    assert len(set.union(*packs)) > 0.8 * sum(map(len, packs))


def test_padding_costs_its_tokens() -> None:
    """Packs of rows that cost their tokens are all alike, however full, and are dealt in their order."""
    lengths = lengths_of(60)
    alike = Epochs(lengths, costs=lengths.astype(np.float32), pack_size=128)
    plain = Epochs(lengths, pack_size=128)
    assert alike.plan(0, 1, 4, 2, 1) == plain.plan(0, 1, 4, 2, 1)


def test_another_order_has_the_same_answer() -> None:
    epochs = [Epochs(lengths_of(200), pack_size=300, seed=5) for _ in range(2)]
    forward = [list(epochs[0].items(e)) for e in range(6)]
    backward = [list(epochs[1].items(e)) for e in reversed(range(6))]
    assert forward == backward[::-1]
    assert [epochs[0].count(e) for e in range(6)] == [len(packs) for packs in forward]


def test_fill() -> None:
    epochs = Epochs([6, 4, 5], pack_size=10)
    assert epochs.count(0) == 2
    assert epochs.fill(0) == 0.75
    assert Epochs([6, 4, 5]).fill(0) == 1.0


# ---- mixtures ----


def counts(part: Part, number: int, epoch: int, seed: int = 0) -> Counter[int]:
    return Counter(part.draw(number, seed, epoch).tolist())


def test_weight_one_is_every_row_once() -> None:
    assert Part(5, 10).draw(0, 0, 3).tolist() == [5, 6, 7, 8, 9]
    assert Part(5, 10).per_epoch == 5


def test_half_the_rows_then_the_other_half() -> None:
    part = Part(10, 20, 0.5)
    first, second, third = (set(part.draw(0, 0, epoch).tolist()) for epoch in range(3))
    assert len(first) == len(second) == 5
    assert first | second == set(range(10, 20))
    assert third == first


def test_two_and_a_half_times() -> None:
    part = Part(0, 8, 2.5)
    assert part.per_epoch == 20
    for epoch in range(3):
        seen = counts(part, 0, epoch)
        assert sorted(seen.values()) == [2] * 4 + [3] * 4
    assert set((counts(part, 0, 0) + counts(part, 0, 1)).values()) == {5}


@pytest.mark.parametrize("weight", [0.3, 0.7, 1.1, 3.9])
def test_rows_are_seen_equally_often_in_the_long_run(weight: float) -> None:
    part = Part(0, 50, weight)
    total: Counter[int] = Counter()
    for epoch in range(20):
        seen = counts(part, 0, epoch)
        assert sum(seen.values()) == part.per_epoch == round(50 * weight)
        assert set(seen.values()) <= {int(weight), int(weight) + 1}
        total += seen
    assert set(total.values()) == {round(20 * weight)}


def test_a_small_share_of_few_rows_is_at_least_one_row() -> None:
    assert Part(0, 3, 0.1).per_epoch == 1
    assert {int(Part(0, 3, 0.1).draw(0, 0, epoch)[0]) for epoch in range(3)} == {0, 1, 2}


def test_halves_depend_on_seed_and_part() -> None:
    part = Part(0, 100, 0.5)
    assert len({tuple(part.draw(n, seed, 0).tolist()) for n in (0, 1) for seed in (0, 1)}) == 4


def test_mixture_of_parts() -> None:
    lengths = lengths_of(40)
    parts = [Part(0, 10, 2), Part(10, 30), Part(30, 40, 0.5)]
    epochs = Epochs(lengths, parts=parts, seed=2)
    seen = Counter(rows_of(epochs, 0))
    assert epochs.count(0) == epochs.count(1) == 45 == len(rows_of(epochs, 0))
    assert [sum(seen[row] for row in range(p.start, p.stop)) for p in parts] == [20, 20, 5]
    packed = Epochs(lengths, parts=parts, seed=2, pack_size=200)
    assert Counter(rows_of(packed, 0)) == seen


def test_parts_must_cover_the_rows() -> None:
    with pytest.raises(ValueError, match="are not 10 rows"):
        Epochs([1] * 10, parts=[Part(0, 4), Part(5, 10)])


def test_fingerprint_sees_ids_order_and_lengths() -> None:
    ids, lengths = np.arange(5, dtype=np.uint64), np.arange(5, dtype=np.int32)
    same = fingerprint(ids, lengths)
    assert fingerprint(ids.copy(), lengths.astype(np.int64)) == same
    assert (
        len({same, fingerprint(ids[::-1], lengths), fingerprint(ids, lengths + 1), fingerprint(ids[:4], lengths)}) == 4
    )
