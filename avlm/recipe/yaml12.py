"""YAML as people mean it: the scalars of YAML 1.2's core schema, each value with its line.

PyYAML follows YAML 1.1, where `no` is a boolean, `5e-5` is text, `30:00` is 1800 and `1_000` a number. Here (YAML
1.2.2, section 10.3.2) `no`, `30:00` and `1_000` are text and `5e-5` is a number. Keys given twice are refused.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.reader import ReaderError

from avlm.errors import Place
from avlm.utils.text import clipped

MOST_VALUES = 100_000
"""Values in one document. More are there when aliases multiply each other, or when the file is no recipe."""
_TAG = "tag:yaml.org,2002:"
_RESOLVERS = (
    ("null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    ("bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    ("int", re.compile(r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$"), list("-+0123456789")),
    (
        "float",
        re.compile(
            r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        list("-+0123456789."),
    ),
)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012


class _Dumper(yaml.SafeDumper):
    """Quotes a text that either version of YAML would read as something else."""


for _name, _pattern, _first in _RESOLVERS:
    _Loader.add_implicit_resolver(_TAG + _name, _pattern, _first)
    _Dumper.add_implicit_resolver(_TAG + _name, _pattern, _first)


@dataclass(frozen=True)
class Node:
    """A value and where it was written. `value` is a dict or a list of `Node`s, or a plain scalar."""

    value: Any
    place: Place

    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def places(self, path: str = "") -> dict[str, Place]:
        """Place of this value and of everything below it, by dotted name (`data.train.0`)."""
        found = {path: self.place} if path else {}
        below = self.value.items() if isinstance(self.value, dict) else []
        if isinstance(self.value, list):
            below = [(str(i), node) for i, node in enumerate(self.value)]
        for key, node in below:
            found |= node.places(f"{path}.{key}" if path else key)
        return found


def merge(low: Node, high: Node) -> Node:
    """`high` over `low`: blocks are merged key by key, everything else (lists too) is replaced."""
    if not (isinstance(low.value, dict) and isinstance(high.value, dict)):
        return high
    merged = dict(low.value)
    for key, node in high.value.items():
        merged[key] = merge(merged[key], node) if key in merged else node
    return Node(merged, high.place)


def parse(text: str, file: str, problems: list[str], place: Place | None = None) -> Node | None:
    """Parses one YAML document.

    Args:
        text: the document.
        file: its name (a path, or the override), for places and messages.
        problems: gets one message for each thing that is wrong.
        place: place of every value, instead of its line (for values from the command line).

    Returns:
        The root, or None when the text is not YAML at all.
    """
    try:
        root = _Loader(text).get_single_node()
        if root is None:
            return Node(None, place or Place(file, 1))
        return _Converter(file, problems, place).convert(root)
    except _TooMany:
        problems.append(f"{file}: holds over {MOST_VALUES:,} values, aliases (*name) counted; a recipe is short")
        return None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = file if place or not mark else Place(file, mark.line + 1)
        what = "; ".join(part for part in (error.context, error.problem) if part)
        if mark and "\t" in "".join(text.splitlines()[mark.line : mark.line + 1]):
            what += " (YAML wants spaces, not tabs, for indentation)"
        problems.append(f"{where}: is not valid YAML: {what}")
        return None
    except ReaderError as error:
        where = file if place else Place(file, text.count("\n", 0, error.position) + 1)
        problems.append(f"{where}: is not valid YAML: the character U+{error.character:04X} is not allowed")
        return None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        what = "is nested too deep" if isinstance(error, RecursionError) else f"is not valid YAML: {_one_line(error)}"
        problems.append(f"{file}: {what}")
        return None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


class _TooMany(Exception):
    """The document holds more values than `MOST_VALUES`."""


class _Converter:
    def __init__(self, file: str, problems: list[str], place: Place | None) -> None:
        self._file, self._problems, self._place = file, problems, place
        self._open: set[int] = set()
        self._count = 0

    def _at(self, node: yaml.Node) -> Place:
        return self._place or Place(self._file, node.start_mark.line + 1)

    def convert(self, node: yaml.Node, place: Place | None = None) -> Node:
        place = place or self._at(node)
        if id(node) in self._open:
            self._problems.append(f"{self._at(node)}: an alias (*name) stands inside the value it names")
            return Node(None, place)
        self._count += 1
        if self._count > MOST_VALUES:
            raise _TooMany
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return Node(self._mapping(node), place)
            if isinstance(node, yaml.SequenceNode):
                return Node([self.convert(item) for item in node.value], place)
            assert isinstance(node, yaml.ScalarNode)
            return Node(self._scalar(node), place)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Node]:
        found: dict[str, Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or not key.value:
                self._problems.append(f"{self._at(key)}: a key must be plain text, not empty")
                continue
            place = self._at(key)
            if key.value in found:
                self._problems.append(f"{place}: `{key.value}` is given twice, first at {found[key.value].place}")
                continue
            found[key.value] = self.convert(value, place)
        return found

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        kind, text = node.tag.removeprefix(_TAG), node.value
        try:
            if kind == "null":
                return None
            if kind == "bool":
                return {"true": True, "false": False}[text.lower()]
            if kind == "int":
                return int(text, 0) if text.startswith(("0o", "0x")) else int(text)
            if kind == "float":
                number = float(text)  # refuses .inf and .nan
                if math.isinf(number):
                    raise ValueError
                return number
        except (KeyError, ValueError):
            shown = clipped(repr(text))
            self._problems.append(f"{self._at(node)}: {shown} is not a finite value that YAML's {kind} can hold")
            return None
        if kind == "str" and "\0" in text:
            self._problems.append(f"{self._at(node)}: {clipped(repr(text))} holds the character U+0000")
            return None
        if kind != "str":
            self._problems.append(f"{self._at(node)}: the tag {node.tag} is not used in recipes; write the value only")
            return None
        return text


def dump(value: Any) -> str:
    """YAML text that `parse` reads back as the same value, keys in the order given."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
