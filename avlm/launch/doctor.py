"""Look at this machine before a run does: one function per check, each with what to do about what it found.

Reading the machine and judging what was read are kept apart where a judgement has thresholds, so that tests can judge
machines that they do not have.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import avlm
from avlm.errors import UserError
from avlm.utils.files import check_writable

Status = Literal["ok", "warning", "failed"]
GIB = 2**30
LOCK = Path(avlm.__file__).resolve().parents[1] / "requirements" / "core.txt"


@dataclass(frozen=True)
class Check:
    """What one check found. `advice` says what to do; it is empty when there is nothing to do."""

    name: str
    status: Status
    detail: str
    advice: str = ""


def run_checks(output_dir: Path) -> list[Check]:
    """All checks, in the order of the table. A check that breaks is a failed check.

    Args:
        output_dir: folder that runs will write to; it need not exist and is not made.
    """
    checks: dict[str, Callable[[], Check]] = {
        "Python": python,
        "packages": packages,
        "PyTorch": pytorch,
        "GPU": gpu,
        "GPU kernels": kernels,
        "NCCL": nccl,
        "CPU and memory": memory,
        "shared memory": shared_memory,
        "disk": lambda: disk(output_dir),
        "output folder": lambda: writable(output_dir),
        "video and sound": media,
        "Hugging Face": hugging_face,
        "Weights & Biases": wandb_key,
    }
    return [_guarded(name, check) for name, check in checks.items()]


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:  # a doctor reports what is broken instead of breaking
        return Check(name, "failed", f"the check itself failed: {type(error).__name__}: {error}", "run `make env`")


# --- software --------------------------------------------------------------------------------------------------------


def python() -> Check:
    """The interpreter's version and place."""
    detail = f"{platform.python_version()} in {sys.prefix}"
    if sys.version_info[:2] != (3, 12):
        return Check("Python", "failed", detail, "the environment is made for Python 3.12: run `make env`")
    return Check("Python", "ok", detail)


def packages(lock: Path = LOCK, installed: Mapping[str, str] | None = None) -> Check:
    """Installed versions against the lock file.

    Args:
        lock: file of `name==version` lines.
        installed: distribution (normal form, PEP 503) -> version; default: this environment's.
    """
    if not lock.is_file():
        return Check("packages", "warning", "no lock file beside the package: not run from a checkout")
    pins = _pins(lock)
    found = _installed() if installed is None else installed
    missing = sorted(name for name in pins if name not in found)
    if missing:
        return Check("packages", "failed", f"{len(missing)} missing: {_some(missing)}", "run `make env`")
    other = sorted(f"{name} {found[name]} (lock: {pin})" for name, pin in pins.items() if found[name] != pin)
    if other:
        return Check("packages", "warning", f"{len(other)} differ from the lock: {_some(other)}", "run `make env`")
    return Check("packages", "ok", f"all {len(pins)} as in the lock")


def _pins(lock: Path) -> dict[str, str]:
    lines = [line.split("#")[0].strip() for line in lock.read_text(encoding="utf-8").splitlines()]
    pairs = [line.partition("==") for line in lines if line]
    return {name: version for name, _, version in pairs}


def _installed() -> dict[str, str]:
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.name.lower().replace("_", "-").replace(".", "-")
        found.setdefault(name, distribution.version)  # the first on sys.path is the one that is imported
    return found


def _some(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (" …" if len(names) > most else "")


# --- accelerator -----------------------------------------------------------------------------------------------------


def pytorch() -> Check:
    """PyTorch imports, and the CUDA version it was built for."""
    import torch

    return Check("PyTorch", "ok", f"{torch.__version__}, built for CUDA {torch.version.cuda or 'none'}")


@dataclass(frozen=True)
class Gpu:
    """One GPU. memory: bytes."""

    name: str
    memory: int
    capability: tuple[int, int]


def gpu() -> Check:
    """GPUs that PyTorch can use."""
    import torch

    gpus = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            gpus.append(Gpu(properties.name, properties.total_memory, (properties.major, properties.minor)))
    return judge_gpus(gpus, _driver(), torch.version.cuda)


def judge_gpus(gpus: list[Gpu], driver: str | None, built_for: str | None) -> Check:
    """Verdict on the GPUs.

    Args:
        gpus: those that PyTorch sees.
        driver: version of the NVIDIA driver, None when there is none.
        built_for: CUDA version that PyTorch was built for.
    """
    if not gpus and driver is None:
        return Check(
            "GPU",
            "warning",
            "none",
            "recipes with `device: cpu` run here; the others need NVIDIA GPUs and their driver",
        )
    if not gpus:
        return Check(
            "GPU",
            "failed",
            f"driver {driver} is there, and PyTorch sees no GPU",
            f"the driver must support CUDA {built_for}, and in a container the GPUs must be passed in",
        )
    kinds = {f"{g.name} {g.memory / GIB:.0f} GiB": sum(g.name == other.name for other in gpus) for g in gpus}
    detail = ", ".join(f"{count} x {kind}" for kind, count in kinds.items()) + f", driver {driver or 'unknown'}"
    if any(g.capability < (8, 0) for g in gpus):
        return Check("GPU", "warning", detail, "bfloat16 needs compute capability 8.0 (Ampere) or later")
    return Check("GPU", "ok", detail)


def _driver() -> str | None:
    import pynvml

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None


def kernels(present: Callable[[str], bool] | None = None, cuda: bool | None = None) -> Check:
    """Optional GPU packages: which are there.

    Args:
        present: whether a module can be imported; default: looks it up without importing.
        cuda: whether there is a GPU; default: asks PyTorch.
    """
    if cuda is None:
        import torch

        cuda = torch.cuda.is_available()
    if not cuda:
        return Check("GPU kernels", "ok", "not needed without a GPU")
    has = present or (lambda name: importlib.util.find_spec(name) is not None)
    modules = ("transformer_engine", "deep_ep", "grouped_gemm", "liger_kernel", "mamba_ssm", "causal_conv1d")
    missing = [name for name in modules if not has(name)]
    if missing:
        advice = "`make env EXTRA=gpu`; pyproject.toml says how to build deep_ep, which `moe_dispatcher: deepep` needs"
        return Check("GPU kernels", "warning", f"not installed: {', '.join(missing)}", advice)
    return Check("GPU kernels", "ok", ", ".join(modules))


def nccl() -> Check:
    """NCCL: its version and, where there is a GPU, one all-reduce on one rank."""
    import torch

    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        return Check("NCCL", "failed", "PyTorch was built without it", "run `make env`")
    version = ".".join(str(part) for part in torch.cuda.nccl.version())
    if not torch.cuda.is_available():
        return Check("NCCL", "ok", f"{version}; not tried without a GPU")
    torch.distributed.init_process_group("nccl", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        value = torch.ones(1, device="cuda")
        torch.distributed.all_reduce(value)
        torch.cuda.synchronize()
    finally:
        torch.distributed.destroy_process_group()
    return Check("NCCL", "ok", f"{version}; one all-reduce done")


# --- machine ---------------------------------------------------------------------------------------------------------


def memory() -> Check:
    """Cores and memory that this process may use."""
    import os

    total, free = machine_memory()
    limit, used = container_memory()
    total = min(total, limit or total)
    free = min(free, total - used)
    return judge_memory(len(os.sched_getaffinity(0)), total, free)


def machine_memory(file: Path = Path("/proc/meminfo")) -> tuple[int, int]:
    """Memory of the machine and what of it is available, in bytes."""
    kib = {name: int(rest.split()[0]) for name, _, rest in (x.partition(":") for x in file.read_text().splitlines())}
    return kib["MemTotal"] * 1024, kib["MemAvailable"] * 1024


def container_memory(folder: Path = Path("/sys/fs/cgroup")) -> tuple[int, int]:
    """The container's memory limit and what counts against it (bytes), from control groups v2; 0, 0 without a limit."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        if not limit.isdigit():
            return 0, 0
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        cache = int(statistics["inactive_file"])  # given up under pressure
        return int(limit), max(0, int((folder / "memory.current").read_text()) - cache)
    except OSError:
        return 0, 0


def judge_memory(cores: int, total: int, free: int) -> Check:
    """Verdict on cores and memory (bytes)."""
    detail = f"{cores} cores, {free / GIB:.1f} of {total / GIB:.1f} GiB free"
    if free < 2 * GIB:
        return Check("CPU and memory", "failed", detail, "the demo needs 4 GiB: close other programs")
    if free < 4 * GIB:
        return Check("CPU and memory", "warning", detail, "the demo needs 4 GiB: set data.workers=0 if it is killed")
    return Check("CPU and memory", "ok", detail)


def shared_memory(size: int | None = None, path: Path = Path("/dev/shm")) -> Check:
    """Size of the shared memory through which loader workers and NCCL pass data.

    Args:
        size: bytes; default: asks the file system.
        path: where it is mounted.
    """
    if size is None:
        size = shutil.disk_usage(path).total if path.is_dir() else 0
    detail = f"{size / GIB:.1f} GiB in {path}" if size else f"no {path}"
    if size < GIB:
        advice = (
            "loader workers and NCCL need it: in a container, raise --shm-size (or use --ipc=host); or data.workers=0"
        )
        return Check("shared memory", "warning", detail, advice)
    return Check("shared memory", "ok", detail)


def disk(folder: Path, free: int | None = None) -> Check:
    """Free space where runs will be written. free: bytes; default: asks the file system."""
    place = _existing(folder)
    if free is None:
        free = shutil.disk_usage(place).free
    detail = f"{free / GIB:.1f} GiB free in {place}"
    if free < 2 * GIB:
        return Check("disk", "failed", detail, "free some space, or set output_dir elsewhere")
    if free < 20 * GIB:
        advice = "enough for the demo; bfloat16 weights take 2 GB per billion parameters, an optimizer checkpoint more"
        return Check("disk", "warning", detail, advice)
    return Check("disk", "ok", detail)


def writable(folder: Path) -> Check:
    """Whether a file can be written where runs will be; leaves nothing behind."""
    place = _existing(folder)
    try:
        check_writable(folder, "output_dir")
    except UserError as error:
        return Check("output folder", "failed", str(error), "set output_dir elsewhere")
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"avlm")
    except OSError as error:
        advice = "change the folder's owner or rights, or set output_dir elsewhere"
        return Check("output folder", "failed", f"{place} cannot be written: {error.strerror}", advice)
    return Check("output folder", "ok", f"{place} can be written")


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    return next(place for place in (folder, *folder.parents) if place.is_dir())


# --- media -----------------------------------------------------------------------------------------------------------


def media() -> Check:
    """Makes a one-second H.264 + AAC clip in memory and reads its frames and sound back."""
    import av

    name = f"PyAV {av.__version__}, FFmpeg {av.ffmpeg_version_info}"
    advice = "run `make env`: PyAV's own wheel has both codecs"
    for codec in ("h264", "aac"):
        try:
            av.codec.Codec(codec, "r")
        except av.codec.codec.UnknownCodecError:
            return Check("video and sound", "failed", f"{name}: cannot decode {codec}", advice)
    try:
        clip = make_clip()
    except (av.FFmpegError, ValueError) as error:
        return Check("video and sound", "warning", f"{name}: decoders there, no encoder to try them ({error})", advice)
    frames, samples, brightness = read_clip(clip)
    if frames != CLIP_FRAMES or abs(samples - CLIP_RATE) > 2048 or abs(brightness - CLIP_GREY) > 3:
        detail = (
            f"{name}: {frames} frames (wanted {CLIP_FRAMES}) of grey {brightness:.0f} ({CLIP_GREY}), {samples} samples"
        )
        return Check("video and sound", "failed", detail, advice)
    return Check("video and sound", "ok", f"{name}: H.264 and AAC decoded")


CLIP_FRAMES, CLIP_RATE, CLIP_GREY = 10, 16_000, 100
"""The test clip: frames in its one second, samples in its one second, value of every pixel."""


def make_clip() -> bytes:
    """An MP4 of one grey second with a tone, in memory. Raises FFmpeg's error when an encoder is missing."""
    import io

    import av
    import numpy as np

    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        video = container.add_stream("h264", rate=CLIP_FRAMES)
        video.width, video.height, video.pix_fmt = 64, 64, "yuv420p"
        audio = container.add_stream("aac", rate=CLIP_RATE, layout="mono")
        for _ in range(CLIP_FRAMES):
            picture = np.full((64, 64, 3), CLIP_GREY, dtype=np.uint8)
            container.mux(video.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(video.encode())
        wave = np.sin(np.arange(CLIP_RATE) * (2 * np.pi * 440 / CLIP_RATE)).astype(np.float32)
        sound = av.AudioFrame.from_ndarray(wave[None] * 0.5, format="fltp", layout="mono")
        sound.sample_rate = CLIP_RATE
        container.mux(audio.encode(sound))
        container.mux(audio.encode())
    return file.getvalue()


def read_clip(clip: bytes) -> tuple[int, int, float]:
    """Frames, samples and mean pixel value of a clip."""
    import io

    import av

    with av.open(io.BytesIO(clip)) as container:
        pictures: list[Any] = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        container.seek(0)
        samples = sum(frame.samples for frame in container.decode(audio=0))
    return len(pictures), samples, float(sum(p.mean() for p in pictures) / max(len(pictures), 1))


# --- services --------------------------------------------------------------------------------------------------------


def hugging_face() -> Check:
    """Where downloaded checkpoints go, and whether downloads are allowed."""
    from huggingface_hub import constants, get_token

    cache = Path(constants.HF_HUB_CACHE)
    offline = constants.HF_HUB_OFFLINE
    detail = f"cache {cache}, {shutil.disk_usage(_existing(cache)).free / GIB:.1f} GiB free"
    detail += f", {'offline' if offline else 'online'}, {'a token' if get_token() else 'no token'}"
    if writable(cache).status != "ok":
        return Check("Hugging Face", "warning", detail, "the cache cannot be written: set HF_HOME to a folder of yours")
    if offline:
        return Check("Hugging Face", "ok", f"{detail}; only local checkpoints can be used (HF_HUB_OFFLINE)")
    return Check("Hugging Face", "ok", detail)


def wandb_key() -> Check:
    """Whether a key for Weights & Biases is stored. The key itself is never shown."""
    import wandb

    if wandb.api.api_key:
        return Check("Weights & Biases", "ok", "a key is stored")
    return Check("Weights & Biases", "ok", "no key: `wandb: online` records offline until `wandb login` stores one")
