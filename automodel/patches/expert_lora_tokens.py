"""Adapters on routed experts under expert parallelism, with a different number of tokens on each rank.

Defect: `nemo_automodel/components/_peft/lora_experts.py:183-190` (`GroupedExpertsLoRA.forward`, torch dispatcher)
gathers the tokens of the expert-parallel group as a `DTensor` split evenly, which is true only when every rank has
equally many. Otherwise the collective gets unequal inputs: gloo aborts one process and the others hang. The base class
(`components/moe/experts.py:337-370`) gathers variable lengths.
Versions: nemo-automodel 0.6.0.
Repair: the experts' input is padded to the longest of the group with tokens that the mask excludes from routing, and
the padding is cut off the output again; one all-reduce of one number per layer. Results and gradients are those of the
unpadded tokens. The DeepEP dispatcher (`GroupedExpertsDeepEPLoRA`) needs no repair.
Guard: `tests/automodel/test_trainable.py::test_unequal_tokens_still_break_upstream`.
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn


def _padded(upstream: Any) -> Any:
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor
    from torch.nn.functional import pad

    def forward(
        self: nn.Module, x: torch.Tensor, token_mask: torch.Tensor, weights: torch.Tensor, indices: torch.Tensor
    ) -> torch.Tensor:
        """Experts of x [tokens, hidden]; mask [tokens]; weights and indices [tokens, experts per token]."""
        shard: Any = self.gate_and_up_projs
        if not isinstance(shard, DTensor) or shard.device_mesh.size() == 1:
            return upstream(x, token_mask, weights, indices)
        tokens = len(x)
        longest = torch.tensor(tokens, device=x.device)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX, group=shard.device_mesh.get_group())
        missing = int(longest) - tokens
        if not missing:
            return upstream(x, token_mask, weights, indices)
        rows = (0, 0, 0, missing)
        mask = pad(token_mask, (0, missing), value=False)
        return upstream(pad(x, rows), mask, pad(weights, rows), pad(indices, rows))[:tokens]

    return forward


def apply(model: nn.Module) -> None:
    """Wrap the forward pass of every adapted block of experts of this model instance; none: nothing happens."""
    from nemo_automodel.components._peft.lora_experts import GroupedExpertsLoRA

    for module in model.modules():
        if isinstance(module, GroupedExpertsLoRA):
            module.forward = MethodType(_padded(module.forward), module)
