"""Loading models without messages that are for other people."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Within the block: no notes of torchao to other developers, and no progress bars of transformers in log files."""
    noisy = logging.getLogger("torch.utils._pytree")
    level = noisy.level
    noisy.setLevel(logging.ERROR)
    try:
        if not sys.stderr.isatty():
            from transformers.utils import logging as of_transformers

            of_transformers.disable_progress_bar()
        yield
    finally:
        noisy.setLevel(level)
