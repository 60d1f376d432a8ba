"""The two ways a command ends badly, and the exit codes that go with them."""

from __future__ import annotations

from dataclasses import dataclass


class UserError(Exception):
    """Bad input: a file, a field or a flag is wrong. Printed as one message, exit code 2.

    The message says where (file and line, or the field), what is wrong and what would be right.
    """

    exit_code = 2


class RunError(Exception):
    """The input was good and the run failed all the same (disk full, node lost). Exit code 1."""

    exit_code = 1


@dataclass(frozen=True)
class Place:
    """Where a value was written: a file and a 1-based line, or the command line."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"
