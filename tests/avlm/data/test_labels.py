from __future__ import annotations

import pytest

from avlm.data.collate import collate
from avlm.data.labels import has_generation_markers, pieces_of_spans
from avlm.data.types import IGNORE
from avlm.errors import UserError
from tests.avlm.data.toy import CONV, SHORT, TEMPLATE, WORDS, toy_chat, toy_row, toy_sample, toy_tokenizer

END = WORDS.index("<im_end>")
MARKED = TEMPLATE.replace(
    "m.content + ' <im_end> ' }}",
    "'' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content + ' <im_end>' }}{% endgeneration %}"
    "{% else %}{{ m.content + ' <im_end>' }}{% endif %}{{ ' ' }}",
)
MARKED_ANSWER_ONLY = TEMPLATE.replace(
    "m.content + ' <im_end> ' }}",
    "'' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{{ ' <im_end> ' }}",
)
NEWLINE = TEMPLATE.replace("' <im_end> '", "' <im_end>\\n'")


@pytest.mark.parametrize("template", [TEMPLATE, MARKED, MARKED_ANSWER_ONLY])
def test_case_b1_assistant_turns_with_their_end_and_nothing_else(template: str) -> None:
    sample = toy_sample(CONV, template)
    assert len(sample.input_ids) == 24
    supervised = (sample.labels != IGNORE).nonzero().flatten().tolist()
    assert supervised == [11, 12, 13, 20, 21, 22, 23]
    assert toy_tokenizer().decode(sample.labels[supervised]) == "c d <im_end> f g h <im_end>"
    assert (sample.labels[supervised] == sample.input_ids[supervised]).all()


def test_case_b2_end_of_turn_is_supervised_though_it_is_the_pad_token() -> None:
    tokenizer = toy_tokenizer()
    assert tokenizer.pad_token_id == END
    batch = collate([toy_sample(CONV), toy_sample(SHORT)], tokenizer.pad_token_id)
    assert batch["input_ids"].shape == (2, 24)
    assert batch["attention_mask"].sum(1).tolist() == [24, 8]
    labels = batch["labels"]
    assert (labels == END).sum(1).tolist() == [2, 1]
    assert (labels != IGNORE).sum() == 9
    assert (labels[1, 8:] == IGNORE).all()
    # stored shifted by one: case positions minus one
    assert (labels[0] != IGNORE).nonzero().flatten().tolist() == [10, 11, 12, 19, 20, 21, 22]


def test_what_stands_behind_the_end_of_turn_is_not_supervised() -> None:
    pieces = toy_chat(NEWLINE).pieces(toy_row(SHORT))
    assert [(p.text, p.supervised) for p in pieces] == [
        ("<im_start> user a <im_end>\n<im_start> assistant ", False),
        ("c <im_end>", True),
        ("\n", False),
    ]


def test_pieces_join_to_the_rendered_conversation_and_start_with_the_prompt() -> None:
    chat, row = toy_chat(), toy_row(CONV)
    pieces = chat.pieces(row)
    messages = [{"role": role, "content": text} for role, text in CONV]
    assert "".join(p.text for p in pieces) == chat.render(messages, False)
    assert [p.supervised for p in pieces] == [False, True, False, True, False]
    assert "".join(p.text for p in pieces[:3]) == chat.prompt(row)


def test_an_end_of_turn_inside_the_answer_does_not_end_the_span() -> None:
    sample = toy_sample([("user", "a"), ("assistant", "c <im_end> d")])
    assert toy_tokenizer().decode(sample.labels[sample.labels != IGNORE]) == "c <im_end> d <im_end>"


def test_a_template_that_rewrites_earlier_turns_is_refused() -> None:
    forgetful = TEMPLATE.replace("m.content +", "(m.content if loop.last or m.role != 'assistant' else 'h') +")
    assert len(toy_chat(forgetful).pieces(toy_row(SHORT))) == 3
    with pytest.raises(UserError, match=r"assistant turn 3(.|\n)*generation"):
        toy_chat(forgetful).pieces(toy_row(CONV))


def test_a_template_whose_header_differs_from_the_generation_prompt_is_refused() -> None:
    other = TEMPLATE.replace("'<im_start> assistant '", "'<im_start> system '")
    with pytest.raises(UserError, match="rewrites"):
        toy_chat(other).pieces(toy_row(SHORT))


def test_a_template_without_end_of_turn_is_refused() -> None:
    endless = TEMPLATE.replace(" <im_end> ", " ")
    with pytest.raises(UserError, match="never learn to stop"):
        toy_chat(endless).pieces(toy_row(SHORT))
    with pytest.raises(UserError, match="never learn to stop"):
        pieces_of_spans("<im_start> c e <im_end>", [(11, 12)], ["<im_end>"])


def test_generation_markers_are_found() -> None:
    assert has_generation_markers(MARKED)
    assert has_generation_markers("{%- generation -%}")
    assert not has_generation_markers(TEMPLATE)
