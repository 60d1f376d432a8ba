"""`python -m tests.automodel.ranks RECIPE[@K]…`: train several recipes in turn on the ranks of this launch.

`@K` puts a stop file into the run's folder after step K, so that naming the recipe again resumes it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from automodel import train
from avlm.recipe.load import load_recipe


def stopping(step: int) -> Any:
    """`Finetune` that finds a stop file after `step`."""
    from automodel.loop import Finetune

    class Stopped(Finetune):
        def log_train_metrics(self, log_data: Any) -> None:
            if log_data.step + 1 == step and self.dist_env.is_main:
                (self._run.folder / "stop").touch()
            super().log_train_metrics(log_data)

    return Stopped


def main() -> None:
    """Train each argument."""
    for argument in sys.argv[1:]:
        path, _, step = argument.partition("@")
        recipe = load_recipe(Path(path)).recipe
        if not step:
            train.run_recipe(recipe)
            continue
        from automodel import loop

        upstream, loop.Finetune = loop.Finetune, stopping(int(step))  # type: ignore[misc]
        train.run_recipe(recipe)
        loop.Finetune = upstream  # type: ignore[misc]


if __name__ == "__main__":
    main()
