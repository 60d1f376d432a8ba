from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from avlm.data import demo
from avlm.data.demo import (
    CLASSES,
    DESIGN,
    Clip,
    _verify,
    draw_frames,
    draw_sound,
    make_demo,
    plan_clips,
    rows_of,
    write_clip,
)
from avlm.data.media import probe
from avlm.data.rows import read_rows
from avlm.errors import RunError, UserError
from avlm.utils.folder import file_hash, tree_hash
from tests.avlm.data.clips import ref

CLIPS = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "data"
    calls: list[tuple[int, int]] = []
    assert make_demo(path, seed=3, clips=CLIPS, progress=lambda *call: calls.append(call)) == "written"
    assert calls == [(i, CLIPS) for i in range(1, CLIPS + 1)]
    return path


def rows(folder: Path, split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{split}.jsonl").read_text().splitlines()]


def test_rows_are_valid_and_splits_share_no_clip(folder: Path) -> None:
    media = {}
    for split, clips in (("train", 16), ("validation", 4)):
        good = read_rows([folder / f"{split}.jsonl"], folder)
        assert len(good) == clips * len(CLASSES)
        assert Counter(r.label for r in good) == dict.fromkeys(CLASSES, clips)
        media[split] = {r.media[0].path for r in good}
        assert len(media[split]) == clips
    assert not media["train"] & media["validation"]
    assert len({file_hash(p) for p in (folder / "clips").iterdir()}) == CLIPS


def test_clips_have_picture_and_sound_of_two_to_four_seconds(folder: Path) -> None:
    for path in (folder / "clips").iterdir():
        info = probe(ref(path))
        assert 2 <= info.duration <= 4 and info.has_audio
        assert info.audio_samples == round(info.duration * 16_000)
        assert info.problems == ()


def test_equal_settings_give_equal_files(folder: Path, tmp_path: Path) -> None:
    make_demo(tmp_path / "same", seed=3, clips=CLIPS)
    make_demo(tmp_path / "other", seed=4, clips=CLIPS)
    assert tree_hash(tmp_path / "same") == tree_hash(folder) != tree_hash(tmp_path / "other")
    assert make_demo(folder, seed=3, clips=CLIPS) == "reused"
    with pytest.raises(UserError, match="clips 20 instead of 30"):
        make_demo(folder, seed=3, clips=30)


def test_too_few_clips(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least 10"):
        make_demo(tmp_path / "data", clips=9)
    assert list(tmp_path.iterdir()) == []


# ---- what the questions ask for


def facts(clip: Clip) -> dict[str, Any]:
    """What each modality tells, and the answers."""
    answers = {row["class"]: row["conversation"][1]["content"][0]["text"] for row in rows_of("x", clip)}
    return {"colors": frozenset((clip.first, clip.second)), "tone": clip.tone, "first": clip.first, **answers}


@pytest.fixture(scope="module")
def table() -> list[dict[str, Any]]:
    plan = plan_clips(0, 8 * DESIGN, 2 * DESIGN)
    assert {len(v) for v in plan.values()} == {256, 64}
    return [facts(clip) for clip in plan["train"]]


def best_guess(table: Iterable[dict[str, Any]], answer: str, *known: str) -> float:
    """Accuracy of the best answer to a class of questions for someone who knows these facts."""
    table = list(table)
    groups: dict[Any, Counter[str]] = {}
    for fact in table:
        groups.setdefault(tuple(fact[k] for k in known), Counter())[fact[answer]] += 1
    return sum(max(c.values()) for c in groups.values()) / len(table)


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_answer_needs_its_modality(split: str, seed: int) -> None:
    table = [facts(c) for c in plan_clips(seed, 256, 64)[split]]
    assert best_guess(table, "picture") == 0.25
    assert best_guess(table, "picture", "tone") == 0.25
    assert best_guess(table, "picture", "first") <= 0.5
    assert best_guess(table, "picture", "colors") == 1.0

    assert best_guess(table, "order") == 0.25
    assert best_guess(table, "order", "tone") == 0.25
    assert best_guess(table, "order", "colors") == 0.5  # frames without their order
    assert best_guess(table, "order", "colors", "tone") == 0.5
    assert best_guess(table, "order", "first") == 1.0

    assert best_guess(table, "sound") == 0.25
    assert best_guess(table, "sound", "colors", "first") == 0.25
    assert best_guess(table, "sound", "tone") == 1.0

    assert best_guess(table, "joint") == 0.25
    assert best_guess(table, "joint", "colors", "first") == 0.5
    assert best_guess(table, "joint", "tone") == 0.5
    assert best_guess(table, "joint", "colors", "tone") == 1.0


def test_chance_is_low_for_any_number_of_clips() -> None:
    for clips in (40, 100, 240, 250):
        table = [facts(c) for c in plan_clips(0, clips, 0)["train"]]
        assert all(best_guess(table, name) <= 0.35 for name in CLASSES)


def test_options_and_answers() -> None:
    clip = plan_clips(0, 1, 0)["train"][0]
    questions = {r["class"]: r["conversation"][0]["content"][1]["text"] for r in rows_of("train", clip)}
    answers = facts(clip)
    for name in ("picture", "joint"):
        letters = [line[0] for line in questions[name].splitlines() if line[1:3] == ". "]
        assert letters == list("ABCD") and answers[name] in letters
    option = next(line for line in questions["picture"].splitlines() if line.startswith(answers["picture"]))
    assert set(option[3:].split(" and ")) == answers["colors"]
    option = next(line for line in questions["joint"].splitlines() if line.startswith(answers["joint"]))
    assert option[3:].startswith("red") == ("red" in answers["colors"])
    assert answers["tone"] in option
    assert answers["order"] == clip.first and answers["sound"] == clip.tone


def test_pitches_do_not_overlap() -> None:
    plan = plan_clips(0, 256, 64)
    ranges: dict[str, list[float]] = {}
    for clip in plan["train"] + plan["validation"]:
        ranges.setdefault(clip.tone, []).append(clip.frequency)
    ordered = [ranges[t] for t in ("low", "middle", "high", "top")]
    for lower, upper in pairwise(ordered):
        assert max(lower) * 1.5 < min(upper)
    assert all(len(set(r)) == len(r) for r in ordered), "no jitter"


# ---- the check after writing


@pytest.mark.parametrize("fault", ["none", "frame", "order", "tone", "silence"])
def test_a_wrong_clip_is_noticed(tmp_path: Path, fault: str) -> None:
    clip = plan_clips(0, 1, 0)["train"][0]
    frames, sound = draw_frames(clip), draw_sound(clip, np.random.default_rng(0))
    if fault == "frame":
        frames = frames[:-1]
    if fault == "order":
        frames = frames[::-1]
    if fault == "tone":
        sound = np.repeat(sound, 2)[: len(sound)]
    if fault == "silence":
        sound = sound[: len(sound) // 2]
    path = tmp_path / "a.mp4"
    write_clip(path, frames, sound, clip.fps)
    if fault == "none":
        _verify(path, clip)
    else:
        with pytest.raises(RunError, match=r"clips/0001.mp4 does not read back"):
            _verify(path, clip)


def test_every_clip_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = plan_clips(0, 1, 0)["train"][0]
    (tmp_path / "clips").mkdir()
    demo._make_clip(tmp_path, 0, clip)
    monkeypatch.setattr(demo, "write_clip", lambda path, frames, *rest: write_clip(path, frames[:-1], *rest))
    with pytest.raises(RunError, match="does not read back"):
        demo._make_clip(tmp_path, 0, clip)
