"""Which parameters a recipe trains: one rule over names, the same on every stack.

SFT trains every parameter of the components that `freeze` leaves open. LoRA trains the adapters on the linear layers
and expert weights that `method.lora.targets` names, inside the language model, and nothing else. Names are those of
`avlm.models.base.Family`; wrappers that a stack puts around modules must be taken off first (`plain_name`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from avlm.errors import UserError
from avlm.models.base import Family, get_family
from avlm.recipe.schema import LoraTarget, Recipe

_WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_checkpoint_wrapped_module|_fsdp_wrapped_module|_orig_mod|base_layer)\.")
_ADAPTER = re.compile(r"\.lora_[^.]+(?:\..+)?$")


def plain_name(parameter: str) -> str:
    """Name without what activation checkpointing, FSDP, `torch.compile`, DDP and `peft` put into it."""
    name = _WRAPPERS.sub("", parameter)
    return name.removeprefix("base_model.model.").removeprefix("module.")


def adapted_module(parameter: str) -> str | None:
    """Module that an adapter's parameter belongs to (`a.q_proj.lora_A.weight` -> `a.q_proj`); None for other ones."""
    host = _ADAPTER.sub("", parameter)
    return None if host == parameter else host


def select_lora_modules(
    module_names: Iterable[str], family: Family, targets: Sequence[LoraTarget]
) -> dict[LoraTarget, list[str]]:
    """Modules that get an adapter, by target, in the order given.

    Args:
        module_names: names of all modules of the model.
        family: whose `lora_targets` are matched against whole names.
        targets: what the recipe asks for.

    Only modules of the language model are taken. A container of other matches is left out (`experts` as a list of
    linear layers), so that no weight gets two adapters.

    Raises:
        UserError: a target that the family does not have, or that matches no module of this model.
    """
    names = list(module_names)
    found: dict[LoraTarget, list[str]] = {}
    for target in targets:
        if target not in family.lora_targets:
            known = ", ".join(family.lora_targets)
            raise UserError(f"method.lora.targets: {family.name} has no {target!r}; it has {known}")
        patterns = [re.compile(pattern) for pattern in family.lora_targets[target]]
        hits = [
            name
            for name in names
            if any(pattern.fullmatch(name) for pattern in patterns)
            and family.component_of(f"{name}.") == "language_model"
        ]
        parents = {name[: dot.start()] for name in hits for dot in re.finditer(r"\.", name)}
        found[target] = [name for name in hits if name not in parents]
        if not found[target]:
            raise UserError(
                f"method.lora.targets: {target!r} matches no module of this {family.name} model "
                f"(looked for {' or '.join(family.lora_targets[target])})"
            )
    return found


def expert_parameters(parameter_names: Iterable[str], modules: Collection[str]) -> list[str]:
    """Weights that lie bare in one of `modules`: those of fused experts (`experts.gate_up_proj`)."""
    wanted = set(modules)
    return [
        name
        for name in parameter_names
        if name.rpartition(".")[0] in wanted
        and name.rpartition(".")[2] not in ("weight", "bias")
        and adapted_module(name) is None
    ]


def trainable_parameters(parameter_names: Iterable[str], recipe: Recipe) -> frozenset[str]:
    """Exactly the parameters that `recipe` trains, out of all (plain) names of a model.

    With LoRA the adapters must be in place already; adapters outside `method.lora.targets` are not in the result.

    Raises:
        UserError: nothing is left to train; a component is opened that this model does not have; a LoRA target without
            an adapter.
        KeyError: a name that no component of the family covers.
    """
    family = get_family(recipe.model.family)
    names = list(parameter_names)
    component = {name: family.component_of(name) for name in names}
    if recipe.method.lora is not None:
        hosts = {name: host for name in names if (host := adapted_module(name)) is not None}
        wanted = select_lora_modules(dict.fromkeys(hosts.values()), family, recipe.method.lora.targets)
        chosen = {module for modules in wanted.values() for module in modules}
        return frozenset(name for name, host in hosts.items() if host in chosen)
    frozen = recipe.freeze.model_dump()
    present = set(component.values())
    for name, is_frozen in frozen.items():
        if not is_frozen and name not in present:
            raise UserError(
                f"freeze.{name}: false, but this {family.name} model has no {name.replace('_', ' ')} to train; "
                "leave it at true"
            )
    trained = frozenset(name for name in names if not frozen[component[name]])
    if not trained:
        raise UserError("freeze: every component is frozen, nothing is left to train; set one of them to false")
    return trained
