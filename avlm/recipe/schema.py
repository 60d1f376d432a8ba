"""The recipe: one typed vocabulary that every stack reads.

A recipe says what is trained, on what, how and where. Nothing here imports torch or a stack. Field docstrings are
the reference documentation (`docs/recipe.md` is generated from them). Rules that hold across fields live in
`avlm.recipe.checks`; this file holds types and the ranges of single values only.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

Component = Literal[
    "vision_encoder", "vision_projector", "audio_encoder", "audio_projector", "language_model", "talker"
]
LoraTarget = Literal["attention", "mamba", "mlp", "shared_experts", "experts"]
FamilyName = Literal["qwen3_omni_moe", "nemotron_3_nano_omni"]
StackName = Literal["automodel", "megatron_bridge", "zero_offload"]

Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Name = Annotated[str, Field(min_length=1)]


class Section(BaseModel):
    """Base of every block: unknown keys are errors, values are not coerced, instances do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class Model(Section):
    """Which checkpoint is trained."""

    family: FamilyName
    """Model family: names the component map, the processor and the token arithmetic in `avlm/models/`."""
    checkpoint: Name
    """Hugging Face directory, or hub id, of the weights and the processor to start from."""
    revision: str | None = None
    """Hub commit, tag or branch of `checkpoint`; a local directory takes none."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Data type of weights and computation."""


class Freeze(Section):
    """Which components keep their weights. Every stack freezes exactly the same parameters (SFT only)."""

    vision_encoder: bool = True
    """Vision tower without its projector."""
    vision_projector: bool = True
    """Layers between the vision tower and the language model (mergers of Qwen, MLP of Nemotron)."""
    audio_encoder: bool = True
    """Audio tower without its projector."""
    audio_projector: bool = True
    """Layers between the audio tower and the language model."""
    language_model: bool = False
    """Decoder with embeddings, experts, routers, final norm and output head."""
    talker: bool = True
    """Speech decoder, where the family has one and the stack trains it."""


class Lora(Section):
    """Low-rank adapters (Hu et al., 2021, arXiv:2106.09685) on the language model."""

    rank: Positive = 64
    """Rank r of the two adapter matrices."""
    alpha: Positive = 128
    """Scale: the adapter's output is multiplied by alpha / rank."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout on the adapter's input."""
    targets: Annotated[list[LoraTarget], Field(min_length=1)] = ["attention"]
    """Linear layers of the language model that get an adapter: attention (q, k, v, o), mamba (in, out), mlp (dense
    feed-forward), shared_experts, experts (routed). Routers, output head and towers never do."""


class Method(Section):
    """Full fine-tuning of what is not frozen, or adapters on a frozen model."""

    kind: Literal["sft", "lora"] = "sft"
    """`sft` trains every component that `freeze` leaves open; `lora` trains adapters only."""
    lora: Lora | None = None
    """Adapter settings; given exactly when `kind` is `lora`."""


class Batch(Section):
    """How many samples make one optimizer step."""

    global_batch_size: Positive
    """Samples (packs, when packing is on) per optimizer step over all ranks and accumulation steps."""
    micro_batch_size: Positive = 1
    """Samples (packs) per forward pass on one rank; 1 with packing."""


class Schedule(Section):
    """How long the run is. `max_steps` and `epochs`: whichever comes first ends it; one of them is needed."""

    max_steps: Positive | None = None
    """Optimizer steps."""
    epochs: Positive | None = None
    """Passes over the training rows."""
    validation_interval: Positive | None = None
    """Steps between validation passes; null: only where checkpoints are written."""
    checkpoint_interval: Positive | None = None
    """Steps between checkpoints; null: only at the end. A stop file or SIGTERM writes one early."""
    keep_last: Positive = 2
    """Checkpoints kept; older ones are removed after a newer one is complete."""


class Packing(Section):
    """Several samples in one sequence, attention and positions kept apart."""

    enabled: bool = False
    """Pack samples into sequences of up to `pack_size` tokens."""
    pack_size: Positive = 21504
    """Tokens in a pack."""


class TrainFile(Section):
    """A JSONL file of training rows and its share in the mixture."""

    path: Name
    """The file."""
    weight: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 1.0
    """How often each of its rows is seen in an epoch, on average."""


FileOrBlock = Annotated[
    Annotated[Name, Tag("<name>")] | Annotated[TrainFile, Tag("<block>")],
    Discriminator(lambda value: "<block>" if isinstance(value, dict | TrainFile) else "<name>"),
]
"""A file's name, or a block that says more; a wrong value is told by what it looks like."""


class Data(Section):
    """Rows, media and their budgets. The same rules serve training, validation, inference and the planner."""

    train: Annotated[list[FileOrBlock], Field(min_length=1)]
    """JSONL files of training rows (one is accepted for a list of one). `{path: a.jsonl, weight: 2.5}` instead of a
    name: an epoch has every row of the file twice and half of them, other ones each epoch, once more; with 0.5 it has
    one half, then the other. A name alone has weight 1."""
    validation: list[Name] = []
    """JSONL files of validation rows; may be empty."""
    video_root: Name = "."
    """Folder that media paths in rows are relative to; no path may leave it."""
    sample_ratio: Fraction = 1.0
    """Share of the training rows that is used, chosen by `seed`."""
    shuffle: bool = True
    """Shuffle rows anew each epoch; the order depends on seed, epoch and the data alone."""
    max_video_frames: Annotated[int, Field(ge=2)] = 128
    """Most frames taken from a clip; longer clips are sampled evenly over their whole length."""
    video_sample_fps: Annotated[float, Field(gt=0)] = 2.0
    """Frames per second taken from a clip before the cap applies."""
    video_min_pixels: Positive = 128 * 32 * 32
    """Smallest height × width of a frame after resizing."""
    video_max_pixels: Positive = 768 * 32 * 32
    """Largest height × width of a frame after resizing."""
    audio_in_video: bool = True
    """Use a clip's sound track, interleaved with its frames by time; clips without one give picture only."""
    max_audio_seconds: Annotated[float, Field(gt=0)] | None = None
    """Longest sound taken from a file; longer sound is cut at its end and counted. Null: no cap."""
    sequence_length: Positive = 21504
    """Most tokens in one sample."""
    too_long: Literal["error", "report"] = "error"
    """A sample over `sequence_length`: `error` stops before step 1 naming it; `report` leaves it out and lists it."""
    packing: Packing = Packing()
    """Packing of samples into sequences."""
    workers: Annotated[int, Field(ge=0, le=256)] = 4
    """Loader processes per rank; 0 loads in the training process."""
    read_timeout: Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)] = 600.0
    """Seconds that a loader process may take to read one row before it is stopped and the run ends with an error that
    names the row. Nothing is stopped with `workers: 0`."""

    @property
    def train_files(self) -> list[TrainFile]:
        """`train` with the weight of each file."""
        return [TrainFile(path=entry) if isinstance(entry, str) else entry for entry in self.train]

    @property
    def train_paths(self) -> list[str]:
        """Names of the training files."""
        return [file.path for file in self.train_files]


class Optimizer(Section):
    """AdamW with linear warmup and cosine decay."""

    lr: Annotated[float, Field(gt=0)] = 5e-5
    """Peak learning rate, first used at the last warmup step."""
    min_lr: Annotated[float, Field(ge=0)] = 0.0
    """Learning rate at the end of the cosine."""
    warmup: Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Warmup: a whole number is steps, a number below 1 is a share of the run."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Decoupled weight decay (Loshchilov & Hutter, 2017, arXiv:1711.05101)."""
    betas: Annotated[list[float], Field(min_length=2, max_length=2)] = [0.9, 0.95]
    """Decay rates of the two moments."""
    eps: Annotated[float, Field(gt=0)] = 1e-8
    """Added to the denominator."""
    grad_clip: Annotated[float, Field(gt=0)] = 1.0
    """Largest global gradient norm."""


class Parallel(Section):
    """Ranks and how the model is spread over them. World size = nodes × devices_per_node."""

    nodes: Positive = 1
    """Machines."""
    devices_per_node: Positive = 8
    """Ranks on each machine (GPUs, or processes with `device: cpu`)."""
    tp: Positive = 1
    """Tensor parallel size."""
    pp: Positive = 1
    """Pipeline parallel size."""
    cp: Positive = 1
    """Context parallel size."""
    ep: Positive = 1
    """Expert parallel size."""
    strategy: Literal["fsdp2", "ddp", "megatron_fsdp"] = "fsdp2"
    """How parameters, gradients and optimizer states are spread over data-parallel ranks."""
    moe_dispatcher: Literal["torch", "deepep"] = "torch"
    """How tokens travel to experts: `deepep` needs NVLink or RDMA GPUs and the `gpu` extra."""


class Memory(Section):
    """What is traded for memory."""

    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    """Recompute activations in the backward pass: of no layer, of the cheap operations, of whole layers."""
    activation_offload: bool = False
    """Keep activations in host RAM between forward and backward."""
    optimizer_offload: bool = False
    """Keep optimizer states, and run the optimizer, in host RAM."""
    parameter_offload: bool = False
    """Keep sharded parameters in host RAM, brought in layer by layer."""
    optimizer_state_dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of Adam's moments."""


class Evaluation(Section):
    """Free generation on held-out rows."""

    batch_size: Positive = 8
    """Rows generated together."""
    max_new_tokens: Positive = 64
    """Longest answer, in tokens."""


class Logging(Section):
    """Where metrics go besides the progress bar and `metrics.jsonl`, which are always written."""

    interval: Positive = 1
    """Steps between log entries."""
    tensorboard: bool = True
    """Write TensorBoard events to `<output_dir>/tensorboard`."""
    wandb: Literal["disabled", "offline", "online"] = "disabled"
    """Weights & Biases; `online` without a key falls back to `offline` and says so."""
    wandb_project: str = "avlm"
    """W&B project."""
    wandb_entity: str | None = None
    """W&B team or user."""


class Recipe(Section):
    """One run: model, method, data, schedule, hardware."""

    name: Name
    """Short name of the run; used in reports, W&B and job names."""
    model: Model
    method: Method = Method()
    freeze: Freeze = Freeze()
    batch: Batch
    schedule: Schedule
    data: Data
    optimizer: Optimizer = Optimizer()
    parallel: Parallel = Parallel()
    memory: Memory = Memory()
    evaluation: Evaluation = Evaluation()
    logging: Logging = Logging()
    device: Literal["cuda", "cpu"] = "cuda"
    """What the ranks run on. `cpu` is for tiny models, tests and demos (gloo, float32)."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of data order, adapter initialisation and dropout."""
    output_dir: Name
    """Folder of this run: checkpoints, export, metrics, report."""
    automodel: dict[str, Any] = {}
    """Native AutoModel keys, dotted (`model.backend.attn: te`): set after translation, checked against AutoModel's
    own config classes. For knobs that no other stack has."""
    megatron_bridge: dict[str, Any] = {}
    """Native Megatron-Bridge keys, dotted."""
    zero_offload: dict[str, Any] = {}
    """Native DeepSpeed keys, dotted."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.parallel.nodes * self.parallel.devices_per_node

    @property
    def dp_size(self) -> int:
        """Data-parallel size: ranks that see different samples (expert parallelism lies inside it)."""
        p = self.parallel
        return self.world_size // (p.tp * p.pp * p.cp)
