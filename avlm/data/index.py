"""Rows that stay in their JSONL files: what is kept of a row is where its line begins, 21 bytes.

Worker processes share these arrays with the process that they were forked from.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np

from avlm.data.rows import MEDIA_TYPES, Problem, RowParser, lines, problem_list
from avlm.data.types import MediaKind, Row
from avlm.errors import Place, UserError


@dataclass(frozen=True)
class _File:
    """A JSONL file as it was when its lines were looked up."""

    path: Path
    identity: tuple[int, int]

    @classmethod
    def of(cls, path: Path) -> _File:
        return cls(path, _identity(os.stat(path)))


def _identity(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_size, stat.st_mtime_ns


class RowIndex(Sequence[Row]):
    """Rows of JSONL files, read and checked anew each time one is asked for.

    ids: [rows] uint64 hashes of the rows' ids (`id_hash`). bounds: [files + 1] the rows of file i are numbers
    `bounds[i]` to `bounds[i + 1]` - 1.

    Raises `UserError` when a file has changed since it was indexed.
    """

    def __init__(
        self,
        files: tuple[_File, ...],
        parser: RowParser,
        bounds: np.ndarray,
        offsets: np.ndarray,
        numbers: np.ndarray,
        ids: np.ndarray,
        kinds: np.ndarray,
    ) -> None:
        self._files, self._parser = files, parser
        self.bounds, self.ids = bounds, ids
        self._offsets, self._numbers, self._kinds = offsets, numbers, kinds

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, row: int) -> Row: ...
    @overload
    def __getitem__(self, row: slice) -> RowIndex: ...
    def __getitem__(self, row: int | slice) -> Row | RowIndex:
        if isinstance(row, slice):
            return self.select(np.arange(len(self))[row])
        row = range(len(self))[row]
        file = self._files[int(np.searchsorted(self.bounds, row, side="right")) - 1]
        try:
            with file.path.open("rb") as open_file:
                if _identity(os.fstat(open_file.fileno())) != file.identity:
                    raise UserError(f"{file.path}: the file has changed since this run read it; start the run anew")
                open_file.seek(int(self._offsets[row]))
                line = open_file.readline()
        except OSError as error:
            raise UserError(f"{file.path}: cannot be read: {error.strerror}") from None
        found = self._parser.parse(line, file.path, int(self._numbers[row]))
        if isinstance(found, Problem):
            raise UserError(str(found))
        return found

    def __iter__(self) -> Iterator[Row]:
        return (self[row] for row in range(len(self)))

    @property
    def kinds(self) -> frozenset[MediaKind]:
        """Kinds of media that some row has."""
        present = int(np.bitwise_or.reduce(self._kinds, initial=0))
        return frozenset(kind for bit, kind in enumerate(MEDIA_TYPES) if present >> bit & 1)

    def select(self, rows: np.ndarray) -> RowIndex:
        """The rows of these numbers, which ascend."""
        return RowIndex(
            self._files,
            self._parser,
            np.searchsorted(rows, self.bounds),
            self._offsets[rows],
            self._numbers[rows],
            self.ids[rows],
            self._kinds[rows],
        )


def index_rows(paths: Sequence[str | Path], video_root: str | Path) -> RowIndex:
    """Look at every line of `paths` once, as `avlm.data.rows.read_rows` does, without keeping the rows.

    Raises one `UserError` that lists the first 20 problems and their total.
    """
    parser = RowParser(video_root)
    offsets, numbers, ids, kinds, bounds = array("q"), array("i"), array("Q"), array("B"), array("q", [0])
    problems: list[Problem] = []
    files = []
    for path in map(Path, paths):
        found_any = False
        with suppress(OSError):  # `lines` says it better
            files.append(_File.of(path))
        for number, offset, line in lines(path):
            found_any = True
            row = parser.parse(line, path, number)
            if isinstance(row, Problem):
                problems.append(row)
                continue
            offsets.append(offset)
            numbers.append(number)
            ids.append(id_hash(row.id))
            kinds.append(sum(1 << MEDIA_TYPES.index(kind) for kind in {ref.kind for ref in row.media}))
        if not found_any:
            problems.append(Problem(Place(str(path)), "the dataset is empty: the file has no rows"))
        bounds.append(len(offsets))
    index = RowIndex(
        tuple(files),
        parser,
        np.array(bounds, np.int64),
        np.array(offsets, np.int64),
        np.array(numbers, np.int32),
        np.array(ids, np.uint64),
        np.array(kinds, np.uint8),
    )
    problems += _used_twice(index)
    if problems:
        order = {str(path): place for place, path in enumerate(paths)}
        problems.sort(key=lambda p: (order[p.place.file], p.place.line or 0))
        raise UserError(problem_list(problems))
    return index


def id_hash(id: str) -> int:
    """64 bits of the BLAKE2b hash of an id."""
    return int.from_bytes(hashlib.blake2b(id.encode(), digest_size=8).digest(), "little")


def _used_twice(index: RowIndex) -> list[Problem]:
    """Rows whose id an earlier row has."""
    order = np.argsort(index.ids, kind="stable")
    same = np.flatnonzero(np.diff(index.ids[order]) == 0)
    problems = []
    first: dict[str, Row] = {}
    for row in sorted({int(r) for at in same for r in (order[at], order[at + 1])}):
        found = index[row]
        earlier = first.setdefault(found.id, found)
        if earlier is not found:
            reason = f"id {found.id!r} is used before, at {Place(earlier.source, earlier.line)}; ids must differ"
            problems.append(Problem(Place(found.source, found.line), reason, found.id))
    return problems
