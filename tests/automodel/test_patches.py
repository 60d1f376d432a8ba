"""Upstream still has the defects that our patches repair. A failure here means: remove the patch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from avlm.data.types import Sample
from avlm.recipe.schema import Recipe

pytestmark = pytest.mark.upstream


@pytest.fixture(scope="module")
def model(recipe_of: Callable[..., Recipe]) -> Any:
    """The tiny model in AutoModel's class, as the loop builds it, before our hooks."""
    from nemo_automodel import NeMoAutoModelForMultimodalLM
    from nemo_automodel.components.models.common import BackendConfig

    from automodel.cpu import on_cpu

    backend = BackendConfig(attn="sdpa", linear="torch", rms_norm="torch", rope_fusion=False, experts="torch")
    with on_cpu():
        built = NeMoAutoModelForMultimodalLM.from_pretrained(
            recipe_of("unused").model.checkpoint, torch_dtype="float32", attn_implementation="sdpa", backend=backend
        )
    return built.eval()


def sample(model: Any, media: dict[str, Any], placeholder: int, count: int) -> Sample:
    """Five text tokens and `count` placeholders between vision marks."""
    import torch

    config = model.config
    ids = [7, 8, config.vision_start_token_id, *[placeholder] * count, config.vision_end_token_id, 9, 10, 11]
    length = len(ids)
    return Sample(
        id="x",
        input_ids=torch.tensor(ids),
        labels=torch.tensor(ids),
        position_ids=torch.arange(length).expand(3, length),
        media=media,
    )


def test_packed_padding_mask_is_still_needed(model: Any) -> None:
    import torch

    from automodel.batches import model_inputs
    from automodel.patches import packed_padding_mask
    from avlm.data.collate import collate_packs

    seen: list[Any] = []
    hook = model.model.layers[0].mlp.register_forward_pre_hook(lambda module, args: seen.append(args[1]))
    text = {"media": {}, "placeholder": 12, "count": 1}
    batch = collate_packs([[sample(model, **text), sample(model, **text)]], 24, 0)
    del batch["labels"]
    with torch.no_grad(), pytest.raises(Exception):  # noqa: B017 - whatever upstream does with a 4-D mask
        model(**model_inputs(batch))
    assert seen[0].ndim == 4
    hook.remove()
    packed_padding_mask.apply(model)
    seen.clear()
    model.model.layers[0].mlp.register_forward_pre_hook(lambda module, args: seen.append(args[1]))
    with torch.no_grad():
        logits = model(**model_inputs(batch))
    assert torch.equal(seen[0], batch["doc"] == 0)
    assert torch.isfinite(logits).all()


def test_packed_samples_do_not_see_each_other(model: Any) -> None:
    """Case C3: the second sample's logits equal those it has alone, whatever the first one holds."""
    import torch

    from automodel.batches import model_inputs
    from avlm.data.collate import collate, collate_packs

    first, second = (sample(model, {}, token, 1) for token in (12, 13))
    changed = sample(model, {}, 14, 1)

    def logits(batch: dict[str, Any]) -> Any:
        del batch["labels"]
        with torch.no_grad():
            return model(**model_inputs(batch))

    length = len(second.input_ids)
    alone = logits(collate([second], 0))[0]
    packed = logits(collate_packs([[first, second]], 2 * length + 3, 0))[0, length : 2 * length]
    beside_another = logits(collate_packs([[changed, second]], 2 * length + 3, 0))[0, length : 2 * length]
    scale = alone.abs().max()  # logits of about 3; an expert's matrix product is rounded by how many tokens it gets
    assert (packed - alone).abs().max() <= 1e-6 * scale
    assert (packed - beside_another).abs().max() <= 1e-6 * scale
