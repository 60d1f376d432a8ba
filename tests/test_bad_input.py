"""Bad input from the command line: exit code 2, one message that says where, what is wrong and what would be right,
no traceback, and nothing half-written."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from avlm.cli import run
from avlm.launch import local

TEXT = {"type": "text", "text": "What is it?"}
ANSWER = {"role": "assistant", "content": "red"}


@dataclass
class Place:
    """A tiny model and clips, and a folder of its own for each case."""

    model: Path
    data: Path
    folder: Path

    @property
    def out(self) -> Path:
        """`output_dir` of the case's recipe."""
        return self.folder / "out"

    def recipe(self, changes: dict[str, Any] | None = None, text: str | bytes | None = None) -> str:
        """A recipe file that is right but for `changes` (dotted), or one with this text."""
        raw: dict[str, Any] = {
            "name": "bad",
            "model": {"family": "qwen3_omni_moe", "checkpoint": str(self.model), "dtype": "float32"},
            "batch": {"global_batch_size": 2},
            "schedule": {"max_steps": 1},
            "data": {
                "train": [str(self.data / "train.jsonl")],
                "validation": [str(self.data / "validation.jsonl")],
                "video_root": str(self.data),
                "video_min_pixels": 1024,
                "video_max_pixels": 4096,
                "max_video_frames": 4,
                "sequence_length": 1024,
                "workers": 0,
            },
            "parallel": {"devices_per_node": 1},
            "device": "cpu",
            "output_dir": str(self.out),
        }
        for key, value in (changes or {}).items():
            *blocks, last = key.split(".")
            target = raw
            for block in blocks:
                target = target.setdefault(block, {})
            target[last] = value
        content = yaml.safe_dump(raw, sort_keys=False) if text is None else text
        return self.file("recipe.yaml", content)

    def file(self, name: str, content: str | bytes = "") -> str:
        """A file in the case's folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    def rows(self, *lines: Any) -> dict[str, Any]:
        """Changes that train on a JSONL file of these lines (text, bytes or values), with the media of `clip`."""
        raw = [
            line if isinstance(line, bytes) else line if isinstance(line, str) else json.dumps(line) for line in lines
        ]
        content = b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in raw)
        (self.folder / "media").mkdir(exist_ok=True)
        rows = self.file("rows.jsonl", content)
        return {"data.train": [rows], "data.validation": [], "data.video_root": str(self.folder / "media")}

    def clip(self, name: str, content: bytes | None = None) -> dict[str, Any]:
        """Changes that train on one question about a clip: a good one or one of these bytes."""
        good = (self.data / "clips/0001.mp4").read_bytes()
        self.file(f"media/{name}", good if content is None else content)
        return self.rows(question({"type": "video", "path": name}))

    def checkpoint(self, without: Sequence[str] = (), **texts: str) -> dict[str, Any]:
        """Changes that start from a copy of the model that lacks some files, or has others in their place."""
        copy = self.folder / "model"
        shutil.copytree(self.model, copy, ignore=lambda _, names: [n for n in names if n in without])
        for name, text in texts.items():
            (copy / name.replace("__", ".")).write_text(text)
        return {"model.checkpoint": str(copy)}

    def earlier(self, changes: dict[str, Any] | None = None, **files: str | None) -> str:
        """A recipe whose output_dir holds a run (with `changes`) and these files; None: removed."""
        from avlm.recipe.load import load_recipe, save_resolved

        save_resolved(load_recipe(self.recipe(changes)).recipe, self.out / "recipe.yaml")
        (self.out / "checkpoints").mkdir()
        (self.out / "versions.json").write_text('{"stack": "automodel"}')
        for name, text in files.items():
            path = self.out / name.replace("__", ".")
            path.unlink() if text is None else path.write_text(text)
        return self.recipe()


def question(*content: Any, answer: Any = ANSWER, **keys: Any) -> dict[str, Any]:
    """A row about `content`."""
    turns = [{"role": "user", "content": [*content, TEXT]}, answer]
    return {"id": "a", "conversation": [turn for turn in turns if turn is not None], **keys}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("bad_input")
    assert run(["model", "tiny", str(folder / "model")]) == 0
    assert run(["data", "make-demo", str(folder / "data"), "--clips", "40"]) == 0
    return Place(folder / "model", folder / "data", folder)


@pytest.fixture
def place(shared: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """The case's own folder is the working folder; nothing may be trained."""

    def launch(*_: Any, **__: Any) -> int:
        raise AssertionError("training was started")

    monkeypatch.setattr(local, "launch", launch)
    monkeypatch.chdir(tmp_path)
    before = listing(shared.folder)
    yield Place(shared.model, shared.data, tmp_path)
    assert listing(shared.folder) == before


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Everything below a folder: size and time of change."""
    found = {}
    for path in sorted(folder.rglob("*")):
        stat = path.lstat()
        found[str(path.relative_to(folder))] = (stat.st_size if path.is_file() else 0, stat.st_mtime_ns)
    return found


@pytest.fixture
def refused(place: Place, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`refused(argument, …)`: the message of a command that ends with 2 and leaves everything as it was."""

    def call(*arguments: object) -> str:
        before = listing(place.folder)
        capsys.readouterr()
        assert run([str(a) for a in arguments]) == 2
        error = capsys.readouterr().err
        assert "Traceback" not in error
        assert error.count("Error: ") == 1, error
        assert listing(place.folder) == before
        return error.split("Error: ")[1].replace(str(place.folder), "P").replace(str(place.data), "D").strip()

    return call


def test_the_recipe_is_right_but_for_what_a_case_changes(place: Place) -> None:
    with pytest.raises(AssertionError, match="training was started"):
        run(["train", place.recipe()])
    with pytest.raises(AssertionError, match="training was started"):
        run(["train", place.recipe(place.clip("good.mp4"))])
    with pytest.raises(AssertionError, match="training was started"):
        run(["train", place.earlier()])


Changes = Callable[[Place], dict[str, Any]]

# What is wrong -> the changes that make it so, and the message. P: the case's folder, D: that of the clips.
FILES: dict[str, tuple[Changes, str]] = {
    "missing rows": (
        lambda p: {"data.train": ["gone.jsonl"]},
        "gone.jsonl: no such file; data.train and data.validation name JSONL files",
    ),
    "missing validation rows": (
        lambda p: {"data.validation": ["gone.jsonl"]},
        "gone.jsonl: no such file; data.train and data.validation name JSONL files",
    ),
    "rows are a folder": (lambda p: {"data.train": [str(p.folder)]}, "P: cannot be read: Is a directory"),
    "missing video_root": (
        lambda p: {"data.video_root": "gone"},
        "data.video_root: gone is not a folder; media paths in rows are relative to it",
    ),
    "video_root is a file": (
        lambda p: {"data.video_root": p.file("notes")},
        "data.video_root: P/notes is not a folder; media paths in rows are relative to it",
    ),
    "output_dir is a file": (
        lambda p: {"output_dir": p.file("out")},
        "output_dir: P/out is a file; give a folder",
    ),
    "output_dir in a file": (
        lambda p: {"output_dir": p.file("out") + "/run"},
        "output_dir: P/out/run cannot be made: P/out is a file; give a folder",
    ),
    "output_dir is the folder of the recipe": (
        lambda p: {"output_dir": str(p.folder)},
        "output_dir: P holds recipe.yaml, but no run of avlm (no versions.json); a run would overwrite that, so choose",
    ),
    "output_dir is the data's folder": (
        lambda p: {"output_dir": str(p.data)},
        "output_dir: D holds validation.jsonl, but no run of avlm (no versions.json)",
    ),
    "output_dir is the model": (
        lambda p: {"output_dir": p.checkpoint()["model.checkpoint"], "model.checkpoint": str(p.folder / "model")},
        "output_dir: P/model is model.checkpoint itself; choose another output_dir",
    ),
    "long output_dir": (lambda p: {"output_dir": "x" * 300}, "is no folder that can be made: File name too long"),
}
CHECKPOINTS: dict[str, tuple[Changes, str]] = {
    "missing": (
        lambda p: {"model.checkpoint": "gone"},
        "model.checkpoint: gone: no such checkpoint; give a Hugging Face folder or a hub id (owner/name)",
    ),
    "missing, perhaps a hub id": (
        lambda p: {"model.checkpoint": "outputs/gone"},
        "model.checkpoint: outputs/gone (no such folder here, so it was looked for on the hub) has no Qwen3-Omni",
    ),
    "a file": (
        lambda p: {"model.checkpoint": p.file("notes")},
        "model.checkpoint: P/notes: is not a Hugging Face checkpoint (is a file, not a folder)",
    ),
    "without config": (
        lambda p: p.checkpoint(["config.json"]),
        "P/model: is not a Hugging Face checkpoint (config.json",
    ),
    "damaged config": (
        lambda p: p.checkpoint(config__json="{"),
        "P/model/config.json: does not say which model this is",
    ),
    "llama": (
        lambda p: p.checkpoint(config__json='{"model_type": "llama"}'),
        "model.checkpoint: P/model: is a checkpoint of another model: its model_type is llama, the recipe's "
        "model.family is qwen3_omni_moe",
    ),
    "an adapter": (
        lambda p: {"model.checkpoint": str(Path(p.file("lora/adapter_config.json", "{}")).parent)},
        "model.checkpoint: P/lora: is not a Hugging Face checkpoint (it is an adapter; name the model that it",
    ),
    "without processor": (
        lambda p: p.checkpoint(["processor_config.json", "tokenizer.json", "tokenizer_config.json"]),
        "model.checkpoint: P/model lacks tokenizer.json or vocab.json; copy the processor's files from",
    ),
    "without image processor": (
        lambda p: p.checkpoint(["processor_config.json"]),
        "model.checkpoint: P/model lacks processor_config.json or preprocessor_config.json; copy",
    ),
    "without chat template": (
        lambda p: p.checkpoint(["chat_template.jinja"]),
        "model.checkpoint: P/model has no chat template; copy chat_template.jinja",
    ),
    "without weights": (
        lambda p: p.checkpoint(["model.safetensors"]),
        "model.checkpoint: P/model: has no weights (*.safetensors)",
    ),
    "cut weights": (
        lambda p: p.checkpoint(model__safetensors="x"),
        "P/model/model.safetensors: is not a whole safetensors file (1 bytes); copy it anew",
    ),
}
MEDIA: dict[str, tuple[Changes, str]] = {
    "garbage": (
        lambda p: p.clip("a.mp4", b"\x00\x17garbage" * 500),
        "P/rows.jsonl:1: row 'a': P/media/a.mp4: cannot be read (Invalid data found when processing input); it is",
    ),
    "text": (
        lambda p: p.clip("a.mp4", b"This is no video.\n" * 50),
        "P/rows.jsonl:1: row 'a': P/media/a.mp4: cannot be read (Invalid data",
    ),
    "zero bytes": (lambda p: p.clip("a.mp4", b""), "P/rows.jsonl:1: row 'a': P/media/a.mp4: the file is empty"),
    "cut off": (
        lambda p: p.clip("a.mp4", (p.data / "clips/0001.mp4").read_bytes()[:3000]),
        "P/rows.jsonl:1: row 'a': P/media/a.mp4: cannot be read (Invalid data",
    ),
    "a folder": (lambda p: p.clip("a.mp4/b"), "a.mp4/b"),  # replaced below
    "missing": (
        lambda p: p.rows(question({"type": "video", "path": "gone.mp4"})),
        "P/rows.jsonl:1: turn 1, item 1: media file 'gone.mp4' does not exist in video_root (P/media)",
    ),
    "up and out": (
        lambda p: p.rows(question({"type": "video", "path": "../recipe.yaml"})),
        "P/rows.jsonl:1: turn 1, item 1: path '../recipe.yaml' leaves video_root (P/media); paths must stay inside it",
    ),
    "absolute": (
        lambda p: p.rows(question({"type": "video", "path": "/etc/passwd"})),
        "P/rows.jsonl:1: turn 1, item 1: path '/etc/passwd' leaves video_root (P/media); paths must stay inside it",
    ),
}


def linked_out(place: Place) -> dict[str, Any]:
    """A link inside video_root that leads out of it."""
    changes = place.clip("link.mp4")
    (place.folder / "media/link.mp4").unlink()
    (place.folder / "media/link.mp4").symlink_to(place.data / "clips/0001.mp4")
    return changes


def folder_as_clip(place: Place) -> dict[str, Any]:
    """A folder with the name of a clip."""
    changes = place.clip("folder.mp4")
    (place.folder / "media/folder.mp4").unlink()
    (place.folder / "media/folder.mp4").mkdir()
    return changes


MEDIA["a folder"] = (folder_as_clip, "P/rows.jsonl:1: turn 1, item 1: path 'folder.mp4' is not a file")
MEDIA["linked out"] = (
    linked_out,
    "P/rows.jsonl:1: turn 1, item 1: path 'link.mp4' leaves video_root (P/media); paths must stay inside it, symbolic",
)

GOOD = question(id="good")
ROWS: dict[str, tuple[Changes, str]] = {
    "no answer": (
        lambda p: p.rows(GOOD, question(answer=None)),
        '1 bad row in the data:\n  P/rows.jsonl:2: the row has no assistant answer; its last turn must be {"role": ',
    ),
    "empty answer": (
        lambda p: p.rows(question(answer={"role": "assistant", "content": " "})),
        "P/rows.jsonl:1: turn 2: the assistant's answer is empty",
    ),
    "unknown role": (
        lambda p: p.rows(question(answer={"role": "asistant", "content": "red"})),
        "P/rows.jsonl:1: turn 2: unknown role \"asistant\"; did you mean 'assistant'?",
    ),
    "unknown content type": (
        lambda p: p.rows(question({"type": "vidoe", "path": "a.mp4"})),
        "P/rows.jsonl:1: turn 1, item 1: unknown type \"vidoe\"; did you mean 'video'?",
    ),
    "empty dataset": (
        lambda p: p.rows(),
        "1 problem in the data:\n  P/rows.jsonl: the dataset is empty: the file has no",
    ),
    "blank dataset": (lambda p: p.rows("", " "), "P/rows.jsonl: the dataset is empty: the file has no rows"),
    "JSON error": (
        lambda p: p.rows(GOOD, '{"id": "b", "conversation": [],}'),
        "P/rows.jsonl:2: not JSON: Expecting property name enclosed in double quotes at column 32",
    ),
    "JSON list": (
        lambda p: p.rows("[", json.dumps(GOOD), "]"),
        "a row is one object on one line, without a list around",
    ),
    "not UTF-8": (lambda p: p.rows('{"id": "ä"}'.encode("latin-1")), "P/rows.jsonl:1: not UTF-8: byte 9 of the line"),
    "id twice": (lambda p: p.rows(GOOD, GOOD), "P/rows.jsonl:2: id 'good' is used before, at P/rows.jsonl:1; ids must"),
    "number for text": (
        lambda p: p.rows(question({"type": "text", "text": 5})),
        "P/rows.jsonl:1: turn 1, item 1: a text item needs 'text', a string, not 5",
    ),
    "too long": (
        lambda p: p.rows(question({"type": "text", "text": "word " * 5000})),
        "data.sequence_length: 1 of 1 rows have more than 1024 tokens:\n  P/rows.jsonl:1: row 'a': ",
    ),
    "fewer rows than half a batch": (
        lambda p: {**p.rows(GOOD), "batch.global_batch_size": 3},
        "batch.global_batch_size is 3, but there are only 1 training rows",
    ),
}
RECIPES: dict[str, tuple[Changes, str]] = {
    "wrong type": (
        lambda p: {"schedule.max_steps": "many"},
        'P/recipe.yaml:9: schedule.max_steps: "many" is wrong; it takes whole number ≥ 1 or null',
    ),
    "text for a block": (lambda p: {"optimizer": "adam"}, 'optimizer: "adam" is wrong; it takes block of keys'),
    "unknown key": (
        lambda p: {"optimizer.learning_rat": 1.0},
        "recipe.yaml:26: unknown key optimizer.learning_rat; did you mean optimizer.lr?",
    ),
    "empty name": (lambda p: {"output_dir": ""}, 'output_dir: "" is wrong; it takes non-empty text'),
    "ep does not divide": (
        lambda p: {"parallel.ep": 2},
        "parallel.ep = 2 (recipe.yaml:23), parallel.pp = 1 (default): ep must divide world size / pp = 1 / 1; 1 do",
    ),
    "batch does not divide": (
        lambda p: {"batch.micro_batch_size": 4},
        "batch.global_batch_size = 2 (recipe.yaml:7), batch.micro_batch_size = 4 (recipe.yaml:8): the global batch "
        "must be a multiple of micro batch × data-parallel size = 4 × 1 = 4, for instance 4",
    ),
    "nothing ends the run": (lambda p: {"schedule": {"epochs": None}}, "nothing ends the run; give one of them"),
    "too many ranks": (
        lambda p: {"parallel.devices_per_node": 4096, "batch.global_batch_size": 4096},
        "parallel.devices_per_node: 4096 ranks are too many for this machine's CPU; at most",
    ),
    "two nodes": (
        lambda p: {"parallel.nodes": 2},
        "parallel.nodes is 2: `avlm train` starts ranks on this machine only; start `python -m automodel.train`",
    ),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(*case, id=f"{group}: {name}")
        for group, cases in {
            "files": FILES,
            "checkpoint": CHECKPOINTS,
            "media": MEDIA,
            "rows": ROWS,
            "recipe": RECIPES,
        }.items()
        for name, case in cases.items()
    ],
)
def test_train(change: Changes, message: str, place: Place, refused: Callable[..., str]) -> None:
    said = refused("train", place.recipe(change(place)))
    assert message.replace("P/recipe.yaml", "recipe.yaml") in said


TEXTS: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "recipe.yaml:1: the recipe is empty; it needs at least name, model, batch, schedule, data"),
    "a list": ("- name", "recipe.yaml:1: the recipe is not a block of keys; it needs"),
    "tab": ("data:\n\ttrain: x", "recipe.yaml:2: is not valid YAML: "),
    "open bracket": ("name: [", "recipe.yaml:1: is not valid YAML: "),
    "UTF-16": ("name: x".encode("utf-16"), "recipe.yaml: is not UTF-8 text (byte 0)"),
    "base circle": ("base: recipe.yaml", "recipe.yaml:1: base: goes round in a circle: recipe.yaml -> recipe.yaml"),
    "missing base": ("name: x\nbase: gone.yaml", "recipe.yaml:2: base: gone.yaml does not exist"),
    "missing blocks": (
        "name: x",
        "recipe.yaml: 5 problems\n  recipe.yaml: batch is missing; it takes a block with global",
    ),
}


@pytest.mark.parametrize(("text", "message"), TEXTS.values(), ids=TEXTS)
def test_recipe_text(text: str | bytes, message: str, place: Place, refused: Callable[..., str]) -> None:
    assert message in refused("train", place.recipe(text=text))


COMMANDS: dict[str, tuple[Sequence[str], str]] = {
    "unknown recipe": (
        ("train", "tiny_omni/stf"),
        "tiny_omni/stf: there is no such recipe file or short name; did you mean tiny_omni/sft",
    ),
    "missing recipe": (("train", "gone.yaml"), "gone.yaml: there is no such recipe file or short name"),
    "unknown stack": (
        ("train", "R", "--stack", "deepspeed"),
        "stack: 'deepspeed' is unknown; known stacks: automodel, ",
    ),
    "no value": (("train", "R", "optimizer.lr"), "command line: 'optimizer.lr' is not KEY=VALUE; write for instance"),
    "no key": (("train", "R", "=3"), "command line: '=3' is not KEY=VALUE; write for instance optimizer.lr=1e-5"),
    "unknown override": (
        ("train", "R", "optimizer.lrr=1"),
        "command line: unknown key optimizer.lrr; did you mean optimizer.lr?",
    ),
    "override of a wrong type": (
        ("train", "R", "schedule.max_steps=1e3"),
        "command line: schedule.max_steps: 1000.0 is wrong; it takes whole number ≥ 1 or null; write 1000",
    ),
    "override that is no YAML": (("train", "R", "data.train=[a"), "command line: data.train=[a: is not valid YAML: "),
    "demo of an unknown stack": (("demo", "R", "--stack", "x"), "stack: 'x' is unknown; known stacks: "),
    "demo with a bad batch": (("demo", "R", "batch.micro_batch_size=4"), "the global batch must be a multiple of"),
    "infer: checkpoint": (
        ("infer", "R", "--checkpoint", "gone"),
        "gone: no such checkpoint; give a Hugging Face folder",
    ),
    "eval: checkpoint": (("eval", "R", "--checkpoint", "gone"), "gone: no such checkpoint; give a Hugging Face folder"),
    "infer: adapter": (("infer", "R", "--adapter", "gone"), "gone: is not an adapter's folder (adapter_config.json is"),
    "infer: data": (("infer", "R", "--data", "gone.jsonl"), "gone.jsonl: no such file; "),
    "infer: no data": (
        ("infer", "R", "data.validation=[]"),
        "data.validation: the recipe names no validation rows; give",
    ),
    "infer: out is a folder": (("infer", "R", "--out", "."), ".: is a folder; --out takes the name of a JSONL file"),
    "infer: out in a file": (
        ("infer", "R", "--out", "recipe.yaml/a.jsonl"),
        "recipe.yaml/a.jsonl: recipe.yaml is a file; give a folder",
    ),
    "infer: out is a recipe": (
        ("infer", "R", "--out", "recipe.yaml", "--overwrite"),
        "holds something else than predictio",
    ),
    "infer: no GPU": (
        ("infer", "R", "device=cuda"),
        "device: the recipe says cuda, but no CUDA device is here; add device",
    ),
    "eval: predictions": (
        ("eval", "R", "--predictions", "gone"),
        "gone: no such predictions file; `avlm infer` writes one",
    ),
    "eval: foreign predictions": (
        ("eval", "R", "--predictions", "recipe.yaml"),
        "recipe.yaml:1: not JSON (Expecting value)",
    ),
    "eval: name": (("eval", "R", "--name", "../x"), "--name: '../x' must be a plain file name without ending"),
    "eval: two ablations": (("eval", "R", "--mute-audio", "--blank-video"), "--mute-audio and --blank-video: take one"),
    "report: missing": (("report", "gone"), "gone: no such folder; give a run's output_dir"),
    "report: empty": (
        ("report", "."),
        ".: holds no run (no recipe.yaml, metrics.jsonl, eval/); give a run's output_dir",
    ),
    "tiny: not empty": (
        ("model", "tiny", "."),
        ".: is not empty and was not made by this command; give another folder",
    ),
    "tiny: a file": (("model", "tiny", "recipe.yaml"), "recipe.yaml: is a file; give a folder that does not exist yet"),
    "tiny: in a file": (("model", "tiny", "recipe.yaml/model"), "recipe.yaml/model cannot be made: "),
    "tiny: seed": (("model", "tiny", "new", "--seed", "4294967296"), "Invalid value for '--seed': "),
    "demo data: not empty": (
        ("data", "make-demo", "."),
        ".: is not empty and was not made by this command; give another",
    ),
    "demo data: too few": (
        ("data", "make-demo", "new", "--clips", "3"),
        "--clips: 3 is too few; at least 10 are needed",
    ),
    "check: missing": (
        ("data", "check", "gone.jsonl"),
        "gone.jsonl: no such file; data.train and data.validation name",
    ),
    "check: unknown recipe": (("data", "check", "tiny_omni/stf"), "did you mean tiny_omni/sft"),
    "stats: checkpoint": (
        ("data", "stats", "R", "model.checkpoint=gone"),
        "model.checkpoint: gone: no such checkpoint",
    ),
    "explain: stack": (("recipe", "explain", "R", "--stack", "x"), "stack: 'x' is unknown; known stacks: "),
    "show: missing": (("recipe", "show", "gone"), "gone: there is no such recipe file or short name"),
    "validate: only overrides": (("recipe", "validate", "a=b"), "name at least one recipe before the overrides"),
    "unknown option": (("train", "R", "--bogus"), "No such option: --bogus"),
    "unknown command": (("trian",), "No such command 'trian'"),
}


@pytest.mark.parametrize(("arguments", "message"), COMMANDS.values(), ids=COMMANDS)
def test_command(
    arguments: Sequence[str], message: str, place: Place, refused: Callable[..., str], request: pytest.FixtureRequest
) -> None:
    recipe = place.recipe()
    if "report: empty" in request.node.name:
        os.unlink(recipe)
    assert message in refused(*(recipe if argument == "R" else argument for argument in arguments))


EARLIER: dict[str, tuple[dict[str, Any], dict[str, str | None], str]] = {
    "another run": (
        {"seed": 7},
        {},
        "P/out holds checkpoints of another run (seed was 7, is 0); choose another output_dir, or remove the folder",
    ),
    "another stack": (
        {},
        {"versions__json": '{"stack": "zero_offload"}'},
        "P/out holds a run of stack zero_offload, not",
    ),
    "without versions": (
        {},
        {"versions__json": None},
        "P/out/versions.json does not say which stack trained the run; ",
    ),
    "damaged versions": (
        {},
        {"versions__json": "[]"},
        "P/out/versions.json does not say which stack trained the run; ",
    ),
    "without recipe": (
        {},
        {"recipe__yaml": None},
        "P/out holds checkpoints of a run that is not known (recipe.yaml is mi",
    ),
    "damaged recipe": (
        {},
        {"recipe__yaml": "name: ["},
        "P/out holds checkpoints of a run that is not known (out/recipe.yaml:1: is not valid YAML",
    ),
    "other rows": (
        {},
        {"data__json": '{"order": 1, "files": [{"path": "x"}]}'},
        "P/out holds checkpoints of a run on other training rows",
    ),
}


@pytest.mark.parametrize(("changes", "files", "message"), EARLIER.values(), ids=EARLIER)
def test_folder_of_an_earlier_run(
    changes: dict[str, Any], files: dict[str, str | None], message: str, place: Place, refused: Callable[..., str]
) -> None:
    assert message in refused("train", place.earlier(changes, **files))


def test_a_damaged_dataset_is_reported_in_full(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    clips = [{"type": "video", "path": name} for name in ("empty.mp4", "garbage.mp4", "gone.mp4")]
    changes = place.rows(GOOD, *(question(clip, id=str(n)) for n, clip in enumerate(clips)), "{")
    place.file("media/empty.mp4")
    place.file("media/garbage.mp4", b"garbage" * 500)
    before = listing(place.folder)
    assert run(["data", "check", changes["data.train"][0], "--video-root", changes["data.video_root"], "--json"]) == 2
    assert listing(place.folder) == before
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert not said.err.strip() and not report["ok"]
    assert [(f["line"], f["kind"]) for f in report["findings"]] == [(2, "media"), (3, "media"), (4, "row"), (5, "row")]


def test_names_with_spaces_quotes_and_other_scripts_are_good(place: Place) -> None:
    names = ("a b.mp4", 'it\'s "it".mp4', "é 日本 🙂.mp4", "new\nline.mp4", "%d.mp4", "-x.mp4", "a:b.mp4", "http:x")
    for name in names:
        place.clip(name)
    changes = place.rows(*(question({"type": "video", "path": name}, id=name) for name in names))
    with pytest.raises(AssertionError, match="training was started"):
        run(["train", place.recipe(changes)])


@pytest.mark.parametrize(
    "raw", ["\ufeff{0}\n", "{0}\r\n", "\n\n{0}\n\n", "{0}"], ids=["BOM", "CRLF", "blank", "no end"]
)
def test_ways_to_write_a_file_that_are_good(raw: str, place: Place) -> None:
    changes = place.rows(GOOD)
    place.file("rows.jsonl", raw.format(json.dumps(GOOD)))
    recipe = Path(place.recipe(changes))
    recipe.write_bytes(raw.format(recipe.read_text()).encode())
    with pytest.raises(AssertionError, match="training was started"):
        run(["train", str(recipe)])


def test_what_is_damaged_but_usable_is_counted(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    from avlm.launch.run import prepare
    from avlm.recipe.load import load_recipe
    from tests.avlm.data.clips import greys, write

    whole = write(place.folder / "whole.mp4", greys(40), options={"movflags": "faststart"}).read_bytes()
    recipe = load_recipe(place.recipe(place.clip("cut.mp4", whole[: len(whole) * 7 // 10]))).recipe
    run_ = prepare(recipe, stack="automodel", main=True)
    assert run_.lock is not None
    said = r"1 media file is damaged and used as far as possible, first .*/cut.mp4: only \d+ of 40 frames .*"
    assert re.search(said + "`avlm data check` names all", capsys.readouterr().out)


def test_one_training_at_a_time(place: Place, refused: Callable[..., str]) -> None:
    code = "import sys, time; from pathlib import Path; from avlm.utils.lock import take; take(Path(sys.argv[1]))\n"
    code += "print('locked', flush=True); time.sleep(60)"
    recipe = place.earlier()
    command = [sys.executable, "-c", code, str(place.out / ".lock")]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    try:
        assert other.stdout is not None and other.stdout.readline() == "locked\n"
        said = refused("train", recipe)
        assert said.startswith(f"output_dir: P/out is being trained into by process {other.pid} on ")
        assert said.endswith("stop it with a checkpoint by `touch P/out/stop`, or choose another output_dir")
    finally:
        other.kill()
        other.wait()
    with pytest.raises(AssertionError, match="training was started"):
        run(["train", recipe])
