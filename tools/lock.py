"""Resolve `requirements/*.txt` from the inputs in `pyproject.toml`. Needs the package registry.

    .venv/bin/python tools/lock.py              # keep pins that still fit, so that nothing moves without a reason
    .venv/bin/python tools/lock.py --upgrade    # newest versions that fit
    .venv/bin/python tools/lock.py --check      # write nothing; exit 1 when a file is not what its inputs give

core.txt comes from [project] dependencies, dev.txt from the group `dev`, extra-NAME.txt from the extra NAME. An extra
is resolved with the pins of the core held, and its file lists only what it adds. The files hold `name==version` lines
and no addresses, so that any mirror serves them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADER = "# Written by `make lock` from pyproject.toml; do not edit.\n"
PLATFORM = "x86_64-manylinux_2_40"


class Conflict(Exception):
    """The requirements contradict each other (or the registry is out of reach); the message is uv's."""


def extras(root: Path = ROOT) -> list[str]:
    """Names of the optional dependencies in `pyproject.toml`."""
    with open(root / "pyproject.toml", "rb") as file:
        return sorted(tomllib.load(file)["project"]["optional-dependencies"])


def read(path: Path) -> list[str]:
    """The `name==version` lines of a lock file; none when there is no such file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [line for line in lines if line and not line.startswith("#")]


def resolve(inputs: Sequence[str], held: Sequence[str], preferred: Sequence[str], upgrade: bool = False) -> list[str]:
    """Runs `uv pip compile` on `inputs` (its arguments) in the project.

    held: pins that the answer must keep. preferred: pins that it keeps where it can. Raises `Conflict`.
    """
    with tempfile.TemporaryDirectory() as folder:
        constraints, answer = Path(folder) / "held.txt", Path(folder) / "answer.txt"
        constraints.write_text("\n".join(held), encoding="utf-8")
        if not upgrade:
            answer.write_text("\n".join(preferred), encoding="utf-8")
        command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", *inputs]
        command += ["--constraint", str(constraints), "--output-file", str(answer), "--quiet"]
        command += ["--python", sys.executable, "--python-version", "3.12", "--python-platform", PLATFORM]
        command += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if result.returncode:
            raise Conflict(result.stderr.strip())
        return read(answer)


def resolve_core(upgrade: bool = False) -> list[str]:
    """Pins of the core."""
    return resolve(["pyproject.toml"], [], read(ROOT / "requirements" / "core.txt"), upgrade)


def resolve_dev(core: Sequence[str], upgrade: bool = False) -> list[str]:
    """Pins of the development tools, beside the core."""
    return resolve(["--group", "dev"], core, read(ROOT / "requirements" / "dev.txt"), upgrade)


def resolve_extra(name: str, core: Sequence[str], upgrade: bool = False) -> list[str]:
    """Pins that the extra `name` adds to the core. Raises `Conflict` when it does not fit."""
    preferred = [*core, *read(ROOT / "requirements" / f"extra-{name}.txt")]
    pins = resolve(["pyproject.toml", "--extra", name], core, preferred, upgrade)
    return [pin for pin in pins if pin not in set(core)]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that fit")
    parser.add_argument("--check", action="store_true", help="only say whether the files are current")
    options = parser.parse_args(arguments)
    try:
        core = resolve_core(options.upgrade)
        locks = {"core": core, "dev": resolve_dev(core, options.upgrade)}
        for name in extras():
            locks[f"extra-{name}"] = resolve_extra(name, core, options.upgrade)
    except Conflict as conflict:
        print(conflict, file=sys.stderr)
        return 1
    stale = []
    for name, pins in locks.items():
        path = ROOT / "requirements" / f"{name}.txt"
        text = HEADER + "".join(f"{pin}\n" for pin in pins)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
            if not options.check:
                path.write_text(text, encoding="utf-8")
    print(("out of date: " if options.check else "written: ") + (", ".join(stale) or "nothing"))
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
