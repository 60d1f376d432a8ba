"""Length of a run and its learning rates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest

from avlm.errors import UserError
from avlm.recipe.horizon import horizon, lr_at, warmup_steps
from avlm.recipe.load import load_recipe
from avlm.recipe.schema import Recipe

Make = Callable[..., Recipe]


@pytest.fixture
def make(write: Callable[..., str]) -> Make:
    return lambda *overrides: load_recipe(write(), overrides).recipe


def test_whichever_comes_first(make: Make) -> None:
    """80 rows in batches of 8 are 10 steps an epoch."""
    assert horizon(make("schedule.max_steps=250"), 10) == 250
    assert horizon(make("schedule.max_steps=250", "schedule.epochs=3"), 10) == 30
    assert horizon(make("schedule.max_steps=25", "schedule.epochs=3"), 10) == 25
    assert horizon(make("schedule.max_steps=null", "schedule.epochs=3"), 10) == 30


def test_epochs_of_different_lengths(make: Make) -> None:
    asked: list[int] = []

    def steps(epoch: int) -> int:
        asked.append(epoch)
        return (10, 12, 9)[epoch]

    assert horizon(make("schedule.max_steps=null", "schedule.epochs=3"), steps) == 31
    assert horizon(make("schedule.max_steps=22", "schedule.epochs=3"), steps) == 22
    assert horizon(make("schedule.max_steps=250", "schedule.epochs=2"), steps) == 22
    assert asked == [0, 1, 2, 0, 1, 0, 1]
    assert horizon(make("schedule.max_steps=250"), steps) == 250


def test_horizon_refuses(make: Make) -> None:
    with pytest.raises(UserError, match="one of them"):
        horizon(make("schedule.max_steps=null"), 10)
    with pytest.raises(ValueError, match="at least one step"):
        horizon(make(), 0)


@pytest.mark.parametrize(
    ("warmup", "steps", "expected"),
    [
        ("10", 250, 10),
        ("0", 250, 0),
        ("0.1", 250, 25),
        ("0.1", 30, 3),
        ("0.07", 100, 7),
        ("0.1", 5, 1),
        ("0.0", 9, 0),
        ("0.99", 1, 1),
    ],
)
def test_warmup_steps(make: Make, warmup: str, steps: int, expected: int) -> None:
    assert warmup_steps(make(f"optimizer.warmup={warmup}"), steps) == expected


def test_warmup_longer_than_the_run(make: Make) -> None:
    with pytest.raises(UserError, match="31 warmup steps do not fit into the run's 30 steps"):
        warmup_steps(make("optimizer.warmup=31"), 30)


def test_schedule(make: Make) -> None:
    recipe = make("optimizer={lr: 1e-3, min_lr: 1e-4, warmup: 10}")
    lrs = [lr_at(recipe, step, 250) for step in range(1, 251)]
    assert lrs[:10] == pytest.approx([1e-4 * step for step in range(1, 11)])
    assert lrs.index(max(lrs)) == 9, "the peak is first reached at the last warmup step"
    assert all(a > b for a, b in itertools.pairwise(lrs[9:]))
    assert lr_at(recipe, 130, 250) > 5.5e-4 > lr_at(recipe, 131, 250), "half of the cosine is at (10 + 251) / 2"
    assert lrs[-1] == pytest.approx(1e-4 + 9e-4 * (1 + math.cos(math.pi * 240 / 241)) / 2)
    assert lrs[-1] > 1e-4


def test_no_warmup_starts_at_the_peak(make: Make) -> None:
    none, one = make("optimizer.warmup=0"), make("optimizer.warmup=1")
    assert lr_at(none, 1, 10) == 5e-5
    assert [lr_at(none, k, 10) for k in range(1, 11)] == [lr_at(one, k, 10) for k in range(1, 11)]
    assert lr_at(one, 1, 1) == 5e-5
    assert lr_at(none, 10, 10) > 0


@pytest.mark.parametrize("step", [0, 11])
def test_steps_count_from_one(make: Make, step: int) -> None:
    with pytest.raises(ValueError, match="not in 1 to 10"):
        lr_at(make(), step, 10)
