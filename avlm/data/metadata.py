"""What is known of every media file of a JSONL file, kept beside it, so that planning a run opens no media.

`<file>.metadata.jsonl` has one line for each media file, by the name that rows write. Frames and seconds are those that
the reader finds, sizes are upright with square pixels:

    {"kind": "video", "path": "rel/clip.mp4", "size": 1234, "mtime_ns": 1700…, "format": 1, "duration": 12.0,
     "frames": 360, "usable_frames": 360, "fps": 30.0, "width": 1280, "height": 720, "has_audio": true,
     "audio_samples": 192000, "problems": [], "opened": "", "picture": {…}, "sound": {…}}

`opened` says why the file had to be opened with FFmpeg; `picture` and `sound` hold what parts of a clip follow from
(`avlm.data.clip`). A file that cannot be read has `error` instead. A line counts as long as the file has the same size
and time of change. Clips given as images are not listed: their headers are read as fast as a line.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from avlm.data.clip import Clip, MediaError, Picture, Sound, info_of
from avlm.data.media import clip_of, probe
from avlm.data.rows import scan_rows
from avlm.data.types import MediaInfo, MediaLimits, MediaRef
from avlm.errors import RunError, UserError
from avlm.utils.files import write_lines
from avlm.utils.lock import Held, take
from avlm.utils.processes import Died, cores, each

FORMAT = 1
"""Raised when lines mean something else than before; older lines are then written anew."""
SUFFIX = ".metadata.jsonl"
STOPPED = "reading it crashed, or took too long and was stopped"
SECONDS = 120.0
"""Most that looking at one file may take."""
READERS = 8
"""Files that are looked at together when there is no metadata."""
_KEY_ENDS = b', "size": '


def metadata_path(file: str | Path) -> Path:
    """Where the metadata of a JSONL file is kept."""
    return Path(f"{file}{SUFFIX}")


# ---- reading


class Metadata:
    """The metadata of a JSONL file. Lines are read when they are asked for; 16 bytes of each are kept in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        keys, offsets, at = [], [], 0
        with path.open("rb") as file:
            for line in file:
                end = line.find(_KEY_ENDS)
                if end > 0 and line.endswith(b"\n"):  # else no line of ours, or the last one of a file that was cut
                    keys.append(hash(line[:end]))
                    offsets.append(at)
                at += len(line)
            self._descriptor = os.dup(file.fileno())
        order = np.argsort(np.array(keys, np.int64), kind="stable")
        self._keys = np.array(keys, np.int64)[order]
        self._offsets = np.array(offsets, np.int64)[order]

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def __len__(self) -> int:
        return len(self._keys)

    def line(self, ref: MediaRef) -> bytes | None:
        """The line of the whole file that `ref` names, if there is one and the file has not changed since."""
        key = _key(ref)
        wanted = hash(key)
        at = int(np.searchsorted(self._keys, wanted))
        while at < len(self._keys) and self._keys[at] == wanted:
            line = self._read(int(self._offsets[at]))
            if line.startswith(key + _KEY_ENDS):
                return line if _is_fresh(line, ref.path) else None
            at += 1
        return None

    def info(self, ref: MediaRef, limits: MediaLimits | None = None) -> MediaInfo | None:
        """What `probe` would say of `ref`; None when that is not known here. Raises `MediaError` as `probe` does."""
        if ref.frames:
            return None
        line = self.line(ref)
        return None if line is None else _info(json.loads(line), ref, limits)

    def _read(self, offset: int) -> bytes:
        size = 1 << 10
        while True:
            data = os.pread(self._descriptor, size, offset)
            end = data.find(b"\n")
            if end >= 0 or len(data) < size:
                return data[: end + 1] if end >= 0 else b""
            size *= 8


def metadata_of(file: str | Path) -> Metadata | None:
    """The metadata of a JSONL file, or None when there is none. It is opened once, and again when it has changed."""
    path = metadata_path(file)
    try:
        stat = path.stat()
        return _opened(path, stat.st_ino, stat.st_size, stat.st_mtime_ns)
    except OSError:
        return None


@lru_cache(maxsize=64)
def _opened(path: Path, *identity: int) -> Metadata:
    return Metadata(path)


def look_up(refs: Mapping[MediaRef, str], limits: MediaLimits) -> Iterator[tuple[MediaRef, MediaInfo | MediaError]]:
    """What `probe` says of media, from metadata or, where there is none, from the files themselves.

    refs: media, and the JSONL file that names each. Errors are values: the caller knows the row.
    """
    unknown: dict[MediaRef, list[MediaRef]] = {}
    sources = {file: metadata_of(file) for file in dict.fromkeys(refs.values())}
    for ref, file in refs.items():
        metadata = sources[file]
        try:
            info = metadata.info(ref, limits) if metadata is not None else None
        except MediaError as error:
            yield ref, error
            continue
        if info is not None:
            yield ref, info
        else:
            unknown.setdefault(_whole(ref), []).append(ref)
    with ThreadPoolExecutor(min(READERS, len(unknown) or 1)) as pool:
        for found in pool.map(lambda parts: _probed(parts, limits), unknown.values()):
            yield from found


def _probed(parts: Sequence[MediaRef], limits: MediaLimits) -> list[tuple[MediaRef, MediaInfo | MediaError]]:
    """Several parts of one file, which is looked at once."""
    found: list[tuple[MediaRef, MediaInfo | MediaError]] = []
    clip, opened = None, ""
    for ref in parts:
        try:
            if ref.kind == "image":
                found.append((ref, probe(ref)))
                continue
            if clip is None:
                clip, opened = clip_of(ref)
            found.append((ref, replace(info_of(clip, ref, limits), opened=opened)))
        except MediaError as error:
            found.append((ref, error))
    return found


def _whole(ref: MediaRef) -> MediaRef:
    """The whole file that a part is of."""
    return MediaRef(ref.kind, ref.path, ref.name, frames=ref.frames, times=ref.times)


def _is_fresh(line: bytes, path: Path) -> bool:
    """Whether the file is what it was when the line was written, and the line is of a form that is read here."""
    try:
        start = line.index(_KEY_ENDS) + 2
        written = json.loads(b"{" + line[start : line.index(b', "', line.index(b'"format": ', start))] + b"}")
        stat = path.stat()
    except (ValueError, OSError):
        return False
    return written == {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "format": FORMAT}


# ---- lines


def _key(ref: MediaRef) -> bytes:
    """What the line of a file begins with."""
    return json.dumps({"kind": ref.kind, "path": ref.name}).encode()[:-1]


def _head(ref: MediaRef, size: int, mtime_ns: int) -> dict[str, Any]:
    return {"kind": ref.kind, "path": ref.name, "size": size, "mtime_ns": mtime_ns, "format": FORMAT}


def _line(ref: MediaRef) -> bytes:
    """The line of a file. Raises nothing for a bad file."""
    try:
        stat = ref.path.stat()
        head = _head(ref, stat.st_size, stat.st_mtime_ns)
        clip, opened = (None, "") if ref.kind == "image" else clip_of(ref)
        info = probe(ref) if clip is None else info_of(clip, ref)
    except MediaError as error:
        return _failed(ref, error.reason)
    except Exception as error:  # a defect of a library or of ours must not stop the others
        return _failed(ref, f"{type(error).__name__}: {error}")
    facts = {
        "duration": info.duration,
        "frames": max(info.frames, info.declared_frames),
        "usable_frames": info.frames,
        "fps": info.fps,
        "width": info.width,
        "height": info.height,
        "has_audio": info.has_audio,
        "audio_samples": info.audio_samples,
        "problems": info.problems,
        "opened": opened,
    }
    tracks = {"picture": _picture(clip), "sound": _sound(clip), "notes": clip.notes} if clip is not None else {}
    return json.dumps(head | facts | tracks).encode() + b"\n"


def _failed(ref: MediaRef, reason: str) -> bytes:
    try:
        stat = ref.path.stat()
        size, mtime_ns = stat.st_size, stat.st_mtime_ns
    except OSError:
        size, mtime_ns = -1, -1
    return json.dumps(_head(ref, size, mtime_ns) | {"error": reason}).encode() + b"\n"


def _picture(clip: Clip) -> dict[str, Any] | None:
    picture = clip.picture
    if picture is None:
        return None
    return {
        "height": picture.height,
        "width": picture.width,
        "unit": str(picture.unit),
        "start": picture.start,
        "duration": picture.duration,
        "declared": picture.declared,
        "pts": [int(picture.pts[0]), _packed(np.diff(picture.pts))],
    }


def _packed(steps: np.ndarray) -> list[int] | str:
    """Distances of frames: [distance, times] when they are all the same, else compressed."""
    if not len(steps) or (steps == steps[0]).all():
        return [int(steps[0]) if len(steps) else 0, len(steps)]
    return base64.b64encode(zlib.compress(steps.astype("<i8").tobytes(), 9)).decode()


def _unpacked(first: int, steps: list[int] | str) -> np.ndarray:
    if isinstance(steps, list):
        return first + steps[0] * np.arange(steps[1] + 1)
    distances = np.frombuffer(zlib.decompress(base64.b64decode(steps)), "<i8")
    return first + np.concatenate([[0], np.cumsum(distances)])


def _sound(clip: Clip) -> dict[str, Any] | None:
    sound = clip.sound
    if sound is None:
        return None
    return {"samples": sound.samples, "silence": sound.silence, "declared_seconds": sound.declared_seconds}


def _info(line: dict[str, Any], ref: MediaRef, limits: MediaLimits | None) -> MediaInfo:
    if "error" in line:
        raise MediaError(ref.path, line["error"])
    if ref.kind == "image":
        return MediaInfo("image", width=line["width"], height=line["height"], frames=1)
    picture, sound = line["picture"], line["sound"]
    clip = Clip(
        ref.path,
        Picture(
            picture["height"],
            picture["width"],
            _unpacked(*picture["pts"]),
            Fraction(picture["unit"]),
            picture["start"],
            picture["duration"],
            picture["declared"],
        )
        if picture is not None
        else None,
        Sound(**sound) if sound is not None else None,
        tuple(line["notes"]),
    )
    return replace(info_of(clip, ref, limits), opened=line["opened"])


# ---- writing


@dataclass
class Built:
    """What `build_metadata` did. files: media files; probed: looked at now; the others were known.

    bad: name and reason of files that cannot be used; damaged: of those that are used as far as possible. opened: why
    files had to be opened with FFmpeg, and how many. bad_rows: lines of the JSONL file that are no rows.
    """

    path: Path
    files: int = 0
    probed: int = 0
    bad: list[tuple[str, str]] = field(default_factory=list)
    damaged: list[tuple[str, str]] = field(default_factory=list)
    opened: Counter[str] = field(default_factory=Counter)
    bad_rows: int = 0


def build_metadata(
    file: str | Path,
    video_root: str | Path,
    *,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Built:
    """Write the metadata of a JSONL file. Only files that are new or have changed are looked at.

    What was found is kept from the first file on, so a build that was interrupted goes on where it stopped. jobs:
    processes (default: one for each processor). progress: called with files done and in all.
    Raises `UserError` for a JSONL file or `video_root` that does not exist, or when another process writes the same
    metadata; `RunError` when it cannot be written.
    """
    rows, problems = scan_rows([file], video_root)
    refs = list(dict.fromkeys(_whole(ref) for row in rows for ref in row.media if not ref.frames))
    path = metadata_path(file)
    built = Built(path, len(refs), bad_rows=sum(problem.place.line is not None for problem in problems))
    try:
        with _Kept(path) as kept:
            lines = _known(refs, [metadata_of(file), kept.read()])
            todo = [ref for ref, line in lines.items() if line is None]
            for ref, found in each(_line, todo, jobs=min(jobs or cores(), len(todo) or 1), seconds=SECONDS):
                line = _failed(ref, STOPPED) if isinstance(found, Died) else found
                kept.write(line)
                lines[ref] = line
                built.probed += 1
                if progress is not None:
                    progress(len(refs) - len(todo) + built.probed, len(refs))
            write_lines(path, (line for line in lines.values() if line is not None))
            kept.remove()
    except OSError as error:
        raise RunError(f"{path}: could not be written: {error.strerror or error}") from error
    for ref, known in lines.items():
        if known is not None:
            _note(built, ref, json.loads(known))
    return built


def _known(refs: Iterable[MediaRef], sources: Iterable[Metadata | None]) -> dict[MediaRef, bytes | None]:
    """Lines that need not be written anew."""
    lines: dict[MediaRef, bytes | None] = {}
    present = [source for source in sources if source is not None]
    for ref in refs:
        found = (line for source in present if (line := source.line(ref)) is not None)
        lines[ref] = next((line for line in found if json.loads(line).get("error") != STOPPED), None)
    return lines


def _note(built: Built, ref: MediaRef, line: dict[str, Any]) -> None:
    if "error" in line:
        built.bad.append((ref.name, line["error"]))
        return
    if line["problems"]:
        built.damaged.append((ref.name, line["problems"][0]))
    if line["opened"]:
        built.opened[line["opened"]] += 1


class _Kept:
    """Lines of a build that is under way, in a file that outlives it and that one process may hold."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self._path, self._lock = (path.with_name(f".{path.name}.{end}") for end in ("part", "lock"))

    def __enter__(self) -> _Kept:
        try:
            self._held = take(self._lock)
        except Held as held:
            raise UserError(f"{self._name}: {held} is writing it; wait for its end") from None
        self._file = self._path.open("ab")
        if self._file.tell() and not self._path.read_bytes().endswith(b"\n"):
            self.write(b"\n")  # after a line that was cut
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._lock.unlink(missing_ok=True)
        os.close(self._held)

    def read(self) -> Metadata | None:
        return Metadata(self._path) if self._file.tell() else None

    def write(self, line: bytes) -> None:
        self._file.write(line)
        self._file.flush()

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
