"""Count a recipe's model without weights: `python -m automodel.inspect RECIPE [--world-size 8] [key=value ...]`.

Builds AutoModel's own class on the meta device, puts the recipe's adapters in, freezes, and shards it with FSDP2 and
expert parallelism over a fake process group, as training would. Prints parameters and trainable parameters by
component, for the whole model and for rank 0 (the fullest: `torch.chunk` gives the first ranks the larger pieces).
Reads no weights, opens no network connection and needs no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from automodel.peft_targets import peft_target_modules
from avlm.errors import RunError, UserError
from avlm.models.architecture import known_architecture, known_checkpoints
from avlm.models.base import get_family
from avlm.models.trainable import plain_name
from avlm.recipe.schema import Recipe

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Row:
    """One component. `rank_*` count rank 0's shards; buffers are those a checkpoint holds."""

    component: str
    parameters: int
    trainable: int
    buffers: int
    rank_parameters: int
    rank_trainable: int
    rank_bytes: int


@dataclass(frozen=True)
class Inspection:
    """Counts of a recipe's model. `total` sums the rows."""

    recipe: str
    model: str
    source: str
    world_size: int
    ep: int
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def total(self) -> Row:
        """Sum over components."""
        sums = [sum(getattr(row, name) for row in self.rows) for name in list(Row.__dataclass_fields__)[1:]]
        return Row("total", *sums)


def inspect_recipe(recipe: Recipe, world_size: int | None = None) -> Inspection:
    """Build, freeze, shard and count.

    Args:
        recipe: SFT or LoRA, checked.
        world_size: ranks to shard over; the recipe's own by default.

    Raises:
        UserError: the checkpoint's architecture is not known here, or the class lacks the parallelism of the recipe.
    """
    import torch

    ranks = world_size or recipe.world_size
    _check_parallel(recipe, ranks)
    family = importlib.import_module(f"automodel.families.{recipe.model.family}")
    config, source = _config(recipe, family)
    dtype: torch.dtype = getattr(torch, recipe.model.dtype)
    with _fake_ranks(ranks):
        cls = family.model_class()
        model = _build(cls, config, dtype)
        if recipe.method.lora is not None:
            _add_adapters(model, recipe)
        _freeze(model, recipe)
        _shard(model, recipe, ranks)
        rows = _count(model, recipe)
    return Inspection(
        recipe=recipe.name,
        model=cls.__name__,
        source=source,
        world_size=ranks,
        ep=recipe.parallel.ep,
        rows=rows,
        notes=family.NOTES,
    )


def _check_parallel(recipe: Recipe, ranks: int) -> None:
    for name in ("tp", "pp"):
        if getattr(recipe.parallel, name) != 1:
            raise UserError(
                f"parallel.{name}: AutoModel has no {name.upper()} plan for {recipe.model.family}; set it to 1"
            )
    if recipe.parallel.strategy != "fsdp2":
        raise UserError(f"parallel.strategy: counts need fsdp2, not {recipe.parallel.strategy}")
    if ranks % recipe.parallel.ep:
        raise UserError(f"parallel.ep: {recipe.parallel.ep} does not divide the {ranks} ranks")


def _config(recipe: Recipe, family: Any) -> tuple[Any, str]:
    """(configuration, where it comes from)."""
    folder = Path(recipe.model.checkpoint)
    if (folder / "config.json").is_file():
        config = family.config_in(folder)
        if config is not None:
            return config, str(folder / "config.json")
    described = known_architecture(recipe.model.family, recipe.model.checkpoint)
    if described is None:
        known = ", ".join(known_checkpoints(recipe.model.family))
        raise UserError(
            f"model.checkpoint: the architecture of {recipe.model.checkpoint!r} is not known here; "
            f"give {known}, or a directory with a config.json that transformers can read by itself"
        )
    return family.config_from(described), f"avlm/models/{recipe.model.family} (numbers of {recipe.model.checkpoint})"


@contextlib.contextmanager
def _fake_ranks(world_size: int) -> Iterator[None]:
    """A process group of `world_size` ranks of which only rank 0 exists; collectives do nothing."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise RunError("automodel.inspect makes its own process group; start it outside torchrun and training")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _build(cls: type[Any], config: Any, dtype: Any) -> nn.Module:
    """The model on the meta device, in `dtype` where upstream leaves a choice. Needs no kernel library."""
    import nemo_automodel._transformers.auto_model  # noqa: F401  (its import completes transformers' config classes)
    import torch
    from nemo_automodel.components.models.common import BackendConfig
    from transformers.initialization import no_init_weights

    for part in (config, *(value for value in vars(config).values() if hasattr(value, "to_dict"))):
        part.dtype = dtype
    backend = BackendConfig(
        attn="sdpa", linear="torch", rms_norm="torch", experts="torch", dispatcher="torch", rope_fusion=False
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"), no_init_weights():
            model: nn.Module = cls(config, backend=backend)
    finally:
        torch.set_default_dtype(before)
    return model


def _add_adapters(model: nn.Module, recipe: Recipe) -> None:
    import torch
    from nemo_automodel.components._peft.lora import PeftConfig, apply_lora_to_linear_modules

    lora = recipe.method.lora
    assert lora is not None
    config = PeftConfig(target_modules=peft_target_modules(recipe), dim=lora.rank, alpha=lora.alpha, use_triton=False)
    with torch.device("meta"):
        apply_lora_to_linear_modules(model, config, skip_freeze=True)


def _freeze(model: nn.Module, recipe: Recipe) -> None:
    from automodel.trainable import freeze

    freeze(model, recipe)


def _shard(model: nn.Module, recipe: Recipe, ranks: int) -> None:
    """FSDP2 and EP by AutoModel's own parallelizer. One rank stays whole, as in training."""
    if ranks == 1:
        return
    from nemo_automodel._transformers.infrastructure import _shard_ep_fsdp, instantiate_infrastructure
    from nemo_automodel.components.distributed.config import DistributedSetup
    from nemo_automodel.components.distributed.mesh import ParallelismSizes

    # context parallel ranks shard parameters like data parallel ones
    setup = DistributedSetup.build("fsdp2", ParallelismSizes(ep_size=recipe.parallel.ep), world_size=ranks)
    wrapper, _, parallelize, _ = instantiate_infrastructure(
        distributed_config=setup.strategy_config,
        moe_parallel_config=setup.moe_parallel_config,
        mesh=setup.mesh_context,
        activation_checkpointing=False,
    )
    _shard_ep_fsdp(model, wrapper, parallelize, setup.mesh_context)


def _count(model: nn.Module, recipe: Recipe) -> tuple[Row, ...]:
    from automodel.trainable import assert_trainable

    assert_trainable(model, recipe)
    family = get_family(recipe.model.family)
    sums = {component: [0] * 6 for component in family.components}
    for name, parameter in model.named_parameters():
        shard = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        trained = parameter.requires_grad
        row = sums[family.component_of(plain_name(name))]
        row[0] += parameter.numel()
        row[1] += parameter.numel() if trained else 0
        row[3] += shard.numel()
        row[4] += shard.numel() if trained else 0
        row[5] += shard.numel() * shard.element_size()
    saved = set(model.state_dict())
    for name, buffer in model.named_buffers():
        if name in saved:
            sums[family.component_of(plain_name(name))][2] += buffer.numel()
    return tuple(Row(component, *row) for component, row in sums.items() if row[0])


def render(result: Inspection) -> str:
    """The counts as a table."""
    lines = [
        f"{result.recipe}: {result.model}, from {result.source}",
        f"{result.world_size} rank{'s' if result.world_size > 1 else ''}, expert parallel {result.ep}, FSDP2",
        "",
        f"{'component':<18}{'parameters':>16}{'trainable':>16}{'%':>8}{'buffers':>9}"
        f"{'rank 0':>15}{'trainable':>15}{'GiB':>8}",
    ]
    for row in (*result.rows, result.total):
        if row.component == "total":
            lines.append("-" * len(lines[3]))
        lines.append(
            f"{row.component:<18}{row.parameters:>16,}{row.trainable:>16,}"
            f"{100 * row.trainable / row.parameters:>8.3f}{row.buffers:>9,}"
            f"{row.rank_parameters:>15,}{row.rank_trainable:>15,}{row.rank_bytes / 2**30:>8.2f}"
        )
    return "\n".join([*lines, *(f"note: {note}" for note in result.notes)])


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m automodel.inspect", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("recipe", help="recipe file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="dotted overrides")
    parser.add_argument("--world-size", type=int, default=None, help="ranks to shard over (default: the recipe's)")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    options = parser.parse_args(arguments)
    from avlm.recipe.checks import check
    from avlm.recipe.load import load_recipe

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # upstream's remarks on missing kernels
    try:
        loaded = load_recipe(options.recipe, options.overrides)
        check(loaded.recipe, loaded.places, stack="automodel")
        result = inspect_recipe(loaded.recipe, options.world_size)
    except (UserError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    print(json.dumps({**asdict(result), "total": asdict(result.total)}, indent=2) if options.json else render(result))


if __name__ == "__main__":
    main()
