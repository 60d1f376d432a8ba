"""Freeze exactly what the recipe freezes, and prove it on the model that AutoModel built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import TYPE_CHECKING

from avlm.models.base import get_family
from avlm.models.trainable import adapted_module, plain_name, select_lora_modules, trainable_parameters
from avlm.recipe.schema import Recipe

if TYPE_CHECKING:
    from torch import nn

_SHOWN = 5


def freeze(model: nn.Module, recipe: Recipe) -> None:
    """Set `requires_grad` of every parameter as the recipe says. Adapters must be in place already.

    Raises:
        UserError: the recipe leaves nothing to train or opens a component that the model lacks.
        RuntimeError: adapters are missing or in the wrong place.
    """
    names = [plain_name(name) for name, _ in model.named_parameters()]
    _check_adapters((plain_name(name) for name, _ in model.named_modules()), names, recipe)
    trained = trainable_parameters(names, recipe)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(plain_name(name) in trained)


def assert_trainable(model: nn.Module, recipe: Recipe) -> None:
    """Compare what will train with what the recipe says, on the finished model.

    Raises:
        RuntimeError: names the first parameters that differ, and how many there are.
    """
    named = [(plain_name(name), parameter) for name, parameter in model.named_parameters()]
    names = [name for name, _ in named]
    _check_adapters((plain_name(name) for name, _ in model.named_modules()), names, recipe)
    expected = trainable_parameters(names, recipe)
    actual = {name for name, parameter in named if parameter.requires_grad}
    problems = [
        *_difference("train but should be frozen", actual - expected),
        *_difference("are frozen but should train", expected - actual),
    ]
    if problems:
        raise RuntimeError(f"the trainable set is not the recipe's: {'; '.join(problems)}")


def _difference(what: str, names: Set[str]) -> Iterator[str]:
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        yield f"{len(names)} {what} ({', '.join(sorted(names)[:_SHOWN])}{more})"


def _check_adapters(module_names: Iterable[str], parameter_names: Iterable[str], recipe: Recipe) -> None:
    """Adapters sit on exactly the modules that the recipe's targets select; an SFT recipe has none."""
    adapted = {host for name in parameter_names if (host := adapted_module(name)) is not None}
    wanted: set[str] = set()
    if recipe.method.lora is not None:
        # below an adapted module lie the adapter's own layers: they are no candidates
        candidates = (name for name in module_names if adapted_module(name) is None)
        found = select_lora_modules(candidates, get_family(recipe.model.family), recipe.method.lora.targets)
        wanted = {name for names in found.values() for name in names}
    problems = [
        *_difference("modules have an adapter they should not have", adapted - wanted),
        *_difference("modules lack their adapter", wanted - adapted),
    ]
    if problems:
        raise RuntimeError(f"adapters are not where the recipe wants them: {'; '.join(problems)}")
