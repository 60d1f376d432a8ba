from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from avlm.utils.processes import Died, each


def square(number: int) -> int:
    return number * number


def deadly(number: int) -> int:
    if number == 5:
        os.kill(os.getpid(), signal.SIGSEGV)
    if number == 9:  # a library that never returns and keeps the interpreter's lock
        ctypes.PyDLL(None).sleep(1000)
    return number


def failing(number: int) -> int:
    raise ValueError(f"no {number}")


def test_all_items_are_done() -> None:
    assert dict(each(square, range(50), jobs=2, seconds=30, together=7)) == {n: n * n for n in range(50)}
    assert list(each(square, [], jobs=2, seconds=30)) == []


@pytest.mark.timeout(60)
def test_crashes_and_hangs_cost_one_item_each() -> None:
    started = time.monotonic()
    done = list(each(deadly, range(12), jobs=2, seconds=2, together=4))
    assert sorted(n for n, _ in done) == list(range(12))
    assert {n: r for n, r in done if r != n} == {5: Died(), 9: Died()}
    assert time.monotonic() - started < 40


def test_errors_pass_through() -> None:
    with pytest.raises(ValueError, match="no 0"):
        list(each(failing, [0], jobs=1, seconds=30))


def test_time_limit_ends_the_process() -> None:
    code = (
        "import time\nfrom avlm.utils.processes import time_limit\n"
        "with time_limit(30): pass\n"
        "print('first', flush=True)\n"
        "with time_limit(0.2): time.sleep(30)\n"
        "print('never')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path.cwd(), timeout=20)
    assert (result.returncode, result.stdout) == (-signal.SIGALRM, "first\n")
