"""The same recipe on one rank, on two ranks with FSDP2 and with expert parallelism: the same losses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from avlm.recipe.schema import Recipe
from tests.automodel.conftest import lines, losses, train_here, train_on_two_ranks

pytestmark = [pytest.mark.upstream, pytest.mark.distributed, pytest.mark.timeout(1200)]

TWO: dict[str, Any] = {"parallel.devices_per_node": 2, "batch.micro_batch_size": 2}
LORA = {"kind": "lora", "lora": {"rank": 4, "alpha": 8, "targets": ["attention"]}}
EXPERT_LORA = {"kind": "lora", "lora": {"rank": 4, "alpha": 8, "targets": ["attention", "experts"]}}
FROZEN = {f"freeze.{part}": True for part in ("vision_encoder", "vision_projector", "audio_encoder", "audio_projector")}
EP = {"fsdp": 1, "ep": 2}
PACKED = {
    "data.packing": {"enabled": True, "pack_size": 256},
    "data.sequence_length": 256,
    "batch": {"global_batch_size": 4, "micro_batch_size": 1},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "sft": {},
    "frozen_towers": FROZEN,
    "lora": {"method": LORA, **FROZEN},
    "expert_lora": {"method": EXPERT_LORA, **FROZEN},
}


@pytest.fixture(scope="module")
def two_rank_runs(recipe_of: Callable[..., Recipe], workplace: Path) -> dict[str, Recipe]:
    """Every two-rank run of this module, made in one launch."""
    runs = {}
    for name, changes in VARIANTS.items():
        runs[f"{name}_fsdp"] = recipe_of(f"two_{name}_fsdp", {**TWO, **changes})
        runs[f"{name}_ep"] = recipe_of(f"two_{name}_ep", {**TWO, **changes, "parallel.ep": 2})
    runs["accumulated"] = recipe_of("two_accumulated", {**TWO, "batch.micro_batch_size": 1})
    runs["packed"] = recipe_of("two_packed", {**TWO, **PACKED})
    runs["checkpointed"] = recipe_of("two_checkpointed", {**TWO, "memory.activation_checkpointing": "full"})
    resumed = {f"resumed_{how}": recipe_of(f"two_resumed_{how}", {**TWO, "parallel.ep": ep}) for how, ep in EP.items()}
    train_on_two_ranks(list(runs.values()), workplace, tuple((recipe, 4) for recipe in resumed.values()))
    return {**runs, **resumed}


@pytest.fixture(scope="module")
def one_rank_runs(recipe_of: Callable[..., Recipe]) -> dict[str, Recipe]:
    """The same variants on one rank, in this process."""
    runs = {name: recipe_of(f"one_{name}", changes) for name, changes in VARIANTS.items()}
    for recipe in runs.values():
        train_here(recipe)
    return runs


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("how", ["fsdp", "ep"])
def test_two_ranks_equal_one(
    variant: str, how: str, one_rank_runs: dict[str, Recipe], two_rank_runs: dict[str, Recipe]
) -> None:
    one, two = losses(one_rank_runs[variant]), losses(two_rank_runs[f"{variant}_{how}"])
    assert len(one) == len(two) == 10
    assert two == pytest.approx(one, abs=1e-4)


@pytest.mark.parametrize("how", ["accumulated", "checkpointed"])
def test_accumulation_and_checkpointing_change_nothing(
    how: str, one_rank_runs: dict[str, Recipe], two_rank_runs: dict[str, Recipe]
) -> None:
    assert losses(two_rank_runs[how]) == pytest.approx(losses(one_rank_runs["sft"]), abs=1e-4)


@pytest.mark.parametrize("how", EP)
def test_resume_on_two_ranks_equals_the_uninterrupted_run(how: str, two_rank_runs: dict[str, Recipe]) -> None:
    resumed, whole = losses(two_rank_runs[f"resumed_{how}"]), losses(two_rank_runs[f"sft_{how}"])
    assert [f"{loss:.6f}" for loss in resumed] == [f"{loss:.6f}" for loss in whole]


def test_packs_dealt_to_two_ranks_equal_those_of_one(
    recipe_of: Callable[..., Recipe], two_rank_runs: dict[str, Recipe]
) -> None:
    one, two = recipe_of("one_packed", PACKED), two_rank_runs["packed"]
    train_here(one)
    tokens = [[entry["tokens"] for entry in lines(Path(r.output_dir) / "metrics.jsonl")] for r in (one, two)]
    assert tokens[0] == tokens[1]
    assert losses(two) == pytest.approx(losses(one), abs=1e-4)


def test_validation_loss_is_the_same(one_rank_runs: dict[str, Recipe], two_rank_runs: dict[str, Recipe]) -> None:
    one, two = (
        lines(Path(runs[name].output_dir) / "validation.jsonl")[-1]
        for runs, name in ((one_rank_runs, "sft"), (two_rank_runs, "sft_fsdp"))
    )
    assert two["supervised_tokens"] == one["supervised_tokens"]
    assert two["loss"] == pytest.approx(one["loss"], abs=1e-4)


@pytest.mark.parametrize("accumulation", [2, 4])
def test_accumulation_on_one_rank(
    accumulation: int, recipe_of: Callable[..., Recipe], one_rank_runs: dict[str, Recipe]
) -> None:
    recipe = recipe_of(f"one_accumulated_{accumulation}", {"batch.micro_batch_size": 4 // accumulation})
    train_here(recipe)
    assert losses(recipe) == pytest.approx(losses(one_rank_runs["sft"]), abs=1e-4)
