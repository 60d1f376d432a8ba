"""Reads a recipe: YAML files joined by `base:`, overrides over them, every problem with its file and line."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from avlm.errors import Place, UserError
from avlm.recipe import yaml12
from avlm.recipe.fields import SchemaField, describe_entry, entry_fields, keys_of, schema_fields
from avlm.recipe.schema import Recipe
from avlm.recipe.yaml12 import Node
from avlm.utils.files import write_atomic
from avlm.utils.text import clipped

COMMAND_LINE = Place("command line")
"""Place of a value that was given as an override."""
_SUFFIXES = (".yaml", ".yml")
_ONE_OR_LIST = ("data.train", "data.validation")
_SPOKEN_BOOLEANS = {"yes", "no", "on", "off", "y", "n", "true", "false"}
_OTHER_NAMES = {
    "learning_rate": "optimizer.lr",
    "max_lr": "optimizer.lr",
    "warmup_steps": "optimizer.warmup",
    "warmup_ratio": "optimizer.warmup",
    "clip_grad_norm": "optimizer.grad_clip",
    "max_grad_norm": "optimizer.grad_clip",
    "num_epochs": "schedule.epochs",
    "num_train_epochs": "schedule.epochs",
    "ckpt_every_steps": "schedule.checkpoint_interval",
    "save_steps": "schedule.checkpoint_interval",
    "val_every_steps": "schedule.validation_interval",
    "eval_steps": "schedule.validation_interval",
    "train_batch_size": "batch.global_batch_size",
    "local_batch_size": "batch.micro_batch_size",
    "per_device_train_batch_size": "batch.micro_batch_size",
    "fps": "data.video_sample_fps",
    "num_frames": "data.max_video_frames",
    "max_length": "data.sequence_length",
    "num_workers": "data.workers",
    "model_name_or_path": "model.checkpoint",
    "pretrained_model_name_or_path": "model.checkpoint",
    "r": "method.lora.rank",
    "lora_alpha": "method.lora.alpha",
    "target_modules": "method.lora.targets",
    "gpus_per_node": "parallel.devices_per_node",
    "nproc_per_node": "parallel.devices_per_node",
    "num_nodes": "parallel.nodes",
}
"""What other trainers call our fields."""


@dataclass(frozen=True)
class Loaded:
    """A recipe and where it comes from.

    recipe: the validated recipe.
    places: dotted field -> where it was written. Fields with their default have none.
    raw: the merged values as written, before defaults.
    path: the file that was asked for; values from another file come through `base:`.
    """

    recipe: Recipe
    places: Mapping[str, Place]
    raw: dict[str, Any]
    path: str


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Loaded:
    """Reads the recipe at `path` and sets `overrides` over it.

    Args:
        path: a YAML file, or the short name of one below a `recipes/` folder (`tiny_omni/sft`).
        overrides: `dotted.key=value`; the value is YAML. A block (`{rank: 16}`) is merged, a list replaces.

    Raises:
        UserError: one message with every problem, each with file and line. Rules across fields are not looked at
            (`avlm.recipe.checks.check`), and neither is whether named files exist.
    """
    found = find_recipe(str(path))
    problems: list[str] = []
    tree = _read(found, (), problems)
    for text in overrides:
        change = _override(text, problems)
        if tree is not None and change is not None:
            tree = yaml12.merge(tree, change)
    if tree is None:
        raise UserError(_message(found, problems))
    tree = _accept_one_for_list(tree)
    places, raw = tree.places(), tree.plain()
    try:
        recipe = Recipe.model_validate(raw)
    except ValidationError as error:
        problems += _schema_problems(error.errors(), raw, places, found, problems)
    if problems:
        raise UserError(_message(found, problems))
    return Loaded(recipe, places, raw, found)


def save_resolved(recipe: Recipe, path: Path) -> None:
    """Writes the whole recipe, defaults included, as YAML that `load_recipe` reads back as the same recipe. Atomic.

    Raises:
        RunError: the file could not be written; an earlier one is as it was.
    """
    write_atomic(path, yaml12.dump(recipe.model_dump()))


def recipe_roots() -> list[Path]:
    """Folders that short names are looked up in: `recipes/` here, then the one next to the avlm package."""
    roots = [Path("recipes"), Path(__file__).parents[2] / "recipes"]
    if roots[0].resolve() == roots[1].resolve():
        roots.pop()
    return [root for root in roots if root.is_dir()]


def shipped_recipes() -> dict[str, Path]:
    """Short name -> file of every recipe below the roots. A `base.yaml` is a part of recipes, not one itself."""
    found: dict[str, Path] = {}
    for root in recipe_roots():
        for path in sorted(root.rglob("*.yaml")):
            if path.stem != "base":
                found.setdefault(path.relative_to(root).with_suffix("").as_posix(), path)
    return found


def find_recipe(name: str) -> str:
    """File of the recipe called `name`: a path, with or without `.yaml`, or a short name.

    Raises:
        UserError: there is none; the message names the nearest short names.
    """
    endings = ("",) if name.endswith(_SUFFIXES) else ("", *_SUFFIXES)
    for folder in (Path(), *recipe_roots()):
        for ending in endings:
            path = folder / (name + ending)
            if os.path.isfile(path):
                return _short(path)
    known = list(shipped_recipes())
    near = difflib.get_close_matches(name.removesuffix(".yaml"), known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else "`avlm recipe list` shows those that ship"
    raise UserError(f"{clipped(name)}: there is no such recipe file or short name; {hint}")


def _short(path: Path) -> str:
    """`path` relative to the working folder when it lies inside."""
    full = Path(os.path.abspath(path))
    return str(full.relative_to(Path.cwd())) if full.is_relative_to(Path.cwd()) else str(full)


def _message(path: str, problems: Sequence[str]) -> str:
    problems = list(dict.fromkeys(problems))
    if len(problems) == 1:
        return problems[0]
    return "\n  ".join([f"{path}: {len(problems)} problems", *problems])


def _read(path: str, chain: tuple[str, ...], problems: list[str]) -> Node | None:
    """The tree of a file and of those below it. `chain`: the files that led here."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        problems.append(f"{path}: is not UTF-8 text (byte {error.start})")
        return None
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}")
        return None
    root = yaml12.parse(text, path, problems)
    if root is None:
        return None
    if not isinstance(root.value, dict):
        what = "is empty" if root.value is None else "is not a block of keys"
        problems.append(f"{root.place}: the recipe {what}; it needs at least name, model, batch, schedule, data")
        return None
    keys = dict(root.value)
    base = keys.pop("base", None)
    tree = Node(keys, root.place)
    if base is None:
        return tree
    if not isinstance(base.value, str):
        problems.append(f"{base.place}: base: takes the name of one recipe file, relative to this file")
        return tree
    below = os.path.normpath(os.path.join(os.path.dirname(path), base.value))
    if os.path.abspath(below) in map(os.path.abspath, (*chain, path)):
        problems.append(f"{base.place}: base: goes round in a circle: {' -> '.join((*chain, path, below))}")
        return tree
    if not os.path.isfile(below):
        near = next((below + ending for ending in _SUFFIXES if os.path.isfile(below + ending)), None)
        hint = f"did you mean {near}?" if near else "it takes a file name with its ending, relative to this file"
        problems.append(f"{base.place}: base: {below} does not exist; {hint}")
        return tree
    low = _read(below, (*chain, path), problems)
    return None if low is None else yaml12.merge(low, tree)


def _override(text: str, problems: list[str]) -> Node | None:
    """The tree of one `dotted.key=value`."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        problems.append(f"command line: {text!r} is not KEY=VALUE; write for instance optimizer.lr=1e-5")
        return None
    names = key.split(".")
    fields, path = schema_fields(), ""
    for depth, name in enumerate(names):
        known = fields.get(path)
        if known and known.free:
            names[depth:] = [".".join(names[depth:])]
            break
        if path and known and not known.section:
            problems.append(f"command line: {key}: {path} takes {known.type}, it is no block; give all of it: {path}=…")
            return None
        path = f"{path}.{name}" if path else name
        if path not in fields:
            problems.append(f"command line: {_unknown(key)}")
            return None
    node = yaml12.parse(value, f"command line: {text}", problems, place=COMMAND_LINE)
    if node is None:
        return None
    for name in reversed(names):
        node = Node({name: node}, COMMAND_LINE)
    return node


def _accept_one_for_list(tree: Node) -> Node:
    """Where a list of files is wanted, one file is a list of one."""
    data = tree.value.get("data")
    if data is None or not isinstance(data.value, dict):
        return tree
    keys = dict(data.value)
    for path in _ONE_OR_LIST:
        name = path.removeprefix("data.")
        if name in keys and isinstance(keys[name].value, str | dict):
            keys[name] = Node([keys[name]], keys[name].place)
    return Node({**tree.value, "data": Node(keys, data.place)}, tree.place)


def _unknown(path: str) -> str:
    """Message about a key that the schema does not have."""
    fields = schema_fields()
    block, _, name = path.rpartition(".")
    if path in fields:
        return f"unknown key {path}; in a file write {name} below {block}:"
    near = difflib.get_close_matches(name, keys_of(block), n=1) if not block or block in fields else []
    candidates = [f"{block}.{near[0]}" if block else near[0]] if near else []
    if not candidates:  # the right key in another block
        candidates = [p for p in fields if p.rpartition(".")[2] == name]
    if not candidates:
        candidates = [_OTHER_NAMES[n] for n in difflib.get_close_matches(name, _OTHER_NAMES, n=1, cutoff=0.85)]
    if not candidates and block not in fields:
        candidates = difflib.get_close_matches(path, fields, n=1, cutoff=0.75)
    if not candidates:
        last = {p.rpartition(".")[2]: p for p in fields}
        candidates = [last[n] for n in difflib.get_close_matches(name, last, n=1, cutoff=0.75)]
    if candidates:
        return f"unknown key {path}; did you mean {' or '.join(candidates)}?"
    where = f"{block} takes" if block in fields else "a recipe takes"
    return f"unknown key {path}; {where} {', '.join(keys_of(block if block in fields else ''))}"


def _schema_problems(
    errors: Sequence[ErrorDetails],
    raw: Mapping[str, Any],
    places: Mapping[str, Place],
    path: str,
    earlier: Sequence[str],
) -> list[str]:
    """Pydantic's errors in our words, in the order of the file.

    What follows from problems found `earlier` is left out: fields missing because a base could not be read, and nulls
    that stand for values that could not be read.
    """
    fields, broken = {**schema_fields(), **_entry_fields(raw)}, {problem.partition(": ")[0] for problem in earlier}
    found: dict[tuple[str, int, str], str] = {}
    for error in errors:
        names = [str(part) for part in error["loc"] if not str(part).startswith("<")]  # tags of the schema's unions
        if error["type"] == "extra_forbidden":
            dotted = ".".join(names)
            place, text = places[dotted], _unknown_in_entry(dotted, fields) or _unknown(dotted)
        else:
            field, dotted = _field_of(names, fields, places)
            place = places.get(dotted) or _nearest_place(dotted, places) or Place(path)
            if error["type"] == "missing":
                if any("base:" in problem for problem in earlier):
                    continue
                text = f"{dotted} is missing; it takes {_needs(field)}"
            else:
                value = error["input"] if dotted in places else None
                value = _value_at(raw, dotted, value)
                if value is None and str(place) in broken:
                    continue
                takes = field.type if dotted == field.path else describe_entry(get_args(field.annotation)[0])
                hint = _hint(field, value) if dotted == field.path else ""
                text = f"{dotted}: {_shown(value)} is wrong; it takes {takes}{hint}"
        found[place.file, place.line or 0, dotted] = f"{place}: {text}"
    return [found[key] for key in sorted(found)]


def _entry_fields(raw: Mapping[str, Any]) -> dict[str, SchemaField]:
    """Fields of the blocks that stand in lists of `raw`."""
    found: dict[str, SchemaField] = {}
    for path, field in schema_fields().items():
        value = _value_at(raw, path, None)
        for position in range(len(value) if isinstance(value, list) else 0):
            found |= entry_fields(field, position)
    return found


def _unknown_in_entry(path: str, fields: Mapping[str, SchemaField]) -> str | None:
    """Message about an unknown key of a block in a list; None when the path is none."""
    block, _, name = path.rpartition(".")
    keys = [p.rpartition(".")[2] for p in fields if p.rpartition(".")[0] == block]
    if not block.rpartition(".")[2].isdigit() or not keys:
        return None
    near = difflib.get_close_matches(name, keys, n=1)
    return f"unknown key {path}; " + (f"did you mean {near[0]}?" if near else f"{block} takes {', '.join(keys)}")


def _field_of(
    names: list[str], fields: Mapping[str, SchemaField], places: Mapping[str, Place]
) -> tuple[SchemaField, str]:
    """The field that an error is about, and its dotted name with list positions, without pydantic's own parts."""
    depth = next((n for n in range(len(names), 0, -1) if ".".join(names[:n]) in fields), 1)
    field = fields[".".join(names[:depth])]
    dotted = field.path
    if len(names) > depth and f"{dotted}.{names[depth]}" in places:
        dotted = f"{dotted}.{names[depth]}"
    return field, dotted


def _nearest_place(dotted: str, places: Mapping[str, Place]) -> Place | None:
    while "." in dotted:
        dotted = dotted.rpartition(".")[0]
        if dotted in places:
            return places[dotted]
    return None


def _value_at(raw: Mapping[str, Any], dotted: str, otherwise: Any) -> Any:
    value: Any = raw
    for name in dotted.split("."):
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        else:
            return otherwise
    return value


def _needs(field: SchemaField) -> str:
    """What a missing field takes; for a block, the keys that it must have."""
    if not field.section:
        return field.type
    needed = [f.path.rpartition(".")[2] for f in schema_fields().values() if f.required]
    needed = [n for n in needed if f"{field.path}.{n}" in schema_fields()]
    return "a block with " + ", ".join(needed or keys_of(field.path))


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list):
        return clipped(f"[{', '.join(map(_shown, value[:8]))}{', …' if len(value) > 8 else ''}]")
    if isinstance(value, dict):
        return "a block of keys"
    return clipped(f'"{value}"' if isinstance(value, str) else str(value))


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _hint(field: SchemaField, value: Any) -> str:
    """The usual cause, where it shows."""
    takes = field.annotation
    kinds = {takes, *get_args(takes)}
    if bool in kinds and isinstance(value, str) and value.lower() in _SPOKEN_BOOLEANS:
        return ", without quotes (yes, no, on and off are text)"
    if field.type.startswith(("whole number", "number")):
        if isinstance(value, float) and value.is_integer() and "whole" in field.type:
            return f"; write {int(value)}"
        if isinstance(value, str):
            digits = value.strip().replace("_", "").replace(",", "")
            if _is_number(digits):
                return f"; write {digits} without quotes"
    if field.type.startswith(("text", "non-empty text")) and isinstance(value, bool | int | float):
        return f'; write it in quotes: "{_shown(value)}"'
    if field.section and value is None:
        optional = "" if field.required else "leave the block out for its defaults, or "
        return f"; {optional}write keys below it"
    if field.type.startswith("list") and not isinstance(value, list | dict):
        return f", also for one: [{clipped(str(value))}]"
    return ""
