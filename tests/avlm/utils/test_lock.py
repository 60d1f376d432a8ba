"""Locks between processes: held, told, gone with the holder."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from avlm.utils.lock import Held, holder, take

ROOT = Path(__file__).resolve().parents[3]
HOLD = """
import os, sys, time
from pathlib import Path
from avlm.utils.lock import take
take(Path(sys.argv[1]))
if os.fork() == 0:  # like a loader worker
    time.sleep(5)
    os._exit(0)
print("locked", flush=True)
time.sleep(60)
"""


@pytest.fixture
def other_process() -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    """`other_process(path)`: a process that has locked `path`."""
    started = []

    def start(path: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLD, str(path)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT))
        assert started[0].stdout is not None and started[0].stdout.readline() == "locked\n"
        return started[0]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_one_process_at_a_time(tmp_path: Path, other_process: Callable[[Path], subprocess.Popen[str]]) -> None:
    path = tmp_path / "lock"
    process = other_process(path)
    said = f"process {process.pid} on {socket.gethostname()}"
    assert holder(path) == said
    with pytest.raises(Held, match=re.escape(said)):
        take(path)
    process.kill()
    process.wait()
    assert holder(path) is None, "a lock dies with its process, whatever that has forked"
    os.close(take(path))
    assert path.read_text() == f"process {os.getpid()} on {socket.gethostname()}\n"


def test_looking_writes_nothing(tmp_path: Path) -> None:
    assert holder(tmp_path / "folder/lock") is None
    assert not list(tmp_path.iterdir())


def test_a_file_system_without_locks_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refused)
    os.close(take(tmp_path / "lock"))
    assert holder(tmp_path / "lock") is None
