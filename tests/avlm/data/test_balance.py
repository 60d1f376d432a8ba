from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from avlm.data.balance import CostModel, cost_model, deal, imbalance
from avlm.data.order import Epochs
from avlm.data.processing import MediaShape
from avlm.models.flops import load_flops
from avlm.recipe.load import load_recipe

QWEN = load_flops("qwen3_omni_moe", "Qwen/Qwen3-Omni-30B-A3B-Instruct")
PACK = 21504


def model(**passes: float) -> CostModel:
    return CostModel(QWEN, **{"decoder": 3, "vision": 1, "audio": 1, **passes})


def long_tail(rows: int) -> np.ndarray:
    return np.exp(np.random.default_rng(0).normal(7.5, 1.3, rows)).clip(16, PACK).astype(np.int32)


# ---- cost of a row ----


def test_a_row_of_text() -> None:
    """One token costs 1, and a pair of compared tokens 4 · 48 layers · 4096 / 6.08e9."""
    pair = 786_432 / 6_083_313_664
    assert model().row(1, []) == pytest.approx(1 + pair)
    assert model().row(20_000, []) == pytest.approx(20_000 + pair * 20_000 * 20_001 / 2)
    assert model().row(20_000, []) > 2 * model().row(10_000, []) * 1.3


def test_media_cost_their_towers() -> None:
    clip = MediaShape("video", frames=4, height=512, width=512, audio_samples=32_000)
    silent = MediaShape("video", frames=4, height=512, width=512)
    sound = MediaShape("audio", audio_samples=32_000)
    text = model().row(1000, [])
    unit = 3 * QWEN.decoder.token
    assert model().row(1000, [silent]) - text == pytest.approx(QWEN.picture(4, 512, 512) / unit)
    assert model().row(1000, [sound]) - text == pytest.approx(QWEN.sound(32_000) / unit)
    assert model().row(1000, [clip]) + text == pytest.approx(model().row(1000, [silent]) + model().row(1000, [sound]))
    assert model(vision=3).row(1000, [silent]) - text == pytest.approx(3 * QWEN.picture(4, 512, 512) / unit)


@pytest.mark.parametrize(
    ("overrides", "decoder", "vision", "audio"),
    [
        ([], 3, 1, 1),
        (["freeze.vision_encoder=false"], 3, 3, 1),
        (["freeze.audio_projector=false", "freeze.language_model=true"], 2, 1, 1),
        (["memory.activation_checkpointing=full"], 4, 1, 1),
        (["method={kind: lora, lora: {rank: 4}}"], 2, 1, 1),
        (["method={kind: lora, lora: {rank: 4}}", "memory.activation_checkpointing=full"], 3, 1, 1),
    ],
)
def test_passes(overrides: list[str], decoder: float, vision: float, audio: float) -> None:
    recipe = load_recipe("qwen3_omni_30b_a3b/sft", ["memory.activation_checkpointing=none", *overrides]).recipe
    found = cost_model(recipe)
    assert (found.decoder, found.vision, found.audio) == (decoder, vision, audio)
    assert found.flops == QWEN


# ---- dealing ----


@pytest.mark.parametrize(("ranks", "micro_batches", "micro"), [(8, 16, 1), (8, 2, 4), (1, 4, 2), (3, 1, 1)])
def test_every_item_is_dealt_once(ranks: int, micro_batches: int, micro: int) -> None:
    costs = np.random.default_rng(0).random(ranks * micro_batches * micro)
    dealt = deal(costs, ranks, micro_batches, micro)
    assert dealt.shape == (micro_batches, ranks, micro)
    assert sorted(dealt.ravel().tolist()) == list(range(len(costs)))
    assert np.array_equal(dealt, deal(costs.copy(), ranks, micro_batches, micro))


def test_a_rank_computes_its_dearest_first() -> None:
    costs = np.random.default_rng(0).random(64)
    dealt = deal(costs, 8, 8, 1)
    assert (np.diff(costs[dealt][:, :, 0], axis=0) <= 0).all()


def test_numbers() -> None:
    dealt = deal(np.array([5.0, 1, 4, 2]), 2, 2, 1)
    assert dealt[:, :, 0].tolist() == [[0, 2], [1, 3]]
    assert imbalance(np.array([5.0, 1, 4, 2]), dealt) == (0.0, pytest.approx((5 + 2) / 6 - 1))
    with pytest.raises(ValueError, match="3 items for 2 × 2 × 1 places"):
        deal(np.ones(3), 2, 2, 1)


def test_steps_of_long_tailed_packs_are_even() -> None:
    """8 ranks with 16 packs each: within 3 %, where packs in their order are off by more than twice that."""
    lengths = long_tail(20_000)
    costs = np.array([model().row(n, [MediaShape("video", n // 128, 512, 512)]) for n in lengths.tolist()], np.float32)
    epochs = Epochs(lengths, costs=costs, pack_size=PACK)
    assert epochs.steps(0, 128) > 20
    dealt, plain = [], []
    for step in range(epochs.steps(0, 128) - 1):
        plan = epochs.plan(0, step, 8, 16, 1)
        loads = [sum(pack_cost(hands[rank], costs, lengths) for hands in plan) for rank in range(8)]
        dealt.append(max(loads) / np.mean(loads) - 1)
        packs = [pack_cost(epochs_slot, costs, lengths) for hands in plan for epochs_slot in hands]
        plain.append(imbalance(np.array(packs), np.random.default_rng(step).permutation(128).reshape(16, 8, 1))[0])
    assert max(dealt) <= 0.03
    assert np.mean(plain) > 0.06


def pack_cost(batch: Any, costs: np.ndarray, lengths: np.ndarray) -> float:
    """Rows, and tokens of padding."""
    rows = [row for slot in batch for row in slot.rows]
    return float(costs[rows].sum()) + PACK - int(lengths[rows].sum())
