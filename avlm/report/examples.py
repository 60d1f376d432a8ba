"""Which rows are shown, and what is said about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from avlm.eval.answers import Choice, Scored, find_choices, parse_choice, stem
from avlm.eval.metrics import NO_CLASS, score_prediction
from avlm.report.pictures import View

COUNT = 6
"""Examples on the page."""
LONGEST = 600
"""Characters of an answer that are shown."""

Predictions = Mapping[str, Mapping[str, Any]]


@dataclass
class Answer:
    """One answer on a card: when it was given, its text, and the verdict in words and as a truth value."""

    when: str
    text: str
    mark: str
    correct: bool


@dataclass
class Example:
    """A card: the row, its pictures (or why there are none), its options and the answers."""

    id: str
    label: str
    question: str
    reference: str
    media: list[dict[str, str]]
    choices: list[dict[str, Any]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    views: list[View] = field(default_factory=list)
    no_views: str = ""


def choose(predictions: Mapping[str, Predictions], count: int = COUNT) -> list[str]:
    """Ids of up to `count` rows: classes in turn, rows that training changed first, each medium once where possible.

    When the trained model answers any row wrong, one such row is among them. Depends on the predictions alone.
    """
    last = predictions.get("after") or predictions.get("before") or {}
    before = predictions.get("before", {})
    verdicts = {id: score_prediction(row).correct for id, row in last.items()}
    earlier = {id: score_prediction(before[id]).correct for id in last if id in before}
    by_class: dict[str, list[str]] = {}
    for id, row in last.items():
        by_class.setdefault(row.get("class") or NO_CLASS, []).append(id)
    for ids in by_class.values():
        ids.sort(key=lambda id: not (verdicts[id] and earlier.get(id) is False))
    chosen: list[str] = []
    used: set[str] = set()
    while len(chosen) < count and any(by_class.values()):
        for label in sorted(by_class):
            ids = by_class[label]
            if not ids or len(chosen) == count:
                continue
            fresh = [id for id in ids if not used & set(_names(last[id]))]
            chosen.append((fresh or ids)[0])
            used |= set(_names(last[chosen[-1]]))
            ids.remove(chosen[-1])
    wrong = [id for id, correct in verdicts.items() if not correct]
    if chosen and wrong and not set(wrong) & set(chosen):
        chosen[-1] = wrong[0]
    return chosen


def describe(id: str, predictions: Mapping[str, Predictions]) -> Example:
    """The card of row `id`, without pictures."""
    shown = {when: predictions[when][id] for when in ("before", "after") if id in predictions.get(when, {})}
    row = next(iter(shown.values()))
    listed = row.get("choices")
    choices = find_choices(row["question"]) if listed is None else tuple(Choice(k, v) for k, v in listed.items())
    wanted = parse_choice(row["reference"], choices) if choices else None
    return Example(
        id=id,
        label=row.get("class") or NO_CLASS,
        question=stem(row["question"]) if find_choices(row["question"]) else row["question"],
        reference=f"{wanted.letter}. {wanted.text}" if wanted else row["reference"],
        media=[ref for ref in row.get("media") or [] if isinstance(ref, dict)],
        choices=[{"letter": c.letter, "text": c.text, "reference": c == wanted} for c in choices],
        answers=[_answer(when, one) for when, one in shown.items()],
    )


def _answer(when: str, row: Mapping[str, Any]) -> Answer:
    scored: Scored = score_prediction(row)
    text = row["answer"]
    if text is None:
        text = f"(left out: {row.get('skipped') or 'no answer'})"
    elif not text.strip():
        text = "(empty)"
    elif len(text) > LONGEST:
        text = f"{text[:LONGEST]}… ({len(text):,} characters)"
    mark = "✓ right" if scored.correct else "✗ unanswered" if scored.answer is None else "✗ wrong"
    return Answer(when.capitalize(), text, mark, scored.correct)


def _names(row: Mapping[str, Any]) -> list[str]:
    return [ref["path"] for ref in row.get("media") or [] if isinstance(ref, dict) and "path" in ref]
