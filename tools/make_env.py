#!/usr/bin/env python3
"""Make the environment in `.venv`: the pinned packages and this checkout, editable. Runs on any Python >= 3.9.

    python3 tools/make_env.py                 # core and development tools
    python3 tools/make_env.py --extra gpu     # and the pins of requirements/extra-gpu.txt
    python3 tools/make_env.py --check         # exit 0 if `.venv` is current, 1 if not; changes nothing

A current environment is recognised in milliseconds: a stamp in `.venv` names the lock files it was made from, and every
pin is looked up among the installed distributions, so that a stamp alone is never believed. A set-up that was
interrupted is begun again from an empty `.venv`.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WANTED = (3, 12)
# nvidia-resiliency-ext ships manylinux_2_39 wheels only; they import on glibc 2.36 too.
PLATFORM = "x86_64-manylinux_2_40"
# Kernels that are compiled against the torch of the environment, not against one of a build sandbox.
COMPILED = ("causal-conv1d", "mamba-ssm", "nv-grouped-gemm", "transformer-engine", "transformer-engine-torch")
DISK_NEEDED = 8 * 2**30


class SetupError(Exception):
    """The environment cannot be made; the message says what is missing."""


# --- what should be there, and what is -------------------------------------------------------------------------------


def normal(name: str) -> str:
    """A distribution's name in its normal form (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def lock_files(extras: Sequence[str], root: Path = ROOT) -> list[Path]:
    """The lock files of the core, the development tools and `extras`."""
    folder = root / "requirements"
    files = [folder / "core.txt", folder / "dev.txt", *(folder / f"extra-{extra}.txt" for extra in extras)]
    for file in files:
        if not file.is_file():
            known = sorted(path.stem[len("extra-") :] for path in folder.glob("extra-*.txt"))
            raise SetupError(f"{file.relative_to(root)} does not exist; extras: {', '.join(known)}")
    return files


def pins(files: Sequence[Path]) -> dict[str, str]:
    """Distribution -> version, from lock files of `name==version` lines."""
    found = {}
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            requirement = line.split("#")[0].split(";")[0].strip()
            if requirement:
                name, _, version = requirement.partition("==")
                found[normal(name)] = version
    return found


def installed(venv: Path) -> dict[str, str]:
    """Distribution -> version, from the names of the `.dist-info` folders of `venv`."""
    found = {}
    for site in venv.glob("lib/python3.*/site-packages"):
        for entry in os.listdir(site):
            if entry.endswith(".dist-info"):
                name, _, version = entry[: -len(".dist-info")].partition("-")
                found[normal(name)] = version
    return found


def fingerprint(files: Sequence[Path], root: Path = ROOT) -> str:
    """Hash of all that decides the environment's content: lock files, packaging, this script, the checkout's place."""
    digest = hashlib.sha256(str(root).encode())
    for file in [*files, root / "pyproject.toml", Path(__file__)]:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def out_of_date(venv: Path, extras: Sequence[str], root: Path = ROOT) -> str:
    """Why `venv` is not current, or an empty string when it is."""
    files = lock_files(extras, root)
    if not (venv / "bin" / "python").exists():
        return f"{venv.name} does not exist or its Python is gone"
    if (venv / "installing").exists():
        return "an earlier set-up was interrupted"
    try:
        stamp = json.loads((venv / "stamp.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "it was not finished"
    if stamp != {"fingerprint": fingerprint(files, root), "extras": sorted(extras)}:
        return "the lock files or the packaging changed"
    return wrong_packages(venv, files)


def wrong_packages(venv: Path, files: Sequence[Path]) -> str:
    """Which pins `venv` does not hold, in words, or an empty string when it holds all."""
    have = installed(venv)
    wrong = [f"{name} {version}" for name, version in pins(files).items() if have.get(name) != version]
    if wrong:
        return f"{len(wrong)} packages differ from the lock: {', '.join(wrong[:5])}"
    if "avlm-recipes" not in have or not (venv / "bin" / "avlm").exists():
        return "this checkout is not installed in it"
    return ""


# --- finding Python and uv -------------------------------------------------------------------------------------------


def version_of(python: Path) -> tuple[int, int] | None:
    """(major, minor) that `python` really runs as, or None when it does not run (a shim of another version)."""
    try:
        code = "import sys; print(*sys.version_info[:2])"
        result = subprocess.run([str(python), "-c", code], capture_output=True, text=True, timeout=30, check=True)
        major, minor = result.stdout.split()
        return int(major), int(minor)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def python_candidates() -> Iterator[Path]:
    """Where a Python 3.12 may be: on PATH, this interpreter, pyenv's versions."""
    name = f"python{WANTED[0]}.{WANTED[1]}"
    for folder in os.get_exec_path():
        yield Path(folder) / name
    yield Path(sys.executable)
    roots = [Path.home() / ".pyenv"]
    pyenv = shutil.which("pyenv")
    if pyenv:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            answer = subprocess.run([pyenv, "root"], capture_output=True, text=True, timeout=30, check=True)
            roots.insert(0, Path(answer.stdout.strip()))
    for root in roots:
        yield from sorted(root.glob(f"versions/{WANTED[0]}.{WANTED[1]}*/bin/{name}"), reverse=True)


def find_python(venv: Path) -> Path | None:
    """A Python 3.12 that runs and is not `venv`'s own, or None."""
    for candidate in python_candidates():
        if candidate.exists() and venv not in candidate.parents and version_of(candidate) == WANTED:
            return candidate
    return None


def runs(command: Sequence[str | Path]) -> bool:
    """Whether a command ends well."""
    try:
        return subprocess.run([str(c) for c in command], capture_output=True, timeout=600).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def find_uv(python: Path | None, root: Path = ROOT) -> Path:
    """uv at the version of the lock, in a private environment under `.cache`; else the one on PATH.

    Raises `SetupError` when there is neither.
    """
    version = pins([root / "requirements" / "dev.txt"])["uv"]
    private = root / ".cache" / f"uv-{version}"
    uv = private / "bin" / "uv"
    if runs([uv, "--version"]):
        return uv
    for interpreter in [python, Path(sys.executable)]:
        if interpreter is None:
            continue
        say(f"installing uv {version} into {private.relative_to(root)}")
        if runs([interpreter, "-m", "venv", "--clear", private]) and runs(
            [private / "bin" / "python", "-m", "pip", "install", "--quiet", f"uv=={version}"]
        ):
            return uv
    on_path = shutil.which("uv")
    if on_path and runs([on_path, "--version"]):
        say(f"using {on_path}")
        return Path(on_path)
    raise SetupError(
        f"uv {version} cannot be installed: the Python at hand has no venv or pip, or the package registry is out of "
        "reach. Install python3-venv, or uv itself, and run this again."
    )


# --- making it -------------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    """One line of progress."""
    print(f"env: {text}", file=sys.stderr, flush=True)


def run(command: Sequence[str | Path]) -> None:
    """Runs a step. Raises `SetupError` when it fails.

    It runs outside the checkout, where uv does not see the overrides in pyproject.toml: they would replace pins.
    """
    result = subprocess.run([str(c) for c in command], cwd="/")
    if result.returncode:
        raise SetupError(f"`{' '.join(str(c) for c in command)}` failed with exit code {result.returncode}")


def make(venv: Path, extras: Sequence[str], python: Path | None = None, root: Path = ROOT) -> None:
    """Makes or completes `venv`. Raises `SetupError`."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise SetupError(f"the lock files are for Linux on x86_64; this is {platform.system()} {platform.machine()}")
    files = lock_files(extras, root)
    installing, stamp = venv / "installing", venv / "stamp.json"
    started = time.monotonic()
    python = python or find_python(venv)
    uv = find_uv(python, root)

    keep = not installing.exists() and version_of(venv / "bin" / "python") == WANTED and made_here(venv)
    if not keep:
        free = shutil.disk_usage(root).free
        if free < DISK_NEEDED:
            raise SetupError(f"{free / 2**30:.1f} GiB free under {root}; {DISK_NEEDED / 2**30:.0f} GiB are needed")
        if python is None:
            wanted = f"Python {WANTED[0]}.{WANTED[1]}"
            say(f"no {wanted} on PATH or in pyenv; uv fetches one (or install it: `make env PYTHON=…/python3.12`)")
        run([uv, "venv", "--quiet", "--clear", "--python", python or f"{WANTED[0]}.{WANTED[1]}", venv])
    installing.write_text(json.dumps({"extras": sorted(extras)}), encoding="utf-8")
    stamp.unlink(missing_ok=True)
    say(f"installing {len(pins(files))} pinned packages")
    target: list[str | Path] = ["--python", venv / "bin" / "python", "--no-deps"]
    # --no-deps: the locks were resolved with overrides ([tool.uv] in pyproject.toml) that a plain resolve contradicts.
    install: list[str | Path] = [uv, "pip", "install", "--quiet", *target, "--python-platform", PLATFORM]
    core, added = files[:2], files[2:]
    run([*install, *_flags("-r", core)])
    if added:
        run([*install, *_flags("--no-build-isolation-package", COMPILED), *_flags("-r", added)])
    run([uv, "pip", "install", "--quiet", *target, "--no-build-isolation", "--editable", root])
    wrong = wrong_packages(venv, files)
    if wrong:
        raise SetupError(f"the installation ended, but {wrong}")
    new = stamp.with_suffix(".new")
    new.write_text(json.dumps({"fingerprint": fingerprint(files, root), "extras": sorted(extras)}), encoding="utf-8")
    os.replace(new, stamp)
    installing.unlink()
    say(f"{venv.name} is ready ({time.monotonic() - started:.0f} s)")


def _flags(flag: str, values: Iterable[str | Path]) -> list[str | Path]:
    return [part for value in values for part in (flag, value)]


def made_here(venv: Path) -> bool:
    """Whether `venv` was made at its present place (its scripts name that place)."""
    activate = venv / "bin" / "activate"
    return activate.is_file() and str(venv) in activate.read_text(encoding="utf-8")


@contextlib.contextmanager
def alone(root: Path) -> Iterator[None]:
    """One set-up at a time in a checkout; a second one waits."""
    (root / ".cache").mkdir(exist_ok=True)
    with open(root / ".cache" / "env.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another set-up is running; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def kept_extras(venv: Path) -> list[str]:
    """The extras that `venv` was last made with, or was being made with when that was interrupted."""
    for name in ("installing", "stamp.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            return list(json.loads((venv / name).read_text(encoding="utf-8"))["extras"])
    return []


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--extra", action="append", default=[], metavar="NAME", help="add requirements/extra-NAME.txt")
    parser.add_argument("--check", action="store_true", help="only say whether the environment is current")
    parser.add_argument("--python", type=Path, help="the Python 3.12 to use")
    options = parser.parse_args(arguments)
    venv = ROOT / ".venv"
    extras = sorted({*options.extra, *kept_extras(venv)})
    try:
        reason = out_of_date(venv, extras)
        if options.check:
            print(reason or "current")
            return 1 if reason else 0
        if reason:
            with alone(ROOT):
                if out_of_date(venv, extras):
                    say(reason)
                    make(venv, extras, options.python)
    except SetupError as error:
        print(f"env: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
