"""How long a run is and which learning rate each step has. The one definition that every stack's schedule must equal.

Steps count from 1. With a warmup of w steps and a horizon of H steps, step k has the learning rate

    lr · k / w                                            for k ≤ w
    min_lr + (lr - min_lr) · (1 + cos(π (k - w) / (H + 1 - w))) / 2   for k > w

so the peak is first reached at step w, the last warmup step, and the cosine arrives at `min_lr` one step after the
last one (the last step still learns when `min_lr` is 0). w = 0 is the same as w = 1: the run starts at the peak.
Cosine annealing: Loshchilov & Hutter, 2017, arXiv:1608.03983.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from avlm.errors import UserError
from avlm.recipe.schema import Recipe


def horizon(recipe: Recipe, steps_per_epoch: int | Callable[[int], int]) -> int:
    """Optimizer steps of the whole run: `max_steps` or `epochs`, whichever ends it first.

    Args:
        recipe: the run's recipe.
        steps_per_epoch: optimizer steps in one pass over the training rows; a last, smaller batch counts as a step.
            Where epochs differ (packs are made anew for each), a function that gives the steps of epoch 0, 1, ….

    Raises:
        ValueError: an epoch has less than one step.
        UserError: neither `max_steps` nor `epochs` is given.
    """
    most, epochs = recipe.schedule.max_steps, recipe.schedule.epochs
    if most is None and epochs is None:
        raise UserError("schedule: neither max_steps nor epochs is given; one of them ends the run")
    total = 0
    for epoch in range(epochs if epochs is not None else 1):
        steps = steps_per_epoch if isinstance(steps_per_epoch, int) else steps_per_epoch(epoch)
        if steps < 1:
            raise ValueError(f"epoch {epoch} has {steps} steps; an epoch has at least one step")
        total += steps
        if most is not None and (epochs is None or total >= most):
            return most
    return total


def warmup_steps(recipe: Recipe, horizon: int) -> int:
    """Steps of the warmup: the given number, or the given share of `horizon`, rounded up.

    Raises:
        UserError: the warmup is longer than the run.
    """
    warmup = recipe.optimizer.warmup
    steps = warmup if isinstance(warmup, int) else math.ceil(Fraction(repr(warmup)) * horizon)
    if steps > horizon:
        raise UserError(
            f"optimizer.warmup: {steps} warmup steps do not fit into the run's {horizon} steps; "
            "write fewer, or a share below 1"
        )
    return steps


def lr_at(recipe: Recipe, step: int, horizon: int) -> float:
    """Learning rate of `step` (1 to `horizon`).

    Raises:
        ValueError: the run has no such step.
    """
    if not 1 <= step <= horizon:
        raise ValueError(f"step {step} is not in 1 to {horizon}")
    peak, low = recipe.optimizer.lr, recipe.optimizer.min_lr
    warmup = max(warmup_steps(recipe, horizon), 1)
    if step <= warmup:
        return peak * step / warmup
    return low + (peak - low) * (1 + math.cos(math.pi * (step - warmup) / (horizon + 1 - warmup))) / 2
