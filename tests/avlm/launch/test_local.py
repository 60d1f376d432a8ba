"""How a launched training ends: by itself, by signals, by the death of its launcher. No process may stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from avlm.errors import UserError
from avlm.launch.local import RANKS_PER_CORE, _refuse_missing_devices

ROOT = Path(__file__).resolve().parents[3]

TRAINING = """
import os, subprocess, sys, time
from pathlib import Path
folder, ending = Path("out"), sys.argv[1]
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])  # like a loader worker
started = folder / f"started{os.environ.get('RANK', 0)}"
started.with_suffix(".tmp").write_text(f"{os.getpid()} {helper.pid}")
started.with_suffix(".tmp").rename(started)
while ending == "deaf" or (ending == "listens" and not (folder / "stop").exists()):
    time.sleep(0.02)
helper.kill()
helper.wait()
(folder / "checkpoint").touch()
sys.exit(int(ending) if ending.isdigit() else 0)
"""
LAUNCHER = """
import sys
from types import SimpleNamespace
from avlm.launch.local import launch
recipe = SimpleNamespace(output_dir="out", parallel=SimpleNamespace(devices_per_node=int(sys.argv[1])))
sys.exit(launch(recipe, "training", [sys.argv[2]], patience=float(sys.argv[3])))
"""

Launch = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Launch]:
    """`launched(ending, ranks=1, patience=60)`: a launcher whose ranks are up."""
    (tmp_path / "training.py").write_text(TRAINING)
    (tmp_path / "out").mkdir()
    processes: list[subprocess.Popen[str]] = []

    def start(ending: str, ranks: int = 1, patience: float = 60.0, wait: bool = True) -> subprocess.Popen[str]:
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", LAUNCHER, str(ranks), ending, str(patience)],
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        if wait:
            until(lambda: len(list((tmp_path / "out").glob("started?"))) == ranks)
        return processes[0]

    yield start
    left = members(tmp_path)
    for process in (*processes, *left):
        process.kill()
        process.wait()
    assert not left, f"left behind: {left}"


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def members(folder: Path) -> list[psutil.Process]:
    """Ranks and their helpers that are still alive."""
    pids = [int(pid) for file in (folder / "out").glob("started?") for pid in file.read_text().split()]
    return [psutil.Process(p) for p in pids if psutil.pid_exists(p) and psutil.Process(p).status() != "zombie"]


def end_of(process: subprocess.Popen[str], seconds: float = 40.0) -> tuple[int, str]:
    """Exit code and output."""
    out, _ = process.communicate(timeout=seconds)
    assert "Traceback" not in out, out
    return process.returncode, out


@pytest.mark.parametrize(("ending", "code"), [("0", 0), ("2", 2), ("1", 1), ("77", 1)])
def test_exit_code_of_the_training(ending: str, code: int, launched: Launch) -> None:
    assert end_of(launched(ending)) == (code, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_first_signal_asks_for_a_checkpoint(number: signal.Signals, launched: Launch, tmp_path: Path) -> None:
    process = launched("listens")
    assert len(members(tmp_path)) == 2
    process.send_signal(number)
    code, out = end_of(process)
    assert code == 128 + number
    assert out == "\nstopping after this step with a checkpoint; Ctrl-C again stops now\n"
    assert (tmp_path / "out/checkpoint").exists() and not (tmp_path / "out/stop").exists()


def test_second_signal_stops_now(launched: Launch, tmp_path: Path) -> None:
    process = launched("deaf")
    process.send_signal(signal.SIGINT)
    until(lambda: (tmp_path / "out/stop").exists())
    process.send_signal(signal.SIGINT)
    code, out = end_of(process, seconds=5)
    assert code == 130 and out.endswith("stopped\n")
    assert not (tmp_path / "out/stop").exists()


def test_patience_ends(launched: Launch) -> None:
    process = launched("deaf", patience=0.5)
    process.send_signal(signal.SIGTERM)
    assert end_of(process, seconds=5)[0] == 143


@pytest.mark.distributed
def test_second_signal_stops_two_ranks(launched: Launch, tmp_path: Path) -> None:
    process = launched("deaf", ranks=2)
    assert len(members(tmp_path)) == 4
    process.send_signal(signal.SIGINT)
    until(lambda: (tmp_path / "out/stop").exists())
    process.send_signal(signal.SIGINT)
    assert end_of(process, seconds=15)[0] == 130


@pytest.mark.distributed
@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_do_not_outlive_a_killed_launcher(ranks: int, launched: Launch, tmp_path: Path) -> None:
    process = launched("deaf", ranks=ranks)
    pids = [int(file.read_text().split()[0]) for file in (tmp_path / "out").glob("started?")]
    process.kill()
    until(lambda: not {m.pid for m in members(tmp_path)} & set(pids), seconds=20)
    for helper in members(tmp_path):  # stands for a loader worker, which looks after its parent itself
        helper.kill()
    until(lambda: not members(tmp_path))


def test_before_the_folder_is_there_a_signal_stops_at_once(launched: Launch, tmp_path: Path) -> None:
    (tmp_path / "training.py").write_text("import time\ntime.sleep(100)")
    (tmp_path / "out").rmdir()
    process = launched("deaf", wait=False)
    until(lambda: bool(psutil.Process(process.pid).children()))
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert end_of(process, seconds=5) == (130, "stopped\n")
    assert not (tmp_path / "out").exists()


def test_a_stop_file_of_an_earlier_attempt_is_removed(launched: Launch, tmp_path: Path) -> None:
    (tmp_path / "out/stop").touch()
    process = launched("listens")
    assert not (tmp_path / "out/stop").exists()
    (tmp_path / "out/stop").touch()
    assert end_of(process)[0] == 0


def recipe(device: str, ranks: int) -> SimpleNamespace:
    """What `_refuse_missing_devices` looks at."""
    return SimpleNamespace(device=device, parallel=SimpleNamespace(devices_per_node=ranks))


def test_ranks_fit_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    _refuse_missing_devices(recipe("cpu", 2 * RANKS_PER_CORE))
    with pytest.raises(UserError, match="17 ranks are too many for this machine's CPU; at most 16"):
        _refuse_missing_devices(recipe("cpu", 17))
    for found, has in ((0, "no GPU"), (1, "1 GPU"), (4, "4 GPUs")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda found=found: found)
        with pytest.raises(UserError, match=f"devices_per_node is 8, but this machine has {has} that"):
            _refuse_missing_devices(recipe("cuda", 8))
        if found:
            _refuse_missing_devices(recipe("cuda", found))
