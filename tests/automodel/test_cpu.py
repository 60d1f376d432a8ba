"""AutoModel still takes a GPU for granted; with `on_cpu` it does not, and everything is as before afterwards."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.upstream


def test_upstream_still_needs_a_gpu_and_on_cpu_undoes_itself() -> None:
    import torch

    from automodel.cpu import on_cpu

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    before = torch.cuda.current_device
    with pytest.raises((RuntimeError, AssertionError)):
        torch.cuda.current_device()
    with on_cpu():
        assert torch.cuda.current_device() == 0
        torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.current_device is before
