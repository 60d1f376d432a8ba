"""The files of a Nemotron-3-Nano-Omni checkpoint that the processor reads, in small: no weights, no Python code.

The special tokens have the published ids. The chat template is written after what the published one does: ChatML, a
system turn always, `<think></think>` before answers without reasoning, reasoning cut from earlier answers unless
`truncate_history_thinking` is off, media of a list of items before its text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PICTURE, SOUND = 18, 27
IDS = {
    0: "<unk>",
    1: "<s>",
    2: "</s>",
    10: "<|im_start|>",
    11: "<|im_end|>",
    12: "<think>",
    13: "</think>",
    18: "<image>",
    19: "<img>",
    20: "</img>",
    27: "<so_embedding>",
    28: "<so_start>",
    29: "<so_end>",
}

CONFIG: dict[str, Any] = {
    "model_type": "NemotronH_Nano_Omni_Reasoning_V3",
    "architectures": ["NemotronH_Nano_Omni_Reasoning_V3"],
    "patch_size": 16,
    "downsample_ratio": 0.5,
    "img_context_token_id": PICTURE,
    "video_context_token_id": 131081,
    "sound_context_token_id": SOUND,
    "video_temporal_patch_size": 2,
    "llm_config": {"pad_token_id": 0},
    "sound_config": {"num_mel_bins": 128, "subsampling_factor": 8, "sampling_rate": 16000},
}
PREPROCESSOR = {"patch_size": 16, "downsample_ratio": 0.5, "min_num_patches": 1024, "max_num_patches": 13312}

CHAT_TEMPLATE = """\
{%- set thinks = enable_thinking if enable_thinking is defined else True -%}
{%- set cut = truncate_history_thinking if truncate_history_thinking is defined else True -%}
{%- set last = namespace(user=-1) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set last.user = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- set rest = messages -%}
{%- if messages[0].role == 'system' -%}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' -}}
{%- else -%}{{- '<|im_start|>system\\n<|im_end|>\\n' -}}{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'system' -%}{%- continue -%}{%- endif -%}
{%- set made = namespace(text='', images=0, videos=0, sounds=0, media='') -%}
{%- if m.content is string -%}{%- set made.text = m.content -%}
{%- else -%}
{%- for item in m.content -%}
{%- if item.type == 'image' -%}{%- set made.images = made.images + 1 -%}
{%- elif item.type == 'video' -%}{%- set made.videos = made.videos + 1 -%}
{%- elif item.type == 'audio' -%}{%- set made.sounds = made.sounds + 1 -%}
{%- else -%}{%- set made.text = made.text + item.text -%}{%- endif -%}
{%- endfor -%}
{%- if made.images == 1 -%}{%- set made.media = '<image>\\n' -%}
{%- elif made.images > 1 -%}
{%- for number in range(1, made.images + 1) -%}
{%- set made.media = made.media + '<image ' + number|string + '><image>' + ('\\n' if loop.last else ' ') -%}
{%- endfor -%}
{%- endif -%}
{%- set made.media = made.media + '<video>\\n' * made.videos + '<so_embedding>\\n' * made.sounds -%}
{%- set made.text = made.media + made.text.lstrip('\\n') -%}
{%- endif -%}
{%- if m.role == 'assistant' -%}
{%- if '<think>' not in made.text -%}{%- set made.text = '<think></think>' + made.text -%}
{%- elif cut and loop.index0 < last.user -%}
{%- set made.text = '<think></think>' + made.text.split('</think>')[-1] -%}
{%- endif -%}
{%- endif -%}
{{- '<|im_start|>' + m.role + '\\n' + made.text.strip() + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n<think>\\n' if thinks else '<|im_start|>assistant\\n<think></think>' -}}
{%- endif -%}
"""

CORPUS = [
    "system user assistant",
    *(f"Frame {n} sampled at {n / 2:.2f} seconds and frame {n + 1} sampled at {n / 3:.2f} seconds: " for n in range(9)),
    "What is shown in the picture and what is heard? Which comes first, the red or the green square?\n",
]


def write_checkpoint(folder: Path, config: dict[str, Any] | None = None, template: str | None = CHAT_TEMPLATE) -> Path:
    """Write the files to `folder`; `config` is set over `CONFIG`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = [IDS.get(number, f"<SPECIAL_{number}>") for number in range(32)]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(CORPUS, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, unk_token="<unk>", bos_token="<s>", eos_token="<|im_end|>", pad_token="<unk>"
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    return folder
