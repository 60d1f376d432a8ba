"""Freezing by exact component.

Defect: `nemo_automodel/components/utils/model_utils.py:364` (`apply_parameter_freezing`, called before sharding from
`_transformers/infrastructure.py:626`) freezes by parts of module names. A tower can only be frozen together with its
projector; `freeze_language_model` does nothing to a model whose decoder is called `model` (Qwen3-Omni).
Versions: nemo-automodel 0.6.0.
Repair: within the block `apply_parameter_freezing` sets exactly the recipe's set instead, at the same moment. AutoModel
calls it only when the native config holds `freeze_config`; whatever stands there is not read. Leaving the block without
that call is an error, since the model would be trained whole.
Guard: `tests/automodel/test_trainable.py::test_upstream_still_freezes_by_name`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from avlm.recipe.schema import Recipe


@contextlib.contextmanager
def freeze_by_component(recipe: Recipe) -> Iterator[None]:
    """Within the block AutoModel freezes what `recipe` freezes: put it around `setup()`.

    Raises:
        RuntimeError: AutoModel did not ask for freezing (no `freeze_config` in the native config).
    """
    from nemo_automodel._transformers import infrastructure

    from automodel.trainable import freeze

    called = False

    def apply(model: Any, freeze_config: Any) -> None:
        nonlocal called
        called = True
        freeze(model, recipe)

    with mock.patch.object(infrastructure, "apply_parameter_freezing", apply):
        yield
    if not called:
        raise RuntimeError("AutoModel built the model without freezing; the native config needs `freeze_config`")
