"""`tests.automodel.ranks` with the stand-in for Mamba's kernels."""

from __future__ import annotations

import sys

from tests.automodel import ranks
from tests.automodel.nemotron import kernel_modules

if __name__ == "__main__":
    import torch

    sys.modules.update(kernel_modules())
    with torch.compiler.set_stance("force_eager"):
        ranks.main()
