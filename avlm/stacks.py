"""What a training stack is to the rest of avlm, and how one is found by name.

A stack lives in a folder of its own and is imported when it is asked for; `avlm` knows nothing else of it.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, get_args

from avlm.errors import UserError
from avlm.recipe.schema import Recipe, StackName


def _always(recipe: Recipe) -> bool:
    return True


@dataclass(frozen=True)
class Native:
    """One key of a stack's native configuration.

    key: dotted native name. fields: the recipe's fields that it comes from; none for a fixed choice of ours.
    value: recipe -> native value. when: whether the key is written at all.
    open: whether the recipe's block of native keys may replace it. By default only our fixed choices are open: what a
        recipe field says is said there.
    """

    key: str
    fields: tuple[str, ...]
    value: Callable[[Recipe], Any]
    when: Callable[[Recipe], bool] = _always
    open: bool | None = None

    @property
    def replaceable(self) -> bool:
        """Whether the block of native keys may set it."""
        return not self.fields if self.open is None else self.open


class Stack(Protocol):
    """A training stack: the module `<name>/translate.py` offers one as `STACK`."""

    @property
    def name(self) -> StackName:
        """Name of the stack, of its folder and of its block in the recipe."""

    @property
    def train_module(self) -> str:
        """Module that trains, run as `python -m <train_module> RECIPE [KEY=VALUE …]` on every rank."""

    @property
    def entries(self) -> tuple[Native, ...]:
        """The native keys, in the order of the native configuration."""

    def translate(self, recipe: Recipe, steps: int | None = None) -> dict[str, Any]:
        """Native configuration of a recipe.

        Args:
            recipe: a recipe that passed `avlm.recipe.checks.check` for this stack.
            steps: the run's horizon (`avlm.recipe.horizon`), known once the training rows are counted. Without it
                `max_steps` stands for it, and what depends on it is null when only `epochs` is given.
        """

    def native_problems(self, recipe: Recipe) -> dict[str, str]:
        """What is wrong with the recipe's block of native keys: native key -> message."""


def build(entries: Iterable[Native], recipe: Recipe) -> dict[str, Any]:
    """The entries' values for a recipe, as a nested dict."""
    config: dict[str, Any] = {}
    for entry in entries:
        if entry.when(recipe):
            set_dotted(config, entry.key, copy.deepcopy(entry.value(recipe)))
    return config


def set_dotted(config: dict[str, Any], key: str, value: Any) -> None:
    """Sets `config[a][b][c]` for the key `a.b.c`, making blocks on the way."""
    *blocks, last = key.split(".")
    for name in blocks:
        config = config.setdefault(name, {})
    config[last] = value


def flatten(block: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value of a nested block; values are everything but blocks that hold something."""
    flat: dict[str, Any] = {}
    for key, value in block.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def get_stack(name: str) -> Stack:
    """The stack called `name`, imported now. Importing it does not import its upstream.

    Raises:
        UserError: there is no such stack, or it is not part of this installation.
    """
    known = get_args(StackName)
    if name not in known:
        raise UserError(f"stack: {name!r} is unknown; known stacks: {', '.join(known)}")
    try:
        module = importlib.import_module(f"{name}.translate")
    except ModuleNotFoundError as error:
        if error.name not in (name, f"{name}.translate"):
            raise
        raise UserError(f"stack: {name} is not part of this installation") from None
    stack: Stack = module.STACK
    return stack
