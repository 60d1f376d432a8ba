"""A run on one rank: resume, export, adapters, stop file, full disk, runs of another kind."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from avlm.errors import RunError, UserError
from avlm.recipe.schema import Recipe
from tests.automodel.conftest import lines, losses, train_here

pytestmark = pytest.mark.upstream

FEW_ROWS = {"data.sample_ratio": 0.125, "schedule.checkpoint_interval": 5}  # 16 rows: 4 steps an epoch
FROZEN = {f"freeze.{part}": True for part in ("vision_encoder", "vision_projector", "audio_encoder", "audio_projector")}


def metrics(recipe: Recipe) -> list[dict[str, Any]]:
    """Training entries without wall times."""
    timed = ("seconds", "tokens_per_second")
    entries = lines(Path(recipe.output_dir) / "metrics.jsonl")
    return [{key: value for key, value in entry.items() if key not in timed} for entry in entries]


@pytest.fixture(scope="module")
def whole(recipe_of: Callable[..., Recipe]) -> Recipe:
    """An uninterrupted run of 10 steps over 2.5 epochs."""
    recipe = recipe_of("whole", FEW_ROWS)
    train_here(recipe)
    return recipe


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`stop_after(k)`: the next run finds a stop file after step k."""
    from automodel import loop

    def arrange(step: int) -> None:
        class Stopped(loop.Finetune):
            def log_train_metrics(self, log_data: Any) -> None:
                if log_data.step + 1 == step:
                    (self._run.folder / "stop").touch()
                super().log_train_metrics(log_data)

        monkeypatch.setattr(loop, "Finetune", Stopped)

    return arrange


@pytest.mark.parametrize("stop", [3, 4, 6])
def test_resume_equals_the_uninterrupted_run(
    stop: int,
    whole: Recipe,
    recipe_of: Callable[..., Recipe],
    stop_after: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = recipe_of(f"stopped_{stop}", FEW_ROWS)
    stop_after(stop)
    train_here(recipe)
    assert len(metrics(recipe)) == stop
    assert not (Path(recipe.output_dir) / "export").exists()
    monkeypatch.undo()
    train_here(recipe)
    assert metrics(recipe) == metrics(whole)  # bit for bit: loss, lr, gradient norm, tokens
    same = [lines(Path(r.output_dir) / "validation.jsonl")[-1]["loss"] for r in (recipe, whole)]
    assert same[0] == same[1]


def test_a_finished_run_has_no_further_steps(whole: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    before = metrics(whole)
    train_here(whole)
    assert metrics(whole) == before
    assert "nothing to do: 10 of 10 steps are done" in capsys.readouterr().out


def test_only_the_last_checkpoints_are_kept(whole: Recipe) -> None:
    folders = sorted(p.name for p in (Path(whole.output_dir) / "checkpoints").glob("epoch_*"))
    assert folders == ["epoch_1_step_4", "epoch_2_step_9"]


def test_learning_rates_follow_the_documented_schedule(whole: Recipe) -> None:
    from avlm.recipe.horizon import lr_at

    assert [e["lr"] for e in metrics(whole)] == pytest.approx([lr_at(whole, k, 10) for k in range(1, 11)], rel=1e-6)


def validation_loss(recipe: Recipe, model: Any) -> float:
    """Token-weighted validation loss of a plain transformers model."""
    import torch
    from torch.nn.functional import cross_entropy

    from avlm.data.collate import collate
    from avlm.data.processing import load_processor, make_sample
    from avlm.data.rows import read_rows

    processor = load_processor(recipe)
    total, tokens = 0.0, 0
    for row in read_rows(recipe.data.validation, recipe.data.video_root):
        batch = collate([make_sample(row, processor, processor.limits)], processor.pad_id)
        labels = batch.pop("labels")
        with torch.no_grad():
            logits = model(**batch, use_audio_in_video=True).logits
        total += float(cross_entropy(logits[0].float(), labels[0], reduction="sum"))
        tokens += int((labels != -100).sum())
    return total / tokens


def test_export_has_the_validation_loss_in_transformers(whole: Recipe) -> None:
    from transformers import AutoProcessor, Qwen3OmniMoeThinkerForConditionalGeneration

    export = Path(whole.output_dir) / "export"
    model, info = Qwen3OmniMoeThinkerForConditionalGeneration.from_pretrained(
        export, dtype="float32", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert AutoProcessor.from_pretrained(export).tokenizer.chat_template
    logged = lines(Path(whole.output_dir) / "validation.jsonl")[-1]["loss"]
    assert validation_loss(whole, model.eval()) == pytest.approx(logged, abs=1e-4)


def test_tensors_that_training_did_not_hold_are_carried_over(whole: Recipe, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    from automodel.export import export, weight_map
    from avlm.launch.run import prepare

    source = tmp_path / "source"
    source.mkdir()
    for file in Path(whole.model.checkpoint).iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    tensors = load_file(source / "model.safetensors")
    tensors["talker.codec_head.weight"] = torch.arange(6.0).reshape(2, 3)
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})

    run = prepare(whole, stack="automodel", main=False)
    run.recipe = whole.model_copy(update={"model": whole.model.model_copy(update={"checkpoint": str(source)})})
    target = export(run)
    names = weight_map(target)
    assert set(names) == set(tensors)
    carried = load_file(target / names["talker.codec_head.weight"])["talker.codec_head.weight"]
    assert torch.equal(carried, tensors["talker.codec_head.weight"])


@pytest.mark.parametrize("targets", [["attention"], ["attention", "experts"]])
def test_adapter_gives_the_same_logits_in_peft(targets: list[str], recipe_of: Callable[..., Recipe]) -> None:
    import torch
    from peft import PeftModel
    from transformers import Qwen3OmniMoeForConditionalGeneration

    from avlm.data.collate import collate
    from avlm.data.processing import load_processor, make_sample
    from avlm.data.rows import read_rows

    lora = {"kind": "lora", "lora": {"rank": 4, "alpha": 8, "targets": targets}}
    recipe = recipe_of("adapter_" + "_".join(targets), {"method": lora, "optimizer.lr": 1e-2, **FROZEN})
    trained = train_here(recipe).model_parts[0].eval()
    processor = load_processor(recipe)
    rows = read_rows(recipe.data.validation, recipe.data.video_root)[:4]
    batch = collate([make_sample(row, processor, processor.limits) for row in rows], processor.pad_id)
    del batch["labels"]
    base = Qwen3OmniMoeForConditionalGeneration.from_pretrained(recipe.model.checkpoint, dtype="float32").eval()
    attended = batch["attention_mask"].bool()
    with torch.no_grad():
        in_training = trained(**batch)[attended]
        untrained = base.thinker(**batch).logits[attended]
        PeftModel.from_pretrained(base, str(Path(recipe.output_dir) / "export")).eval()
        in_peft = base.thinker(**batch).logits[attended]
    assert (in_training - untrained).abs().max() > 1e-2  # the adapter does something
    assert (in_training - in_peft).abs().max() <= 1e-5


def test_full_disk_leaves_the_previous_checkpoint(
    recipe_of: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nemo_automodel.components.checkpoint.checkpointing import Checkpointer

    recipe = recipe_of("full_disk", {"schedule.checkpoint_interval": 4})
    upstream, calls = Checkpointer.save_optimizer, []

    def save_optimizer(self: Any, *args: Any, **kwargs: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        upstream(self, *args, **kwargs)

    monkeypatch.setattr(Checkpointer, "save_optimizer", save_optimizer)
    message = r"checkpoint after step 8 could not be written .*No space left on device"
    with pytest.raises(RunError, match=message) as caught:
        train_here(recipe)
    folder = Path(recipe.output_dir) / "checkpoints"
    assert str((folder / "LATEST").resolve()) in str(caught.value)
    assert sorted(p.name for p in folder.glob("epoch_*")) == ["epoch_0_step_3"]
    monkeypatch.undo()
    train_here(recipe)
    assert [entry["step"] for entry in metrics(recipe)] == list(range(1, 11))


def test_a_refused_checkpoint_does_not_cost_the_complete_one_of_that_name(
    recipe_of: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of("refused", {"schedule.max_steps": 3})
    train_here(recipe)
    complete = Path(recipe.output_dir) / "checkpoints/epoch_0_step_2"
    files = sorted(p.relative_to(complete) for p in complete.rglob("*"))
    (complete.parent / "LATEST").unlink()
    # as if the checkpoint were overlooked: the run starts over and comes to the same name
    monkeypatch.setattr("nemo_automodel.recipes.base_recipe.find_latest_checkpoint", lambda folder: None)
    with pytest.raises(RunError, match="already holds a published checkpoint"):
        train_here(recipe)
    assert sorted(p.relative_to(complete) for p in complete.rglob("*")) == files


def test_a_batch_without_supervised_tokens_counts_and_learns_nothing(
    recipe_of: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case C2 (a)."""
    from automodel import batches

    def unsupervised(samples: Any, *, pad_id: int) -> dict[str, Any]:
        batch = collate_rows(samples, pad_id=pad_id)
        batch["labels"].fill_(-100)
        return batch

    collate_rows = batches.collate_rows
    monkeypatch.setattr(batches, "collate_rows", unsupervised)
    recipe = recipe_of("unsupervised", {"schedule.max_steps": 3, "data.validation": []})
    train_here(recipe)
    assert losses(recipe) == [0.0, 0.0, 0.0]
    assert [entry["grad_norm"] for entry in metrics(recipe)] == [0.0, 0.0, 0.0]
    assert capsys.readouterr().err.count("no supervised token") == 1
    assert not lines(Path(recipe.output_dir) / "validation.jsonl")


def test_an_empty_validation_file_is_one_warning(
    recipe_of: Callable[..., Recipe], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case C2 (b)."""
    (tmp_path / "none.jsonl").write_text("\n")
    empty = {"data.validation": [str(tmp_path / "none.jsonl")]}
    recipe = recipe_of("empty_validation", {**empty, "schedule.max_steps": 3, "schedule.validation_interval": 1})
    train_here(recipe)
    assert not lines(Path(recipe.output_dir) / "validation.jsonl")
    assert capsys.readouterr().err.count("no row to validate on") == 1
    assert list((Path(recipe.output_dir) / "export").glob("*.safetensors"))


def test_fewer_validation_rows_than_a_batch_are_all_evaluated(recipe_of: Callable[..., Recipe], tmp_path: Path) -> None:
    """Case C2 (c): three rows of two supervised tokens each (one word or letter, end of turn), batches of eight."""
    full = recipe_of("unused")
    few = tmp_path / "three.jsonl"
    few.write_text("".join(Path(full.data.validation[0]).read_text().splitlines(keepends=True)[:3]))
    batch = {"batch.micro_batch_size": 8, "batch.global_batch_size": 8, "schedule.max_steps": 2}
    recipe = recipe_of("few_validation", {"data.validation": [str(few)], **batch})
    train_here(recipe)
    assert lines(Path(recipe.output_dir) / "validation.jsonl")[-1]["supervised_tokens"] == 6


PACKING = {"data.packing.enabled": True, "data.sequence_length": 256, "batch.micro_batch_size": 1}


@pytest.mark.parametrize(("pack_size", "packs"), [(512, 2), (256, 3)])
def test_packed_run_has_the_losses_of_the_unpacked_one(
    pack_size: int, packs: int, recipe_of: Callable[..., Recipe]
) -> None:
    """The same 8 rows in one forward pass, and in packs that are accumulated: packs dealt by cost."""
    one_batch = {"schedule.max_steps": 1, "optimizer.warmup": 0, "data.sample_ratio": 0.0625}
    unpacked = recipe_of(f"unpacked_{packs}", one_batch | {f"batch.{n}_batch_size": 8 for n in ("global", "micro")})
    sizes = {"data.packing.pack_size": pack_size, "batch.global_batch_size": packs}
    packed = recipe_of(f"packed_{packs}", {**one_batch, **PACKING, **sizes})
    for recipe in (unpacked, packed):
        finetune = train_here(recipe)
    assert finetune._run.epochs.count(0) == packs
    (a,), (b,) = metrics(unpacked), metrics(packed)
    assert a["tokens"] == b["tokens"] and a["supervised_tokens"] == b["supervised_tokens"]
    assert b["loss"] == pytest.approx(a["loss"], abs=1e-5)
    assert b["grad_norm"] == pytest.approx(a["grad_norm"], rel=1e-4)


def test_packed_mixture_goes_on_bit_for_bit(
    recipe_of: Callable[..., Recipe],
    stop_after: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Two files with weights, packs that differ between epochs, two accumulation steps; stopped in epoch 0 and 1."""
    rows = Path(recipe_of("unused").data.train_paths[0]).read_text().splitlines(keepends=True)
    for name, chosen in (("a", rows[:10]), ("b", rows[10:16])):
        (tmp_path / f"{name}.jsonl").write_text("".join(chosen))
    mixture = [{"path": str(tmp_path / "a.jsonl"), "weight": 1.5}, {"path": str(tmp_path / "b.jsonl"), "weight": 0.5}]
    changes: dict[str, Any] = {
        **PACKING,
        "data.train": mixture,
        "data.packing.pack_size": 256,
        "batch.global_batch_size": 2,
        "schedule.max_steps": None,
        "schedule.epochs": 2,
    }
    reference = recipe_of("mixture", changes)
    run = train_here(reference)._run
    steps = [run.epochs.steps(epoch, 2) for epoch in (0, 1)]
    assert len(metrics(reference)) == run.steps == sum(steps)
    assert [e["epoch"] for e in metrics(reference)] == [0] * steps[0] + [1] * steps[1]
    recipe = recipe_of("mixture_stopped", changes)
    for stop in (2, steps[0] + 1):
        stop_after(stop)
        train_here(recipe)
        assert len(metrics(recipe)) == stop
    monkeypatch.undo()
    train_here(recipe)
    assert metrics(recipe) == metrics(reference)


def test_another_run_may_not_continue_a_folder(whole: Recipe) -> None:
    other = whole.model_copy(update={"seed": 7})
    with pytest.raises(UserError, match=r"holds checkpoints of another run \(seed was 0, is 7\)"):
        train_here(other)


def test_a_checkpoint_of_another_model_is_refused(recipe_of: Callable[..., Recipe], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(UserError, match="llama"):
        train_here(recipe_of("llama", {"model.checkpoint": str(tmp_path)}))


def test_wrong_number_of_ranks(recipe_of: Callable[..., Recipe]) -> None:
    with pytest.raises(UserError, match="1 ranks were started"):
        train_here(recipe_of("ranks", {"parallel.devices_per_node": 2}))
