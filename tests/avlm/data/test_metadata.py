from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from avlm.data import metadata as module
from avlm.data.clip import MediaError
from avlm.data.media import probe
from avlm.data.metadata import Built, build_metadata, look_up, metadata_of, metadata_path
from avlm.data.rows import read_rows
from avlm.data.types import MediaInfo, MediaRef
from avlm.errors import UserError
from avlm.utils.lock import take
from tests.avlm.data.clips import greys, limits, tone, write

LIMITS = limits(max_frames=12, fps=4.0)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    write(folder / "a.mp4", greys(20), tone(2, 48_000), rate=48_000)
    write(folder / "b.mkv", greys(9), tone(3, 16_000), pts=[0, 1, 2, 5, 6, 7, 9, 12, 20], sound_codec="flac")
    write(folder / "c.wav", None, tone(1, 16_000), sound_codec="pcm_s16le")
    Image.new("RGB", (40, 30)).save(folder / "d.png")
    whole = write(folder / "whole.mov", greys(30, 48, 64), codec="mjpeg", options={"movflags": "faststart"})
    (folder / "cut.mov").write_bytes(whole.read_bytes()[:-2_000])
    (folder / "text.mp4").write_text("no clip\n" * 100)
    return folder


@pytest.fixture
def media(source: Path, tmp_path: Path) -> Path:
    return shutil.copytree(source, tmp_path / "media")


ITEMS: list[dict[str, Any]] = [
    {"type": "video", "path": "a.mp4"},
    {"type": "video", "path": "a.mp4", "start": 0.4, "end": 1.25},
    {"type": "audio", "path": "a.mp4"},
    {"type": "video", "path": "b.mkv"},
    {"type": "video", "path": "b.mkv", "start": 0.55, "audio_in_video": False},
    {"type": "audio", "path": "c.wav", "end": 0.3},
    {"type": "image", "path": "d.png"},
    {"type": "video", "path": "cut.mov"},
    {"type": "video", "frames": ["d.png", "d.png"], "times": [0, 2]},
]


def rows(folder: Path, items: list[dict[str, Any]]) -> Path:
    file = folder / "rows.jsonl"
    turns = [[{"role": "user", "content": [item]}, {"role": "assistant", "content": "x"}] for item in items]
    file.write_text("".join(json.dumps({"conversation": turn}) + "\n" for turn in turns))
    return file


def refs(file: Path, folder: Path) -> list[MediaRef]:
    return [ref for row in read_rows([file], folder) for ref in row.media]


def build(file: Path, folder: Path) -> Built:
    return build_metadata(file, folder, jobs=1)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in metadata_path(file).read_text().splitlines()]


def test_infos_are_those_of_probing(media: Path) -> None:
    file = rows(media, ITEMS)
    built = build(file, media)
    assert (built.files, built.probed, built.bad) == (6, 6, [])
    assert [name for name, _ in built.damaged] == ["cut.mov"] and "truncated" in built.damaged[0][1]
    assert built.opened["no MP4 or MOV file"] == 2
    known = metadata_of(file)
    assert known is not None and len(known) == 6
    for ref in refs(file, media):
        for limit in (None, LIMITS):
            info = known.info(ref, limit)
            if ref.frames:
                assert info is None
            else:
                expected = probe(ref, limit)
                assert info == expected and info.opened == expected.opened


def test_lines_say_it_in_words(media: Path) -> None:
    file = rows(media, ITEMS[:1] + ITEMS[7:8])
    build(file, media)
    first, cut = lines(file)
    stat = (media / "a.mp4").stat()
    wanted = {"kind": "video", "path": "a.mp4", "size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "duration": 2.0,
              "frames": 20, "usable_frames": 20, "fps": 10.0, "width": 32, "height": 32, "has_audio": True,
              "audio_samples": 32_000, "problems": [], "opened": ""}  # fmt: skip
    assert {key: first[key] for key in wanted} == wanted
    assert cut["frames"] == 30 > cut["usable_frames"] and cut["has_audio"] is False


def test_only_new_and_changed_files_are_looked_at(media: Path) -> None:
    file = rows(media, ITEMS)
    build(file, media)
    before = metadata_path(file).read_bytes()
    assert build(file, media).probed == 0
    assert metadata_path(file).read_bytes() == before
    os.utime(media / "c.wav", ns=(1, 1))
    write(media / "a.mp4", greys(10))
    shutil.copy(media / "d.png", media / "e.png")
    known = metadata_of(file)
    stale = [ref.name for ref in refs(file, media) if known is not None and not ref.frames and known.line(ref) is None]
    assert stale == ["a.mp4", "a.mp4", "a.mp4", "c.wav"]
    file = rows(media, [*ITEMS[:2], *ITEMS[3:8], {"type": "image", "path": "e.png"}])
    built = build(file, media)
    assert (built.files, built.probed) == (6, 3)
    assert [line["path"] for line in lines(file)] == ["a.mp4", "b.mkv", "c.wav", "d.png", "cut.mov", "e.png"]
    assert lines(file)[0]["frames"] == 10


def test_bad_files_are_named_and_not_looked_at_again(media: Path) -> None:
    file = rows(media, [{"type": "video", "path": "text.mp4"}, {"type": "audio", "path": "d.png"}])
    built = build(file, media)
    assert [name for name, _ in built.bad] == ["text.mp4", "d.png"]
    assert "cannot be read" in built.bad[0][1]
    again = build(file, media)
    assert (again.probed, again.bad) == (0, built.bad)
    known = metadata_of(file)
    assert known is not None
    with pytest.raises(MediaError, match=r"text\.mp4: cannot be read"):
        known.info(refs(file, media)[0])


def test_other_lines_do_no_harm(media: Path) -> None:
    """Lines of another format, rubbish, and a last line that was cut are no metadata."""
    file = rows(media, ITEMS[:4])
    build(file, media)
    path = metadata_path(file)
    text = path.read_text().replace('"format": 1', '"format": 0', 1)
    path.write_text("\n{}\nrubbish\n" + text[: text.rindex('"samples"')])
    built = build(file, media)
    assert (built.files, built.probed) == (3, 2)
    known = metadata_of(file)
    assert known is not None and all(known.info(ref) == probe(ref) for ref in refs(file, media))


def test_look_up(media: Path) -> None:
    file = rows(media, [*ITEMS, {"type": "video", "path": "text.mp4"}])
    wanted = dict.fromkeys(refs(file, media), str(file))

    def found() -> dict[MediaRef, MediaInfo | str]:
        return {r: i if isinstance(i, MediaInfo) else str(i) for r, i in look_up(wanted, LIMITS)}

    without = found()
    assert list(without) and without.keys() == wanted.keys()
    assert all(info == probe(ref, LIMITS) for ref, info in without.items() if isinstance(info, MediaInfo))
    assert [ref.name for ref, info in without.items() if isinstance(info, str)] == ["text.mp4"]
    build(file, media)
    assert found() == without


def test_metadata_spares_looking(media: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = rows(media, ITEMS[:7])
    build(file, media)
    monkeypatch.setattr(module, "clip_of", None)
    monkeypatch.setattr(module, "probe", None)
    assert len(list(look_up(dict.fromkeys(refs(file, media), str(file)), LIMITS))) == 7
    os.utime(media / "b.mkv")
    with pytest.raises(TypeError):
        list(look_up(dict.fromkeys(refs(file, media), str(file)), LIMITS))


def test_a_file_is_looked_at_once_for_all_its_parts(media: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    true = module.clip_of
    monkeypatch.setattr(module, "clip_of", lambda ref: calls.append(ref.name) or true(ref))
    parts = [replace(MediaRef("video", media / "b.mkv", "b.mkv"), start=i / 10) for i in range(8)]
    infos = dict(look_up(dict.fromkeys(parts, "rows.jsonl"), LIMITS))
    assert calls == ["b.mkv"] and all(infos[part] == probe(part, LIMITS) for part in parts)


def test_uneven_frames_are_kept_exactly(tmp_path: Path) -> None:
    pts = np.cumsum(np.random.default_rng(0).integers(1, 40, 500)) + 7
    assert np.array_equal(module._unpacked(int(pts[0]), module._packed(np.diff(pts))), pts)
    even = np.arange(3, 5_000, 7)
    assert module._packed(np.diff(even)) == [7, len(even) - 1]
    assert np.array_equal(module._unpacked(3, [7, len(even) - 1]), even)
    assert np.array_equal(module._unpacked(5, module._packed(np.diff([5]))), [5])


@pytest.mark.timeout(60)
def test_a_build_that_was_killed_goes_on(media: Path) -> None:
    for i in range(120):
        shutil.copy(media / "b.mkv", media / f"{i}.mkv")
    file = rows(media, [{"type": "video", "path": f"{i}.mkv"} for i in range(120)])
    command = [sys.executable, "-m", "avlm.utils.build_video_metadata", str(file), "--video-root", str(media)]
    child = subprocess.Popen([*command, "--jobs", "1"], cwd=Path.cwd(), start_new_session=True)
    part = media / ".rows.jsonl.metadata.jsonl.part"
    while not part.exists() or part.stat().st_size < 2_000:
        time.sleep(0.02)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    assert not metadata_path(file).exists()
    with part.open("ab") as unfinished:
        unfinished.write(b'{"kind": "video", "path": "0.mkv", "size": 1')
    built = build(file, media)
    assert 0 < built.probed < 120
    assert len(lines(file)) == 120 and not part.exists()
    assert not [name for name in os.listdir(media) if name.startswith(".")]


def test_two_builds_of_one_file(media: Path) -> None:
    file = rows(media, ITEMS[:1])
    code = f"from avlm.data.metadata import build_metadata\nbuild_metadata({str(file)!r}, {str(media)!r}, jobs=1)"
    held = take(media / ".rows.jsonl.metadata.jsonl.lock")
    try:
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path.cwd())
    finally:
        os.close(held)
    assert f"UserError: rows.jsonl.metadata.jsonl: process {os.getpid()}" in result.stderr


def test_a_crash_costs_one_file(media: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = rows(media, ITEMS[:4])
    monkeypatch.setattr(module, "_line", crashing)
    built = build(file, media)
    assert built.bad == [("b.mkv", module.STOPPED)]
    monkeypatch.undo()
    again = build(file, media)
    assert (again.probed, again.bad) == (1, [])


def crashing(ref: MediaRef) -> bytes:
    if ref.name == "b.mkv":
        os.abort()
    return module._line(ref)


@pytest.mark.parametrize("entry", ["avlm.cli data metadata", "avlm.utils.build_video_metadata"])
def test_command(media: Path, entry: str) -> None:
    file = rows(media, [*ITEMS, {"type": "video", "path": "text.mp4"}])
    command = [sys.executable, "-m", *entry.split(), str(file), "--video-root", str(media), "--jobs", "1"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=Path.cwd())
    assert result.returncode == 2
    assert f"{file}.metadata.jsonl: 7 media files, 7 looked at now" in result.stdout
    assert "opened with FFmpeg: 2 files: no MP4 or MOV file" in result.stdout and "damaged: cut.mov" in result.stdout
    assert "unusable: text.mp4: cannot be read" in result.stderr and "Traceback" not in result.stderr


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        build(tmp_path / "gone.jsonl", tmp_path)
    assert metadata_of(tmp_path / "gone.jsonl") is None
