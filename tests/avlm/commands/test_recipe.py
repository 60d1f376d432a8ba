"""`avlm recipe …`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from avlm.cli import run
from avlm.commands.recipe import complete_recipe
from avlm.recipe.load import load_recipe, shipped_recipes
from tests.avlm.recipe.conftest import MINIMAL

Output = pytest.CaptureFixture[str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.chdir(tmp_path)

    def write_file(text: str = MINIMAL + "parallel: {devices_per_node: 1}\n", name: str = "r.yaml") -> str:
        (tmp_path / name).write_text(text)
        return name

    return write_file


def test_completion() -> None:
    assert complete_recipe("tiny_omni/s") == ["tiny_omni/sft"]
    assert set(complete_recipe("")) == set(shipped_recipes())


def test_list(capsys: Output) -> None:
    assert run(["recipe", "list"]) == 0
    shown = capsys.readouterr().out
    for name in shipped_recipes():
        assert name in shown
    line = next(line for line in shown.splitlines() if "qwen3_omni_30b_a3b/lora_multinode" in line)
    assert "lora, rank 64" in line and "2 × 8 GPUs" in line and "qwen3_omni_moe" in line


def test_list_imports_no_torch() -> None:
    code = (
        "import sys; from avlm.cli import run; assert run(['recipe', 'list']) == 0; "
        "assert run(['recipe', 'explain', 'tiny_omni/sft']) == 0; "
        "print(sorted({'torch', 'transformers', 'numpy', 'av', 'nemo_automodel'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_show_reads_back(capsys: Output, write: Callable[..., str]) -> None:
    path = write()
    assert run(["recipe", "show", path, "optimizer.lr=1e-4"]) == 0
    shown = capsys.readouterr().out
    assert load_recipe(write(shown, "shown.yaml")).recipe == load_recipe(path, ["optimizer.lr=1e-4"]).recipe


def test_validate(capsys: Output, write: Callable[..., str]) -> None:
    good = write()
    bad = write(MINIMAL + "seed: x\n", "bad.yaml")
    rule = write(MINIMAL + "parallel: {devices_per_node: 3}\n", "rule.yaml")
    assert run(["recipe", "validate", good, "tiny_omni/sft"]) == 0
    assert run(["recipe", "validate", good, bad, rule, "gone"]) == 2
    captured = capsys.readouterr()
    assert "r.yaml: valid" in captured.out
    assert "bad.yaml:8: seed" in captured.err
    assert "batch.global_batch_size = 8 (rule.yaml:3)" in captured.err
    assert "gone: there is no such recipe" in captured.err
    assert "Traceback" not in captured.err


def test_validate_with_overrides(capsys: Output, write: Callable[..., str]) -> None:
    assert run(["recipe", "validate", write(), "optimizer.lr=1e-4"]) == 0
    assert run(["recipe", "validate", write(), "optimizer.lr=0"]) == 2
    assert run(["recipe", "validate", "optimizer.lr=0"]) == 2
    assert "name at least one recipe" in capsys.readouterr().err


def test_explain(capsys: Output, write: Callable[..., str]) -> None:
    assert run(["recipe", "explain", write(), "optimizer.lr=1e-4", "--stack", "automodel"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("optimizer.lr "))
    assert "0.0001" in line and "command line" in line and "optimizer.lr = 0.0001" in line


@pytest.mark.parametrize(
    "arguments", [["explain", "r.yaml", "--stack", "none"], ["explain", "r.yaml", "seed=-1"], ["show", "gone"]]
)
def test_bad_input(capsys: Output, write: Callable[..., str], arguments: list[str]) -> None:
    write()
    assert run(["recipe", *arguments]) == 2
    assert capsys.readouterr().err.lower().startswith("error: ")
