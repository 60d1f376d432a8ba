from __future__ import annotations

from pathlib import Path

import pytest

from avlm.data.chat import ChatTemplate
from avlm.data.types import MediaRef, Row, Text, Turn
from avlm.errors import UserError
from tests.avlm.data.toy import SHORT, toy_row

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content %}{{ c.text if c.type == 'text' else '<' + c.type + '>' }}{% endfor %}{% endif %}{{ end }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def chat(**keys: object) -> ChatTemplate:
    return ChatTemplate(TEMPLATE, {"end": "</s>"}, ["</s>"], **keys)  # type: ignore[arg-type]


def test_media_and_text_keep_their_order() -> None:
    video = MediaRef("video", Path("/m/a.mp4"), "a.mp4")
    sound = MediaRef("audio", Path("/m/b.wav"), "b.wav")
    turns = (Turn("user", (Text("x"), video, Text("y"), sound)), Turn("assistant", (Text("z"),)))
    row = Row("r", turns, "f.jsonl", 3)
    assert "".join(p.text for p in chat().pieces(row)) == "[user]x<video>y<audio></s>[assistant]z</s>"
    assert chat().prompt(row) == "[user]x<video>y<audio></s>[assistant]"


REASONING = (
    "{%- set ns = namespace(query=messages|length - 1) -%}"
    "{%- for m in messages -%}{%- if m.role == 'user' and m.content is string -%}{%- set ns.query = loop.index0 -%}"
    "{%- endif -%}{%- endfor -%}"
    "{%- for m in messages -%}"
    "{%- set text = m.content if m.content is string else m.content|map(attribute='text')|join -%}"
    "{{- '[' + m.role + ']' -}}"
    "{%- if m.role == 'assistant' and loop.index0 > ns.query -%}{{- '<think></think>' + text -}}"
    "{%- elif m.role == 'assistant' -%}{{- text.split('</think>')[-1] -}}"
    "{%- else -%}{{- text -}}{%- endif -%}{{- '</s>' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '[assistant]' -}}{%- endif -%}"
)
"""Like Qwen3-Omni's: reasoning stands in answers behind the last user turn that is a string, and is cut elsewhere."""


def test_text_rows_are_rendered_like_media_rows() -> None:
    chat = ChatTemplate(REASONING, {}, ["</s>"])
    row = toy_row([("system", "S"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")])
    pieces = chat.pieces(row)
    assert "".join(p.text for p in pieces) == "[system]S</s>[user]a</s>[assistant]b</s>[user]c</s>[assistant]d</s>"
    assert [p.text for p in pieces if p.supervised] == ["b</s>", "d</s>"]


def test_an_answer_that_the_template_cuts_is_refused() -> None:
    chat = ChatTemplate(REASONING, {}, ["</s>"])
    with pytest.raises(UserError, match=r"toy.jsonl:1: row 'row': .*'<think>x</think>b' became 'b</s>'"):
        chat.pieces(toy_row([("user", "a"), ("assistant", "<think>x</think>b")]))


@pytest.mark.parametrize("content", ["m.content", "m.content|trim", "'' + m.content", "m.content.replace('x', 'y')"])
def test_templates_for_text_get_strings(content: str) -> None:
    template = "{% for m in messages %}[{{ m.role }}]{{ " + content + " }}</s>{% endfor %}"
    template += "{% if add_generation_prompt %}[assistant]{% endif %}"
    pieces = ChatTemplate(template, {}, ["</s>"]).pieces(toy_row(SHORT))
    assert "".join(p.text for p in pieces) == "[user]a</s>[assistant]c</s>"


def test_a_template_without_generation_prompt_is_refused() -> None:
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>{% endfor %}"
    with pytest.raises(UserError, match="add_generation_prompt adds nothing"):
        ChatTemplate(template, {}, ["</s>"]).pieces(toy_row(SHORT))
    with pytest.raises(UserError, match="add_generation_prompt adds nothing"):
        ChatTemplate(template, {}, ["</s>"]).prompt(toy_row(SHORT))


def test_control_tokens_in_text_are_refused() -> None:
    row = toy_row([("user", "look: <|video_pad|>"), ("assistant", "c")], id="r", line=7)
    with pytest.raises(UserError, match=r"toy.jsonl:7: row 'r': the text contains '<\|video_pad\|>'"):
        chat(control_tokens=["<|video|>", "<|video_pad|>"]).pieces(row)
    assert chat(control_tokens=["<|video|>"]).pieces(row)


def test_errors_of_the_template_are_told() -> None:
    strict = ChatTemplate("{{ raise_exception('no system turns') }}", {}, ["</s>"])
    with pytest.raises(UserError, match="chat template: no system turns"):
        strict.pieces(toy_row(SHORT))
