"""`python -m tests.automodel.ranks RECIPE…`: train several recipes one after the other on the ranks of this launch."""

from __future__ import annotations

import sys

from automodel.train import run_recipe
from avlm.recipe.load import load_recipe

for path in sys.argv[1:]:
    run_recipe(load_recipe(path).recipe)
