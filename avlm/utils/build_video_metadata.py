"""`python -m avlm.utils.build_video_metadata JSONL… --video-root DIR`: the same as `avlm data metadata`."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point."""
    from avlm.cli import run

    sys.exit(run(["data", "metadata", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
