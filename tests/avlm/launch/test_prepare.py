"""What a run makes of its training files: order, packs, mixture, and what it refuses to go on with."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from avlm.data.collate import collate, collate_packs
from avlm.errors import UserError
from avlm.launch.run import Run, prepare
from avlm.models.qwen3_omni_moe.tiny import make_tiny
from avlm.recipe.schema import Recipe
from avlm.stacks import set_dotted

Make = Callable[..., Recipe]
WORDS = "one two three four five six seven eight nine ten"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    make_tiny(folder, seed=0)
    return folder


def text_rows(name: str, count: int) -> list[str]:
    """Rows of text of 1 to 60 words."""
    rows = []
    for i in range(count):
        turns = [{"role": "user", "content": f"{WORDS} " * (i % 7) + "?"}, {"role": "assistant", "content": str(i)}]
        rows.append(json.dumps({"id": f"{name}{i}", "conversation": turns}) + "\n")
    return rows


@pytest.fixture
def make(tiny: Path, tmp_path: Path) -> Make:
    """A recipe on 40 rows of a.jsonl, 20 of b.jsonl and, for validation, 3 of v.jsonl."""
    for name, count in (("a", 40), ("b", 20), ("v", 3)):
        (tmp_path / f"{name}.jsonl").write_text("".join(text_rows(name, count)))

    def of(**changes: Any) -> Recipe:
        raw: dict[str, Any] = {
            "name": "prepared",
            "model": {"family": "qwen3_omni_moe", "checkpoint": str(tiny), "dtype": "float32"},
            "batch": {"global_batch_size": 4},
            "schedule": {"epochs": 3},
            "data": {
                "train": [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")],
                "validation": [str(tmp_path / "v.jsonl")],
                "video_root": str(tmp_path),
                "sequence_length": 256,
                "packing": {"enabled": True, "pack_size": 256},
                "workers": 0,
            },
            "parallel": {"devices_per_node": 1},
            "device": "cpu",
            "output_dir": str(tmp_path / "run"),
        }
        for key, value in changes.items():
            set_dotted(raw, key.replace("__", "."), value)
        return Recipe.model_validate(raw)

    return of


def weighted(tmp_path: Path, a: float, b: float) -> list[dict[str, Any]]:
    return [{"path": str(tmp_path / "a.jsonl"), "weight": a}, {"path": str(tmp_path / "b.jsonl"), "weight": b}]


def prepared(recipe: Recipe, main: bool = True) -> Run:
    return prepare(recipe, stack="automodel", main=main)


def seen(run: Run, epoch: int) -> Counter[str]:
    return Counter(run.rows[row].id for row in run.epochs.items(epoch).members.tolist())


def checkpointed(run: Run) -> None:
    (run.folder / "checkpoints").mkdir()


def test_packs_and_horizon(make: Make, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = prepared(make())
    assert set(seen(run, 0).values()) == {1} and len(seen(run, 0)) == 60
    counts = [run.epochs.count(epoch) for epoch in range(3)]
    assert run.steps == sum(-(-count // 4) for count in counts)
    told = capsys.readouterr().out.splitlines()
    assert told[0] == f"{tmp_path}/a.jsonl: 40 rows: 40 an epoch (66.7 %)"
    assert told[2].startswith(f"epoch 0: {counts[0]} packs of 256 tokens, 9")
    lengths = json.loads((run.folder / "lengths.json").read_text())
    assert lengths == run.epochs.lengths.tolist() and len(lengths) == 60


def test_every_rank_prepares_the_same(make: Make) -> None:
    one, other = prepared(make()), prepared(make(), main=False)
    assert list(one.epochs.items(1)) == list(other.epochs.items(1))
    assert one.steps == other.steps


def test_mixture(make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = prepared(make(data__train=weighted(tmp_path, 0.5, 2)))
    first, second = seen(run, 0), seen(run, 1)
    for epoch in (first, second):
        assert Counter(id[0] for id in epoch.elements()) == {"a": 20, "b": 40}
    assert {id for id in first if id[0] == "a"} ^ {id for id in second if id[0] == "a"} == {f"a{i}" for i in range(40)}
    assert "b.jsonl: 20 rows, weight 2: 40 an epoch (66.7 %)" in capsys.readouterr().out
    files = json.loads((run.folder / "data.json").read_text())["files"]
    assert [(f["rows"], f["weight"], f["rows_per_epoch"]) for f in files] == [(40, 0.5, 20), (20, 2.0, 40)]


def test_loaders_of_ranks(make: Make) -> None:
    """All rows once an epoch, as packs in training and one by one in validation."""
    run = prepared(make())

    def ids(packs: Any, **_: Any) -> list[str]:
        return [
            sample.id for pack in packs for sample in (pack if isinstance(pack, list) else [pack]) if counts(sample)
        ]

    def counts(sample: Any) -> bool:
        return bool((sample.labels != -100).any())

    def read(training: bool, size: int) -> list[str]:
        loaders = [
            run.loader(training=training, dp_rank=r, dp_size=size, collate_rows=ids, collate_packs=ids)
            for r in range(size)
        ]
        assert len({len(loader) for loader in loaders}) == 1
        return sorted(id for loader in loaders for batch in loader for id in batch)

    for size in (1, 2, 4):
        assert read(True, size) == sorted([f"a{i}" for i in range(40)] + [f"b{i}" for i in range(20)])
        assert read(False, size) == ["v0", "v1", "v2"]


def test_batches(make: Make) -> None:
    run = prepared(make())
    loader = run.loader(training=True, dp_rank=0, dp_size=1, collate_rows=collate, collate_packs=collate_packs)
    batch = next(iter(loader))
    assert batch["input_ids"].shape == (1, 256)
    assert int(batch["doc"].max()) > 1


def test_rows_too_long_and_a_sample_of_rows(make: Make) -> None:
    everything = prepared(make(data__packing__enabled=False))
    limit = sorted(everything.epochs.lengths.tolist())[40]
    few = make(data__sequence_length=limit, data__too_long="report", output_dir=f"{everything.folder}_few")
    run = prepared(few)
    assert len(run.rows) + len(run.skipped) == 60 and run.skipped
    assert [row.id for row in run.rows][-1] not in {s.row.id for s in run.skipped}
    assert run.epochs.lengths.max() <= limit
    assert sum(source.part.rows for source in run.sources) == len(run.rows)
    half = make(data__sample_ratio=0.5, output_dir=f"{everything.folder}_half")
    assert len(prepared(half).rows) == 30
    assert [row.id for row in prepared(half, main=False).rows] == [row.id for row in prepared(half, main=False).rows]


# ---- what a run may go on with ----


def test_the_same_data_may_go_on(make: Make) -> None:
    checkpointed(prepared(make()))
    prepared(make(), main=False)
    prepared(make(schedule__epochs=5), main=False)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda lines: lines[:-1], "40 rows of .* then, 39 rows of .* now"),
        (lambda lines: [*lines[1:], lines[0]], "40 rows of .* then, 40 rows of .* now"),
        (lambda lines: [lines[0].replace("a0", "new"), *lines[1:]], "40 rows of .* then, 40 rows of .* now"),
        (lambda lines: [lines[0].replace("?", "? And then?"), *lines[1:]], "40 rows of .* then, 40 rows of .* now"),
    ],
)
def test_other_rows_are_refused(
    make: Make, tmp_path: Path, change: Callable[[list[str]], list[str]], told: str
) -> None:
    checkpointed(prepared(make()))
    file = tmp_path / "a.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(change(lines)))
    with pytest.raises(UserError, match=rf"run on other training rows \({file}: {told}; ids, order or lengths differ"):
        prepared(make(), main=False)
    file.write_text("".join(lines))
    prepared(make(), main=False)


def test_another_way_of_ordering_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpointed(prepared(make()))
    monkeypatch.setattr("avlm.data.order.FORMAT", 10**6)
    with pytest.raises(UserError, match="a version of avlm that orders rows in another way"):
        prepared(make(), main=False)


def test_other_weights_are_another_run(make: Make, tmp_path: Path) -> None:
    checkpointed(prepared(make(data__train=weighted(tmp_path, 1, 2))))
    with pytest.raises(UserError, match="holds checkpoints of another run"):
        prepared(make(data__train=weighted(tmp_path, 1, 3)), main=False)


def test_without_a_record_of_the_data(make: Make) -> None:
    """A folder of an earlier version."""
    run = prepared(make())
    checkpointed(run)
    (run.folder / "data.json").unlink()
    prepared(make(), main=False)


def test_other_ranks_do_not_judge_a_folder_that_the_main_one_is_writing(make: Make) -> None:
    """Rank 1 may open its log, or look, while rank 0 is between two files."""
    recipe = make()
    folder = Path(recipe.output_dir)
    (folder / "logs").mkdir(parents=True)
    prepared(recipe)
    (folder / "versions.json").unlink()
    with pytest.raises(UserError, match="no run of avlm"):
        prepared(recipe)
    prepare(recipe, stack="automodel", main=False, check_folder=False)
