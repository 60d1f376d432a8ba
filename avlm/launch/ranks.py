"""`python -m avlm.launch.ranks N MODULE ARGUMENT…`: N local ranks of a module, through torch's elastic launcher.

Differs from `torchrun` only in how it ends: with the failing rank's own exit code, and without a second report below
the message that the rank has already printed.
"""

from __future__ import annotations

import logging
import sys


def main(arguments: list[str]) -> int:
    """Run and return the exit code of the first rank that failed, or 0."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    ranks, module, *rest = arguments
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=int(ranks),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)("-m", module, *rest)
    except ChildFailedError as error:
        codes = {failure.exitcode for failure in error.failures.values()}
        return 2 if 2 in codes else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
