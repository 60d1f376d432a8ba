"""The predictions file: whole lines, one origin."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from avlm.errors import RunError, UserError
from avlm.eval.predictions import PredictionsFile, settings_path


def line(id: str) -> dict[str, str]:
    return {"id": id, "question": "?\u2028", "answer": "ü", "reference": "r"}


def test_append_and_continue(tmp_path: Path) -> None:
    path = tmp_path / "new" / "after.jsonl"
    with PredictionsFile(path, {"a": 1}) as file:
        assert file.done == frozenset()
        file.append([line("1"), line("2")])
        assert len(path.read_bytes().split(b"\n")) == 3  # there before the file is closed
    with PredictionsFile(path, {"a": 1}) as file:
        assert file.done == {"1", "2"}
        file.append([line("3")])
    assert [json.loads(one)["id"] for one in path.read_text().split("\n")[:-1]] == ["1", "2", "3"]
    assert json.loads(settings_path(path).read_text()) == {"a": 1}


@pytest.mark.parametrize("torn", ['{"id": "2", "que', '{"id": "2"}', "\udcff"])
def test_torn_last_line_is_cut(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "after.jsonl"
    with PredictionsFile(path, {}) as file:
        file.append([line("1")])
    whole = path.read_bytes()
    path.write_bytes(whole + torn.encode(errors="surrogateescape"))
    assert PredictionsFile(path, {}).done == {"1"}
    assert path.read_bytes() == whole


def test_only_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "after.jsonl"
    with PredictionsFile(path, {}):
        path.write_text('{"id"')
    assert PredictionsFile(path, {}).done == frozenset()


def test_other_settings_are_refused_and_nothing_changes(tmp_path: Path) -> None:
    path = tmp_path / "after.jsonl"
    with PredictionsFile(path, {"a": 1, "b": [1], "c": None}) as file:
        file.append([line("1")])
    before = path.read_bytes(), settings_path(path).read_bytes()
    with pytest.raises(UserError, match=r"another a and b; --overwrite starts it anew"):
        PredictionsFile(path, {"a": 2, "b": [2], "c": None})
    with pytest.raises(UserError, match="another d"):
        PredictionsFile(path, {"a": 1, "b": [1], "c": None, "d": 1})
    assert before == (path.read_bytes(), settings_path(path).read_bytes())


def test_file_of_unknown_origin(tmp_path: Path) -> None:
    path = tmp_path / "after.jsonl"
    path.write_text(json.dumps(line("1")) + "\n")
    with pytest.raises(UserError, match="not known which model wrote it"):
        PredictionsFile(path, {})
    with PredictionsFile(path, {}, overwrite=True) as file:
        assert file.done == frozenset() and path.read_bytes() == b""
    assert PredictionsFile(path, {}).done == frozenset()


@pytest.mark.parametrize("content", ['{"id": "1", "conversation": []}\n', "notes\n", "[1]\n", "\0\1\n"])
def test_what_is_no_predictions_file_is_not_overwritten(content: str, tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(content)
    for overwrite in (False, True):
        with pytest.raises(UserError, match=r"not known which model|something else"):
            PredictionsFile(path, {}, overwrite=overwrite)
    assert path.read_text() == content


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=f"{tmp_path}: is a folder; --out takes"):
        PredictionsFile(tmp_path, {})
    with pytest.raises(UserError, match=f"{tmp_path}/file/a.jsonl: {tmp_path}/file is a file; give a folder"):
        PredictionsFile(tmp_path / "file/a.jsonl", {})


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "after.jsonl"
    with PredictionsFile(path, {}) as file:
        file.append([line("1")])
    code = (
        "import sys, time; from pathlib import Path; from avlm.eval.predictions import PredictionsFile\n"
        "with PredictionsFile(Path(sys.argv[1]), {}):\n    print('open', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    try:
        assert other.stdout is not None and other.stdout.readline() == b"open\n"
        for overwrite in (False, True):
            with pytest.raises(UserError, match="another process is answering into it"):
                PredictionsFile(path, {}, overwrite=overwrite)
    finally:
        other.kill()
        other.wait()
    assert PredictionsFile(path, {}).done == {"1"}


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "after.jsonl"

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with PredictionsFile(path, {}) as file:
        file.append([line("1")])
        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(RunError, match="No space left on device; run again"):
            file.append([line("2")])
    assert "1" in PredictionsFile(path, {}).done


def test_overwrite_waits_until_something_is_written(tmp_path: Path) -> None:
    path = tmp_path / "after.jsonl"
    with PredictionsFile(path, {}) as file:
        file.append([line("1")])
    PredictionsFile(path, {"a": 1}, overwrite=True)
    assert PredictionsFile(path, {}).done == {"1"}
