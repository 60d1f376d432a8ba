"""A tiny Qwen3-Omni-MoE checkpoint with random weights, for demos and tests on a CPU.

The folder has the layout of a real checkpoint (thinker only): `config.json`, `model.safetensors` with keys
`thinker.*` and one weight per expert, tokenizer, processor, chat template, generation config. Architecture:
Qwen3-Omni (arXiv:2509.17765) as in transformers' `qwen3_omni_moe`, with two layers in every part.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from avlm.utils.folder import build_folder

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

FORMAT = 2
"""Raised whenever the files made from the same seed change."""

HIDDEN = 64
VOCABULARY = 640
EMBEDDING_STD = 0.02
SPECIAL_TOKENS = {
    "image_token": "<|image_pad|>",
    "audio_token": "<|audio_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}
CHAT_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SAMPLE_PIXELS = {"shortest_edge": 32 * 32, "longest_edge": 768 * 32 * 32}

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.content is string -%}{{- message.content -}}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- elif part.type == 'video' -%}{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}
{%- elif part.type == 'audio' -%}{{- '<|audio_start|><|audio_pad|><|audio_end|>' -}}
{%- elif part.type == 'text' -%}{{- part.text -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

CORPUS = """\
system
user
assistant
You are a helpful assistant that watches videos and listens to sounds.
What is shown in the video and what is heard in the audio? Describe the clip in one sentence.
Which two colors does the square have? Which color comes first? Which color comes last?
How high is the tone? Is the tone low, middle, high or top? Answer with one word.
Which of these fits the clip? Answer with the letter of the right option.
A. red and green
B. green and blue
C. blue and white
D. white and red
A. low tone, red square
B. high tone, red square
C. low tone, no red
D. high tone, no red
red
green
blue
white
black
yellow
orange
purple
low
middle
high
top
yes
no
left
right
up
down
before
after
The answer is A. The answer is B. The answer is C. The answer is D.
A
B
C
D
The square is red, then it is green. The circle is blue, then it is white. A sound is heard before the picture.
Where does it move: left, right, up or down? Who speaks first, and what happens next? When does it start and end?
How many people are in the room? There are two of them, and they talk about the music with each other.
The man plays the guitar while the woman sings. A dog runs across the street, and a car stops in front of it.
"""
"""Text that the tokenizer is trained on. Every byte is in the alphabet, so other text works too, in more tokens."""


def make_tiny(folder: str | Path, seed: int = 0) -> Literal["written", "reused"]:
    """Write a tiny checkpoint (about 600,000 parameters, float32) to `folder`; equal seeds give equal bytes.

    Returns "reused" when the folder already holds the model of this seed. Raises `UserError` when it holds anything
    else. Matrices and convolutions are normal with standard deviation 1 / sqrt(fan-in): with the library's 0.02 a
    model of this size does not learn from sound.
    """
    return build_folder(Path(folder), {"kind": "tiny qwen3_omni_moe", "format": FORMAT, "seed": seed}, _builder(seed))


def _builder(seed: int) -> Any:
    def build(folder: Path) -> None:
        tokenizer = build_tokenizer()
        _save_processor(tokenizer, folder)
        _save_model(tokenizer, folder, seed)

    return build


def build_tokenizer() -> PreTrainedTokenizerBase:
    """A byte-level BPE tokenizer of `VOCABULARY` tokens at most, with Qwen's special tokens and pre-tokenization."""
    from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
    from tokenizers import Tokenizer as Trainable
    from transformers import Qwen2Tokenizer

    special = [*CHAT_TOKENS, *SPECIAL_TOKENS.values()]
    pattern = Qwen2Tokenizer()._tokenizer.pre_tokenizer
    bpe = Trainable(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pattern
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe.train_from_iterator(
        CORPUS.splitlines(keepends=True),
        trainers.BpeTrainer(vocab_size=VOCABULARY - len(special), initial_alphabet=alphabet, show_progress=False),
    )
    model = json.loads(bpe.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=model["vocab"],
        merges=[tuple(m) for m in model["merges"]],
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=SPECIAL_TOKENS,
        model_max_length=32768,
    )
    tokenizer.add_tokens([AddedToken(t, special=True) for t in special])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _save_processor(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    from transformers import (
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
        Qwen3OmniMoeProcessor,
        WhisperFeatureExtractor,
    )

    vision: dict[str, Any] = {
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    processor = Qwen3OmniMoeProcessor(
        image_processor=Qwen2VLImageProcessor(**vision, size=dict(SAMPLE_PIXELS)),
        video_processor=Qwen2VLVideoProcessor(**vision, size=dict(SAMPLE_PIXELS), do_sample_frames=False),
        feature_extractor=WhisperFeatureExtractor(
            feature_size=128,
            sampling_rate=16_000,
            hop_length=160,
            n_fft=400,
            chunk_length=300,
            padding_side="right",
            return_attention_mask=True,
            dither=0.0,
        ),
        tokenizer=tokenizer,
        chat_template=CHAT_TEMPLATE,
    )
    processor.save_pretrained(folder)


def _save_model(tokenizer: PreTrainedTokenizerBase, folder: Path, seed: int) -> None:
    from safetensors.torch import save_file
    from transformers import GenerationConfig, Qwen3OmniMoeThinkerForConditionalGeneration

    config = build_config(tokenizer)
    model = Qwen3OmniMoeThinkerForConditionalGeneration._from_config(config.thinker_config)
    weights = dict(checkpoint_weights(initial_weights(model, seed)))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)
    GenerationConfig(
        eos_token_id=config.thinker_config.eos_token_id, pad_token_id=config.thinker_config.pad_token_id
    ).save_pretrained(folder)


def build_config(tokenizer: PreTrainedTokenizerBase) -> Any:
    """The `Qwen3OmniMoeConfig`: two layers in every part, width 64, 8 experts of which 2 are active."""
    from transformers import Qwen3OmniMoeConfig

    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in (*CHAT_TOKENS, *SPECIAL_TOKENS.values())}
    pad, end = ids["<|endoftext|>"], ids["<|im_end|>"]
    audio = {
        "num_mel_bins": 128,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 2 * HIDDEN,
        "d_model": HIDDEN,
        "max_source_positions": 1500,
        "n_window": 50,
        "n_window_infer": 800,
        "conv_chunksize": 500,
        "downsample_hidden_size": 16,
        "output_dim": HIDDEN,
    }
    vision = {
        "depth": 2,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_heads": 4,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": HIDDEN,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0],
    }
    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "moe_intermediate_size": HIDDEN // 2,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        # taken per micro-batch upstream: with it, losses would depend on how a batch is cut
        "router_aux_loss_coef": 0.0,
        "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1_000_000.0,
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
            "interleaved": True,
        },
        "pad_token_id": pad,
        "eos_token_id": end,
        "bos_token_id": pad,
    }
    thinker = {
        "audio_config": audio,
        "vision_config": vision,
        "text_config": text,
        "position_id_per_seconds": 13,
        "seconds_per_chunk": 2,
        "user_token_id": tokenizer.encode("user")[0],
        "pad_token_id": pad,
        "eos_token_id": end,
        "bos_token_id": pad,
        "audio_token_id": ids["<|audio_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "audio_start_token_id": ids["<|audio_start|>"],
        "audio_end_token_id": ids["<|audio_end|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "dtype": "float32",
    }
    config = Qwen3OmniMoeConfig(thinker_config=thinker, enable_audio_output=False, dtype="float32")
    config.architectures = ["Qwen3OmniMoeForConditionalGeneration"]
    return config


def initial_weights(model: torch.nn.Module, seed: int) -> dict[str, torch.Tensor]:
    """Random weights for every entry of the model's state dict, drawn in the order of their names.

    Embeddings: normal, standard deviation `EMBEDDING_STD`. Other vectors: norm scales 1, biases 0. Everything else:
    normal, 1 / sqrt(fan-in), where a stack of experts [E, out, in] has fan-in `in`.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    embeddings = {f"{n}.weight" for n, m in model.named_modules() if isinstance(m, torch.nn.Embedding)}
    weights = {}
    for name, value in sorted(model.state_dict().items()):
        if value.dim() < 2:
            weights[name] = torch.zeros_like(value) if name.endswith("bias") else torch.ones_like(value)
            continue
        fan_in = value.shape[-1] if value.dim() == 3 else value[0].numel()
        std = EMBEDDING_STD if name in embeddings else fan_in**-0.5
        weights[name] = torch.empty(value.shape, dtype=torch.float32).normal_(0.0, std, generator=generator)
    return weights


def checkpoint_weights(weights: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """The names and shapes of a released checkpoint: prefix `thinker.`, each expert's matrices on their own."""
    for name, value in weights.items():
        if name.endswith(".experts.gate_up_proj"):
            stem = name.removesuffix("gate_up_proj")
            for i, expert in enumerate(value):
                gate, up = expert.chunk(2, dim=0)
                yield f"thinker.{stem}{i}.gate_proj.weight", gate.contiguous()
                yield f"thinker.{stem}{i}.up_proj.weight", up.contiguous()
        elif name.endswith(".experts.down_proj"):
            stem = name.removesuffix("down_proj")
            for i, expert in enumerate(value):
                yield f"thinker.{stem}{i}.down_proj.weight", expert.clone()
        else:
            yield f"thinker.{name}", value
