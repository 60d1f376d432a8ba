"""What a row costs to compute, and how the items of an optimizer step are dealt to ranks so that all have as much.

A rank that has less to compute than the others waits for them. Which rank computes what does not change the step: its
items are the same, and its loss is a sum over supervised tokens.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from avlm.data.processing import MediaShape
from avlm.models.flops import Flops

if TYPE_CHECKING:
    from avlm.recipe.schema import Recipe


@dataclass(frozen=True)
class CostModel:
    """Floating-point operations of a training step on a row, in units of those of one token without attention.

    flops: of a forward pass. decoder, vision, audio: how many forward passes the training of that part is worth.

    The cost of a row of n tokens is n + c · n(n + 1) / 2 with the decoder's c for a pair of tokens that attention
    compares, plus that of its pictures and sounds in the towers. Experts are in the token's unit: each token is sent to
    the same number of them.
    """

    flops: Flops
    decoder: float
    vision: float
    audio: float

    def row(self, tokens: int, media: Iterable[MediaShape]) -> float:
        """Cost of a row of `tokens` tokens with these media."""
        total = self.decoder * self.flops.decoder.causal(tokens)
        for shape in media:
            if shape.frames:
                total += self.vision * self.flops.picture(shape.frames, shape.height, shape.width)
            if shape.audio_samples:
                total += self.audio * self.flops.sound(shape.audio_samples)
        return total / (self.decoder * self.flops.decoder.token)


def cost_model(recipe: Recipe) -> CostModel:
    """The cost model of a run, from its checkpoint's shapes and from what it trains.

    A part is passed forward once, backward once when something in it or before it trains, and once more for the
    gradients of its own weights when they train; `memory.activation_checkpointing: full` repeats the forward pass where
    there is a backward one. Adapters themselves are not counted.

    Raises `UserError` when the checkpoint has no configuration of the recipe's family.
    """
    from avlm.models.flops import load_flops

    freeze, sft = recipe.freeze, recipe.method.kind == "sft"
    again = 1 if recipe.memory.activation_checkpointing == "full" else 0

    def passes(trained: bool, before: bool) -> float:
        return 1 + (1 + again if trained or before else 0) + (1 if trained else 0)

    towers = not (freeze.vision_encoder and freeze.vision_projector and freeze.audio_encoder and freeze.audio_projector)
    return CostModel(
        load_flops(recipe.model.family, recipe.model.checkpoint, recipe.model.revision),
        decoder=passes(sft and not freeze.language_model, not sft or towers),
        vision=passes(sft and not freeze.vision_encoder, False),
        audio=passes(sft and not freeze.audio_encoder, False),
    )


def deal(costs: np.ndarray, ranks: int, micro_batches: int, micro_batch: int) -> np.ndarray:
    """Deal the items of one optimizer step to ranks so that the sums of their costs are nearly equal.

    Items are dealt from the dearest to the cheapest, each to the rank with the smallest sum that still has a place
    (longest processing time first: Graham, 1969, SIAM J. Appl. Math. 17(2)). Each rank computes its own in that order,
    so that the ranks' k-th micro-batches, which wait for each other in sharded layers, are alike too.

    Args:
        costs: [ranks · micro_batches · micro_batch] cost of each item.
        ranks: data-parallel ranks.
        micro_batches: of each rank.
        micro_batch: items in one.

    Returns:
        [micro_batches, ranks, micro_batch] numbers of items: each occurs once. Equal arguments give equal results.
    """
    places = micro_batches * micro_batch
    if len(costs) != ranks * places:
        raise ValueError(f"{len(costs)} items for {ranks} × {micro_batches} × {micro_batch} places")
    hands: list[list[int]] = [[] for _ in range(ranks)]
    waiting = [(0.0, rank) for rank in range(ranks)]
    values = costs.tolist()
    for item in np.argsort(-costs, kind="stable").tolist():
        load, rank = waiting[0]
        hands[rank].append(item)
        if len(hands[rank]) == places:
            heapq.heappop(waiting)
        else:
            heapq.heapreplace(waiting, (load + values[item], rank))
    return np.array(hands).reshape(ranks, micro_batches, micro_batch).swapaxes(0, 1)


def imbalance(costs: np.ndarray, dealt: np.ndarray) -> tuple[float, float]:
    """Time lost in a step dealt as by `deal`: with ranks that wait for each other once, and after each micro-batch.

    The first is max / mean - 1 of the ranks' summed costs; the second the sum of each micro-step's maximum / mean - 1.
    """
    loads = costs[dealt].sum(axis=2)
    mean = loads.sum() / loads.shape[1]
    return float(loads.sum(axis=0).max() / mean - 1), float(loads.max(axis=1).sum() / mean - 1)
