"""Our batches in the place of AutoModel's dataset, collate and packing.

AutoModel's own VLM input path loses the sound of packed samples and their 3-D positions
(`components/datasets/vlm/neat_packing_vlm.py:335`, nemo-automodel 0.6.0), so the data path of `avlm.data` is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from avlm.launch.run import Run

TOKENS, DOC = "tokens", "doc"


def recipe_rows() -> None:
    """Stand-in target of the native `dataset` block: the rows come from the recipe (`automodel.loop`)."""
    raise RuntimeError("the native dataset block is a reference only; rows are loaded by automodel.batches.Batches")


def collate_rows(samples: Any, *, pad_id: int) -> dict[str, Any]:
    """Padded batch and its number of tokens without padding."""
    from avlm.data.collate import collate

    return _counted(collate(samples, pad_id))


def collate_packs(packs: Any, *, pack_size: int, pad_id: int) -> dict[str, Any]:
    """Packed batch and its number of tokens without padding."""
    from avlm.data.collate import collate_packs

    return _counted(collate_packs(packs, pack_size, pad_id))


def _counted(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, TOKENS: int(batch["attention_mask"].sum())}


def model_inputs(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch of ours as the model takes it: packs get a block-diagonal causal mask [B, 1, S, S], True = may attend.

    Padding attends to itself only (a row without any True would give NaN) and is named in `padding_mask` [B, S].
    """
    batch = {key: value for key, value in batch.items() if key != TOKENS}
    doc = batch.pop(DOC, None)
    if doc is not None:
        batch["attention_mask"] = block_mask(doc)
        batch["padding_mask"] = doc == 0
    return batch


def block_mask(doc: torch.Tensor) -> torch.Tensor:
    """[B, 1, S, S] bool of documents [B, S] (1, 2, …; 0 is padding): causal within each, padding sees itself only."""
    import torch

    length = doc.shape[1]
    same = doc[:, :, None] == doc[:, None, :]
    causal = torch.ones(length, length, dtype=torch.bool, device=doc.device).tril()
    alone = torch.eye(length, dtype=torch.bool, device=doc.device)
    return ((same & causal & (doc > 0)[:, :, None]) | alone)[:, None]


def inputs_of(family: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What makes model arguments of our batches: `model_inputs` of `automodel/families/<family>.py`, or ours."""
    module = importlib.import_module(f"automodel.families.{family}")
    return getattr(module, "model_inputs", model_inputs)


@dataclass
class Built:
    """What upstream's setup expects of `build`."""

    dataloader: Any
    processor: Any


@dataclass
class Batches:
    """Has the three members of upstream's `VlmDataloaderConfig` that its setup uses."""

    run: Run
    training: bool
    packing: None = None
    """Upstream's packer stays off; packs come from `avlm.data`."""

    def resolve_packing_attn_implementation(self, **kwargs: Any) -> None:
        """No upstream packing, so no mask format to resolve."""

    def build(self, *, dp_rank: int, dp_world_size: int, **kwargs: Any) -> Built:
        """Loader of this rank's micro-batches."""
        loader = self.run.loader(
            training=self.training,
            dp_rank=dp_rank,
            dp_size=dp_world_size,
            collate_rows=collate_rows,
            collate_packs=collate_packs,
        )
        return Built(loader, self.run.processor)
