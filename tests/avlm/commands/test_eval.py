"""`avlm eval` from recipe to score, and its messages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from avlm.cli import run
from avlm.recipe.load import save_resolved
from tests.avlm.report.made_up import RIGHT, make_clips, predict, recipe, write_lines


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clips with eight rows, a tiny model and a recipe."""
    from avlm.models.qwen3_omni_moe.tiny import make_tiny

    folder = tmp_path_factory.mktemp("eval")
    make_clips(folder, 2)
    make_tiny(folder / "tiny", 0)
    save_resolved(recipe(folder), folder / "recipe.yaml")
    return folder


@pytest.fixture
def here(home: Path) -> Path:
    """The same with an empty run folder."""
    shutil.rmtree(home / "run", ignore_errors=True)
    return home


def command(home: Path, *more: str) -> int:
    return run(["eval", str(home / "recipe.yaml"), "evaluation.max_new_tokens=3", *more])


def test_before_after_and_ablation(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(here) == 0
    shown = capsys.readouterr().out
    assert "before: answering with" in shown and "picture" in shown and "95 % interval" in shown
    result = json.loads((here / "run" / "eval" / "before.json").read_text())
    assert (result["name"], result["ablation"]) == ("before", None)
    assert {label: one["total"] for label, one in result["classes"].items()} == dict.fromkeys(RIGHT["before"], 2)

    shutil.copytree(here / "tiny", here / "run" / "export")
    assert command(here) == 0
    assert command(here, "--mute-audio") == 0
    after = json.loads((here / "run" / "eval" / "after.json").read_text())
    muted = json.loads((here / "run" / "eval" / "mute_audio.json").read_text())
    assert after["classes"] == result["classes"] and after["weights"] == str(here / "run" / "export")
    assert (muted["name"], muted["ablation"]) == ("mute_audio", "mute_audio")
    answers = [(here / "run" / "predictions" / f"{n}.jsonl").read_text() for n in ("before", "after", "mute_audio")]
    assert answers[0] == answers[1] != answers[2]

    capsys.readouterr()
    assert command(here) == 0  # nothing is generated again
    assert "8 rows: 0 answered, 8 were answered before" in capsys.readouterr().out


def test_other_settings_need_overwrite(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(here) == 0
    assert command(here, "evaluation.max_new_tokens=2") == 2
    assert "another max_new_tokens; --overwrite" in capsys.readouterr().err
    assert command(here, "evaluation.max_new_tokens=2", "--overwrite") == 0


def test_scoring_a_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.loads(line) for line in (here / "data" / "validation.jsonl").read_text().splitlines()]
    write_lines(here / "mine.jsonl", predict(rows, "after", copies=25))
    assert command(here, "--predictions", str(here / "mine.jsonl")) == 0
    result = json.loads((here / "run" / "eval" / "mine.json").read_text())
    assert result["total"]["total"] == 200 and 0.9 < result["total"]["accuracy"] < 1
    assert f"{100 * result['total']['accuracy']:.1f} %" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--mute-audio", "--blank-video"], "--mute-audio and --blank-video: take one at a time"),
        (["--name", "../x"], "--name: '../x' must be a plain file name"),
        (["--checkpoint", "/nowhere"], "/nowhere: no such checkpoint"),
        (["--checkpoint", "OTHER"], "is a checkpoint of another model: its model_type is llama"),
        (["--adapter", "OTHER"], "is not an adapter's folder"),
        (["--data", "nowhere.jsonl"], "nowhere.jsonl: no such file"),
        (["--predictions", "nowhere.jsonl"], "nowhere.jsonl: no such predictions file"),
        (["--predictions", "x.jsonl", "--mute-audio"], "--predictions scores a file as it is"),
        (["data.validation=[]"], "data.validation: the recipe names no validation rows"),
        (["evaluation.batchsize=1"], "did you mean evaluation.batch_size"),
    ],
)
def test_bad_input(here: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str) -> None:
    other = here / "other"
    other.mkdir(exist_ok=True)
    (other / "config.json").write_text('{"model_type": "llama"}')
    assert command(here, *[str(other) if flag == "OTHER" else flag for flag in flags]) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
    assert not (here / "run").exists()
