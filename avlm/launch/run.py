"""What a training run needs before a stack is imported: rows, lengths, packs, horizon, and the run's folder.

Every stack and every rank calls `prepare` and gets the same answer; only the main rank writes files.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from avlm.data.types import MediaKind, Row
from avlm.errors import UserError
from avlm.recipe.schema import Data, Recipe, StackName
from avlm.utils.files import check_writable, write_atomic
from avlm.utils.lock import Held, holder, take

if TYPE_CHECKING:
    from avlm.data.loader import Loader
    from avlm.data.packing import Skipped
    from avlm.data.processing import Processor

STOP_FILE = "stop"
RECIPE_FILE = "recipe.yaml"
SKIPPED_FILE = "skipped.jsonl"
VERSIONS_FILE = "versions.json"
LENGTHS_FILE = "lengths.json"
DONE_FILE = "done.json"
LOCK_FILE = ".lock"
STALE_STOP = 60.0
"""Seconds before this process by which a stop file was meant for an earlier attempt."""

_STARTED = time.time()

# A resumed run may differ from the first attempt in these, and in nothing else.
_MAY_CHANGE = ("name", "schedule", "logging", "evaluation", "parallel", "memory", "data.workers", "data.validation")


@dataclass
class Run:
    """A prepared run.

    rows, validation: what is trained and validated on, in file order. packs: indices into `rows`, or None without
    packing. lengths: tokens of each row of `rows`. steps: optimizer steps until the run ends.
    """

    recipe: Recipe
    folder: Path
    rows: list[Row]
    validation: list[Row]
    lengths: list[int]
    packs: list[list[int]] | None
    skipped: list[Skipped]
    processor: Processor
    steps: int
    lock: int | None = None
    """Descriptor of the folder's lock, on the main rank. It is held until the process ends."""

    @cached_property
    def media_kinds(self) -> frozenset[MediaKind]:
        """Inputs that some row of the run has; a clip's sound track counts as audio."""
        kinds: set[MediaKind] = {ref.kind for row in (*self.rows, *self.validation) for ref in row.media}
        if "video" in kinds and self.recipe.data.audio_in_video:
            kinds.add("audio")
        return frozenset(kinds)

    @property
    def done(self) -> bool:
        """Whether an earlier attempt trained to this horizon and exported."""
        with suppress(OSError, ValueError, KeyError, TypeError):  # missing or damaged: not known to be done
            said = json.loads((self.folder / DONE_FILE).read_text(encoding="utf-8"))["steps"]
            return said == self.steps and (self.folder / "export").is_dir()
        return False

    def mark_done(self) -> None:
        """Say so: called once the export is complete."""
        write_atomic(self.folder / DONE_FILE, json.dumps({"steps": self.steps}) + "\n")

    def loader(
        self,
        *,
        training: bool,
        dp_rank: int,
        dp_size: int,
        collate_rows: Callable[..., Any],
        collate_packs: Callable[..., Any],
    ) -> Loader:
        """Micro-batches of one data-parallel rank.

        Validation takes every row once, unpacked, in file order. The two collate functions are those of
        `avlm.data.collate`, or a stack's wrapping of them.
        """
        from avlm.data.loader import Loader
        from avlm.data.processing import make_sample

        recipe, pad_id = self.recipe, self.processor.pad_id
        micro = recipe.batch.micro_batch_size
        items: Sequence[Any] = self.rows if training else self.validation
        collate = partial(collate_rows, pad_id=pad_id)
        if training and self.packs is not None:
            items = [[self.rows[index] for index in pack] for pack in self.packs]
            collate = partial(collate_packs, pack_size=recipe.data.packing.pack_size, pad_id=pad_id)
        return Loader(
            items,
            partial(make_sample, processor=self.processor, limits=self.processor.limits),
            collate,
            micro_batch_size=micro,
            global_batch_size=recipe.batch.global_batch_size if training else micro * dp_size,
            dp_rank=dp_rank,
            dp_size=dp_size,
            seed=recipe.seed,
            shuffle=training and recipe.data.shuffle,
            workers=recipe.data.workers,
        )


def prepare(recipe: Recipe, *, stack: StackName, main: bool) -> Run:
    """Read and check everything that training will need, and lay out the run's folder.

    Args:
        recipe: checked recipe.
        stack: which stack will train; a run's folder belongs to one stack.
        main: whether this rank writes files.

    Raises:
        UserError: missing or bad data, a checkpoint of another model, a run folder of another run, or one that cannot
            be written or that another process writes.
    """
    from avlm.data.packing import pack
    from avlm.data.processing import load_processor
    from avlm.data.rows import has_rows, read_rows
    from avlm.models.checkpoint import check_weights
    from avlm.recipe.horizon import horizon

    folder = Path(recipe.output_dir)
    _refuse_other_run(recipe, stack, folder)
    data = recipe.data
    rows = _sampled(read_rows(data.train, data.video_root), data.sample_ratio, recipe.seed)
    with_rows = [path for path in data.validation if has_rows(path)]
    validation = read_rows(with_rows, data.video_root) if with_rows else []
    processor = load_processor(recipe)
    check_weights(recipe.model.checkpoint)
    rows, lengths, skipped = _fitting(rows, processor, data)
    validation, _, skipped_validation = _fitting(validation, processor, data)
    _refuse_other_rows(folder, lengths)
    packs = pack(lengths, data.packing.pack_size) if data.packing.enabled else None
    items = len(rows if packs is None else packs)
    _refuse_empty_steps(recipe, items)
    steps = horizon(recipe, -(-items // recipe.batch.global_batch_size))
    run = Run(recipe, folder, rows, validation, lengths, packs, skipped + skipped_validation, processor, steps)
    if main:
        _write_folder(run, stack)
    return run


def _sampled(rows: list[Row], ratio: float, seed: int) -> list[Row]:
    if ratio == 1.0:
        return rows
    from avlm.data.order import epoch_order

    keep = max(1, round(len(rows) * ratio))
    return [rows[index] for index in sorted(epoch_order(len(rows), seed, 0, True)[:keep])]


def _fitting(rows: list[Row], processor: Processor, data: Data) -> tuple[list[Row], list[int], list[Skipped]]:
    """Rows of at most `sequence_length` tokens with their lengths, and the others by `data.too_long`."""
    from avlm.data.packing import fitting
    from avlm.data.processing import measure_rows

    if not rows:
        return [], [], []
    counts = measure_rows(rows, processor)
    kept, skipped = fitting(rows, counts, data.sequence_length, data.too_long)
    return [rows[index] for index in kept], [counts[index].total for index in kept], skipped


def _has_checkpoints(folder: Path) -> bool:
    return (folder / "checkpoints").is_dir()


_ADVICE = "choose another output_dir, or remove the folder to start over"


def _refuse_other_run(recipe: Recipe, stack: StackName, folder: Path) -> None:
    """A folder with checkpoints may only be continued by the same run."""
    from avlm.recipe.load import load_recipe

    if not _has_checkpoints(folder):
        return
    saved_file = folder / RECIPE_FILE
    if not saved_file.is_file():
        raise UserError(f"{folder} holds checkpoints of a run that is not known ({RECIPE_FILE} is missing); {_ADVICE}")
    try:
        saved = load_recipe(saved_file).recipe
    except UserError as error:
        raise UserError(f"{folder} holds checkpoints of a run that is not known ({error}); {_ADVICE}") from error
    try:
        saved_stack = json.loads((folder / VERSIONS_FILE).read_text(encoding="utf-8"))["stack"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{folder / VERSIONS_FILE} does not say which stack trained the run; {_ADVICE}") from None
    if saved_stack != stack:
        raise UserError(f"{folder} holds a run of stack {saved_stack}, not {stack}; choose another output_dir")
    differences = _differences(saved.model_dump(), recipe.model_dump(), "")
    if differences:
        listed = "; ".join(f"{key} was {old!r}, is {new!r}" for key, old, new in differences[:5])
        raise UserError(f"{folder} holds checkpoints of another run ({listed}); {_ADVICE}")


def _refuse_other_rows(folder: Path, lengths: list[int]) -> None:
    """A position in the data means something only while the training rows stay as they were."""
    if not _has_checkpoints(folder):
        return
    try:
        before = json.loads((folder / LENGTHS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return  # not recorded
    if before != lengths:
        rows = f"{len(before)} rows then, {len(lengths)} now" if len(before) != len(lengths) else "other lengths"
        raise UserError(f"{folder} holds checkpoints of a run on other training rows ({rows}); {_ADVICE}")


def _refuse_empty_steps(recipe: Recipe, items: int) -> None:
    """Fill-up copies without labels may end an epoch; they may not be most of every step."""
    size = recipe.batch.global_batch_size
    least = recipe.batch.micro_batch_size * recipe.dp_size
    if size > 2 * items and size > least:
        what = "packs" if recipe.data.packing.enabled else "rows"
        raise UserError(
            f"batch.global_batch_size is {size}, but there are only {items} training {what}: most of every step would "
            f"be filled up with copies that teach nothing; set it to at most {max(items // least, 1) * least}"
        )


def refuse_busy(folder: Path) -> None:
    """Raises `UserError` when another process trains into `folder`. Nothing is written."""
    other = holder(folder / LOCK_FILE)
    if other is not None:
        raise UserError(_busy(folder, other))


def _busy(folder: Path, other: str) -> str:
    return (
        f"output_dir: {folder} is being trained into by {other}; wait for it, stop it with a checkpoint by "
        f"`touch {folder / STOP_FILE}`, or choose another output_dir"
    )


def _differences(old: Any, new: Any, prefix: str) -> list[tuple[str, Any, Any]]:
    if prefix and any(prefix == key or prefix.startswith(key + ".") for key in _MAY_CHANGE):
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for key in sorted({*old, *new}):
            found += _differences(old.get(key), new.get(key), f"{prefix}.{key}" if prefix else key)
        return found
    return [] if old == new else [(prefix, old, new)]


def _write_folder(run: Run, stack: StackName) -> None:
    from avlm.recipe.load import save_resolved

    check_writable(run.folder, "output_dir")
    run.folder.mkdir(parents=True, exist_ok=True)
    try:
        run.lock = take(run.folder / LOCK_FILE)
    except Held as other:
        raise UserError(_busy(run.folder, str(other))) from None
    _remove_stale_stop(run.folder / STOP_FILE)
    save_resolved(run.recipe, run.folder / RECIPE_FILE)
    write_atomic(run.folder / SKIPPED_FILE, "".join(json.dumps(s.as_dict()) + "\n" for s in run.skipped))
    write_atomic(run.folder / LENGTHS_FILE, json.dumps(run.lengths) + "\n")
    write_atomic(run.folder / VERSIONS_FILE, json.dumps({"stack": stack, **_versions()}, indent=2) + "\n")
    if run.skipped:
        print(f"{len(run.skipped)} rows are left out: see {run.folder / SKIPPED_FILE}", flush=True)


def _remove_stale_stop(file: Path) -> None:
    """A stop file of an earlier attempt is removed; one that is meant for this process stays."""
    with suppress(FileNotFoundError):
        if file.stat().st_mtime < _STARTED - STALE_STOP:
            file.unlink()


def _versions() -> dict[str, str]:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for name in ("avlm-recipes", "torch", "transformers", "nemo-automodel", "megatron-bridge", "av", "peft"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
