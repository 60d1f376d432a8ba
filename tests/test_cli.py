from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from avlm import cli
from avlm.errors import RunError, UserError

COMMANDS = ["recipe", "model", "data", "train", "infer", "eval", "report", "demo", "doctor"]


def avlm(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line in a process of its own, on a terminal of 80 columns."""
    env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "COLUMNS": "80", **environment}
    command = [sys.executable, "-m", "avlm.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=Path(__file__).parents[1])


def with_command(monkeypatch: pytest.MonkeyPatch, body: Callable[[], None]) -> None:
    """Makes `avlm train` run `body`."""
    app = typer.Typer()
    app.command()(body)
    monkeypatch.setattr(cli, "load", lambda name: typer.main.get_command(app))


def test_help_lists_every_command_on_one_screen() -> None:
    result = avlm("--help")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[lines.index("Commands:") + 1 :] if line] == COMMANDS
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_help_answers_in_half_a_second() -> None:
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        assert avlm("--help").returncode == 0
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.5, seconds


def test_help_imports_no_command() -> None:
    code = "import sys; from avlm import cli; cli.run(['--help']); print([m for m in sys.modules if 'avlm.' in m])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "['avlm.errors', 'avlm.cli']"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([name, "--help"]) == 0
    assert f"Usage: avlm {name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name, entry in cli.COMMANDS.items() if entry.group])
def test_group_without_command_shows_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([name]) == 2
    assert "Commands:" in "".join(capsys.readouterr())


def test_version() -> None:
    result = avlm("--version")
    assert (result.returncode, result.stdout) == (0, "avlm 0.1.0\n")


def test_unknown_command_names_the_nearest() -> None:
    result = avlm("repotr")
    assert result.returncode == 2
    assert "Did you mean 'report'?" in result.stderr


@pytest.mark.parametrize(("error", "code"), [(UserError, 2), (RunError, 1)])
def test_errors_are_one_message_and_an_exit_code(
    error: type[Exception], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def body() -> None:
        raise error("a.yaml:3: lr must be above 0")

    with_command(monkeypatch, body)
    assert cli.run(["train"]) == code
    assert capsys.readouterr() == ("", "Error: a.yaml:3: lr must be above 0\n")


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def body() -> None:
        raise UserError("bad")

    with_command(monkeypatch, body)
    with pytest.raises(UserError):
        cli.run(["--debug", "train"])


def test_defects_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def body() -> None:
        raise ZeroDivisionError

    with_command(monkeypatch, body)
    with pytest.raises(ZeroDivisionError):
        cli.run(["train"])


def test_interrupt_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def body() -> None:
        raise KeyboardInterrupt

    with_command(monkeypatch, body)
    assert cli.run(["train"]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, 1, 3])
def test_exit_code_of_a_command(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def body() -> None:
        raise typer.Exit(code)

    with_command(monkeypatch, body)
    assert cli.run(["train"]) == code


def complete(words: str) -> list[str]:
    """What bash offers after `words`."""
    result = avlm(_AVLM_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(len(words.split(" ")) - 1))
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_shell_completion() -> None:
    assert complete("avlm ") == COMMANDS
    assert complete("avlm re") == ["recipe", "report"]
    assert {"list", "show", "validate", "explain"} <= set(complete("avlm recipe "))
    assert complete("avlm doctor --j") == ["--json"]


def test_install_completion(tmp_path: Path) -> None:
    result = avlm("--install-completion", "bash", HOME=str(tmp_path), _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert result.returncode == 0, result.stderr
    assert "_AVLM_COMPLETE=complete_bash" in next(tmp_path.glob("**/avlm.sh")).read_text()


def test_a_terminal_without_our_characters() -> None:
    result = avlm("recipe", "list", PYTHONIOENCODING="ascii")
    assert result.returncode == 0 and "tiny_omni/sft" in result.stdout, result.stderr


def test_output_into_a_closed_pipe_is_quiet() -> None:
    result = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m avlm.cli --help | true; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert "Traceback" not in result.stderr
