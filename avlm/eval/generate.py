"""Batched greedy generation in plain transformers, with the data path of training."""

from __future__ import annotations

import importlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from avlm.data.types import Media, MediaRef, Row, Sample, Text
from avlm.errors import UserError
from avlm.eval.ablations import Ablation, ablate
from avlm.eval.answers import find_choices
from avlm.eval.checkpoint import Weights, identity
from avlm.eval.predictions import PredictionsFile
from avlm.models.checkpoint import check_weights
from avlm.recipe.schema import Recipe
from avlm.utils.folder import file_hash
from avlm.utils.quiet import quiet_loading

if TYPE_CHECKING:
    import torch

    from avlm.data.processing import Processor

KEPT_MEDIA = 4
"""Files kept decoded: rows that ask about the same clip follow each other."""


@dataclass(frozen=True)
class Inferred:
    """What `infer` did.

    ids: rows that now have a line in `path`, in the order of the data. reused: lines that were there before. skipped:
    rows left out because they are too long. cut: answers that ended at the length limit. seconds: time of generation.
    """

    path: Path
    ids: tuple[str, ...]
    reused: int
    generated: int
    skipped: int
    cut: int
    seconds: float


def infer(
    recipe: Recipe,
    rows_files: Sequence[str | Path],
    weights: Weights,
    out: Path,
    *,
    ablation: Ablation | None = None,
    batch_size: int | None = None,
    max_new_tokens: int | None = None,
    limit: int | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> Inferred:
    """Answer the last turn of every row and write one line a row to `out` (`docs/architecture.md`).

    Rows that `out` already answers are not answered again, and when none is left the model is not loaded. Answers
    depend neither on the batch size nor on what shares a batch. Rows over `data.sequence_length` are an error, or with
    `data.too_long: report` get a line without answer that says why.

    Args:
        recipe: model family, media budget, device.
        rows_files: JSONL files.
        weights: checked weights (`avlm.eval.checkpoint.choose`).
        out: predictions file.
        ablation: input to take away.
        batch_size, max_new_tokens: default to the recipe's `evaluation` block.
        limit: only the first so many rows.
        overwrite: start `out` anew.
        progress: show a progress bar.

    Raises:
        UserError: bad rows, media or checkpoint, or `out` holds answers of another model or other settings.
    """
    from avlm.data.rows import read_rows

    max_new_tokens = max_new_tokens or recipe.evaluation.max_new_tokens
    rows = read_rows(rows_files, recipe.data.video_root)[:limit]
    _generation_of(recipe, load=False)
    settings = {
        **identity(weights),
        "model family": recipe.model.family,
        "data type": _dtype(recipe),
        "ablation": ablation,
        "max_new_tokens": max_new_tokens,
        "sequence length": [recipe.data.sequence_length, recipe.data.too_long],
        "media budget": asdict(_limits(recipe)),
        "data": [file_hash(Path(path)) for path in rows_files],
    }
    file = PredictionsFile(out, settings, overwrite=overwrite)
    pending = [row for row in rows if row.id not in file.done]
    ids = tuple(row.id for row in rows)
    if not pending:
        return Inferred(out, ids, len(rows), 0, 0, 0, 0.0)

    from avlm.data.processing import load_processor

    device = _device(recipe)
    own = weights.checkpoint == recipe.model.checkpoint
    check_weights(weights.checkpoint, "model.checkpoint: " if own else "")
    with quiet_loading():
        processor = load_processor(recipe, None if own else weights.checkpoint)
    too_long = _too_long(pending, processor, recipe)
    pending = _grouped([row for row in pending if row.id not in too_long])
    started, cut = time.perf_counter(), 0
    with file:
        file.append(_line(row, None, skipped=too_long[row.id]) for row in rows if row.id in too_long)
        if pending:
            with quiet_loading():
                answerer = _Answerer(weights, recipe, processor, device, ablation, max_new_tokens)
            started = time.perf_counter()
            batches = _split(pending, batch_size or recipe.evaluation.batch_size)
            with _bar(len(rows), len(rows) - len(pending), progress) as advance:
                for batch, answers in answerer.run(batches):
                    file.append(
                        _line(row, text, finished=finished)
                        for row, (text, finished) in zip(batch, answers, strict=True)
                    )
                    cut += sum(not finished for _, finished in answers)
                    advance(len(batch))
    reused = len(rows) - len(pending) - len(too_long)
    return Inferred(out, ids, reused, len(pending), len(too_long), cut, time.perf_counter() - started)


class _Answerer:
    """A loaded model and all that turns rows into answers."""

    def __init__(
        self,
        weights: Weights,
        recipe: Recipe,
        processor: Processor,
        device: torch.device,
        ablation: Ablation | None,
        max_new_tokens: int,
    ) -> None:
        import torch

        self._processor, self._ablation, self._max_new_tokens = processor, ablation, max_new_tokens
        self._model = _generation_of(recipe).load_for_generation(
            weights.checkpoint,
            revision=weights.revision,
            dtype=getattr(torch, _dtype(recipe)),
            device=device,
            adapter=weights.adapter,
        )
        self._media: OrderedDict[MediaRef, Media] = OrderedDict()

    def run(self, batches: Sequence[Sequence[Row]]) -> Iterator[tuple[Sequence[Row], list[tuple[str, bool]]]]:
        """Each batch with its answers; the next batch is read while the model answers this one."""
        with ThreadPoolExecutor(1) as reader:
            waiting = reader.submit(self._read, batches[0])
            for index, batch in enumerate(batches):
                samples = waiting.result()
                if index + 1 < len(batches):
                    waiting = reader.submit(self._read, batches[index + 1])
                yield batch, generate(self._model, self._processor, samples, self._max_new_tokens)

    def _read(self, rows: Sequence[Row]) -> list[Sample]:
        return [self._sample(row) for row in rows]

    def _sample(self, row: Row) -> Sample:
        from avlm.data.rows import where

        try:
            media = [self._file(ref) for ref in row.media]
        except UserError as error:
            raise UserError(f"{where(row)}: {error}") from error
        if self._ablation is not None:
            media = ablate(media, self._ablation, row.id)
        return self._processor.encode(row, media, with_answer=False)

    def _file(self, ref: MediaRef) -> Media:
        from avlm.data.media import read_media

        if ref not in self._media:
            self._media[ref] = read_media(ref, self._processor.limits, self._processor.factor)
            if len(self._media) > KEPT_MEDIA:
                self._media.popitem(last=False)
        self._media.move_to_end(ref)
        return self._media[ref]


def generate(
    model: Any, processor: Processor, samples: Sequence[Sample], max_new_tokens: int
) -> list[tuple[str, bool]]:
    """Greedy answers to a batch of prompts (`encode(…, with_answer=False)`), and whether each ended by itself.

    Generation settings of the checkpoint (penalties, sampling) are not used: every token is the argmax of the logits.
    """
    import torch
    from transformers import GenerationConfig

    from avlm.data.collate import collate

    model.generation_config = GenerationConfig(
        do_sample=False,
        num_beams=1,
        max_new_tokens=max_new_tokens,
        eos_token_id=list(processor.end_of_turn_ids),
        pad_token_id=processor.pad_id,
    )
    batch = left_padded(collate(samples, processor.pad_id))
    arguments = {
        name: value.to(model.device, model.dtype if name in _CAST else value.dtype) for name, value in batch.items()
    }
    with torch.inference_mode():
        output = model.generate(**arguments)
    answers = []
    for tokens in output[:, batch["input_ids"].shape[1] :].tolist():
        end = next((i for i, token in enumerate(tokens) if token in processor.end_of_turn_ids), None)
        text = processor.tokenizer.decode(tokens[:end], skip_special_tokens=True).strip()
        answers.append((text, end is not None))
    return answers


_CAST = ("pixel_values", "pixel_values_videos", "input_features")
"""Arguments that enter a tower and take the model's data type."""


def left_padded(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A batch of `collate`, padded on the left instead of the right, without labels.

    Tokens, mask and positions of each row [B, S] or [3, B, S] move right by the row's padding; media stay as they are.
    """
    import torch

    mask = batch["attention_mask"]
    length = mask.shape[1]
    index = (torch.arange(length) + mask.sum(1, keepdim=True)) % length
    moved = {name: batch[name].gather(1, index) for name in ("input_ids", "attention_mask")}
    positions = batch["position_ids"]
    moved["position_ids"] = positions.gather(-1, index.expand_as(positions))
    return {name: moved.get(name, value) for name, value in batch.items() if name != "labels"}


def question_of(row: Row) -> str:
    """Text of the row's last user turn."""
    turn = [turn for turn in row.turns if turn.role == "user"][-1]
    return "\n".join(part.text for part in turn.parts if isinstance(part, Text)).strip()


def reference_of(row: Row) -> str:
    """Text of the row's last assistant turn."""
    return "".join(part.text for part in row.turns[-1].parts if isinstance(part, Text)).strip()


def _line(row: Row, answer: str | None, **more: Any) -> dict[str, Any]:
    question = question_of(row)
    choices = {choice.letter: choice.text for choice in find_choices(question)}
    return {
        "id": row.id,
        "class": row.label,
        "question": question,
        "answer": answer,
        "reference": reference_of(row),
        "choices": choices or None,
        "media": [{"type": ref.kind, "path": ref.name} for ref in row.media],
        **more,
    }


def _too_long(rows: Sequence[Row], processor: Processor, recipe: Recipe) -> dict[str, str]:
    """Rows whose prompt is over the recipe's `sequence_length`, with the reason."""
    from avlm.data.media import probe
    from avlm.data.rows import where

    known = cache(lambda ref: probe(ref, processor.limits))
    limit = recipe.data.sequence_length
    found: dict[str, str] = {}
    for row in rows:
        length = processor.measure(row, [known(ref) for ref in row.media]).prompt
        if length > limit:
            found[row.id] = f"the prompt has {length} tokens, data.sequence_length is {limit}"
            if recipe.data.too_long == "error":
                raise UserError(
                    f"{where(row)}: {found[row.id]}; raise it, lower data.max_video_frames or data.video_max_pixels, "
                    "or set data.too_long=report to leave such rows out and count them"
                )
    return found


def _grouped(rows: Sequence[Row]) -> list[Row]:
    """Rows about the same media next to each other, in the order of their first."""
    groups: dict[tuple[MediaRef, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(row.media, []).append(row)
    return [row for group in groups.values() for row in group]


@contextmanager
def _bar(total: int, done: int, shown: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar with rows a second and time left, on standard error; gives the function that moves it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    began = time.perf_counter()
    moved = 0
    columns = (
        TextColumn("answering"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
        task = bar.add_task("answering", total=total, completed=done, rate="")

        def advance(rows: int) -> None:
            nonlocal moved
            moved += rows
            bar.update(task, advance=rows, rate=f"{moved / (time.perf_counter() - began):.1f} rows/s")

        yield advance


def _split(rows: Sequence[Row], size: int) -> list[Sequence[Row]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _generation_of(recipe: Recipe, *, load: bool = True) -> Any:
    """The family's module with `load_for_generation`; with `load=False` only a look whether there is one."""
    name = f"avlm.models.{recipe.model.family}.generation"
    if find_spec(name) is None:
        raise UserError(f"model.family: generation for {recipe.model.family} is not supported yet")
    return importlib.import_module(name) if load else None


def _dtype(recipe: Recipe) -> str:
    return "float32" if recipe.device == "cpu" else recipe.model.dtype


def _limits(recipe: Recipe) -> Any:
    from avlm.data.processing import limits_of

    return limits_of(recipe)


def _device(recipe: Recipe) -> torch.device:
    import torch

    if recipe.device == "cuda" and not torch.cuda.is_available():
        raise UserError("device: the recipe says cuda, but no CUDA device is here; add device=cpu to run on the CPU")
    return torch.device(recipe.device)
