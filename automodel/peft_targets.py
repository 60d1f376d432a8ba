"""The recipe's adapters and frozen components in AutoModel's native words. Pure: no upstream import.

AutoModel (`components/_peft/module_matcher.py`, 0.6.0) gives an adapter to every `nn.Linear` and every module of
grouped experts whose whole name matches `^pattern$`. A pattern is a regular expression in which `*` means `.*`; a
pattern like `*_proj` also matches in every tower. The family's patterns hold whole names and no `*`, so they serve
unchanged. The rank of experts is the recipe's rank too (`moe_rank_scaling` stays off).
"""

from __future__ import annotations

from avlm.errors import UserError
from avlm.models.base import get_family
from avlm.recipe.schema import Recipe


def peft_target_modules(recipe: Recipe) -> list[str]:
    """`peft.target_modules` for the recipe's LoRA targets, in their order.

    Raises:
        UserError: a target that the family does not have.
        ValueError: the recipe is not a LoRA recipe.
    """
    if recipe.method.lora is None:
        raise ValueError("peft_target_modules needs a recipe with method.lora")
    family = get_family(recipe.model.family)
    for target in recipe.method.lora.targets:
        if target not in family.lora_targets:
            known = ", ".join(family.lora_targets)
            raise UserError(f"method.lora.targets: {family.name} has no {target!r}; it has {known}")
    return [pattern for target in recipe.method.lora.targets for pattern in family.lora_targets[target]]


def native_freeze_config(recipe: Recipe) -> dict[str, bool]:
    """`freeze_config`: AutoModel's nearest flags, all of them.

    They say what AutoModel can say, which is less than `freeze` (a tower only together with its projector, the language
    model not at all). The exact set is made by `automodel.patches.freeze_by_component`, which is called only when this
    key is present.
    """
    if recipe.method.lora is not None:
        return {"freeze_vision_tower": True, "freeze_audio_tower": True, "freeze_language_model": True}
    freeze = recipe.freeze
    return {
        "freeze_vision_tower": freeze.vision_encoder,
        "freeze_audio_tower": freeze.audio_encoder,
        "freeze_language_model": freeze.language_model,
    }
