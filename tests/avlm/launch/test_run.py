"""The folder of a run: stop files, locks, what says that it is done."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from avlm.data.types import MediaInfo, MediaRef
from avlm.errors import UserError
from avlm.launch import run
from avlm.launch.run import Run
from avlm.recipe.schema import Data


@pytest.mark.parametrize(("age", "stays"), [(0, True), (30, True), (run.STALE_STOP + 60, False)])
def test_stop_file(age: float, stays: bool, tmp_path: Path) -> None:
    """One that is made while the process starts is meant for it; an old one is not."""
    file = tmp_path / "stop"
    run._remove_stale_stop(file)
    file.touch()
    os.utime(file, (time.time() - age, run._STARTED - age))
    run._remove_stale_stop(file)
    assert file.exists() == stays


@pytest.mark.parametrize("done", [None, "{", "[]", '{"steps": 9}', '{"steps": 10}'])
def test_done(done: str | None, tmp_path: Path) -> None:
    nothing: Any = None
    one = Run.__new__(Run)
    one.folder, one.steps, one.processor = tmp_path, 10, nothing
    if done is not None:
        (tmp_path / "done.json").write_text(done)
    assert not one.done, "there is no export"
    (tmp_path / "export").mkdir()
    assert one.done == (done == '{"steps": 10}')


def test_busy_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run.refuse_busy(tmp_path)
    monkeypatch.setattr(run, "holder", lambda path: "process 7 on node3" if path == tmp_path / ".lock" else None)
    with pytest.raises(UserError, match=r"is being trained into by process 7 on node3; wait .* `touch .*/stop`"):
        run.refuse_busy(tmp_path)


def test_what_says_whose_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UserError, match=r"a run that is not known \(recipe.yaml is missing\); choose another"):
        run._refuse_other_run(None, "automodel", tmp_path)  # type: ignore[arg-type]
    (tmp_path / "recipe.yaml").write_text("name: [")
    with pytest.raises(UserError, match=r"a run that is not known \(.*recipe.yaml:1: is not valid YAML"):
        run._refuse_other_run(None, "automodel", tmp_path)  # type: ignore[arg-type]


def test_imperfect_media_are_counted() -> None:
    data = Data.model_validate({"train": ["x"], "max_audio_seconds": 1.0, "audio_in_video": False})
    seen = run.Imperfect()
    assert seen.lines() == []
    clip, sound = (MediaRef(kind, Path(f"/media/{kind}"), kind) for kind in ("video", "audio"))
    seen.note(clip, MediaInfo("video", audio_samples=20_000), data)
    seen.note(sound, MediaInfo("audio", audio_samples=16_000), data)
    assert seen.lines() == [], "sound that is not used is not cut; sound of the whole length neither"
    for _ in range(2):
        seen.note(sound, MediaInfo("audio", audio_samples=16_001), data)
        seen.note(clip, MediaInfo("video", problems=("only 1 of 9 frames are usable",)), data)
    assert seen.lines() == [
        "1 media file is damaged and used as far as possible, first /media/video: only 1 of 9 frames are usable; "
        "`avlm data check` names all",
        "sound over data.max_audio_seconds is cut in 1 media files",
    ]
