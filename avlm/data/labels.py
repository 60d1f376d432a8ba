"""Which tokens are supervised: the text of every assistant turn and the end-of-turn token after it, nothing else.

The chat template decides where a turn starts and ends, so the spans are found in its output, not by searching for
token ids: the pad id may equal the end-of-turn id, and an answer may contain anything. A template that marks
`{% generation %}` says itself what the assistant writes. Otherwise turn i lies between two renderings,

    template(turns before i, add_generation_prompt=True)  and  template(turns up to i),

which holds when each is a prefix of the rendering of the whole conversation; that is verified for every row.

The text is cut at the borders of the spans before it is tokenised. So the ids before an answer are exactly the ids of
the prompt that generation starts from, and no token is half header, half answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from avlm.errors import UserError

Messages = list[dict[str, Any]]
Render = Callable[[Messages, bool], str]
"""(messages, add_generation_prompt) -> text of the chat template."""

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True)
class Piece:
    """A stretch of the rendered conversation that is supervised from its first to its last token, or not at all."""

    text: str
    supervised: bool


def has_generation_markers(template: str) -> bool:
    """Whether a Jinja chat template marks what the assistant writes with `{% generation %}`."""
    return bool(_GENERATION.search(template))


def supervised_pieces(messages: Messages, render: Render, end_of_turn: Sequence[str]) -> list[Piece]:
    """Cut the rendered conversation into supervised and other pieces; joined, they are `render(messages, False)`.

    For templates without generation markers. `end_of_turn`: texts of the tokens that end a turn. Raises `UserError`
    when the template has no generation prompt, changes earlier turns once later ones follow, or ends an assistant turn
    without such a token.
    """
    whole = render(messages, False)
    spans = []
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = generation_prompt(messages[:index], render)
        after = render(messages[: index + 1], False)
        if not after.startswith(before) or not whole.startswith(after):
            raise UserError(
                f"chat template: the rendering up to assistant turn {index + 1} is not the beginning of the rendering "
                "of the whole conversation (the template rewrites earlier turns, as some reasoning templates do), so "
                "what the assistant wrote cannot be told from what was given; mark it with "
                "{% generation %} … {% endgeneration %} in the checkpoint's chat template"
            )
        spans.append((len(before), len(after)))
    return pieces_of_spans(whole, spans, end_of_turn)


def generation_prompt(messages: Messages, render: Render) -> str:
    """`messages` and the header of an assistant turn. Raises `UserError` when the template does not write it."""
    text = render(messages, True)
    if messages and text == render(messages, False):
        raise UserError(
            "chat template: add_generation_prompt adds nothing, so the header of an assistant turn cannot be told from "
            "its text; end the checkpoint's template with {% if add_generation_prompt %}…{% endif %}"
        )
    return text


def pieces_of_spans(text: str, spans: Sequence[tuple[int, int]], end_of_turn: Sequence[str]) -> list[Piece]:
    """Cut `text` at assistant spans (character offsets, end exclusive), each trimmed to its end-of-turn token.

    What stands behind the end-of-turn token in a span (a newline, usually) is not supervised. A span that stops short
    of the token, as generation markers around the bare answer do, is extended by it. Raises `UserError` when no
    end-of-turn token follows the answer.
    """
    pieces: list[Piece] = []
    done = 0
    for start, stop in spans:
        end = _end_of_turn(text, start, stop, end_of_turn)
        pieces += [Piece(text[done:start], False), Piece(text[start:end], True)]
        done = end
    pieces.append(Piece(text[done:], False))
    return [piece for piece in pieces if piece.text]


def _end_of_turn(text: str, start: int, stop: int, end_of_turn: Sequence[str]) -> int:
    """Offset just behind the end-of-turn token of the answer in `text[start:stop]`."""
    inside = [(text.rfind(token, start, stop), len(token)) for token in end_of_turn]
    at, length = max(inside, default=(-1, 0))
    if at >= 0 and not text[at + length : stop].strip():
        return at + length
    rest = text[stop:]
    blank = len(rest) - len(rest.lstrip(" "))
    for token in end_of_turn:
        if rest[blank:].startswith(token):
            return stop + blank + len(token)
    raise UserError(
        f"chat template: an assistant turn ends without an end-of-turn token ({', '.join(end_of_turn)}); a model "
        f"trained on it would never learn to stop. It ends with {text[max(start, stop - 30) : stop]!r}"
    )


def supervised_mask(pieces: Sequence[Piece], encode: Callable[[str], list[int]]) -> tuple[list[int], list[bool]]:
    """Token ids of all pieces, and for each token whether it is supervised.

    `encode` turns text into ids without adding special tokens of its own.
    """
    ids: list[int] = []
    mask: list[bool] = []
    for piece in pieces:
        tokens = encode(piece.text)
        ids += tokens
        mask += [piece.supervised] * len(tokens)
    return ids, mask
