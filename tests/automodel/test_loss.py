"""Case C1: the mean runs over tokens, however the batch is cut."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytestmark = pytest.mark.upstream

PARTS = ((5, 1.0), (1, 4.0))  # supervised tokens, loss of each


def part(weight: Any, tokens: int, loss: float) -> tuple[Any, Any]:
    """Logits [1, tokens + 1, 2] with cross-entropy `loss` (class 0, weight 1), and labels; the last is ignored."""
    import torch

    margin = math.log(math.exp(loss) - 1)
    logits = torch.stack([torch.zeros(tokens + 1), torch.full((tokens + 1,), margin)], dim=-1)[None]
    labels = torch.zeros(1, tokens + 1, dtype=torch.long)
    labels[0, -1] = -100
    return logits * weight, labels


def whole() -> tuple[float, float]:
    """Loss and gradient of one batch of both parts."""
    import torch
    from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy

    weight = torch.ones((), requires_grad=True)
    parts = [part(weight, *p) for p in PARTS]
    logits, labels = (torch.cat(tensors, dim=1) for tensors in zip(*parts, strict=True))
    loss = MaskedCrossEntropy()(logits, labels, num_label_tokens=6)
    loss.backward()
    return float(loss), float(weight.grad)


@pytest.mark.parametrize("ranks", [1, 2])
def test_accumulation_and_ranks_give_the_loss_of_one_batch(ranks: int) -> None:
    import torch
    from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy

    loss_of_all, gradient_of_all = whole()
    assert loss_of_all == pytest.approx(1.5)
    weight = torch.ones((), requires_grad=True)
    reported = 0.0
    for tokens, loss in PARTS:
        # as FinetuneRecipeForVLM does: the global token count divides, and the mean over ranks is undone by × ranks
        local = MaskedCrossEntropy()(*part(weight, tokens, loss), num_label_tokens=6)
        (local * ranks).backward()
        reported += float(local)
    assert reported == pytest.approx(1.5)
    assert float(weight.grad) / ranks == pytest.approx(gradient_of_all, abs=1e-6)


def test_nothing_supervised_gives_zero_and_a_finite_gradient() -> None:
    import torch
    from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy

    weight = torch.ones((), requires_grad=True)
    logits, labels = part(weight, 3, 1.0)
    loss = MaskedCrossEntropy()(logits, torch.full_like(labels, -100), num_label_tokens=0)
    loss.backward()
    assert float(loss) == 0.0
    assert float(weight.grad) == 0.0
