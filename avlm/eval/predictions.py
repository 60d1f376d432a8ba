"""A predictions file that can be stopped and continued: whole lines only, from one model and one set of settings."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from avlm.errors import RunError, UserError
from avlm.eval.metrics import read_predictions
from avlm.utils.files import check_writable, write_atomic
from avlm.utils.lock import Held, holder, lock


def settings_path(path: Path) -> Path:
    """Where the settings of the predictions at `path` are kept."""
    return path.with_name(f"{path.stem}.settings.json")


class PredictionsFile:
    """Appends predictions to `path`; use as a context manager.

    settings: whatever answers depend on. They are stored beside the file, and a file that was made with other settings
    is refused with a `UserError` that names them, unless `overwrite` is set: then it is started anew.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, overwrite: bool = False) -> None:
        self.path = path
        self._settings = json.loads(json.dumps(settings))
        self._overwrite = overwrite
        self._file: FileIO | None = None
        self._refuse_path()
        if not overwrite:
            self._refuse_others()
            self._mend()
        self.done: frozenset[str] = frozenset()
        """Ids of rows that need no new answer."""
        if not overwrite and self._has_content():
            self.done = frozenset(line["id"] for line in read_predictions(path))

    def __enter__(self) -> PredictionsFile:
        write_atomic(settings_path(self.path), json.dumps(self._settings, indent=2) + "\n")
        try:
            self._file = self.path.open("ab", buffering=0)
            lock(self._file.fileno())
            if self._overwrite:
                self._file.truncate(0)
        except Held:
            raise UserError(self._busy()) from None
        except OSError as error:
            raise RunError(f"{self.path}: could not be written: {error.strerror or error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def append(self, predictions: Iterable[Mapping[str, Any]]) -> None:
        """Write lines and see that they reach the disk. Raises `RunError` when they do not."""
        assert self._file is not None
        content = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in predictions).encode()
        try:
            while content:  # an unbuffered write may take less than all
                content = content[self._file.write(content) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise RunError(
                f"{self.path}: could not be written: {error.strerror or error}; run again to continue"
            ) from error

    def _refuse_path(self) -> None:
        """A path that cannot be written, or what stands there is no predictions file, or is being written."""
        if self.path.is_dir():
            raise UserError(f"{self.path}: is a folder; --out takes the name of a JSONL file")
        check_writable(self.path.parent, str(self.path))
        if holder(self.path) is not None:
            raise UserError(self._busy())
        if self._overwrite and self._has_content() and not self._holds_predictions():
            raise UserError(
                f"{self.path}: holds something else than predictions, so it stays; --out names another file"
            )

    def _holds_predictions(self) -> bool:
        """By its first line: rows of a dataset, or what is no JSONL, may not be lost."""
        with self.path.open("rb") as file:
            first = file.readline()
        try:
            value = json.loads(first)
        except ValueError:
            return False
        return isinstance(value, dict) and "id" in value and "conversation" not in value

    def _busy(self) -> str:
        return f"{self.path}: another process is answering into it; wait for it, or --out names another file"

    def _refuse_others(self) -> None:
        if not self._has_content():
            return
        kept = settings_path(self.path)
        advice = "--overwrite starts it anew; --out names another file"
        try:
            found = dict(json.loads(kept.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            why = "damaged" if kept.is_file() else "missing"
            raise UserError(f"{self.path}: not known which model wrote it ({kept.name} is {why}); {advice}") from None
        different = sorted(key for key in {*found, *self._settings} if found.get(key) != self._settings.get(key))
        if different:
            raise UserError(f"{self.path}: was made with another {_listed(different)}; {advice}")

    def _mend(self) -> None:
        """Cut a torn last line, which a killed writer leaves behind."""
        if not self._has_content():
            return
        with self.path.open("rb+") as file:
            content = file.read()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                file.truncate(whole)

    def _has_content(self) -> bool:
        return self.path.is_file() and self.path.stat().st_size > 0


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
