from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import av
import pytest

from avlm import cli
from avlm.launch import doctor
from avlm.launch.doctor import GIB, Check, Gpu

NAMES = [
    "Python",
    "packages",
    "PyTorch",
    "GPU",
    "GPU kernels",
    "NCCL",
    "CPU and memory",
    "shared memory",
    "disk",
    "output folder",
    "video and sound",
    "Hugging Face",
    "Weights & Biases",
]


def test_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole command on the machine that runs the tests, which must be fit to run them."""
    output = tmp_path / "new"
    code = cli.run(["doctor", "--json", "--output-dir", str(output)])
    found = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert list(found) == NAMES
    assert code == 0, found
    for name in ("Python", "packages", "PyTorch", "NCCL", "output folder", "video and sound"):
        assert found[name]["status"] == "ok", found[name]
    assert not output.exists(), "a check leaves nothing behind"


def fake(monkeypatch: pytest.MonkeyPatch, checks: Sequence[Check]) -> None:
    monkeypatch.setattr(doctor, "run_checks", lambda output_dir: list(checks))


def test_table_and_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    good, odd = Check("A", "ok", "fine"), Check("B", "warning", "odd [not markup]", "do this")
    fake(monkeypatch, [good, odd])
    assert cli.run(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "odd [not markup]" in text and "→ do this" in text and "1 ok, 1 warning, 0 failed" in text
    fake(monkeypatch, [good, Check("C", "failed", "broken")])
    assert cli.run(["doctor"]) == 1
    assert cli.run(["doctor", "--json"]) == 1


def test_broken_check_is_a_failed_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken() -> Check:
        raise ImportError("libcudart.so")

    for name in ("pytorch", "gpu", "kernels", "nccl", "wandb_key", "media"):
        monkeypatch.setattr(doctor, name, broken)
    checks = {check.name: check for check in doctor.run_checks(tmp_path)}
    assert checks["PyTorch"].status == "failed"
    assert "libcudart.so" in checks["PyTorch"].detail
    assert checks["disk"].status != "failed"


@pytest.mark.parametrize(
    ("installed", "status", "words"),
    [
        ({"a-b": "1.0", "c": "2"}, "ok", "all 2"),
        ({"a-b": "1.0", "c": "2", "other": "9"}, "ok", "all 2"),
        ({"a-b": "1.1", "c": "2"}, "warning", "a-b 1.1 (lock: 1.0)"),
        ({"c": "2"}, "failed", "1 missing: a-b"),
    ],
)
def test_packages(installed: dict[str, str], status: str, words: str, tmp_path: Path) -> None:
    lock = tmp_path / "core.txt"
    lock.write_text("# pins\na-b==1.0\nc==2\n")
    check = doctor.packages(lock, installed)
    assert check.status == status and words in check.detail
    assert (check.advice == "run `make env`") == (status != "ok")


def test_packages_without_lock(tmp_path: Path) -> None:
    assert doctor.packages(tmp_path / "none.txt").status == "warning"


H100 = Gpu("NVIDIA H100", 80 * GIB, (9, 0))
V100 = Gpu("Tesla V100", 32 * GIB, (7, 0))


@pytest.mark.parametrize(
    ("gpus", "driver", "status", "words"),
    [
        ([H100] * 8, "580.65", "ok", "8 x NVIDIA H100 80 GiB, driver 580.65"),
        ([V100], "580.65", "warning", "1 x Tesla V100"),
        ([H100, V100], "580.65", "warning", "1 x NVIDIA H100 80 GiB, 1 x Tesla V100 32 GiB"),
        ([], None, "warning", "none"),
        ([], "470.1", "failed", "driver 470.1"),
    ],
)
def test_gpus(gpus: list[Gpu], driver: str | None, status: str, words: str) -> None:
    check = doctor.judge_gpus(gpus, driver, "13.0")
    assert check.status == status and words in check.detail
    assert bool(check.advice) == (status != "ok")
    if status == "failed":
        assert "CUDA 13.0" in check.advice


def test_kernels() -> None:
    assert doctor.kernels(lambda name: False, cuda=False).status == "ok"
    assert doctor.kernels(lambda name: True, cuda=True).status == "ok"
    check = doctor.kernels(lambda name: name != "deep_ep", cuda=True)
    assert (check.status, check.detail) == ("warning", "not installed: deep_ep")


@pytest.mark.gpu
def test_nccl_on_a_gpu() -> None:
    assert "all-reduce done" in doctor.nccl().detail


@pytest.mark.parametrize(("free", "status"), [(1.9, "failed"), (3.9, "warning"), (4.1, "ok")])
def test_memory(free: float, status: str) -> None:
    assert doctor.judge_memory(2, 8 * GIB, int(free * GIB)).status == status


def test_memory_of_a_container(tmp_path: Path) -> None:
    assert doctor.container_memory(tmp_path) == (0, 0)
    (tmp_path / "memory.max").write_text("max\n")
    assert doctor.container_memory(tmp_path) == (0, 0)
    (tmp_path / "memory.max").write_text(f"{4 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{3 * GIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {GIB}\n")
    assert doctor.container_memory(tmp_path) == (4 * GIB, 2 * GIB)


def test_memory_is_read_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  2048 kB\nMemFree: 1 kB\nMemAvailable:  1024 kB\nHugePages_Total: 0\n")
    assert doctor.machine_memory(tmp_path / "meminfo") == (2 * 2**20, 2**20)


@pytest.mark.parametrize(("size", "status"), [(64 * 2**20, "warning"), (GIB, "ok"), (0, "warning")])
def test_shared_memory(size: int, status: str) -> None:
    assert doctor.shared_memory(size).status == status


@pytest.mark.parametrize(("free", "status"), [(GIB, "failed"), (19 * GIB, "warning"), (200 * GIB, "ok")])
def test_disk(free: int, status: str, tmp_path: Path) -> None:
    check = doctor.disk(tmp_path / "not" / "yet", free)
    assert check.status == status and str(tmp_path) in check.detail


def test_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    assert doctor.writable(tmp_path / "new").status == "ok"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    check = doctor.writable(tmp_path / "file/new")
    assert check.status == "failed" and f"{tmp_path}/file is a file" in check.detail
    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)  # root may write anywhere, so rights are no test
    check = doctor.writable(tmp_path / "new")
    assert check.status == "failed" and "Permission denied" in check.detail


def test_clip_is_really_decoded() -> None:
    clip = doctor.make_clip()
    frames, samples, grey = doctor.read_clip(clip)
    assert frames == doctor.CLIP_FRAMES
    assert abs(samples - doctor.CLIP_RATE) <= 2048
    assert abs(grey - doctor.CLIP_GREY) <= 3
    with av.open(io.BytesIO(clip)) as container:
        assert [stream.codec_context.name for stream in container.streams] == ["h264", "aac"]


@pytest.mark.parametrize("found", [(9, 16_000, 100.0), (10, 0, 100.0), (10, 16_000, 0.0)])
def test_wrong_picture_or_sound_fails(found: tuple[int, int, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "read_clip", lambda clip: found)
    assert doctor.media().status == "failed"


def test_missing_encoder_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> bytes:
        raise av.codec.codec.UnknownCodecError("h264")

    monkeypatch.setattr(doctor, "make_clip", missing)
    assert doctor.media().status == "warning"


def outside(name: str, **environment: str) -> str:
    """What one check says in a process with another environment."""
    code = f"from avlm.launch import doctor; c = doctor.{name}(); print(c.status, '|', c.detail, '|', c.advice)"
    env = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout


def test_wandb_key_is_seen_and_not_shown(tmp_path: Path) -> None:
    key = "0123456789" * 4
    said = outside("wandb_key", WANDB_API_KEY=key, HOME=str(tmp_path))
    assert said.startswith("ok | a key is stored") and key not in said
    assert "no key" in outside("wandb_key", WANDB_API_KEY="", HOME=str(tmp_path))


def test_hugging_face_cache_and_offline_flag(tmp_path: Path) -> None:
    said = outside("hugging_face", HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1", HF_TOKEN="hf_secret")
    assert f"cache {tmp_path}/hub" in said and "offline" in said and "a token" in said and "hf_secret" not in said
    said = outside("hugging_face", HF_HOME=str(tmp_path), HF_HUB_OFFLINE="0", HF_TOKEN="")
    assert "online, no token" in said
