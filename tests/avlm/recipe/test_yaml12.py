"""Scalars of YAML 1.2's core schema, places, duplicates, round trip."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from avlm.errors import Place
from avlm.recipe.yaml12 import dump, merge, parse


def read(text: str) -> tuple[Any, list[str]]:
    problems: list[str] = []
    node = parse(text, "f.yaml", problems)
    return (None if node is None else node.plain()), problems


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e-5", 5e-5),
        ("5.0e-5", 5e-5),
        ("+.5", 0.5),
        ("1e3", 1000.0),
        ("3", 3),
        ("010", 10),
        ("0x1f", 31),
        ("0o17", 15),
        ("-7", -7),
        ("30:00", "30:00"),
        ("no", "no"),
        ("on", "on"),
        ("Yes", "Yes"),
        ("true", True),
        ("False", False),
        ("1_000", "1_000"),
        ("2024-01-01", "2024-01-01"),
        ("~", None),
        ("null", None),
        ('"5e-5"', "5e-5"),
        ("<<", "<<"),
        ("[a, 1, [2.5]]", ["a", 1, [2.5]]),
    ],
)
def test_scalars(text: str, value: Any) -> None:
    found, problems = read(text)
    assert (found, type(found), problems) == (value, type(value), [])


def test_keys_stay_text() -> None:
    assert read("on: 1\n1: 2\nnull: 3")[0] == {"on": 1, "1": 2, "null": 3}


def test_places_are_the_lines_of_the_keys() -> None:
    node = parse("a: 1\nb:\n  c:\n    - x\n    - y\n", "f.yaml", [])
    assert node is not None
    assert node.places() == {
        "a": Place("f.yaml", 1),
        "b": Place("f.yaml", 2),
        "b.c": Place("f.yaml", 3),
        "b.c.0": Place("f.yaml", 4),
        "b.c.1": Place("f.yaml", 5),
    }


def test_key_given_twice() -> None:
    found, problems = read("a: 1\nb: 2\na: 3")
    assert problems == ["f.yaml:3: `a` is given twice, first at f.yaml:1"]
    assert found == {"a": 1, "b": 2}


@pytest.mark.parametrize("text", [".inf", "-.INF", ".nan", "1e999"])
def test_numbers_are_finite(text: str) -> None:
    found, problems = read(f"a: {text}")
    assert found == {"a": None}
    assert len(problems) == 1 and problems[0].startswith("f.yaml:1: ") and text in problems[0]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: [1", "f.yaml:1: is not valid YAML"),
        ("a: 1\n\tb: 2", "f.yaml:2: is not valid YAML"),
        ("a:\n\tb: 2", "spaces, not tabs"),
        ("a: 1\n--- \nb: 2", "f.yaml:2: is not valid YAML"),
        ("a: !thing 1", "f.yaml:1: the tag !thing is not used"),
        ("a: !!int x", "f.yaml:1: 'x' is not a finite value that YAML's int can hold"),
        ("? [a]\n: 1", "f.yaml:1: a key must be plain text"),
        ("a: 1\nb: x\0y", "f.yaml:2: is not valid YAML: the character U+0000 is not allowed"),
        ("'': 1", "f.yaml:1: a key must be plain text, not empty"),
        ("a: " + "[" * 5000, "f.yaml: is nested too deep"),
        ("a: " + "{a: " * 900 + "}" * 900, "f.yaml: is nested too deep"),
        ("a: 1\u2028b:\tx: y", "(YAML wants spaces, not tabs, for indentation)"),
        ("a: &x\n  b: *x", "an alias (*name) stands inside the value it names"),
    ],
)
def test_what_is_no_recipe(text: str, part: str) -> None:
    problems = read(text)[1]
    assert len(problems) == 1 and part in problems[0]


def test_alias_of_another_value_is_fine() -> None:
    assert read("a: &x [1, 2]\nb: *x") == ({"a": [1, 2], "b": [1, 2]}, [])


def test_merge_goes_into_blocks_and_replaces_lists() -> None:
    low = parse("a: {b: 1, c: [1, 2]}\nd: 4", "low.yaml", [])
    high = parse("\na: {c: [3], e: 5}", "high.yaml", [])
    assert low and high
    merged = merge(low, high)
    assert merged.plain() == {"a": {"b": 1, "c": [3], "e": 5}, "d": 4}
    assert merged.places()["a.b"] == Place("low.yaml", 1)
    assert merged.places()["a.c.0"] == Place("high.yaml", 2)
    assert "a.c.1" not in merged.places()


@pytest.mark.parametrize("value", ["5e-5", "no", "on", "30:00", "1_000", "0o17", "", "null", "true", "ü: x", "a\nb"])
def test_dump_keeps_texts(value: str) -> None:
    assert read(dump({"a": value, "b": [value]})) == ({"a": value, "b": [value]}, [])


@pytest.mark.parametrize("value", [5e-5, 1e-8, 1e22, 0.0, 3, None, True, [], {}])
def test_dump_keeps_other_values(value: Any) -> None:
    found = read(dump({"a": value}))[0]["a"]
    assert (found, type(found)) == (value, type(value))


def test_aliases_cannot_multiply() -> None:
    """Nine lists of nine aliases each: 9^9 values from 300 characters."""
    names = "abcdefghi"
    lines = [f"{names[0]}: &{names[0]} [{'x, ' * 9}]"]
    lines += [f"{n}: &{n} [{', '.join(['*' + m] * 9)}]" for m, n in itertools.pairwise(names)]
    assert read("\n".join(lines)) == (
        None,
        ["f.yaml: holds over 100,000 values, aliases (*name) counted; a recipe is short"],
    )
