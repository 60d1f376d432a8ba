"""Reads a whole dataset and reports everything that is wrong with it, before a run trips over it.

A dataset is bad when a line is not a row, a file cannot be read or is damaged, the same question is asked twice of
the same media, or a validation row uses media that a training row uses too (parts of one clip may be in both when they
do not overlap). Media are compared by content, so a copy under another name is found.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from avlm.data.media import MediaError, probe, read_media
from avlm.data.processing import media_limits
from avlm.data.rows import scan_rows
from avlm.data.types import MediaRef, Row, Text
from avlm.errors import Place
from avlm.recipe.schema import Data
from avlm.utils.folder import file_hash

if TYPE_CHECKING:
    from rich.console import Console

Kind = Literal["row", "media", "damaged", "duplicate", "leak"]
KINDS: dict[Kind, str] = {
    "row": "not a row",
    "media": "media cannot be read",
    "damaged": "media damaged",
    "duplicate": "question asked twice",
    "leak": "media in training and validation",
}
"""What can be wrong with a row, in the order in which it is looked for: a row counts once, under the first."""
FACTOR = 32
"""Frame sizes are multiples of this while reading; what is found does not depend on it."""
UNLABELLED = "(none)"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, and the line that it is about."""

    kind: Kind
    place: Place
    reason: str
    id: str | None = None

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


@dataclass
class Split:
    """One split's files and counts: `total` = `good` + the number of bad lines, and classes sum to `good`."""

    name: str
    files: list[str]
    total: int = 0
    good: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    bad: Counter[Kind] = field(default_factory=Counter)


@dataclass
class Report:
    """Result of `check_dataset`. files: distinct media files that rows name."""

    splits: list[Split]
    findings: list[Finding]
    files: int

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        """Plain values for a machine."""
        return {
            "ok": self.ok,
            "media_files": self.files,
            "splits": {
                s.name: {
                    "files": s.files,
                    "rows": s.total,
                    "good": s.good,
                    "bad": dict(s.bad),
                    "classes": dict(sorted(s.classes.items())),
                }
                for s in self.splits
            },
            "findings": [
                {"kind": f.kind, "file": f.place.file, "line": f.place.line, "id": f.id, "reason": f.reason}
                for f in self.findings
            ],
        }

    def print(self, console: Console) -> None:
        """Tables of counts and classes, then every finding with its line."""
        from rich.table import Table

        table = Table("rows", *(s.name for s in self.splits), title=f"{self.files} media files")
        table.add_row("total", *(str(s.total) for s in self.splits))
        table.add_row("good", *(str(s.good) for s in self.splits))
        for kind, meaning in KINDS.items():
            if any(s.bad[kind] for s in self.splits):
                table.add_row(f"[red]{meaning}[/red]", *(str(s.bad[kind]) for s in self.splits))
        table.add_section()
        for label in sorted({c for s in self.splits for c in s.classes}):
            table.add_row(f"class {label}", *(_share(s.classes[label], s.good) for s in self.splits))
        console.print(table)
        for finding in self.findings:
            console.print(str(finding), style="red", markup=False, highlight=False, soft_wrap=True)
        if self.ok:
            console.print("nothing is wrong", style="green")
        else:
            console.print(f"{len(self.findings)} problems", style="red")


def check_dataset(
    data: Data, *, decode: bool = True, jobs: int = 2, progress: Callable[[int, int], None] | None = None
) -> Report:
    """Check every row of `data.train` and `data.validation`, and every media file that they name.

    decode: read files as training does; without it only their packets are looked at, which is faster and misses
    broken pictures. jobs: files read at the same time. progress: called with files done and in all.
    Raises `UserError` when a JSONL file or `video_root` does not exist.
    """
    scanned = {
        "train": (data.train_paths, scan_rows(data.train_paths, data.video_root)),
        "validation": (data.validation, scan_rows(data.validation, data.video_root)),
    }
    names = [name for name, (files, _) in scanned.items() if files]
    refs = list(dict.fromkeys(ref for name in names for row in scanned[name][1][0] for ref in row.media))
    state = _read_all(refs, data, decode, jobs, progress)
    content = content_keys(path for ref in refs for path in ref.paths)
    trained: dict[Any, list[tuple[Row, _Use]]] = {}
    for row in scanned["train"][1][0]:
        for use in _unique_to_split(row, content):
            trained.setdefault(use.key, []).append((row, use))

    splits, findings = [], []
    for name in names:
        files, (rows, problems) = scanned[name]
        split = Split(name, list(files))
        found = [Finding("row", p.place, p.reason, p.id) for p in problems]
        seen: dict[Any, Row] = {}
        for row in rows:
            bad = _finding(row, state, content, seen, trained if name == "validation" else {})
            if bad is None:
                split.good += 1
                split.classes[row.label or UNLABELLED] += 1
            else:
                found.append(bad)
        split.bad.update(f.kind for f in found)
        split.total = split.good + sum(f.place.line is not None for f in found)
        findings += sorted(found, key=lambda f: (files.index(f.place.file), f.place.line or 0))
        splits.append(split)
    return Report(splits, findings, len({path for ref in refs for path in ref.paths}))


def _finding(
    row: Row,
    state: dict[MediaRef, tuple[Kind, str] | None],
    content: dict[Path, str],
    seen: dict[Any, Row],
    trained: dict[Any, list[tuple[Row, _Use]]],
) -> Finding | None:
    place = Place(row.source, row.line)
    for ref in row.media:
        problem = state[ref]
        if problem is not None:
            return Finding(problem[0], place, f"row {row.id!r}: {ref.name}: {problem[1]}", row.id)
    key = _question(row, content)
    first = seen.setdefault(key, row)
    if first is not row:
        same = "the same answer" if _answers(first) == _answers(row) else "another answer"
        where = Place(first.source, first.line)
        return Finding(
            "duplicate", place, f"row {row.id!r} asks what {where} asks of the same media, with {same}", row.id
        )
    for use in _unique_to_split(row, content):
        for other, there in trained.get(use.key, ()):
            if use.start < there.end and there.start < use.end:
                where = Place(other.source, other.line)
                reason = f"row {row.id!r}: {use.name} is in the training set too, at {where}"
                return Finding("leak", place, reason, row.id)
    return None


@dataclass(frozen=True)
class _Use:
    """Something that a validation row may not share with a training row: a file from `start` to `end` seconds."""

    key: Any
    name: str
    start: float = 0.0
    end: float = math.inf


def _unique_to_split(row: Row, content: dict[Path, str]) -> list[_Use]:
    """A row's media; its question, where it has none."""
    return [
        _Use(content[path], ref.name, ref.start or 0.0, math.inf if ref.end is None else ref.end)
        for ref in row.media
        for path in ref.paths
    ] or [_Use(_question(row, content), "its question")]


def _question(row: Row, content: dict[Path, str]) -> tuple[Any, ...]:
    """Everything but the answers; media stand for their content."""
    return tuple(
        (turn.role, *(part.text if isinstance(part, Text) else _seen(part, content) for part in turn.parts))
        for turn in row.turns
        if turn.role != "assistant"
    )


def _seen(ref: MediaRef, content: dict[Path, str]) -> tuple[Any, ...]:
    """What a model is shown of a file, whatever its name."""
    files = tuple(content[path] for path in ref.paths)
    return ref.kind, files, ref.start, ref.end, ref.audio_in_video, ref.times


def _answers(row: Row) -> list[str]:
    return [
        "".join(p.text for p in turn.parts if isinstance(p, Text)) for turn in row.turns if turn.role == "assistant"
    ]


def content_keys(paths: Iterable[Path]) -> dict[Path, str]:
    """A key for each file, equal for files of equal bytes. Only files of equal size are read."""
    by_size: dict[int, list[Path]] = {}
    for path in dict.fromkeys(paths):
        by_size.setdefault(path.stat().st_size, []).append(path)
    return {path: str(path) if len(group) == 1 else file_hash(path) for group in by_size.values() for path in group}


def _read_all(
    refs: Sequence[MediaRef], data: Data, decode: bool, jobs: int, progress: Callable[[int, int], None] | None
) -> dict[MediaRef, tuple[Kind, str] | None]:
    """What is wrong with each file, if anything."""
    limits = media_limits(data)

    def check(ref: MediaRef) -> tuple[Kind, str] | None:
        try:
            problems = read_media(ref, limits, FACTOR).problems if decode else probe(ref).problems
        except MediaError as error:
            return "media", error.reason
        return ("damaged", "; ".join(problems)) if problems else None

    state: dict[MediaRef, tuple[Kind, str] | None] = {}
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        for ref, problem in zip(refs, pool.map(check, refs), strict=True):
            state[ref] = problem
            if progress is not None:
                progress(len(state), len(refs))
    return state


def _share(count: int, total: int) -> str:
    return f"{count} ({count / total:.0%})" if total else str(count)
