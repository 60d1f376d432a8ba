"""Metrics files: one entry a step, nothing twice after a resume, W&B without a key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from avlm.errors import RunError, UserError
from avlm.metrics import TRAIN_FILE, MetricsWriter, read_jsonl
from avlm.recipe.schema import Recipe


def recipe(folder: Path, **logging: Any) -> Recipe:
    """A recipe that only says where to log."""
    return Recipe.model_validate(
        {
            "name": "metrics",
            "model": {"family": "qwen3_omni_moe", "checkpoint": "x"},
            "batch": {"global_batch_size": 1},
            "schedule": {"max_steps": 9},
            "data": {"train": ["x"]},
            "logging": {"tensorboard": False, **logging},
            "output_dir": str(folder),
        }
    )


def write(writer: MetricsWriter, step: int) -> None:
    """An entry with recognizable numbers."""
    writer.train(
        step=step, epoch=0, loss=1 / step, lr=0.1, grad_norm=2.0, tokens=100, supervised_tokens=10, seconds=0.5
    )


def test_entries_and_throughput(tmp_path: Path) -> None:
    writer = MetricsWriter(recipe(tmp_path))
    write(writer, 1)
    writer.validation(step=1, loss=0.7, supervised_tokens=4)
    writer.close()
    (entry,) = read_jsonl(tmp_path / TRAIN_FILE)
    assert entry["step"] == 1 and entry["loss"] == 1.0 and entry["tokens_per_second"] == 200.0
    assert read_jsonl(tmp_path / "validation.jsonl") == [{"step": 1, "loss": 0.7, "supervised_tokens": 4}]


def test_interval(tmp_path: Path) -> None:
    writer = MetricsWriter(recipe(tmp_path, interval=3))
    for step in range(1, 8):
        write(writer, step)
    writer.close()
    assert [entry["step"] for entry in read_jsonl(tmp_path / TRAIN_FILE)] == [3, 6]


def test_resume_forgets_later_steps_and_a_torn_line(tmp_path: Path) -> None:
    writer = MetricsWriter(recipe(tmp_path))
    for step in range(1, 6):
        write(writer, step)
    writer.close()
    with (tmp_path / TRAIN_FILE).open("a") as file:
        file.write('{"step": 6, "lo')
    writer = MetricsWriter(recipe(tmp_path), step=3)
    write(writer, 4)
    writer.close()
    assert [entry["step"] for entry in read_jsonl(tmp_path / TRAIN_FILE)] == [1, 2, 3, 4]


def test_tensorboard_has_the_same_names(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = MetricsWriter(recipe(tmp_path, tensorboard=True))
    write(writer, 1)
    writer.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert {"train/loss", "train/lr", "train/grad_norm", "train/tokens_per_second"} <= set(events.Tags()["scalars"])
    assert events.Scalars("train/loss")[0].step == 1


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_wandb_without_a_key_is_offline_and_says_so(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "no_netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    (tmp_path / "home").mkdir()
    for attempt in (1, 2):
        writer = MetricsWriter(recipe(tmp_path / "run", wandb=mode), step=attempt - 1)
        write(writer, attempt)
        writer.close()
    assert ("recorded offline" in capsys.readouterr().out) == (mode == "online")
    runs = sorted(p.name for p in (tmp_path / "run/wandb").glob("offline-run-*"))
    ids = {name.split("-")[3] for name in runs}
    assert runs and ids == {(tmp_path / "run/wandb_id").read_text()}  # one W&B run, resumed


@pytest.mark.parametrize("damage", [b"\0\0\0\n", b"\xff\n", b"[1]\n", b"5\n"])
def test_a_damaged_line_is_named(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / TRAIN_FILE
    path.write_bytes(b'{"step": 1}\n' + damage + b'{"step": 2}\n{"st')
    with pytest.raises(UserError, match=f"{TRAIN_FILE}:2: is damaged; remove this line"):
        read_jsonl(path)
    path.write_bytes(b'{"step": 1}\n{"st')
    assert read_jsonl(path) == [{"step": 1}]


def test_full_disk_is_one_message(tmp_path: Path) -> None:
    writer = MetricsWriter(recipe(tmp_path))
    file = writer._files[TRAIN_FILE]
    writer._files[TRAIN_FILE] = open("/dev/full", "a", encoding="utf-8")  # noqa: SIM115
    with pytest.raises(RunError, match=f"{TRAIN_FILE}: could not be written: No space left on device"):
        write(writer, 1)
    file.close()
