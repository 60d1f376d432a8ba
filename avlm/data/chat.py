"""A checkpoint's chat template: conversation -> text, cut where supervision starts and stops."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from avlm.data.labels import Messages, Piece, has_generation_markers, pieces_of_spans, supervised_pieces
from avlm.data.rows import where
from avlm.data.types import Row, Text
from avlm.errors import UserError


class ChatTemplate:
    """Renders rows with a Jinja chat template, as `apply_chat_template` of transformers does.

    template: Jinja source. special_tokens: names the template may use (`eos_token`, …). end_of_turn: texts of the
    tokens that end a turn. control_tokens: texts that the tokenizer turns into one special token each; a row may not
    contain them, for they would act as structure.
    """

    def __init__(
        self,
        template: str,
        special_tokens: Mapping[str, Any],
        end_of_turn: Sequence[str],
        control_tokens: Sequence[str] = (),
    ) -> None:
        self.template = template
        self.special_tokens = dict(special_tokens)
        self.end_of_turn = tuple(end_of_turn)
        self._marked = has_generation_markers(template)
        longest_first = sorted(control_tokens, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def pieces(self, row: Row) -> list[Piece]:
        """The whole conversation with its answers, cut into supervised and other pieces."""
        messages = self._messages(row)
        if not self._marked:
            return supervised_pieces(messages, self.render, self.end_of_turn)
        text, spans = self._render(messages, marks=True)
        return pieces_of_spans(text, spans, self.end_of_turn)

    def prompt(self, row: Row) -> str:
        """The conversation up to the header of its last assistant turn: what generation starts from."""
        return self.render(self._messages(row)[:-1], True)

    def render(self, messages: Messages, add_generation_prompt: bool) -> str:
        """Text of `messages`; `add_generation_prompt` appends the header of an assistant turn."""
        return self._render(messages, add_generation_prompt=add_generation_prompt)[0] if messages else ""

    def _render(
        self, messages: Messages, *, add_generation_prompt: bool = False, marks: bool = False
    ) -> tuple[str, list[tuple[int, int]]]:
        from jinja2 import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            texts, spans = render_jinja_template(
                [messages],
                chat_template=self.template,
                add_generation_prompt=add_generation_prompt,
                return_assistant_tokens_mask=marks,
                **self.special_tokens,
            )
        except TemplateError as error:
            raise UserError(f"chat template: {error}") from error
        return texts[0], [tuple(span) for span in spans[0]] if marks else []

    def _messages(self, row: Row) -> Messages:
        messages: Messages = []
        for turn in row.turns:
            items: list[dict[str, Any]] = []
            for part in turn.parts:
                if isinstance(part, Text):
                    self._check_text(part.text, row)
                    items.append({"type": "text", "text": part.text})
                else:
                    items.append({"type": part.kind, part.kind: part.name})
            plain = len(items) == 1 and items[0]["type"] == "text"
            messages.append({"role": turn.role, "content": items[0]["text"] if plain else items})
        return messages

    def _check_text(self, text: str, row: Row) -> None:
        found = self._control.search(text) if self._control else None
        if found:
            raise UserError(
                f"{where(row)}: the text contains {found.group()!r}, a control token "
                "of the model, which would act as structure; take it out or write it differently"
            )
