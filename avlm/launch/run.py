"""What a training run needs before a stack is imported: rows, lengths, packs, horizon, and the run's folder.

Every stack and every rank calls `prepare` and gets the same answer; only the main rank writes files.
"""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import batched
from pathlib import Path
from typing import TYPE_CHECKING, Any

from avlm.data.types import SAMPLE_RATE, MediaInfo, MediaKind, MediaRef, Row
from avlm.errors import UserError
from avlm.metrics import TRAIN_FILE, VALIDATION_FILE
from avlm.recipe.schema import Data, Recipe, StackName
from avlm.utils.files import check_writable, write_atomic
from avlm.utils.lock import Held, holder, take

if TYPE_CHECKING:
    import numpy as np

    from avlm.data.balance import CostModel
    from avlm.data.index import RowIndex
    from avlm.data.loader import Loader
    from avlm.data.order import Epochs, Part
    from avlm.data.packing import Skipped
    from avlm.data.processing import Processor

STOP_FILE = "stop"
RECIPE_FILE = "recipe.yaml"
SKIPPED_FILE = "skipped.jsonl"
VERSIONS_FILE = "versions.json"
LENGTHS_FILE = "lengths.json"
DATA_FILE = "data.json"
DONE_FILE = "done.json"
LOCK_FILE = ".lock"
STALE_STOP = 60.0
"""Seconds before this process by which a stop file was meant for an earlier attempt."""

_STARTED = time.time()

_MEASURED_TOGETHER = 1024  # rows
_PROBES_KEPT = 100_000  # media files

# A resumed run may differ from the first attempt in these, and in nothing else.
_MAY_CHANGE = ("name", "schedule", "logging", "evaluation", "parallel", "memory", "data.workers", "data.read_timeout",
               "data.validation")  # fmt: skip


@dataclass
class Run:
    """A prepared run.

    rows, validation: what is trained and validated on, in file order. epochs, validation_rows: which of them are the
    items of an epoch, in which order. sources: what each training file gives. steps: optimizer steps until the run
    ends.
    """

    recipe: Recipe
    folder: Path
    rows: RowIndex
    validation: list[Row]
    epochs: Epochs
    validation_rows: Epochs
    sources: list[Source]
    skipped: list[Skipped]
    imperfect: Imperfect
    processor: Processor
    steps: int
    lock: int | None = None
    """Descriptor of the folder's lock, on the main rank. It is held until the process ends."""

    @cached_property
    def media_kinds(self) -> frozenset[MediaKind]:
        """Inputs that some row of the run has; a clip's sound track counts as audio."""
        kinds: set[MediaKind] = {*self.rows.kinds, *(ref.kind for row in self.validation for ref in row.media)}
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
        epochs = self.epochs if training else self.validation_rows
        collate = partial(collate_rows, pad_id=pad_id)
        if epochs.pack_size is not None:
            collate = partial(collate_packs, pack_size=epochs.pack_size, pad_id=pad_id)
        return Loader(
            self.rows if training else self.validation,
            epochs,
            partial(make_sample, processor=self.processor, limits=self.processor.limits),
            collate,
            micro_batch_size=micro,
            global_batch_size=recipe.batch.global_batch_size if training else micro * dp_size,
            dp_rank=dp_rank,
            dp_size=dp_size,
            workers=recipe.data.workers,
            read_timeout=recipe.data.read_timeout,
        )

    def describe_data(self) -> list[str]:
        """What the run is trained on, in a few lines of text."""
        total = sum(source.part.per_epoch for source in self.sources)
        lines = [f"{source} ({100 * source.part.per_epoch / total:.1f} %)" for source in self.sources]
        if self.epochs.pack_size is not None:
            count, fill = self.epochs.count(0), 100 * self.epochs.fill(0)
            lines.append(f"epoch 0: {count:,} packs of {self.epochs.pack_size:,} tokens, {fill:.1f} % filled")
        return lines + self.imperfect.lines()


@dataclass
class Imperfect:
    """Media of which less is used than they should give. damaged: file -> what is wrong; cut: files with long sound."""

    damaged: dict[Path, str] = field(default_factory=dict)
    cut: set[Path] = field(default_factory=set)

    def note(self, ref: MediaRef, info: MediaInfo, data: Data) -> None:
        """Look at what `probe` says of a file."""
        if info.problems:
            self.damaged.setdefault(ref.path, info.problems[0])
        cap = data.max_audio_seconds if ref.kind == "audio" or data.audio_in_video else None
        if cap is not None and info.audio_samples > cap * SAMPLE_RATE:
            self.cut.add(ref.path)

    def lines(self) -> list[str]:
        """What was seen, in words."""
        found = []
        if self.damaged:
            path, problem = next(iter(self.damaged.items()))
            count = f"{len(self.damaged):,} media file{'s are' if len(self.damaged) > 1 else ' is'} damaged"
            found.append(f"{count} and used as far as possible, first {path}: {problem}; `avlm data check` names all")
        if self.cut:
            found.append(f"sound over data.max_audio_seconds is cut in {len(self.cut):,} media files")
        return found


@dataclass(frozen=True)
class Source:
    """A training file: which rows of the run are its own, their tokens, and a fingerprint of their ids and lengths."""

    path: str
    part: Part
    tokens: int
    fingerprint: str

    def as_dict(self) -> dict[str, Any]:
        """Its entry in `data.json`."""
        part = self.part
        return {
            "path": self.path,
            "rows": part.rows,
            "tokens": self.tokens,
            "weight": part.weight,
            "rows_per_epoch": part.per_epoch,
            "fingerprint": self.fingerprint,
        }

    def __str__(self) -> str:
        weight = "" if self.part.weight == 1 else f", weight {self.part.weight:g}"
        return f"{self.path}: {self.part.rows:,} rows{weight}: {self.part.per_epoch:,} an epoch"


def prepare(recipe: Recipe, *, stack: StackName, main: bool, check_folder: bool = True) -> Run:
    """Read and check everything that training will need, and lay out the run's folder.

    Args:
        recipe: checked recipe.
        stack: which stack will train; a run's folder belongs to one stack.
        main: whether this rank writes files.
        check_folder: whether to look at what the folder holds. The other ranks of a launch do not: the main one, which
            looks first, may be writing there meanwhile.

    Raises:
        UserError: missing or bad data, a checkpoint of another model, a run folder of another run, or one that cannot
            be written or that another process writes.
    """
    from avlm.data.balance import cost_model
    from avlm.data.index import index_rows
    from avlm.data.order import Epochs
    from avlm.data.processing import load_processor
    from avlm.data.rows import has_rows, read_rows
    from avlm.models.checkpoint import check_weights
    from avlm.recipe.horizon import horizon

    folder = Path(recipe.output_dir)
    if check_folder:
        _refuse_foreign_folder(recipe, folder)
        _refuse_other_run(recipe, stack, folder)
    data = recipe.data
    rows = _sampled(index_rows(data.train_paths, data.video_root), data.sample_ratio, recipe.seed)
    with_rows = [path for path in data.validation if has_rows(path)]
    validation = read_rows(with_rows, data.video_root) if with_rows else []
    processor = load_processor(recipe)
    check_weights(recipe.model.checkpoint)
    imperfect = Imperfect()
    kept, lengths, costs, skipped = _fitting(rows, processor, data, imperfect, cost_model(recipe))
    rows = rows.select(kept)
    sources = _sources(rows, lengths, data)
    _refuse_other_rows(folder, sources)
    epochs = Epochs(
        lengths,
        costs=costs,
        parts=[source.part for source in sources],
        seed=recipe.seed,
        shuffle=data.shuffle,
        pack_size=data.packing.pack_size if data.packing.enabled else None,
    )
    kept, lengths, _, skipped_validation = _fitting(validation, processor, data, imperfect)
    validation = [validation[row] for row in kept.tolist()]
    _refuse_empty_steps(recipe, epochs.count(0))
    steps = horizon(recipe, lambda epoch: epochs.steps(epoch, recipe.batch.global_batch_size))
    run = Run(
        recipe=recipe,
        folder=folder,
        rows=rows,
        validation=validation,
        epochs=epochs,
        validation_rows=Epochs(lengths, shuffle=False),
        sources=sources,
        skipped=skipped + skipped_validation,
        imperfect=imperfect,
        processor=processor,
        steps=steps,
    )
    if main:
        _write_folder(run, stack)
    return run


def _sampled(rows: RowIndex, ratio: float, seed: int) -> RowIndex:
    if ratio == 1.0:
        return rows
    import numpy as np

    from avlm.data.order import epoch_order

    keep = max(1, round(len(rows) * ratio))
    return rows.select(np.sort(epoch_order(len(rows), seed, 0, True)[:keep]))


def _fitting(
    rows: Sequence[Row], processor: Processor, data: Data, imperfect: Imperfect, model: CostModel | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[Skipped]]:
    """Numbers, tokens and costs (0 without `model`) of the rows of at most `sequence_length` tokens; the others."""
    import numpy as np

    from avlm.data.packing import fitting
    from avlm.data.processing import TokenCount, measure_rows, planned_shape

    costs = array("f")

    def counted() -> Iterator[tuple[Row, TokenCount]]:
        known: dict[MediaRef, MediaInfo] = {}
        for batch in batched(rows, _MEASURED_TOGETHER):
            if len(known) > _PROBES_KEPT:
                known.clear()
            for row, count in zip(batch, measure_rows(batch, processor, known), strict=True):
                for ref in row.media:
                    imperfect.note(ref, known[ref], data)
                media = [planned_shape(known[ref], processor.limits, processor.factor) for ref in row.media]
                costs.append(model.row(count.total, media) if model is not None else 0.0)
                yield row, count

    kept, lengths, skipped = fitting(counted(), data.sequence_length, data.too_long)
    return kept, lengths, np.array(costs, np.float32)[kept], skipped


def _sources(rows: RowIndex, lengths: np.ndarray, data: Data) -> list[Source]:
    from avlm.data.order import Part, fingerprint

    sources = []
    for file, start, stop in zip(data.train_files, rows.bounds[:-1].tolist(), rows.bounds[1:].tolist(), strict=True):
        own = lengths[start:stop]
        tokens = int(own.sum(dtype="int64"))
        part = Part(start, stop, file.weight)
        sources.append(Source(file.path, part, tokens, fingerprint(rows.ids[start:stop], own)))
    return sources


def _has_checkpoints(folder: Path) -> bool:
    return (folder / "checkpoints").is_dir()


_ADVICE = "choose another output_dir, or remove the folder to start over"


def _refuse_foreign_folder(recipe: Recipe, folder: Path) -> None:
    """Files of others with the names of a run's own would be lost."""
    if folder.is_dir() and Path(recipe.model.checkpoint).is_dir() and folder.samefile(recipe.model.checkpoint):
        raise UserError(f"output_dir: {folder} is model.checkpoint itself; choose another output_dir")
    if (folder / VERSIONS_FILE).exists():
        return
    own = (RECIPE_FILE, SKIPPED_FILE, LENGTHS_FILE, DATA_FILE, DONE_FILE, TRAIN_FILE, VALIDATION_FILE, "export")
    foreign = [name for name in own if (folder / name).exists()]
    if foreign and not _has_checkpoints(folder):
        raise UserError(
            f"output_dir: {folder} holds {', '.join(foreign)}, but no run of avlm (no {VERSIONS_FILE}); a run would "
            "overwrite that, so choose another output_dir"
        )


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


def _refuse_other_rows(folder: Path, sources: Sequence[Source]) -> None:
    """A position in the data means something only while the training rows and their order stay as they were."""
    if not _has_checkpoints(folder):
        return
    try:
        before = json.loads((folder / DATA_FILE).read_text(encoding="utf-8"))
        order, files = before["order"], {file["path"]: file for file in before["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return  # not recorded
    changed = []
    for source in sources:
        then, now = files.get(source.path), source.as_dict()
        if then != now:
            what = f"{then['rows']:,} rows of {then['tokens']:,} tokens then, " if then else "not there then, "
            changed.append(f"{source.path}: {what}{now['rows']:,} rows of {now['tokens']:,} tokens now")
    if changed:
        raise UserError(
            f"{folder} holds checkpoints of a run on other training rows ({'; '.join(changed)}; ids, order or lengths "
            f"differ); restore them, or {_ADVICE}"
        )
    if order != _order_format():
        raise UserError(
            f"{folder} holds checkpoints of a version of avlm that orders rows in another way; continue with that "
            f"version (see {folder / VERSIONS_FILE}), or {_ADVICE}"
        )


def _order_format() -> int:
    from avlm.data.order import FORMAT

    return FORMAT


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
    write_atomic(run.folder / VERSIONS_FILE, json.dumps({"stack": stack, **_versions()}, indent=2) + "\n")
    save_resolved(run.recipe, run.folder / RECIPE_FILE)
    write_atomic(run.folder / SKIPPED_FILE, "".join(json.dumps(s.as_dict()) + "\n" for s in run.skipped))
    write_atomic(run.folder / LENGTHS_FILE, json.dumps(run.epochs.lengths.tolist()) + "\n")
    data = {"order": _order_format(), "files": [source.as_dict() for source in run.sources]}
    write_atomic(run.folder / DATA_FILE, json.dumps(data, indent=2) + "\n")
    for line in run.describe_data():
        print(line, flush=True)
    if run.skipped:
        print(f"{len(run.skipped)} rows are left out: see {run.folder / SKIPPED_FILE}", flush=True)


def _remove_stale_stop(file: Path) -> None:
    """A stop file of an earlier attempt is removed; one that is meant for this process stays."""
    with suppress(OSError):
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
