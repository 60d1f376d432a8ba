"""Adapters start from the same weights on any number of ranks.

Defect: `nemo_automodel/components/checkpoint/checkpointing.py:2043` (`_init_peft_adapters`) draws each rank's shard of
an adapter from that rank's own random state (`recipes/vlm/finetune.py:184`: `ScopedRNG(ranked=True)`), so that the same
seed gives another adapter on another number of ranks, and a failed initialisation is only a warning.
Versions: nemo-automodel 0.6.0.
Repair: within the block the whole matrix is drawn, by upstream's rule, from a generator seeded with the recipe's seed
and the parameter's name; every rank keeps its piece. B is zero. An adapter that cannot be initialised is an error.
Guard: `tests/automodel/test_trainable.py::test_upstream_still_draws_adapters_by_rank`.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

from avlm.models.trainable import plain_name

if TYPE_CHECKING:
    import torch
    from torch import nn

# last part of an adapter's parameter name -> its initial values are zero
_ZERO = {
    "lora_A.weight": False,
    "lora_B.weight": True,
    "lora_gate_and_up_A": False,
    "lora_gate_and_up_B": True,
    "lora_down_A": False,
    "lora_down_B": True,
}


@contextlib.contextmanager
def adapters_from_seed(seed: int) -> Iterator[None]:
    """Within the block AutoModel's adapters are initialised from `seed` alone: put it around `setup()`."""
    from nemo_automodel.components.checkpoint import checkpointing

    def initialise(model: nn.Module, peft_init_method: str) -> None:
        for name, parameter in model.named_parameters():
            if ".lora_" in name:
                _fill(parameter, plain_name(name), peft_init_method, seed)

    with mock.patch.object(checkpointing, "_init_peft_adapters", initialise):
        yield


def _fill(parameter: torch.Tensor, name: str, method: str, seed: int) -> None:
    import torch
    from torch.distributed.tensor import DTensor, distribute_tensor

    ending = next((ending for ending in _ZERO if name.endswith(f".{ending}")), None)
    if ending is None:
        raise RuntimeError(f"{name}: no rule for the initial values of this adapter")
    sharded: Any = parameter if isinstance(parameter, DTensor) else None
    local = parameter if sharded is None else sharded.to_local()
    with torch.no_grad():
        if _ZERO[ending]:
            local.zero_()
            return
        generator = torch.Generator(local.device).manual_seed(_seed(seed, name))
        whole = torch.empty(parameter.shape, dtype=torch.float32, device=local.device)
        if method == "xavier":
            torch.nn.init.xavier_normal_(whole, generator=generator)
        else:
            torch.nn.init.kaiming_uniform_(whole, a=math.sqrt(5), generator=generator)
        if sharded is not None:
            whole = distribute_tensor(whole, sharded.device_mesh, sharded.placements, src_data_rank=None).to_local()
        local.copy_(whole)


def _seed(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:7], "big")
