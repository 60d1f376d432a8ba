"""Rules that hold across fields: one function each, looked at before anything heavy starts.

A rule's docstring is its text in `docs/recipe.md`. Whether files exist is checked where a run starts, not here.
"""

from __future__ import annotations

import importlib
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from avlm.errors import Place, UserError
from avlm.recipe.fields import get_value
from avlm.recipe.schema import Component, Recipe, StackName
from avlm.stacks import get_stack


@dataclass(frozen=True)
class Case:
    """What a rule looks at: a recipe, where its values were written, and the stack that will train."""

    recipe: Recipe
    places: Mapping[str, Place]
    stack: str

    def say(self, *paths: str) -> str:
        """Fields with their values and places: `batch.global_batch_size = 6 (sft.yaml:12)`."""
        return ", ".join(f"{p} = {_shown(get_value(self.recipe, p))} ({self.places.get(p, 'default')})" for p in paths)

    def family(self) -> Any:
        """The model family, looked up by name: families lie above the recipe and are not imported by it."""
        return importlib.import_module(f"avlm.models.{self.recipe.model.family}").FAMILY


@dataclass(frozen=True)
class Rule:
    """A rule: returns what is wrong and what would be right, or None. `stacks`: where it holds; empty: everywhere."""

    function: Callable[[Case], str | None]
    stacks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of its function."""
        return self.function.__name__

    @property
    def text(self) -> str:
        """The rule in words."""
        return " ".join((self.function.__doc__ or "").split())


RULES: list[Rule] = []


def rule(*stacks: StackName) -> Callable[[Callable[[Case], str | None]], Callable[[Case], str | None]]:
    """Registers a rule, for these stacks only if any are named."""

    def register(function: Callable[[Case], str | None]) -> Callable[[Case], str | None]:
        RULES.append(Rule(function, stacks))
        return function

    return register


def check(recipe: Recipe, places: Mapping[str, Place], stack: str = "automodel") -> None:
    """Looks at every rule that holds for `stack`.

    Args:
        recipe: a recipe that is valid by itself.
        places: where its values were written (`Loaded.places`).
        stack: name of the stack that will train it.

    Raises:
        UserError: one message with everything that is wrong: fields, values and places.
    """
    if stack not in get_args(StackName):
        raise UserError(f"stack: {stack!r} is unknown; known stacks: {', '.join(get_args(StackName))}")
    case = Case(recipe, places, stack)
    found = [problem for r in RULES if not r.stacks or stack in r.stacks if (problem := r.function(case))]
    if len(found) == 1:
        raise UserError(found[0])
    if found:
        raise UserError("\n  ".join([f"{recipe.name}: {len(found)} rules are broken", *found]))


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


# ---- length of the run -----------------------------------------------------------------------------------------------


@rule()
def run_ends(case: Case) -> str | None:
    """`schedule.max_steps` or `schedule.epochs` is given, or both."""
    schedule = case.recipe.schedule
    if schedule.max_steps is None and schedule.epochs is None:
        return f"{case.say('schedule.max_steps', 'schedule.epochs')}: nothing ends the run; give one of them"
    return None


@rule()
def warmup_fits(case: Case) -> str | None:
    """`optimizer.warmup` in steps is below `schedule.max_steps`."""
    warmup, steps = case.recipe.optimizer.warmup, case.recipe.schedule.max_steps
    if isinstance(warmup, int) and steps is not None and warmup >= steps:
        return (
            f"{case.say('optimizer.warmup', 'schedule.max_steps')}: the warmup takes the whole run; "
            "write fewer steps, or a share below 1 such as 0.1"
        )
    return None


@rule()
def lr_falls(case: Case) -> str | None:
    """`optimizer.min_lr` is at most `optimizer.lr`."""
    if case.recipe.optimizer.min_lr > case.recipe.optimizer.lr:
        return f"{case.say('optimizer.min_lr', 'optimizer.lr')}: min_lr is where lr falls to; it must not be larger"
    return None


@rule()
def betas_in_range(case: Case) -> str | None:
    """Both of `optimizer.betas` are at least 0 and below 1."""
    if not all(0 <= beta < 1 for beta in case.recipe.optimizer.betas):
        return f"{case.say('optimizer.betas')}: both must be at least 0 and below 1"
    return None


# ---- what is trained -------------------------------------------------------------------------------------------------


@rule()
def lora_block_matches_kind(case: Case) -> str | None:
    """`method.lora` is given exactly when `method.kind` is `lora`."""
    method = case.recipe.method
    if method.kind == "lora" and method.lora is None:
        return (
            f"{case.say('method.kind')} but method.lora is not given; "
            "write `lora: {rank: 64, alpha: 128}` below method, or `lora: {}` for the defaults"
        )
    if method.kind == "sft" and method.lora is not None:
        place = case.places.get("method.lora", "default")
        return f"{case.say('method.kind')} but method.lora is given ({place}); use kind: lora, or write lora: null"
    return None


@rule()
def lora_freezes_everything(case: Case) -> str | None:
    """With `method.kind: lora` no `freeze` field is set to false: adapters train, everything else stays frozen."""
    if case.recipe.method.kind != "lora":
        return None
    opened = [p for c in get_args(Component) if not get_value(case.recipe, p := f"freeze.{c}") and p in case.places]
    if opened:
        return (
            f"{case.say('method.kind', *opened)}: LoRA trains adapters only and keeps every weight of the model; "
            "remove these lines, or use kind: sft to train the components"
        )
    return None


@rule()
def lora_targets_exist(case: Case) -> str | None:
    """Every one of `method.lora.targets` exists in `model.family`."""
    lora = case.recipe.method.lora
    if lora is None:
        return None
    known = list(case.family().lora_targets)
    missing = [target for target in lora.targets if target not in known]
    if missing:
        return (
            f"{case.say('method.lora.targets', 'model.family')}: this family has no {', '.join(missing)}; "
            f"it has {', '.join(known)}"
        )
    return None


@rule("automodel")
def lora_dropout_reaches_experts(case: Case) -> str | None:
    """`method.lora.dropout` is 0 when `experts` are a target: AutoModel's expert adapters have none."""
    lora = case.recipe.method.lora
    if lora and lora.dropout > 0 and "experts" in lora.targets:
        return (
            f"{case.say('method.lora.dropout', 'method.lora.targets')}: AutoModel's adapters on routed experts have no "
            "dropout, so it would hold for some adapters only; set it to 0 or leave experts out"
        )
    return None


@rule()
def something_trains(case: Case) -> str | None:
    """With `method.kind: sft` at least one component that the family has is not frozen."""
    if case.recipe.method.kind != "sft":
        return None
    paths = [f"freeze.{component}" for component in case.family().components]
    if all(get_value(case.recipe, path) for path in paths):
        return f"{case.say(*paths)}: everything is frozen, so nothing trains; set one of them to false"
    return None


@rule()
def opened_components_exist(case: Case) -> str | None:
    """A component whose `freeze` field is false exists in `model.family` (`language_model` always does)."""
    known = case.family().components
    missing = [p for c in get_args(Component) if c not in known and not get_value(case.recipe, p := f"freeze.{c}")]
    if missing:
        return f"{case.say(*missing, 'model.family')}: this family has only {', '.join(known)}; leave the line out"
    return None


@rule("automodel")
def talker_stays_frozen(case: Case) -> str | None:
    """`freeze.talker` is true: AutoModel trains the thinker, which has no talker."""
    if not case.recipe.freeze.talker:
        return f"{case.say('freeze.talker')}: AutoModel builds and trains the thinker only; set it to true"
    return None


@rule()
def revision_needs_hub(case: Case) -> str | None:
    """`model.revision` is given only when `model.checkpoint` is a hub id."""
    checkpoint = case.recipe.model.checkpoint
    hub_id = re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", checkpoint) and not Path(checkpoint).is_dir()
    if case.recipe.model.revision is not None and not hub_id:
        return (
            f"{case.say('model.revision', 'model.checkpoint')}: a local directory has no revisions; "
            "leave revision out, or name the checkpoint by its hub id"
        )
    return None


# ---- batches and data ------------------------------------------------------------------------------------------------


@rule()
def batch_divides(case: Case) -> str | None:
    """`batch.global_batch_size` is a multiple of `batch.micro_batch_size` × data-parallel size, which is world size /
    (tp · pp · cp)."""
    recipe, p = case.recipe, case.recipe.parallel
    if recipe.world_size % (p.tp * p.pp * p.cp):
        return None  # said by model_parallel_divides
    unit = recipe.batch.micro_batch_size * recipe.dp_size
    if recipe.batch.global_batch_size % unit:
        near = max(recipe.batch.global_batch_size // unit, 1) * unit
        return (
            f"{case.say('batch.global_batch_size', 'batch.micro_batch_size')}: the global batch must be a multiple of "
            f"micro batch × data-parallel size = {recipe.batch.micro_batch_size} × {recipe.dp_size} = {unit}, "
            f"for instance {near} ({case.say('parallel.nodes', 'parallel.devices_per_node')})"
        )
    return None


@rule()
def packs_alone(case: Case) -> str | None:
    """`batch.micro_batch_size` is 1 when `data.packing.enabled` is true."""
    if case.recipe.data.packing.enabled and case.recipe.batch.micro_batch_size != 1:
        return (
            f"{case.say('data.packing.enabled', 'batch.micro_batch_size')}: a pack already holds several samples; "
            "set micro_batch_size to 1 and pack_size to what fits"
        )
    return None


@rule()
def pack_holds_a_sample(case: Case) -> str | None:
    """With packing, `data.packing.pack_size` is at least `data.sequence_length`."""
    data = case.recipe.data
    if data.packing.enabled and data.packing.pack_size < data.sequence_length:
        return (
            f"{case.say('data.packing.pack_size', 'data.sequence_length')}: the longest sample must fit into a pack; "
            "make pack_size larger or sequence_length smaller"
        )
    return None


@rule()
def train_files_once(case: Case) -> str | None:
    """Every file of `data.train` stands there once; a weight says how often its rows are seen."""
    paths = [posixpath.normpath(path) for path in case.recipe.data.train_paths]
    twice = sorted({path for path in paths if paths.count(path) > 1})
    if twice:
        place = case.places.get("data.train", "default")
        return (
            f"data.train ({place}): {', '.join(twice)} stands there more than once; give it one entry with a weight: "
            f"{{path: {twice[0]}, weight: {paths.count(twice[0])}}}"
        )
    return None


@rule()
def pixel_range(case: Case) -> str | None:
    """`data.video_min_pixels` is at most `data.video_max_pixels`."""
    if case.recipe.data.video_min_pixels > case.recipe.data.video_max_pixels:
        return f"{case.say('data.video_min_pixels', 'data.video_max_pixels')}: the smallest size exceeds the largest"
    return None


# ---- ranks -----------------------------------------------------------------------------------------------------------


@rule()
def model_parallel_divides(case: Case) -> str | None:
    """World size (`parallel.nodes` × `parallel.devices_per_node`) is a multiple of tp · pp · cp."""
    p, world = case.recipe.parallel, case.recipe.world_size
    if world % (p.tp * p.pp * p.cp):
        sizes = case.say("parallel.tp", "parallel.pp", "parallel.cp")
        return (
            f"{sizes}: tp × pp × cp = {p.tp * p.pp * p.cp} must divide the world size {world} "
            f"({case.say('parallel.nodes', 'parallel.devices_per_node')})"
        )
    return None


@rule("automodel")
def expert_parallel_divides(case: Case) -> str | None:
    """`parallel.ep` divides world size / pp."""
    p, world = case.recipe.parallel, case.recipe.world_size
    if world % p.pp == 0 and (world // p.pp) % p.ep:
        fits = [str(n) for n in range(1, world // p.pp + 1) if (world // p.pp) % n == 0]
        return (
            f"{case.say('parallel.ep', 'parallel.pp')}: ep must divide world size / pp = {world} / {p.pp}; "
            f"{', '.join(fits)} do ({case.say('parallel.nodes', 'parallel.devices_per_node')})"
        )
    return None


@rule("megatron_bridge")
def world_holds_experts(case: Case) -> str | None:
    """World size is at least pp · max(tp · cp, ep), and a multiple of ep · pp."""
    p, world = case.recipe.parallel, case.recipe.world_size
    needed = p.pp * max(p.tp * p.cp, p.ep)
    if world < needed or world % (p.ep * p.pp):
        return (
            f"{case.say('parallel.tp', 'parallel.pp', 'parallel.cp', 'parallel.ep')}: the world size {world} must be "
            f"at least pp × max(tp × cp, ep) = {needed} and a multiple of ep × pp = {p.ep * p.pp} "
            f"({case.say('parallel.nodes', 'parallel.devices_per_node')})"
        )
    return None


@rule("automodel")
def parallel_plan_exists(case: Case) -> str | None:
    """`parallel.tp`, `pp` and `cp` are 1: AutoModel's classes of these families have no plan for them, or one (`cp` of
    Nemotron-3-Nano-Omni) that needs Transformer Engine and does not know packs or pictures of different sizes."""
    wrong = [f"parallel.{n}" for n in ("tp", "pp", "cp") if getattr(case.recipe.parallel, n) > 1]
    if wrong:
        return (
            f"{case.say(*wrong, 'model.family')}: AutoModel supports none of tp, pp, cp above 1 for this family; use "
            "ep and more ranks"
        )
    return None


TOWERS: tuple[Component, ...] = ("vision_encoder", "vision_projector", "audio_encoder", "audio_projector")


@rule("automodel")
def towers_run_alike(case: Case) -> str | None:
    """With `model.family: nemotron_3_nano_omni` encoders and projectors are frozen on more than one rank: its vision
    tower runs once for each picture size, and FSDP2 would wait for ranks that run a trained tower less often."""
    recipe = case.recipe
    if recipe.model.family != "nemotron_3_nano_omni" or recipe.method.kind != "sft" or recipe.world_size == 1:
        return None
    opened = [f"freeze.{c}" for c in TOWERS if not getattr(recipe.freeze, c)]
    if opened:
        return (
            f"{case.say(*opened, 'model.family')}: on {recipe.world_size} ranks the encoders and projectors of this "
            "family must stay frozen; set them to true"
        )
    return None


@rule("automodel")
def strategy_takes_experts(case: Case) -> str | None:
    """`parallel.ep` above 1 needs `parallel.strategy: fsdp2`."""
    if case.recipe.parallel.ep > 1 and case.recipe.parallel.strategy != "fsdp2":
        return f"{case.say('parallel.ep', 'parallel.strategy')}: expert parallelism works with strategy fsdp2 only"
    return None


@rule()
def cpu_is_float32(case: Case) -> str | None:
    """`device: cpu` needs `model.dtype: float32`."""
    if case.recipe.device == "cpu" and case.recipe.model.dtype != "float32":
        return f"{case.say('device', 'model.dtype')}: on the CPU runs are float32; set model.dtype to float32"
    return None


@rule()
def cpu_has_no_mamba(case: Case) -> str | None:
    """`device: cpu` is for families without Mamba layers, whose kernels need a GPU: not for
    `model.family: nemotron_3_nano_omni`."""
    if case.recipe.device == "cpu" and case.recipe.model.family == "nemotron_3_nano_omni":
        return f"{case.say('device', 'model.family')}: the kernels of its Mamba layers need a GPU; set device to cuda"
    return None


@rule()
def cpu_uses_torch_dispatcher(case: Case) -> str | None:
    """`device: cpu` needs `parallel.moe_dispatcher: torch`."""
    if case.recipe.device == "cpu" and case.recipe.parallel.moe_dispatcher != "torch":
        return f"{case.say('device', 'parallel.moe_dispatcher')}: DeepEP needs GPUs; set moe_dispatcher to torch"
    return None


@rule()
def deepep_needs_experts_spread(case: Case) -> str | None:
    """`parallel.moe_dispatcher: deepep` needs `parallel.ep` above 1."""
    if case.recipe.parallel.moe_dispatcher == "deepep" and case.recipe.parallel.ep == 1:
        return (
            f"{case.say('parallel.moe_dispatcher', 'parallel.ep')}: with ep 1 every expert is at home and nothing is "
            "dispatched; set moe_dispatcher to torch or raise ep"
        )
    return None


# ---- native keys -----------------------------------------------------------------------------------------------------


@rule()
def native_keys_known(case: Case) -> str | None:
    """Every key in the stack's own block (`automodel:`, …) is one that the stack reads and no recipe field says."""
    if not getattr(case.recipe, case.stack):
        return None
    found = []
    for key, problem in get_stack(case.stack).native_problems(case.recipe).items():
        place = case.places.get(f"{case.stack}.{key}", case.places.get(case.stack))
        found.append(f"{place}: {problem}" if place else problem)
    return "\n  ".join(found) or None


# ---- memory ----------------------------------------------------------------------------------------------------------


@rule("automodel")
def moments_follow_weights(case: Case) -> str | None:
    """AutoModel's AdamW keeps its moments in the data type of the stored weights. So
    `memory.optimizer_state_dtype: bfloat16` needs `model.dtype: bfloat16`, and float32 moments with
    `model.dtype: bfloat16` (float32 weights are stored and cast for computation) need `parallel.strategy: fsdp2` on at
    least two ranks."""
    recipe = case.recipe
    both = case.say("memory.optimizer_state_dtype", "model.dtype")
    if recipe.memory.optimizer_state_dtype == "bfloat16" and recipe.model.dtype == "float32":
        return f"{both}: with float32 weights the moments are float32; set optimizer_state_dtype to float32"
    mixed = recipe.memory.optimizer_state_dtype == "float32" and recipe.model.dtype == "bfloat16"
    if mixed and (recipe.parallel.strategy != "fsdp2" or recipe.world_size == 1):
        return (
            f"{both}: float32 moments need float32 weights that FSDP2 casts for computation, and there is no FSDP2 "
            f"here (world size {recipe.world_size}, {case.say('parallel.strategy')}); set optimizer_state_dtype to "
            "bfloat16 or dtype to float32"
        )
    return None


@rule("megatron_bridge")
def offloaded_moments_are_float32(case: Case) -> str | None:
    """`memory.optimizer_offload` needs `memory.optimizer_state_dtype: float32`."""
    memory = case.recipe.memory
    if memory.optimizer_offload and memory.optimizer_state_dtype != "float32":
        return (
            f"{case.say('memory.optimizer_offload', 'memory.optimizer_state_dtype')}: the optimizer in host RAM keeps "
            "float32 moments; set optimizer_state_dtype to float32"
        )
    return None


@rule("automodel")
def offload_is_whole(case: Case) -> str | None:
    """`memory.optimizer_offload` and `memory.parameter_offload` are set together, with `parallel.strategy: fsdp2` on at
    least two ranks: FSDP2 moves parameters and optimizer states together, or neither."""
    recipe, memory = case.recipe, case.recipe.memory
    if not (memory.optimizer_offload or memory.parameter_offload):
        return None
    both = case.say("memory.optimizer_offload", "memory.parameter_offload")
    if memory.optimizer_offload != memory.parameter_offload:
        return f"{both}: FSDP2 keeps parameters and optimizer states in host RAM together; set both, or neither"
    if recipe.parallel.strategy != "fsdp2" or recipe.world_size == 1:
        return (
            f"{both}: offload is done by FSDP2, which is not used here (world size {recipe.world_size}, "
            f"{case.say('parallel.strategy')}); set both to false"
        )
    return None


@rule("automodel")
def activations_stay(case: Case) -> str | None:
    """`memory.activation_offload` is false: AutoModel has no activation offload."""
    if case.recipe.memory.activation_offload:
        return (
            f"{case.say('memory.activation_offload')}: AutoModel cannot keep activations in host RAM; "
            "set it to false and use activation_checkpointing: full"
        )
    return None


@rule("automodel")
def selective_checkpointing_fits(case: Case) -> str | None:
    """`memory.activation_checkpointing: selective` needs `parallel.strategy: fsdp2` or `ddp`."""
    recipe = case.recipe
    if recipe.memory.activation_checkpointing == "selective" and recipe.parallel.strategy == "megatron_fsdp":
        return (
            f"{case.say('memory.activation_checkpointing', 'parallel.strategy')}: Megatron-FSDP checkpoints whole "
            "layers or none; use full"
        )
    return None


@rule("automodel")
def no_dollar_signs(case: Case) -> str | None:
    """`model.checkpoint`, `model.revision` and `output_dir` hold no `$`: AutoModel would put environment variables
    there."""
    wrong = [
        p for p in ("model.checkpoint", "model.revision", "output_dir") if "$" in str(get_value(case.recipe, p) or "")
    ]
    if wrong:
        return f"{case.say(*wrong)}: environment variables are not expanded in recipes; write the value itself"
    return None
