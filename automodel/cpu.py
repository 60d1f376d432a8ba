"""AutoModel on a machine without CUDA: the few places where nemo-automodel 0.6.0 takes a GPU for granted.

Upstream defects (paths inside `nemo_automodel/`):
  * `recipes/vlm/finetune.py:430`, `:1295` call `torch.cuda.reset_peak_memory_stats`, which raises without a GPU;
  * `_transformers/auto_model.py:488`, `:738` call `torch.cuda.current_device` to choose the model's device;
  * `components/distributed/init_utils.py` leaves `DistInfo.device` None without a GPU (set in `automodel.loop`).
Tested with nemo-automodel 0.6.0. `tests/automodel/test_cpu.py` fails when the first of these no longer raises, so that
this file can go.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """Within the block AutoModel builds and runs models on the CPU. Does nothing else, and undoes itself."""
    import torch
    from nemo_automodel._transformers import auto_model

    apply_infrastructure = auto_model.apply_model_infrastructure

    def infrastructure_on_cpu(*args: Any, **kwargs: Any) -> Any:
        return apply_infrastructure(*args, **{**kwargs, "device": torch.device("cpu")})

    with contextlib.ExitStack() as stack:
        for target, name, replacement in (
            (torch.cuda, "reset_peak_memory_stats", lambda *args, **kwargs: None),
            (torch.cuda, "current_device", lambda: 0),
            (auto_model, "apply_model_infrastructure", infrastructure_on_cpu),
        ):
            stack.enter_context(mock.patch.object(target, name, replacement))
        yield
