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


def test_control_tokens_in_text_are_refused() -> None:
    row = toy_row([("user", "look: <|video_pad|>"), ("assistant", "c")], id="r", line=7)
    with pytest.raises(UserError, match=r"toy.jsonl:7: row 'r': the text contains '<\|video_pad\|>'"):
        chat(control_tokens=["<|video|>", "<|video_pad|>"]).pieces(row)
    assert chat(control_tokens=["<|video|>"]).pieces(row)


def test_errors_of_the_template_are_told() -> None:
    strict = ChatTemplate("{{ raise_exception('no system turns') }}", {}, ["</s>"])
    with pytest.raises(UserError, match="chat template: no system turns"):
        strict.pieces(toy_row(SHORT))
