from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from avlm.data.stats import RowStats, Stats, dataset_stats, histogram
from avlm.errors import UserError
from avlm.models.qwen3_omni_moe.tiny import make_tiny
from avlm.recipe.schema import Batch, Data, Model, Recipe, Schedule
from tests.avlm.data.clips import greys, tone, write


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    folder = tmp_path_factory.mktemp("stats")
    make_tiny(folder / "model")
    write(folder / "a.mp4", greys(20, 64, 64), tone(2, 16_000))
    write(folder / "b.mp4", greys(20, 64, 64))
    lines = []
    for id, clip in (("1", "a.mp4"), ("2", "b.mp4"), ("3", None)):
        content = [{"type": "text", "text": "What?"}]
        if clip:
            content.insert(0, {"type": "video", "path": clip})
        turns = [{"role": "user", "content": content}, {"role": "assistant", "content": "A"}]
        lines.append(json.dumps({"id": id, "conversation": turns}))
    (folder / "train.jsonl").write_text("\n".join(lines))
    (folder / "validation.jsonl").write_text(lines[2])
    return Recipe(
        name="stats",
        model=Model(family="qwen3_omni_moe", checkpoint=str(folder / "model")),
        batch=Batch(global_batch_size=1),
        schedule=Schedule(max_steps=1),
        data=Data(
            train=[str(folder / "train.jsonl")],
            validation=[str(folder / "validation.jsonl")],
            video_root=str(folder),
            video_sample_fps=4.0,
            video_min_pixels=1024,
            video_max_pixels=4096,
            sequence_length=50,
        ),
        output_dir=str(folder / "out"),
    )


def test_rows_are_measured_exactly(recipe: Recipe) -> None:
    calls: list[tuple[int, int]] = []
    stats = dataset_stats(recipe, lambda *c: calls.append(c))
    assert calls == [(i, 4) for i in range(1, 5)]
    both, silent, text = stats.splits["train"]
    # 8 frames of 64 × 64: 4 temporal patches of 2 × 2; 2 s of sound: 26
    assert (both.frames, both.media_tokens, both.sound_seconds) == (8, 16 + 26, 2.0)
    assert (silent.frames, silent.media_tokens, silent.sound_seconds) == (8, 16, 0.0)
    assert (text.frames, text.media_tokens, text.picture_seconds) == (0, 0, 0.0)
    assert silent.tokens == text.tokens + 16 + 2  # start and end of the picture
    assert both.picture_seconds == silent.picture_seconds == 2.0
    summary = stats.summary("train")
    assert summary["rows"] == 3 and summary["tokens"] == both.tokens + silent.tokens + text.tokens
    assert summary["over_limit"] == 1
    assert (summary["shortest"], summary["median"], summary["longest"]) == (text.tokens, silent.tokens, both.tokens)
    assert stats.to_json()["splits"]["train"]["lengths"] == [both.tokens, silent.tokens, text.tokens]
    out = io.StringIO()
    stats.print(Console(file=out, width=100))
    assert "over the limit" in out.getvalue() and "█" in out.getvalue()


def test_bad_media_names_the_row(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "bad.mp4").write_text("x" * 100)
    turns = [{"role": "user", "content": [{"type": "video", "path": "bad.mp4"}]}, {"role": "assistant", "content": "A"}]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"conversation": turns}))
    data = recipe.data.model_copy(
        update={"train": [str(tmp_path / "rows.jsonl")], "validation": [], "video_root": str(tmp_path)}
    )
    with pytest.raises(UserError, match=r"rows.jsonl:1.*bad.mp4: cannot be read"):
        dataset_stats(recipe.model_copy(update={"data": data}))


def test_quantiles() -> None:
    rows = [RowStats(str(i), None, i, 0, 0, 0.0, 0.0) for i in range(1, 101)]
    summary = Stats({"train": rows}, 90).summary("train")
    assert (summary["quantile_5"], summary["quantile_95"], summary["over_limit"]) == (6, 95, 10)


def test_histogram_counts_everything() -> None:
    lines = histogram([5, 5, 6, 9, 1005], bins=10, width=20)
    assert lines[0].startswith("    5 –   105 ") and lines[0].endswith("█ 4")
    assert lines[-1].split()[-1] == "1"
    assert len(lines) == 10 and sum(int(line.split()[-1]) for line in lines) == 5
    assert lines[0].count("█") == 20 and lines[-1].count("█") == 5
    assert histogram([7, 7]) == ["7 " + "█" * 50 + " 2"]
