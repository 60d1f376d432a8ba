from __future__ import annotations

import random

import pytest

from avlm.data.packing import fitting, pack
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
    kept, skipped = fitting(ROWS, COUNTS, 1000, "report")
    assert kept == [0]
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
        fitting(ROWS, COUNTS, 1000, "error")
    message = str(caught.value)
    assert "2 of 3 rows have more than 1000 tokens" in message
    assert message.splitlines()[1].startswith("  toy.jsonl:2: row 'R1': 1340 tokens")


def test_limit_is_inclusive_and_a_cut_answer_is_told() -> None:
    counts = [TokenCount(1000, 0, 990), TokenCount(1001, 0, 990)]
    kept, skipped = fitting(ROWS[:2], counts, 1000, "report")
    assert kept == [0]
    assert "answer ends after" in skipped[0].reason


def test_nothing_left_is_an_error_in_both_modes() -> None:
    with pytest.raises(UserError, match="No row is left"):
        fitting(ROWS[1:], COUNTS[1:], 1000, "report")


def test_best_fit() -> None:
    # 6 opens A, 5 opens B; 4 fills A up (best fit), 5 fills B up, 7 opens C, 2 goes to C
    assert pack([6, 5, 4, 5, 7, 2], 10) == [[0, 2], [1, 3], [4, 5]]
    assert pack([], 10) == []
    assert pack([10, 10], 10) == [[0], [1]]


def test_every_item_once_and_no_pack_too_large() -> None:
    random.seed(0)
    lengths = [random.randint(1, 400) for _ in range(2000)]
    packs = pack(lengths, 1000)
    assert sorted(i for p in packs for i in p) == list(range(2000))
    assert all(sum(lengths[i] for i in p) <= 1000 for p in packs)
    assert all(p == sorted(p) for p in packs)
    assert [p[0] for p in packs] == sorted(p[0] for p in packs)
    assert packs == pack(lengths, 1000)
    assert sum(lengths) / (1000 * len(packs)) > 0.97


def test_window_keeps_packs_local() -> None:
    random.seed(0)
    lengths = [random.randint(200, 400) for _ in range(1000)]
    packs = pack(lengths, 1000, window=4)
    first = [p[0] for p in packs]
    for number, items in enumerate(packs[:-4]):
        assert items[-1] < first[number + 4]


def test_too_long_for_a_pack() -> None:
    with pytest.raises(ValueError, match="item 1 has 11 tokens"):
        pack([3, 11], 10)
