"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("avlm", "automodel")

ENVIRONMENT_READERS = {
    "automodel/train.py": "torchrun says rank and world size in the environment",
}
"""Files that may touch the environment, and why. Everything else is configured by recipe or flag."""


@cache
def tracked() -> tuple[Path, ...]:
    """Files of the repository, those not yet added included, those ignored not."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        pytest.skip("not a git checkout")
    return tuple(path for name in result.stdout.split("\0") if name and (path := ROOT / name).is_file())


@cache
def sources() -> dict[str, ast.Module]:
    """Every module of our packages, parsed: path from the root -> tree."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def dotted(node: ast.AST) -> str:
    """`a.b.c` of a chain of attributes that starts at a name; an empty string for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


# --- folders ---------------------------------------------------------------------------------------------------------


def test_no_folder_shadows_an_installed_package() -> None:
    folders = {path.relative_to(ROOT).parts[0] for path in tracked() if len(path.relative_to(ROOT).parts) > 1}
    taken = {"megatron", "deepspeed"}
    for module, distributions in importlib.metadata.packages_distributions().items():
        if set(distributions) != {"avlm-recipes"}:
            taken.add(module)
    assert not folders & (taken - {"tests", "docs", "tools"})


def test_every_package_folder_has_an_init() -> None:
    folders = {(ROOT / path).parent for path in sources()}
    assert not [folder for folder in folders if not (folder / "__init__.py").is_file()], "left out of the wheel"


# --- text ------------------------------------------------------------------------------------------------------------

FOREIGN = {
    "path of one machine": r"(?<![\w.])/(?:work|root|farm|home/\w+)/",
    "path beside the repository": r"\.\./shar" r"ed|spik" r"es/",
    "host of a package registry": r"https?://[\w.-]*(?:pypi|pythonhosted|npmjs|debian)\.",
}


@pytest.mark.parametrize("what", FOREIGN)
def test_no_file_names_a(what: str) -> None:
    pattern = re.compile(FOREIGN[what])
    found = []
    for path in tracked():
        text = path.read_bytes()
        if b"\0" not in text:
            lines = enumerate(text.decode("utf-8").splitlines(), start=1)
            found += [f"{path.relative_to(ROOT)}:{number}" for number, line in lines if pattern.search(line)]
    assert not found


def test_no_lock_file_of_another_tool() -> None:
    assert not [path for path in tracked() if path.name in ("uv.lock", "poetry.lock") or path.name.startswith("pylock")]


# --- code ------------------------------------------------------------------------------------------------------------


def environment_reads(tree: ast.AST) -> Iterator[int]:
    """Lines that touch the environment."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and dotted(node) in ("os.environ", "os.getenv", "os.putenv"):
            yield node.lineno
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            yield from (node.lineno for name in node.names if name.name in ("environ", "getenv", "putenv"))
        if isinstance(node, ast.keyword) and node.arg == "envvar":  # of typer
            yield node.lineno


def test_environment_is_read_only_where_it_must_be() -> None:
    found = {path: lines for path, tree in sources().items() if (lines := sorted(set(environment_reads(tree))))}
    assert set(found) <= set(ENVIRONMENT_READERS), found
    assert set(ENVIRONMENT_READERS) <= set(found), "a reason that is no longer needed"


@pytest.mark.parametrize(
    "code",
    ["import os\nos.environ['A']", "import os\nx = os.getenv('A')", "from os import environ", "Option(envvar='A')"],
)
def test_environment_reads_are_seen(code: str) -> None:
    assert list(environment_reads(ast.parse(code)))


def patched(tree: ast.Module) -> Iterator[str]:
    """Changes that a module makes to modules and classes of others, as `line: target`."""
    foreign = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [(alias.name, alias.asname or alias.name.split(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [(node.module or "", alias.asname or alias.name) for alias in node.names]
            if node.module == "unittest.mock":
                yield f"{node.lineno}: unittest.mock"
        else:
            continue
        foreign |= {name for module, name in names if module.split(".")[0] not in PACKAGES}
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.Call) and dotted(node.func) in ("setattr", "delattr") and node.args:
            targets = [ast.Attribute(node.args[0], "…", lineno=node.lineno)]
        for target in targets:
            if isinstance(target, ast.Subscript):  # sys.modules[...] = ..., Class.table[...] = ...
                target = target.value
            name = dotted(target)
            if "." in name and name.split(".")[0] in foreign:
                yield f"{node.lineno}: {name}"


SETTINGS = ("torch.backends.", "os.environ", "sys.excepthook", "sys.stdout", "sys.stderr", "sys.argv")
"""Assignments that are a library's documented way to set something."""


def test_others_are_patched_only_in_patches() -> None:
    found = {}
    for path, tree in sources().items():
        if "patches" not in Path(path).parts and Path(path).name != "cpu.py":
            changes = [change for change in patched(tree) if not change.split(": ")[1].startswith(SETTINGS)]
            if changes:
                found[path] = changes
    assert not found


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch.nn.Linear.forward = None",
        "from torch import nn\nnn.Linear.forward = None",
        "from torch.nn import Linear\nsetattr(Linear, 'forward', None)",
        "import sys\nsys.modules['a'] = None",
        "import torch as t\ndef f():\n    t.cuda.is_available = None",
        "import torch\ndel torch.cuda.synchronize",
        "from unittest.mock import patch",
    ],
)
def test_patches_are_seen(code: str) -> None:
    assert list(patched(ast.parse(code)))


@pytest.mark.parametrize("code", ["import torch\nx = torch.ones(1)\nx.data = None", "class A:\n    b = 1\nA.b = 2"])
def test_own_objects_are_not_patches(code: str) -> None:
    assert not list(patched(ast.parse(code)))


PATCHES = sorted(path for path in (ROOT / "automodel" / "patches").glob("*.py") if path.name != "__init__.py")


@pytest.mark.parametrize("path", PATCHES, ids=lambda path: path.stem)
def test_every_patch_names_versions_and_a_guard(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert "Versions:" in text
    guard = re.search(r"Guard:\s+`(tests/[\w/]+\.py)::(\w+)`", text)
    assert guard, "no `Guard: tests/….py::test_…`"
    file = ROOT / guard[1]
    assert file.is_file() and f"def {guard[2]}(" in file.read_text(encoding="utf-8"), f"{guard[0]} does not exist"


HEAVY = ("torch", "transformers", "av", "matplotlib", "numpy", "scipy", "wandb", "nemo_automodel", "datasets", "peft")


def test_commands_and_recipes_start_without_heavy_imports() -> None:
    modules = [path[:-3].replace("/", ".").removesuffix(".__init__") for path in sources()]
    light = [m for m in modules if m == "avlm.cli" or m.startswith(("avlm.commands", "avlm.recipe"))]
    light += [m for m in modules if m.endswith(".translate") or m == "avlm.stacks"]
    code = f"import importlib, sys\nfor m in {light}:\n    importlib.import_module(m)\n"
    code += f"    heavy = sorted(set(sys.modules) & set({HEAVY}))\n    assert not heavy, f'{{m}} imports {{heavy}}'"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert not result.returncode, result.stderr.splitlines()[-1]
    assert "avlm.cli" in light


def test_shell_holds_no_logic() -> None:
    """Shell scripts start programs; what decides is Python."""
    for path in tracked():
        if path.suffix == ".sh":
            assert len(path.read_text(encoding="utf-8").splitlines()) <= 40, path


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("avlm/recipe/schema.py", "import avlm.commands"),
        ("avlm/data/types.py", "import avlm.launch"),
        ("avlm/launch/doctor.py", "import automodel.translate"),
        ("avlm/models/base.py", "def f():\n    import nemo_automodel"),
        ("automodel/translate.py", "def f():\n    import torch"),
        ("automodel/train.py", "import avlm.cli"),
    ],
)
def test_import_contracts_catch(file: str, line: str, tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with open(tmp_path / file, "a", encoding="utf-8") as module:
        module.write(f"\n{line}\n")
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    said = result.stdout + result.stderr
    assert result.returncode == 1 and "BROKEN" in said, said
    assert f"-> {line.split()[-1]} (l." in said, said
