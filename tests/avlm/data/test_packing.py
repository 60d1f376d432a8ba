from __future__ import annotations

import numpy as np
import pytest

from avlm.data.packing import Packs, fitting, pack
from avlm.data.processing import TokenCount
from avlm.errors import UserError
from tests.avlm.data.toy import SHORT, toy_row

ROWS = [toy_row(SHORT, id=f"R{i}", line=i + 1) for i in range(3)]
COUNTS = [
    TokenCount(total=100, media=0, prompt=80),
    TokenCount(total=1340, media=1280, prompt=1320),
    TokenCount(total=1200, media=0, prompt=1180),
]


def test_case_b4_report() -> None:
    kept, tokens, skipped = fitting(zip(ROWS, COUNTS, strict=True), 1000, "report")
    assert (kept.tolist(), tokens.tolist()) == ([0], [100])
    assert [s.row.id for s in skipped] == ["R1", "R2"]
    assert len(kept) + len(skipped) == 3
    assert "media" in skipped[0].reason and "1280" in skipped[0].reason
    assert "no target would be left" in skipped[1].reason
    assert skipped[0].as_dict() == {
        "id": "R1",
        "source": "toy.jsonl",
        "line": 2,
        "tokens": 1340,
        "reason": skipped[0].reason,
    }


def test_case_b4_error() -> None:
    with pytest.raises(UserError) as caught:
        fitting(zip(ROWS, COUNTS, strict=True), 1000, "error")
    message = str(caught.value)
    assert "2 of 3 rows have more than 1000 tokens" in message
    assert message.splitlines()[1].startswith("  toy.jsonl:2: row 'R1': 1340 tokens")


def test_limit_is_inclusive_and_a_cut_answer_is_told() -> None:
    counts = [TokenCount(1000, 0, 990), TokenCount(1001, 0, 990)]
    kept, _, skipped = fitting(zip(ROWS[:2], counts, strict=True), 1000, "report")
    assert kept.tolist() == [0]
    assert "answer ends after" in skipped[0].reason


def test_nothing_left_is_an_error_in_both_modes() -> None:
    with pytest.raises(UserError, match="No row is left"):
        fitting(zip(ROWS[1:], COUNTS[1:], strict=True), 1000, "report")


def test_no_rows_are_no_error() -> None:
    kept, tokens, skipped = fitting([], 1000, "error")
    assert (len(kept), len(tokens), skipped) == (0, 0, [])


# ---- packs ----


def demo_mix(rows: int) -> np.ndarray:
    """The twelve lengths of the demo's rows."""
    values = [67, 72, 74, 76, 81, 83, 88, 93, 95, 100, 105, 107]
    weights = np.array([121, 40, 95] * 4)
    return np.random.default_rng(0).choice(values, rows, p=weights / weights.sum())


def long_tail(rows: int) -> np.ndarray:
    """Log-normal lengths with the longest as long as a pack of 21,504 tokens."""
    return np.exp(np.random.default_rng(0).normal(7.5, 1.3, rows)).clip(16, 21504).astype(np.int32)


def clips(rows: int) -> np.ndarray:
    """Lengths of 1,000 to 8,000 tokens."""
    return np.random.default_rng(0).integers(1000, 8001, rows)


MIXES = {
    "demo": (demo_mix, 1024),
    "demo_short": (demo_mix, 512),
    "demo_long": (demo_mix, 21504),
    "long_tail": (long_tail, 21504),
    "clips": (clips, 21504),
    "clips_million": (clips, 1_000_000),  # coarser units than tokens
}


@pytest.mark.parametrize("name", MIXES)
def test_packs_are_full_and_every_item_is_in_one(name: str) -> None:
    mix, size = MIXES[name]
    lengths = mix(20_000)
    packs = pack(lengths, size)
    assert np.array_equal(np.sort(packs.members), np.arange(20_000))
    assert packs.sums(lengths).max() <= size
    assert lengths.sum() / (len(packs) * size) >= 0.985
    assert all(list(p) == sorted(p) for p in packs)
    assert [p[0] for p in packs] == sorted(p[0] for p in packs)


@pytest.mark.parametrize(("name", "least"), [("demo", 0.985), ("demo_short", 0.985), ("long_tail", 0.985)])
def test_a_small_dataset_is_packed_as_well(name: str, least: float) -> None:
    mix, size = MIXES[name]
    lengths = mix(1024)
    assert lengths.sum() / (len(pack(lengths, size)) * size) >= least


def test_a_pure_function_of_lengths_size_and_seed() -> None:
    lengths = long_tail(3000)
    assert list(pack(lengths, 21504, seed=1)) == list(pack(lengths.tolist(), 21504, seed=1))
    assert list(pack(lengths, 21504, seed=1)) != list(pack(lengths, 21504, seed=2))


def test_exact_fits_are_found() -> None:
    assert sorted(pack([6, 5, 4, 5, 7, 3], 10)) == [(0, 2), (1, 3), (4, 5)]
    assert list(pack([10, 10], 10)) == [(0,), (1,)]
    assert list(pack([], 10)) == []
    assert list(pack([1] * 7, 3)) == [(0, 1, 2), (3, 4, 5), (6,)] or len(pack([1] * 7, 3)) == 3


def test_best_subset_of_the_candidates() -> None:
    """Largest first would put 60 with 30 and leave 10 free; 60 + 25 + 15 fills the pack."""
    assert sorted(pack([60, 30, 25, 15], 100)) == [(0, 2, 3), (1,)]


def test_window_bounds_how_far_items_wait() -> None:
    lengths = np.full(10_000, 100)
    packs = pack(lengths, 1000, window=64)
    assert len(packs) == 1000
    assert all(p[-1] - p[0] < 10_000 for p in packs)
    longest = pack([*clips(500), 21504], 21504, window=64)
    assert (500,) in list(longest)


def test_nothing_fits_together() -> None:
    assert len(pack([51] * 100, 100)) == 100
    assert len(pack([100] * 5, 100)) == 5


def test_too_long_for_a_pack() -> None:
    with pytest.raises(ValueError, match="item 1 has 11 tokens"):
        pack([3, 11], 10)


def test_groups() -> None:
    packs = Packs.of([[3, 1], [2], [0, 4, 5]])
    assert (len(packs), packs[0], list(packs)) == (3, (3, 1), [(3, 1), (2,), (0, 4, 5)])
    assert packs.sums(np.array([1, 2, 4, 8, 16, 32], np.int32)).tolist() == [10, 4, 49]
    assert list(packs.reordered(np.array([2, 0, 1]))) == [(0, 4, 5), (3, 1), (2,)]
    assert list(Packs.single(np.array([7, 8]))) == [(7,), (8,)]
    assert Packs.of([]).sums(np.zeros(0)).tolist() == []
    with pytest.raises(IndexError):
        packs[3]
