"""A tokenizer with one id per word, its chat template, and text-only samples made with it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from avlm.data.chat import ChatTemplate
from avlm.data.labels import supervised_mask
from avlm.data.types import IGNORE, Role, Row, Sample, Text, Turn

WORDS = ["[UNK]", "<im_start>", "<im_end>", "system", "user", "assistant", "S", "a", "b", "c", "d", "e", "f", "g", "h"]
TEMPLATE = (
    "{% for m in messages %}{{ '<im_start> ' + m.role + ' ' + m.content + ' <im_end> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<im_start> assistant ' }}{% endif %}"
)
CONV = (("system", "S"), ("user", "a b"), ("assistant", "c d"), ("user", "e"), ("assistant", "f g h"))
SHORT = (("user", "a"), ("assistant", "c"))


@cache
def toy_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # padding with the end-of-turn token, as in case B2
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="[UNK]", eos_token="<im_end>", pad_token="<im_end>"
    )


def toy_row(turns: Sequence[tuple[Role, str]], id: str = "row", line: int = 1) -> Row:
    return Row(id, tuple(Turn(role, (Text(text),)) for role, text in turns), "toy.jsonl", line)


def toy_chat(template: str = TEMPLATE) -> ChatTemplate:
    return ChatTemplate(template, {}, ["<im_end>"])


def toy_sample(turns: Sequence[tuple[Role, str]], template: str = TEMPLATE, id: str = "row") -> Sample:
    tokenizer = toy_tokenizer()
    pieces = toy_chat(template).pieces(toy_row(turns))
    ids, mask = supervised_mask(pieces, lambda text: tokenizer.encode(text, add_special_tokens=False))
    input_ids = torch.tensor(ids)
    labels = torch.where(torch.tensor(mask), input_ids, IGNORE)
    return Sample(id, input_ids, labels, torch.arange(len(ids)))
