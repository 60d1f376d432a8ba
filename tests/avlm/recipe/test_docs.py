"""The generated reference is current, and its example works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from avlm.recipe import docs
from avlm.recipe.checks import RULES, check
from avlm.recipe.fields import schema_fields
from avlm.recipe.load import load_recipe


def test_page_is_current() -> None:
    assert docs.main(["--check"]) == 0, "run `make docs`"


def test_page_is_complete() -> None:
    page = docs.render()
    for field in schema_fields().values():
        assert f"`{field.path}`" in page
    for rule in RULES:
        assert f"- {rule.text}" in page
    assert "| `optimizer.lr` | number > 0 | `5e-05` | Peak learning rate" in page
    assert "| `name` | non-empty text | needed |" in page


def test_example_is_a_good_recipe(write: Callable[..., str]) -> None:
    example = docs.render().split("```yaml\n")[1].split("```")[0]
    loaded = load_recipe(write(example))
    check(loaded.recipe, loaded.places)


def test_check_and_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(docs, "PAGE", tmp_path / "recipe.md")
    assert docs.main(["--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert docs.main([]) == 0
    assert docs.main(["--check"]) == 0
    (tmp_path / "recipe.md").write_text("old")
    assert docs.main(["--check"]) == 1
    assert docs.main(["--chek"]) == 2
