"""Reading recipes: base, overrides, messages with file and line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from avlm.errors import Place, RunError, UserError
from avlm.recipe.load import find_recipe, load_recipe, save_resolved, shipped_recipes
from avlm.recipe.schema import TrainFile
from tests.avlm.recipe.conftest import MINIMAL

Write = Callable[..., str]


def problem(path: str, *overrides: str) -> str:
    with pytest.raises(UserError) as error:
        load_recipe(path, overrides)
    return str(error.value)


def test_minimal(write: Write) -> None:
    loaded = load_recipe(write())
    assert loaded.recipe.name == "small"
    assert loaded.recipe.optimizer.lr == 5e-5
    assert loaded.recipe.data.train == ["rows.jsonl"]
    assert loaded.places["batch.global_batch_size"] == Place("r.yaml", 3)
    assert "optimizer.lr" not in loaded.places
    assert loaded.raw["batch"] == {"global_batch_size": 8}
    assert loaded.path == "r.yaml"


def test_number_with_exponent_is_a_number(write: Write) -> None:
    assert load_recipe(write(MINIMAL + "optimizer: {lr: 3e-3, eps: 1e-7}")).recipe.optimizer.lr == 3e-3


def test_one_file_is_a_list_of_one(write: Write) -> None:
    path = write(MINIMAL.replace("[rows.jsonl]", "rows.jsonl, validation: held_out.jsonl"))
    data = load_recipe(path).recipe.data
    assert (data.train, data.validation) == (["rows.jsonl"], ["held_out.jsonl"])
    assert load_recipe(path, ["data.train=other.jsonl"]).recipe.data.train == ["other.jsonl"]


def test_mixture(write: Write) -> None:
    path = write(MINIMAL.replace("[rows.jsonl]", "[{path: a.jsonl, weight: 2.5}, b.jsonl, {path: c.jsonl}]"))
    loaded = load_recipe(path)
    data = loaded.recipe.data
    assert [(file.path, file.weight) for file in data.train_files] == [("a.jsonl", 2.5), ("b.jsonl", 1), ("c.jsonl", 1)]
    assert data.train_paths == ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert str(loaded.places["data.train.0.weight"]) == "r.yaml:5"
    save_resolved(loaded.recipe, Path("saved.yaml"))
    assert load_recipe("saved.yaml").recipe == loaded.recipe
    one = load_recipe(path, ["data.train={path: a.jsonl, weight: 2}"]).recipe.data
    assert one.train == [TrainFile(path="a.jsonl", weight=2)]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{path: a.jsonl, weight: -1}", "data.train.0.weight: -1 is wrong; it takes number > 0 and ≤ 1,000"),
        (
            "{path: a.jsonl, weight: '2'}",
            'data.train.0.weight: "2" is wrong; it takes number > 0 and ≤ 1,000; write 2 without quotes',
        ),
        ("{weight: 1}", "data.train.0.path is missing; it takes non-empty text"),
        ("{path: a.jsonl, wieght: 1}", "unknown key data.train.0.wieght; did you mean weight?"),
        ("{path: a.jsonl, part: 1}", "unknown key data.train.0.part; did you mean path?"),
        ("{path: a.jsonl, x: 1}", "unknown key data.train.0.x; data.train.0 takes path, weight"),
        ("3", "data.train.0: 3 is wrong; it takes non-empty text or {path, weight}"),
        ("null", "data.train.0: null is wrong; it takes non-empty text or {path, weight}"),
    ],
)
def test_wrong_entry_of_a_mixture(write: Write, entry: str, message: str) -> None:
    assert problem(write(), f"data.train=[{entry}]") == f"command line: {message}"


# ---- base ----


def test_base_chain(write: Write) -> None:
    write(MINIMAL + "optimizer: {lr: 1e-3, betas: [0.8, 0.9]}", "deep/base.yaml")
    write("base: deep/base.yaml\noptimizer:\n  lr: 2e-3\n", "middle.yaml")
    path = write("base: ../middle.yaml\nname: top\noptimizer: {betas: [0.1, 0.2]}\n", "top/r.yaml")
    loaded = load_recipe(path)
    assert loaded.recipe.name == "top"
    assert (loaded.recipe.optimizer.lr, loaded.recipe.optimizer.betas) == (2e-3, [0.1, 0.2])
    assert loaded.places["optimizer.lr"] == Place("middle.yaml", 3)
    assert loaded.places["optimizer.betas"] == Place("top/r.yaml", 3)
    assert loaded.places["model.family"] == Place("deep/base.yaml", 2)


def test_base_circle(write: Write) -> None:
    write("base: b.yaml", "a.yaml")
    write("\nbase: ./a.yaml", "b.yaml")
    assert problem("a.yaml").startswith("b.yaml:2: base: goes round in a circle: a.yaml -> b.yaml -> a.yaml")
    assert "circle" in problem(write("base: self.yaml", "self.yaml"))


@pytest.mark.parametrize(
    ("base", "part"),
    [
        ("gone.yaml", "gone.yaml does not exist; it takes a file name with its ending, relative to this file"),
        ("r", "r does not exist; did you mean r.yaml?"),
        ("[a.yaml]", "one recipe file"),
        ("3", "one recipe file"),
    ],
)
def test_base_that_cannot_be(write: Write, base: str, part: str) -> None:
    message = problem(write(f"{MINIMAL}base: {base}"))
    assert message.startswith("r.yaml:8: base: ") and part in message


def test_null_in_a_child_replaces_a_block(write: Write) -> None:
    write(MINIMAL + "method: {kind: lora, lora: {rank: 4}}", "base.yaml")
    child = write("base: base.yaml\nmethod: {kind: sft, lora: null}", "child.yaml")
    assert load_recipe(child).recipe.method.lora is None


# ---- overrides ----


def test_overrides(write: Write) -> None:
    loaded = load_recipe(
        write(),
        ["optimizer.lr=1e-5", "data.validation=[]", "method.kind=lora", "method.lora={rank: 4}", "method.lora.alpha=8"],
    )
    lora = loaded.recipe.method.lora
    assert loaded.recipe.optimizer.lr == 1e-5
    assert lora is not None and (lora.rank, lora.alpha) == (4, 8)
    assert str(loaded.places["optimizer.lr"]) == "command line"


def test_override_with_equals_sign_in_the_value(write: Write) -> None:
    assert load_recipe(write(), ["name=a=b"]).recipe.name == "a=b"


def test_override_of_a_native_key(write: Write) -> None:
    native = load_recipe(write(), ["automodel.model.backend.attn=te", "automodel.seed=3"]).recipe.automodel
    assert native == {"model.backend.attn": "te", "seed": 3}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimzer.lr=1", "command line: unknown key optimzer.lr; did you mean optimizer.lr?"),
        ("optimizer.lrr=1", "command line: unknown key optimizer.lrr; did you mean optimizer.lr?"),
        ("lr=1", "command line: unknown key lr; did you mean optimizer.lr?"),
        ("+optimizer.lr=1", "command line: unknown key +optimizer.lr; did you mean optimizer.lr?"),
        ("optimizer.lr", "command line: 'optimizer.lr' is not KEY=VALUE; write for instance optimizer.lr=1e-5"),
        ("optimizer.lr=[1", "command line: optimizer.lr=[1: is not valid YAML"),
        ("optimizer.lr=fast", 'command line: optimizer.lr: "fast" is wrong; it takes number > 0'),
        ("optimizer=5", "command line: optimizer: 5 is wrong; it takes block of keys"),
        ("data.train.0=x", "command line: data.train.0: data.train takes list of non-empty text"),
        ("optimizer.foo=1", "command line: unknown key optimizer.foo; optimizer takes lr, min_lr, warmup"),
    ],
)
def test_wrong_overrides(write: Write, override: str, message: str) -> None:
    assert problem(write(), override).startswith(message)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.lr=nan", 'command line: optimizer.lr: "nan" is wrong; it takes number > 0'),
        ("output_dir=''", 'command line: output_dir: "" is wrong; it takes non-empty text'),
        ("data.train=''", 'command line: data.train.0: "" is wrong; it takes non-empty text or {path, weight}'),
        ("data.workers=257", "command line: data.workers: 257 is wrong; it takes whole number ≥ 0 and ≤ 256"),
        ("batch=", "command line: batch: null is wrong; it takes block of keys; write keys below it"),
    ],
)
def test_wrong_overrides_in_full(write: Write, override: str, message: str) -> None:
    assert problem(write(), override) == message


def test_long_values_are_not_repeated_whole(write: Write) -> None:
    for override in ("optimizer.lr=" + "x" * 9000, f"optimizer.lr=[{'1, ' * 9000}]", "seed=" + "9" * 9000):
        assert len(problem(write(), override)) < 300
    with pytest.raises(UserError) as caught:
        load_recipe("x" * 9000)
    assert len(str(caught.value)) < 300


# ---- problems of a file ----


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("optimizer: {learn_rate: 1}", "r.yaml:8: unknown key optimizer.learn_rate; did you mean optimizer.lr?"),
        ("optimizer: {learning_rate: 1}", "r.yaml:8: unknown key optimizer.learning_rate; did you mean optimizer.lr?"),
        ("optmizer: {}", "r.yaml:8: unknown key optmizer; did you mean optimizer?"),
        ("lr: 1", "r.yaml:8: unknown key lr; did you mean optimizer.lr?"),
        ("optimizer.lr: 1", "r.yaml:8: unknown key optimizer.lr; in a file write lr below optimizer:"),
        ("optimizer: {lr: -1}", "r.yaml:8: optimizer.lr: -1 is wrong; it takes number > 0"),
        ("optimizer: {lr: true}", "r.yaml:8: optimizer.lr: true is wrong; it takes number > 0"),
        ("optimizer: {betas: [1]}", "r.yaml:8: optimizer.betas: [1] is wrong; it takes list of number, exactly 2"),
        ("optimizer: {betas: [0.9, x]}", 'r.yaml:8: optimizer.betas.1: "x" is wrong; it takes number'),
        ("optimizer: {warmup: 1.5}", "r.yaml:8: optimizer.warmup: 1.5 is wrong; it takes whole number ≥ 0 or number"),
        ("optimizer: {warmup: 30:00}", 'r.yaml:8: optimizer.warmup: "30:00" is wrong'),
        ("parallel: {nodes: 1_0}", 'r.yaml:8: parallel.nodes: "1_0" is wrong; it takes whole number ≥ 1; write 10'),
        ("parallel: {nodes: 2.0}", "r.yaml:8: parallel.nodes: 2.0 is wrong; it takes whole number ≥ 1; write 2"),
        ("parallel: {ep: yes}", 'r.yaml:8: parallel.ep: "yes" is wrong; it takes whole number ≥ 1'),
        ("parallel: {strategy: fsdp}", 'r.yaml:8: parallel.strategy: "fsdp" is wrong; it takes one of fsdp2, ddp'),
        ("freeze: {vision_encoder: no}", "takes true or false, without quotes (yes, no, on and off are text)"),
        ("evaluation:", "r.yaml:8: evaluation: null is wrong; it takes block of keys; leave the block out"),
        ("optimizer: {lr: NaN}", 'r.yaml:8: optimizer.lr: "NaN" is wrong; it takes number > 0'),
        ("seed: 4294967296", "seed: 4294967296 is wrong; it takes whole number ≥ 0 and < 4,294,967,296"),
        ('logging: {wandb_project: "a\\0"}', "r.yaml:8: 'a\\x00' holds the character U+0000"),
        ("logging: {wandb_entity: 3}", 'it takes text or null; write it in quotes: "3"'),
        ("method: {lora: {targets: attention}}", "also for one: [attention]"),
        ("name: other", "r.yaml:8: `name` is given twice, first at r.yaml:1"),
        ("seed: .inf", "r.yaml:8: '.inf' is not a finite value"),
    ],
)
def test_wrong_lines(write: Write, line: str, message: str) -> None:
    assert message in problem(write(MINIMAL + line)).split("\n")[-1 if "twice" not in message else 0]


@pytest.mark.parametrize(
    ("without", "message"),
    [
        ("name: small\n", "r.yaml: name is missing; it takes non-empty text"),
        ("batch: {global_batch_size: 8}\n", "r.yaml: batch is missing; it takes a block with global_batch_size"),
        ("schedule: {max_steps: 10}\n", "r.yaml: schedule is missing; it takes a block with max_steps, epochs"),
        (", checkpoint: outputs/tiny", "r.yaml:2: model.checkpoint is missing; it takes non-empty text"),
    ],
)
def test_missing(write: Write, without: str, message: str) -> None:
    assert without in MINIMAL
    assert problem(write(MINIMAL.replace(without, ""))).startswith(message)


def test_all_problems_at_once_in_the_order_of_the_file(write: Write) -> None:
    text = MINIMAL.replace("name: small\n", "nme: small\n") + "optimizer: {lr: x}\nparallel: {tp: 0, foo: 1}\n"
    head, *lines = problem(write(text), "seed=-1").split("\n")
    assert head == "r.yaml: 6 problems"
    assert [line.split(": ")[0].strip() for line in lines] == [
        *("command line", "r.yaml", "r.yaml:1", "r.yaml:8", "r.yaml:9", "r.yaml:9")
    ]


def test_problems_of_base_name_the_base(write: Write) -> None:
    write(MINIMAL + "optimizer: {lr: x}", "base.yaml")
    assert problem(write("base: base.yaml\nname: child")).startswith("base.yaml:8: optimizer.lr")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "the recipe is empty"),
        ("# nothing\n", "the recipe is empty"),
        ("- a\n", "is not a block"),
        ("a: [", "is not valid YAML"),
    ],
)
def test_no_recipe_at_all(write: Write, text: str, part: str) -> None:
    assert part in problem(write(text))


def test_not_utf8(write: Write) -> None:
    path = write()
    Path(path).write_bytes(b"name: \xff\xfe")
    assert "is not UTF-8 text" in problem(path)


# ---- names ----


def test_path_with_and_without_ending(write: Write) -> None:
    path = write()
    assert find_recipe(path) == find_recipe("r") == find_recipe(str(Path("r.yaml").resolve())) == "r.yaml"


def test_short_name_here_comes_before_the_shipped_one(write: Write) -> None:
    assert find_recipe("tiny_omni/sft").endswith("recipes/tiny_omni/sft.yaml")
    assert os.path.isabs(find_recipe("tiny_omni/sft"))
    write(MINIMAL, "recipes/tiny_omni/sft.yaml")
    assert find_recipe("tiny_omni/sft") == "recipes/tiny_omni/sft.yaml"


def test_unknown_name(write: Write) -> None:
    write()
    with pytest.raises(UserError, match=r"tiny_omni/stf: there is no such recipe .*tiny_omni/sft"):
        find_recipe("tiny_omni/stf")
    with pytest.raises(UserError, match="there is no such recipe"):
        find_recipe(".")


def test_base_files_are_not_listed(write: Write) -> None:
    write()
    assert {"tiny_omni/sft", "tiny_omni/lora", "tiny_omni/lora_experts"} <= set(shipped_recipes())
    assert not [name for name in shipped_recipes() if name.endswith("base")]


# ---- the resolved recipe ----


@pytest.mark.parametrize("name", ["no", "5e-5", "30:00", "täglich: 1"])
def test_resolved_reads_back(write: Write, tmp_path: Path, name: str) -> None:
    recipe = load_recipe(write(), [f'name="{name}"', "optimizer.lr=1e-5", "automodel.seed=7"]).recipe
    save_resolved(recipe, tmp_path / "run" / "recipe.yaml")
    assert load_recipe(tmp_path / "run" / "recipe.yaml").recipe == recipe


def test_failed_save_keeps_the_old_file(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, target = load_recipe(write()).recipe, tmp_path / "recipe.yaml"
    target.write_text("old")

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(RunError, match="No space"):
        save_resolved(recipe, target)
    assert target.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.yaml", "recipe.yaml"]
