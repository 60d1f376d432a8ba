"""JSONL files of conversations -> checked `Row` values. Every bad line is found and named, none is dropped quietly.

One line is one row:

    {"id": "a1", "class": "sound", "conversation": [
        {"role": "user", "content": [{"type": "video", "path": "rel/clip.mp4"}, {"type": "text", "text": "…?"}]},
        {"role": "assistant", "content": "…"}]}

`id` and `class` may be left out; `content` is a string or a list of items. Media paths are relative to `video_root`.

A video or audio item may take a part of its file, in seconds from its start: `"start": 12.5, "end": 20` (either may be
left out). A video item may say whether its sound is taken, `"audio_in_video": false`, instead of the recipe, and may
be given as images with the seconds at which they are shown: `"frames": ["a.png", "b.png"], "times": [0, 0.5]`.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from avlm.data.types import MediaKind, MediaRef, Role, Row, Text, Turn
from avlm.errors import Place, UserError
from avlm.utils.text import clipped

ROW_KEYS = ("id", "class", "conversation")
TURN_KEYS = ("role", "content")
ROLES = get_args(Role)
MEDIA_TYPES = get_args(MediaKind)
ITEM_TYPES = ("text", *MEDIA_TYPES)
MEDIA_KEYS: dict[MediaKind, tuple[str, ...]] = {
    "video": ("path", "start", "end", "audio_in_video", "frames", "times"),
    "audio": ("path", "start", "end"),
    "image": ("path",),
}
_MARK = b"\xef\xbb\xbf"
_REMEMBERED = 100_000  # answers to "does this file exist"
LONGEST = 1e7
"""Seconds; no clip is that long."""
SHOWN = 20
"""Problems printed before the rest is only counted."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong with one line. `id` is the row's id where it is known."""

    place: Place
    reason: str
    id: str | None = None

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


class _BadRow(Exception):
    """Why a line is not a row."""


class RowParser:
    """Turns lines into rows whose media lie below `video_root`.

    Raises `UserError` when that folder does not exist.
    """

    def __init__(self, video_root: str | Path) -> None:
        root = Path(video_root)
        if not root.is_dir():
            raise UserError(f"data.video_root: {root} is not a folder; media paths in rows are relative to it")
        self._folder = _Folder(root)

    def parse(self, line: bytes, path: Path, number: int) -> Row | Problem:
        """Line `number` (from 1) of the file `path` as a row, or what is wrong with it."""
        try:
            return _row(line, path, number, self._folder)
        except _BadRow as bad:
            return Problem(Place(str(path), number), str(bad), _id_of(line))


def scan_rows(paths: Sequence[str | Path], video_root: str | Path) -> tuple[list[Row], list[Problem]]:
    """Read all rows of `paths`: the good ones in file order, and one `Problem` for each bad line.

    A file without rows is a problem of its own. Files are read as a stream; media files are looked up, not opened.
    Raises `UserError` when a JSONL file or `video_root` does not exist.
    """
    parser = RowParser(video_root)
    rows: list[Row] = []
    problems: list[Problem] = []
    first_seen: dict[str, Place] = {}
    for path in map(Path, paths):
        found_any = False
        for number, _, line in lines(path):
            found_any = True
            place = Place(str(path), number)
            row = parser.parse(line, path, number)
            if isinstance(row, Problem):
                problems.append(row)
            elif row.id in first_seen:
                reason = f"id {clipped(repr(row.id))} is used before, at {first_seen[row.id]}; ids must differ"
                problems.append(Problem(place, reason, row.id))
            else:
                first_seen[row.id] = place
                rows.append(row)
        if not found_any:
            problems.append(Problem(Place(str(path)), "the dataset is empty: the file has no rows"))
    return rows, problems


def read_rows(paths: Sequence[str | Path], video_root: str | Path) -> list[Row]:
    """All rows of `paths` in file order. Raises one `UserError` that lists the first 20 problems and their total."""
    rows, problems = scan_rows(paths, video_root)
    if problems:
        raise UserError(problem_list(problems))
    return rows


def has_rows(path: str | Path) -> bool:
    """Whether a JSONL file has any line that is not blank. Raises `UserError` when it does not exist."""
    return next(lines(Path(path)), None) is not None


def where(row: Row) -> str:
    """How a message names a row: file, line and id."""
    return f"{Place(row.source, row.line)}: row {row.id!r}"


def problem_list(problems: Sequence[Problem]) -> str:
    """A message with the total and the first 20 problems, one a line."""
    count = len(problems)
    what = "bad row" if all(p.place.line for p in problems) else "problem"
    lines = [f"{count} {what}{'s' if count != 1 else ''} in the data:"]
    lines += [f"  {p}" for p in problems[:SHOWN]]
    if count > SHOWN:
        lines.append(f"  … and {count - SHOWN} more")
    return "\n".join(lines)


def lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Non-blank lines: 1-based number, offset of the first byte, and bytes without a byte-order mark.

    Raises `UserError` when the file does not exist or cannot be read.
    """
    try:
        with path.open("rb") as file:
            offset = 0
            for number, line in enumerate(file, 1):
                text = line.removeprefix(_MARK) if number == 1 else line
                if text.strip():
                    yield number, offset + len(line) - len(text), text
                offset += len(line)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; data.train and data.validation name JSONL files") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


class _Folder:
    """`video_root`, with the answers to "does this file exist" remembered: many rows share a clip."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.real = os.path.realpath(root)
        self._known: dict[str, Path | str] = {}

    def find(self, name: str) -> Path:
        """Absolute path of `name`. Raises `_BadRow` for one that leaves the folder or is not a file."""
        if name not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[name] = self._look_up(name)
        found = self._known[name]
        if isinstance(found, str):
            raise _BadRow(found)
        return found

    def _look_up(self, name: str) -> Path | str:
        shown = clipped(repr(name))
        if "\0" in name:
            return f"path {shown} has a NUL character"
        real = os.path.realpath(os.path.join(self.real, name))
        if os.path.commonpath([real, self.real]) != self.real:
            return f"path {shown} leaves video_root ({self.root}); paths must stay inside it, symbolic links included"
        if not os.path.exists(real):
            return f"media file {shown} does not exist in video_root ({self.root})"
        if not os.path.isfile(real):
            return f"path {shown} is not a file"
        return Path(real)


def _row(line: bytes, path: Path, number: int, folder: _Folder) -> Row:
    data = _object(_parse(line), "a row", '{"conversation": […]}')
    _no_unknown_keys(data, ROW_KEYS, "the row")
    id = data.get("id", f"{path.stem}:{number}")
    if not isinstance(id, str) or not id:
        raise _BadRow(f"id must be a non-empty string, not {_shown(id)}")
    label = data.get("class")
    if label is not None and (not isinstance(label, str) or not label):
        raise _BadRow(f"class must be a non-empty string, not {_shown(label)}")
    if "conversation" not in data:
        raise _BadRow("the row has no conversation")
    turns = data["conversation"]
    if not isinstance(turns, list) or not turns:
        raise _BadRow(f"conversation must be a list of turns, not {_shown(turns)}")
    checked = tuple(_turn(turn, index, folder) for index, turn in enumerate(turns, 1))
    _check_order(checked)
    return Row(id=id, turns=checked, source=str(path), line=number, label=label)


def _parse(line: bytes) -> Any:
    try:
        data = json.loads(line.decode("utf-8"), object_pairs_hook=_unique_keys)
        if b"\\ud" in line.lower():  # half of a surrogate pair is not text
            json.dumps(data, ensure_ascii=False).encode("utf-8")
        return data
    except UnicodeEncodeError:
        raise _BadRow("not Unicode: a \\ud… escape has no second half") from None
    except UnicodeDecodeError as error:
        raise _BadRow(f"not UTF-8: byte {error.start + 1} of the line cannot be decoded") from None
    except json.JSONDecodeError as error:
        hint = "; a row is one object on one line, without a list around the rows" if line.lstrip()[:1] == b"[" else ""
        raise _BadRow(f"not JSON: {error.msg} at column {error.colno}{hint}") from None
    except ValueError:  # of `int`
        raise _BadRow("not a row: it holds a number of thousands of digits") from None
    except RecursionError:
        raise _BadRow("not a row: nested too deep") from None


def _unique_keys(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise _BadRow(f"key {clipped(repr(key))} is given twice")
        result[key] = value
    return result


def _turn(turn: Any, index: int, folder: _Folder) -> Turn:
    at = f"turn {index}"
    turn = _object(turn, at, '{"role": …, "content": …}')
    _no_unknown_keys(turn, TURN_KEYS, at)
    for key in TURN_KEYS:
        if key not in turn:
            raise _BadRow(f"{at} has no {key}")
    role = turn["role"]
    if role not in ROLES:
        raise _BadRow(f"{at}: unknown role {_shown(role)}{_nearest(role, ROLES)}")
    content = turn["content"]
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise _BadRow(f"{at}: content must be a string or a list of items, not {_shown(content)}")
    parts = tuple(_part(item, f"{at}, item {i}", folder) for i, item in enumerate(content, 1))
    text = "".join(p.text for p in parts if isinstance(p, Text))
    if role == "assistant":
        if any(isinstance(p, MediaRef) for p in parts):
            raise _BadRow(f"{at}: media in an assistant turn is not yet supported; answers are text")
        if not text.strip():
            raise _BadRow(f"{at}: the assistant's answer is empty")
    elif not text.strip() and all(isinstance(p, Text) for p in parts):
        raise _BadRow(f"{at}: the {role} turn is empty")
    return Turn(role, parts)


def _part(item: Any, at: str, folder: _Folder) -> Text | MediaRef:
    item = _object(item, at, '{"type": "text", "text": …} or {"type": "video", "path": …}')
    kind = item.get("type")
    if kind not in ITEM_TYPES:
        raise _BadRow(f"{at}: unknown type {_shown(kind)}{_nearest(kind, ITEM_TYPES)}")
    if kind == "text":
        _no_unknown_keys(item, ("type", "text"), at)
        return Text(_string(item, "text", at))
    _no_unknown_keys(item, ("type", *MEDIA_KEYS[kind]), at)
    if "frames" in item or "times" in item:
        return _images(item, at, folder)
    start, end = _seconds(item, "start", at), _seconds(item, "end", at)
    if end is not None and end <= (start or 0.0):
        raise _BadRow(f"{at}: end must be later than start, not {end:g} after {start or 0.0:g}")
    sound = item.get("audio_in_video")
    if sound is not None and not isinstance(sound, bool):
        raise _BadRow(f"{at}: audio_in_video must be true or false, not {_shown(sound)}")
    name = _string(item, "path", at)
    return MediaRef(kind, _found(name, at, folder), name, start, end, sound)


def _images(item: dict[str, Any], at: str, folder: _Folder) -> MediaRef:
    """A clip that is given as images."""
    for key in ("path", "start", "end", "audio_in_video"):
        if key in item:
            raise _BadRow(f"{at}: {key} does not go with frames; a video is one file, or images with their times")
    names, times = item.get("frames"), item.get("times")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise _BadRow(f"{at}: frames must be a list of image paths, not {_shown(names)}")
    if not isinstance(times, list) or not all(_is_time(time) for time in times):
        raise _BadRow(f"{at}: times must be the seconds at which the frames are shown, not {_shown(times)}")
    if len(times) != len(names):
        raise _BadRow(f"{at}: {len(names)} frames but {len(times)} times; each frame needs one")
    if any(later <= earlier for earlier, later in pairwise(times)):
        raise _BadRow(f"{at}: times must ascend, not {_shown(times)}")
    paths = tuple(_found(name, at, folder) for name in names)
    return MediaRef("video", paths[0], names[0], frames=paths, times=tuple(map(float, times)))


def _string(item: dict[str, Any], key: str, at: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        given = "" if value is None else f", not {_shown(value)}"
        raise _BadRow(f"{at}: a {item['type']} item needs {key!r}, a string{given}")
    return value


def _seconds(item: dict[str, Any], key: str, at: str) -> float | None:
    value = item.get(key)
    if value is not None and not _is_time(value):
        raise _BadRow(f"{at}: {key} must be a number of seconds from 0 up, not {_shown(value)}")
    return None if value is None else float(value)


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LONGEST


def _found(name: str, at: str, folder: _Folder) -> Path:
    if not name:
        raise _BadRow(f"{at}: path is empty")
    try:
        return folder.find(name)
    except _BadRow as bad:
        raise _BadRow(f"{at}: {bad}") from None


def _check_order(turns: Sequence[Turn]) -> None:
    """A system turn first if there is one, then user and assistant in turn, the assistant last."""
    roles = [turn.role for turn in turns]
    if "assistant" not in roles:
        raise _BadRow('the row has no assistant answer; its last turn must be {"role": "assistant", "content": "…"}')
    for index, role in enumerate(roles, 1):
        if role == "system":
            if index > 1:
                raise _BadRow(f"turn {index}: a system turn must be the first turn")
            continue
        expected = "assistant" if index > 1 and roles[index - 2] == "user" else "user"
        if role != expected:
            raise _BadRow(
                f"turn {index}: roles in the wrong order: expected {expected}, got {role}; "
                "user and assistant take turns, the user first"
            )
    if roles[-1] != "assistant":
        raise _BadRow(f"the last turn must be the assistant's answer, not {roles[-1]}")


def _object(value: Any, at: str, form: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _BadRow(f"{at} must be an object like {form}, not {_shown(value)}")
    return value


def _no_unknown_keys(data: dict[str, Any], known: Sequence[str], at: str) -> None:
    for key in data:
        if key not in known:
            raise _BadRow(f"{at} has an unknown key {clipped(repr(key))}{_nearest(key, known)}")


def _nearest(value: Any, known: Sequence[str]) -> str:
    short = isinstance(value, str) and len(value) < 100  # matching takes long on long text
    near = difflib.get_close_matches(value.lower(), known, n=1) if short else []
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"


def _id_of(line: bytes) -> str | None:
    """The id of a bad row, if it can be read."""
    try:
        id = json.loads(line)["id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return id if isinstance(id, str) else None
