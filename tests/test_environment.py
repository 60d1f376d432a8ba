"""The environment: what the set-up script does, what the lock files hold, whether the extras fit."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def tool(name: str) -> ModuleType:
    """A script of `tools/` as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_env, lock = tool("make_env"), tool("lock")
normal = make_env.normal


# --- lock files ------------------------------------------------------------------------------------------------------


def test_locks_hold_pins_and_nothing_else() -> None:
    names = {path.name for path in REQUIREMENTS.iterdir()}
    assert names == {"core.txt", "dev.txt", *(f"extra-{name}.txt" for name in lock.extras())}
    for path in REQUIREMENTS.iterdir():
        assert path.read_text(encoding="utf-8").startswith(lock.HEADER)
        for line in lock.read(path):
            assert re.fullmatch(r"[a-z0-9-]+==[\w.!+]+", line), f"{path.name}: {line}"


def test_one_version_of_everything() -> None:
    found: dict[str, set[str]] = {}
    for path in REQUIREMENTS.iterdir():
        for line in lock.read(path):
            name, version = line.split("==")
            found.setdefault(name, set()).add(version)
    assert not {name: versions for name, versions in found.items() if len(versions) > 1}


def declared() -> set[str]:
    """Names of all requirements in pyproject.toml."""
    lists = [PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"].values()]
    return {normal(re.split(r"[\[=<>!~; ]", requirement)[0]) for requirements in lists for requirement in requirements}


def test_what_is_imported_is_declared_and_locked() -> None:
    owners = importlib.metadata.packages_distributions()
    locked = {line.split("==")[0] for line in lock.read(REQUIREMENTS / "core.txt")}
    wrong = []
    for package in ("avlm", "automodel"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
                for top in {name.split(".")[0] for name in names} - {"avlm", "automodel"} - sys.stdlib_module_names:
                    distributions = {normal(name) for name in owners.get(top, [])}
                    if not distributions & declared() & locked:
                        wrong.append(
                            f"{path.relative_to(ROOT)} imports {top} ({', '.join(distributions) or 'missing'})"
                        )
    assert not wrong


def test_environment_holds_the_locks() -> None:
    assert make_env.wrong_packages(Path(sys.prefix), make_env.lock_files([])) == ""


# --- set-up script, parts --------------------------------------------------------------------------------------------


def test_script_is_python_39() -> None:
    ast.parse((ROOT / "tools" / "make_env.py").read_text(encoding="utf-8"), feature_version=(3, 9))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with a lock of one package and a finished environment that was not really installed."""
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "core.txt").write_text("# pins\nSome.Thing==1.2\n")
    (tmp_path / "requirements" / "dev.txt").write_text("uv==0.13.9\n")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    site = tmp_path / ".venv" / "lib" / "python3.12" / "site-packages"
    for name in ("some_thing-1.2", "uv-0.13.9", "avlm_recipes-0.1.0"):
        (site / f"{name}.dist-info").mkdir(parents=True)
    (tmp_path / ".venv" / "bin").mkdir()
    for name in ("python", "avlm"):
        (tmp_path / ".venv" / "bin" / name).touch()
    write_stamp(tmp_path)
    return tmp_path


def write_stamp(root: Path) -> None:
    stamp = {"fingerprint": make_env.fingerprint(make_env.lock_files([], root), root), "extras": []}
    (root / ".venv" / "stamp.json").write_text(json.dumps(stamp))


def reason(root: Path) -> str:
    return str(make_env.out_of_date(root / ".venv", [], root))


def test_current_environment_is_recognised(checkout: Path) -> None:
    assert reason(checkout) == ""


def test_stamp_does_not_hide_a_removed_or_changed_package(checkout: Path) -> None:
    site = checkout / ".venv/lib/python3.12/site-packages"
    (site / "some_thing-1.2.dist-info").rename(site / "some_thing-1.3.dist-info")
    assert "some-thing 1.2" in reason(checkout)
    shutil.rmtree(site / "some_thing-1.3.dist-info")
    assert "some-thing 1.2" in reason(checkout)


@pytest.mark.parametrize("name", ["requirements/core.txt", "requirements/dev.txt", "pyproject.toml"])
def test_stamp_follows_locks_and_packaging(checkout: Path, name: str) -> None:
    with open(checkout / name, "a") as file:
        file.write("# changed\n")
    assert "changed" in reason(checkout)


def test_stamp_follows_the_place(checkout: Path) -> None:
    moved = checkout.rename(checkout.with_name("moved"))
    assert reason(moved)


@pytest.mark.parametrize("name", ["bin/python", "bin/avlm", "stamp.json"])
def test_missing_part_is_noticed(checkout: Path, name: str) -> None:
    (checkout / ".venv" / name).unlink()
    assert reason(checkout)


def test_interrupted_setup_is_noticed(checkout: Path) -> None:
    (checkout / ".venv" / "installing").touch()
    assert "interrupted" in reason(checkout)


def test_unknown_extra_is_refused(checkout: Path) -> None:
    (checkout / "requirements" / "extra-gpu.txt").touch()
    with pytest.raises(make_env.SetupError, match=r"extra-gpus\.txt does not exist; extras: gpu"):
        make_env.lock_files(["gpus"], checkout)


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_python_is_found_behind_a_shim_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(tmp_path / "shims" / "python3.12", "echo 'python3.12: command not found' >&2; exit 127")
    executable(tmp_path / "old" / "python3.12", "echo 3 11")
    good = executable(tmp_path / "pyenv" / "versions" / "3.12.9" / "bin" / "python3.12", "echo 3 12")
    executable(tmp_path / "shims" / "pyenv", f"echo {tmp_path / 'pyenv'}")
    monkeypatch.setenv("PATH", f"{tmp_path / 'shims'}:{tmp_path / 'old'}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "old" / "python3.12"))
    assert make_env.find_python(tmp_path / ".venv") == good
    good.unlink()
    assert make_env.find_python(tmp_path / ".venv") is None


def test_environment_is_not_made_from_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = executable(tmp_path / ".venv" / "bin" / "python3.12", "echo 3 12")
    monkeypatch.setenv("PATH", str(own.parent))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(own))
    assert make_env.find_python(tmp_path / ".venv") is None


def test_other_platforms_are_refused(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_env.platform, "machine", lambda: "aarch64")
    with pytest.raises(make_env.SetupError, match="Linux on x86_64"):
        make_env.make(checkout / ".venv", [], root=checkout)


# --- set-up script, whole --------------------------------------------------------------------------------------------


@pytest.mark.resolve
@pytest.mark.slow
def test_setup_from_nothing_and_again(tmp_path: Path) -> None:
    """A checkout with a few small pins: made, found current, repaired, and begun again after an interruption."""
    for name in ("pyproject.toml", "LICENSE", "avlm/__init__.py", "automodel/__init__.py", "tools/make_env.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "avlm" / "cli.py").write_text("def main():\n    print('it runs')\n")
    (tmp_path / "requirements").mkdir()
    pins = [line for line in lock.read(REQUIREMENTS / "core.txt") if line.startswith(("setuptools==", "six=="))]
    pins.append("urllib3==2.0.7")  # older than what the override in pyproject.toml would take
    assert "urllib3>=2" in PROJECT["tool"]["uv"]["override-dependencies"]
    (tmp_path / "requirements" / "core.txt").write_text("\n".join(pins))
    uv = next(line for line in lock.read(REQUIREMENTS / "dev.txt") if line.startswith("uv=="))
    (tmp_path / "requirements" / "dev.txt").write_text(uv)
    venv = tmp_path / ".venv"

    def setup(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, str(tmp_path / "tools" / "make_env.py"), *arguments]
        result = subprocess.run(command, capture_output=True, text=True)
        skip_when_offline(result.stderr)
        return result.returncode, result.stdout + result.stderr

    assert setup("--check") == (1, ".venv does not exist or its Python is gone\n")
    assert setup()[0] == 0
    said = subprocess.run([venv / "bin" / "avlm"], capture_output=True, text=True, cwd="/").stdout
    assert said == "it runs\n"
    assert setup("--check") == (0, "current\n")
    start = time.perf_counter()
    assert setup() == (0, "")
    assert time.perf_counter() - start < 0.5

    (venv / "kept").touch()
    shutil.rmtree(next(venv.glob("lib/python3.12/site-packages/six-*.dist-info")))
    assert setup()[0] == 0
    assert setup("--check")[0] == 0
    assert (venv / "kept").exists(), "repairing needs no new environment"

    (venv / "installing").write_text('{"extras": []}')
    assert setup()[0] == 0
    assert not (venv / "kept").exists(), "after an interruption nothing of the old environment is trusted"
    assert setup("--check")[0] == 0

    (tmp_path / "requirements" / "core.txt").write_text("six==0.0.0.1\n")
    code, text = setup()
    assert code == 1
    assert "six" in text and "Traceback" not in text
    assert setup("--check")[0] == 1


# --- extras ----------------------------------------------------------------------------------------------------------


def skip_when_offline(message: str) -> None:
    """Skips where the package registry is out of reach; never in CI, which reaches it."""
    offline = re.search(
        r"dns error|[Cc]onnection refused|timed out|[Nn]etwork is unreachable|[Cc]ould not connect", message
    )
    if offline and not os.environ.get("CI"):
        pytest.skip(f"the package registry is out of reach: {offline[0]}")


def resolved(*arguments: object) -> list[str]:
    try:
        return list(lock.resolve(*arguments))
    except lock.Conflict as conflict:
        skip_when_offline(str(conflict))
        pytest.fail(f"does not resolve:\n{conflict}", pytrace=False)


def test_extras_are_those_promised() -> None:
    assert lock.extras() == ["decord", "gpu", "nemo", "nemo-run", "wandb"]


@pytest.mark.resolve
@pytest.mark.parametrize("name", lock.extras())
def test_extra_fits_beside_the_core(name: str) -> None:
    core, own = (lock.read(REQUIREMENTS / file) for file in ("core.txt", f"extra-{name}.txt"))
    answer = resolved(["pyproject.toml", "--extra", name], core, [*core, *own])
    assert set(core) <= set(answer), "the core's pins are kept"
    assert [pin for pin in answer if pin not in set(core)] == own, "run `make lock`"


@pytest.mark.resolve
def test_core_and_tools_are_what_pyproject_gives() -> None:
    core, dev = (lock.read(REQUIREMENTS / file) for file in ("core.txt", "dev.txt"))
    assert resolved(["pyproject.toml"], [], core) == core, "run `make lock`"
    assert resolved(["--group", "dev"], core, dev) == dev, "run `make lock`"


@pytest.mark.resolve
def test_a_contradiction_is_reported(tmp_path: Path) -> None:
    wish = tmp_path / "wish.in"
    wish.write_text("six<1.17\n")
    core = [line for line in lock.read(REQUIREMENTS / "core.txt") if line.startswith("six==")]
    with pytest.raises(lock.Conflict) as conflict:
        lock.resolve([str(wish)], core, [])
    skip_when_offline(str(conflict.value))
    assert "six" in str(conflict.value) and "unsatisfiable" in str(conflict.value)


# --- package ---------------------------------------------------------------------------------------------------------


def test_wheel_holds_the_packages_and_their_data(tmp_path: Path) -> None:
    """Everything that the packages need and nothing else; resolved without the registry."""
    copy = tmp_path / "copy"
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("avlm", "automodel", "tests", "tools"):
        shutil.copytree(ROOT / name, copy / name, ignore=skipped)
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    uv = Path(sys.executable).with_name("uv")
    command = [uv, "build", "--wheel", "--no-build-isolation", "--python", sys.executable, "-o", tmp_path, copy]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
        entry = wheel.read(next(n for n in wheel.namelist() if n.endswith("entry_points.txt"))).decode()
    wanted = {
        str(path.relative_to(copy))
        for package in ("avlm", "automodel")
        for path in (copy / package).rglob("*")
        if path.is_file() and path.suffix != ".md"
    }
    assert held == wanted
    assert "avlm = avlm.cli:main" in entry


# --- Makefile --------------------------------------------------------------------------------------------------------

TARGETS = ["help", "env", "demo", "test", "lint", "types", "contracts", "docs", "docs-check", "lock", "clean"]


def make(*arguments: str) -> str:
    """Output of `make`, run as from a user's shell (the tests may themselves run under make)."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"}
    return subprocess.run(["make", *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout


def test_make_lists_its_targets() -> None:
    assert [line.split()[1] for line in make().splitlines()] == TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_exists(target: str) -> None:
    assert make("--dry-run", target)


def test_demo_takes_a_recipe() -> None:
    assert "avlm demo tiny_omni/sft\n" in make("-n", "demo")
    assert "avlm demo a/b\n" in make("-n", "demo", "RECIPE=a/b")


def test_extras_reach_the_setup_script() -> None:
    assert make("-n", "env", "EXTRA=gpu nemo").strip() == "python3 tools/make_env.py --extra gpu --extra nemo"
