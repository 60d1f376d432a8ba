"""A checkpoint's chat template: conversation -> text, cut where supervision starts and stops."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from avlm.data.labels import (
    Messages,
    Piece,
    generation_prompt,
    has_generation_markers,
    pieces_of_spans,
    supervised_pieces,
)
from avlm.data.rows import where
from avlm.data.types import Row, Text
from avlm.errors import UserError


class ChatTemplate:
    """Renders rows with a Jinja chat template, as `apply_chat_template` of transformers does.

    Every turn is given as a list of items where the template takes lists, also when it is text alone: templates that
    tell the two apart (Qwen3-Omni's does, for reasoning) would render text rows in another form than media rows.

    template: Jinja source. special_tokens: names the template may use (`eos_token`, …). end_of_turn: texts of the
    tokens that end a turn. control_tokens: texts that the tokenizer turns into one special token each; a row may not
    contain them, for they would act as structure. join: makes one text of the items of a turn, `{"type": "text",
    "text": …}` or `{"type": kind, kind: name}`, for templates that take texts only. opening: beginning of the answers
    that the generation prompt already holds (the mark of reasoning), so that it is not supervised.
    """

    def __init__(
        self,
        template: str,
        special_tokens: Mapping[str, Any],
        end_of_turn: Sequence[str],
        control_tokens: Sequence[str] = (),
        join: Callable[[Sequence[Mapping[str, Any]]], str] | None = None,
        opening: str = "",
    ) -> None:
        self.template = template
        self.special_tokens = dict(special_tokens)
        self.end_of_turn = tuple(end_of_turn)
        self._join, self._opening = join, opening
        self._marked = has_generation_markers(template)
        longest_first = sorted(control_tokens, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def pieces(self, row: Row) -> list[Piece]:
        """The whole conversation with its answers, cut into supervised and other pieces."""
        messages = self._messages(row)
        if self._marked:
            text, spans = self._render(messages, marks=True)
            pieces = pieces_of_spans(text, spans, self.end_of_turn)
        else:
            pieces = supervised_pieces(messages, self.render, self.end_of_turn)
        self._check_answers(row, [piece.text for piece in pieces if piece.supervised])
        return pieces

    def prompt(self, row: Row) -> str:
        """The conversation up to the header of its last assistant turn: what generation starts from."""
        return generation_prompt(self._messages(row)[:-1], self.render)

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
            text_only = all(item["type"] == "text" for item in items)
            as_string = text_only and self._join is None and not self._takes_lists
            content: Any = "".join(item["text"] for item in items) if as_string else items
            if self._join is not None:
                content = self._join(items)
            messages.append({"role": turn.role, "content": content})
        return messages

    @cached_property
    def _takes_lists(self) -> bool:
        """Whether the template writes the text of a list of items, as that of a multimodal model does."""
        probe = "text of the item"
        try:
            text = self.render([{"role": "user", "content": [{"type": "text", "text": probe}]}], False)
        except Exception:  # whatever a template does with a value that it does not expect
            return False
        return probe in text and "'type'" not in text

    def _check_answers(self, row: Row, answers: Sequence[str]) -> None:
        """Each assistant turn must be rendered whole: some templates cut reasoning out of answers."""
        turns = [turn for turn in row.turns if turn.role == "assistant"]
        for turn, answer in zip(turns, answers, strict=True):
            text = "".join(part.text for part in turn.parts if isinstance(part, Text)).strip()
            if text not in self._opening + answer:
                raise UserError(
                    f"{where(row)}: the chat template does not write the assistant's answer as it is: {_short(text)!r} "
                    f"became {_short(answer)!r}; train on other answers, or change the checkpoint's chat template"
                )

    def _check_text(self, text: str, row: Row) -> None:
        found = self._control.search(text) if self._control else None
        if found:
            raise UserError(
                f"{where(row)}: the text contains {found.group()!r}, a control token "
                "of the model, which would act as structure; take it out or write it differently"
            )


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "…"
