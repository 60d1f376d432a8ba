"""Reading answers: which option of a multiple-choice question is meant, and when a short answer equals its reference.

The rules are strict and written down, so that accuracy means the same before and after training: what cannot be read as
exactly one option is *unanswered*, never guessed. Short answers are compared after the usual normalisation of visual
question answering (case, punctuation, articles, number words; Antol et al., 2015, arXiv:1505.00468).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_ARTICLES = {"a", "an", "the"}
_NUMBERS = {
    word: str(value)
    for value, word in enumerate(
        ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    )
}
_LEAD_IN = re.compile(
    r"^(?:so|therefore|thus|hence|well)?,?\s*"
    r"(?:(?:the|my)\s+)?(?:(?:final|correct|right|best)\s+)?(?:answer|option|choice)\s*(?:is\s*:?|:|=)\s*",
    re.IGNORECASE,
)
_SHORT_LEAD_IN = re.compile(r"^(?:it\s+is|it['\u2019]s|this\s+is|that\s+is)\s+", re.IGNORECASE)
_CUE = re.compile(r"\b(?:answer|option|choice)\s*(?:is\s*:?|:|=)\s*", re.IGNORECASE)
_NAMED = re.compile(r"^(?:option|choice|answer|letter)\s+(?=[(\[]?[A-Za-z]\b)", re.IGNORECASE)
_HEAD = re.compile(r"^[(\[]?([A-Za-z])(?:[)\].:,;]+\s*|\s+[\u2013\u2014-]\s+|$)(.*)$", re.DOTALL)
_NEGATION = re.compile(r"\b(?:not|nor|neither|never|except|cannot|none|\w+n['\u2019]t)\b", re.IGNORECASE)
_BRACKETED = re.compile(r"[(\[]([A-Za-z])[)\]]|(?<![\w'\u2019])([A-Za-z])\)")
_BARE = re.compile(r"(?<![\w'\u2019])([B-HJ-Z])(?![\w'\u2019])")
_BARE_WORDLIKE = re.compile(
    r"(?<![\w'\u2019])([AI])(?=\s*(?:$|[.,;:!?)\]]|(?:is|was|and|or|because|since|seems)\b))(?!\.\w)"
)
_REFUSAL = re.compile(
    r"(?:sorry )?(?:i am |im )?(?:really )?(?:not sure|unsure|uncertain)(?: .*)?"
    r"|(?:sorry )?i (?:do not|dont|cannot|can not|cant|could not)(?: really)?"
    r" (?:know|tell|say|answer|determine|see|hear)(?: .*)?"
    r"|(?:it )?(?:cannot|can not|cant) be (?:determined|answered|known)(?: .*)?"
    r"|do not know|dont know|no idea|no answer"
)


@dataclass(frozen=True)
class Choice:
    """An option of a question: its letter (upper case) and its text."""

    letter: str
    text: str


@dataclass(frozen=True)
class Scored:
    """One judged answer.

    correct: whether it equals the reference.
    answer: what was read, in a form that can be counted (the option's or the short answer's normalised text); None when
        nothing could be read (unanswered).
    reference: the reference in the same form.
    """

    correct: bool
    answer: str | None
    reference: str


def normalise(text: str) -> str:
    """`text` for comparison: NFKC, lower case, no punctuation or articles, number words as digits, single spaces.

    Decimal points and signs inside numbers stay. An article that is the whole text stays ("A").
    """
    text = unicodedata.normalize("NFKC", text).casefold().replace("\u2019", "'")
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    text = re.sub(r"(?<=\w)'(?=\w)", "", text)
    text = re.sub(r"(?<!\d)\.|\.(?!\d)", " ", text)
    text = re.sub(r"-(?!\d)|(?<=\w)-", " ", text)
    text = re.sub(r"[^\w\s.\-%]|_", " ", text)
    words = [_NUMBERS.get(word, word) for word in text.split()]
    return " ".join([word for word in words if word not in _ARTICLES] or words)


def find_choices(question: str) -> tuple[Choice, ...]:
    """Options written in `question`: lettered lines ("A. red"), or in line ("A) red B) blue", "(a) red, (b) blue").

    Letters must run A, B, … without a gap and there must be at least two; otherwise the question has no options.
    """
    return _find(question)[1]


def stem(question: str) -> str:
    """`question` without the options that `find_choices` finds in it and what follows them."""
    return question[: _find(question)[0]].strip()


def _find(question: str) -> tuple[int, tuple[Choice, ...]]:
    """Where the options start, and the options."""
    best: tuple[int, tuple[Choice, ...]] = (len(question), ())
    for pattern in (r"[(\[]([{0}])[)\]]\s*", r"(?<![(\[\w'])([{0}])\)\s*", r"(?<![\w'])([{0}])[.:]\s+"):
        for letters in ("A-Z", "a-z"):
            found = _options(question, re.compile(pattern.format(letters)))
            if len(found[1]) > len(best[1]):
                best = found
    return best


def _options(question: str, mark: re.Pattern[str]) -> tuple[int, tuple[Choice, ...]]:
    marks = list(mark.finditer(question))
    best: tuple[int, tuple[Choice, ...]] = (len(question), ())
    for start, first in enumerate(marks):
        if first[1].upper() != "A":
            continue
        run = [first]
        for following in marks[start + 1 :]:
            if ord(following[1].upper()) == ord(run[-1][1].upper()) + 1:
                run.append(following)
        if len(run) < 2:
            continue
        ends = [m.start() for m in run[1:]] + [len(question)]
        texts = [_option_text(question[m.end() : end], last=m is run[-1]) for m, end in zip(run, ends, strict=True)]
        if all(texts) and len(run) > len(best[1]):
            best = first.start(), tuple(Choice(m[1].upper(), text) for m, text in zip(run, texts, strict=True))
    return best


def _option_text(text: str, last: bool) -> str:
    if last:
        text = text.strip().split("\n")[0]
        text = re.split(r"(?<=[.?!])\s+(?=[A-Z(\"'])", text)[0]
    text = " ".join(text.split())
    if not last:
        text = re.sub(r"(?:[,;/|]|\s)\s*(?:or|and)$", "", text)
    return text.strip(" ,;/|.?!\"'")


def parse_choice(answer: str, choices: Sequence[Choice]) -> Choice | None:
    """The one option that `answer` names, or None.

    In this order, first for what follows "the answer is", then for all of it: it starts with an option's letter ("B",
    "(B)", "B. red"); it is an option's text; it starts with yes or no and that is an option; exactly one option is
    mentioned, by letter or text. A letter beside another option's text, two options, or a negated one name none. "A"
    before a noun is an article, not a letter.
    """
    text = _clean(answer)
    if not text:
        return None
    parts = _CUE.split(text)
    if len(parts) > 1 and parts[-1].strip():
        found = _decide(parts[-1].strip(), choices)
        if found is not None:
            return found
    return _decide(text, choices)


def _decide(text: str, choices: Sequence[Choice]) -> Choice | None:
    text = _NAMED.sub("", text)
    by_letter = {choice.letter: choice for choice in choices}
    head = _HEAD.match(text)
    if head and head[1].upper() in by_letter:
        chosen, rest = by_letter[head[1].upper()], head[2]
        if not _letters(rest, by_letter) - {chosen.letter} and _agrees(chosen, rest, choices):
            return chosen
        return None
    whole = [choice for choice in choices if normalise(choice.text) == normalise(text)]
    if len(whole) == 1:
        return whole[0]
    first = re.match(r"(yes|no)\b", text, re.IGNORECASE)
    if first:
        said = [choice for choice in choices if normalise(choice.text) == first[1].lower()]
        if len(said) == 1:
            return said[0]
    letters = _letters(text, by_letter)
    mentioned, outside = _mentions(text, choices)
    if _NEGATION.search(outside):
        return None
    if letters:
        chosen = by_letter[min(letters)]
        return chosen if len(letters) == 1 and (not mentioned or chosen in mentioned) else None
    return mentioned[0] if len(mentioned) == 1 else None


def _clean(answer: str) -> str:
    text = unicodedata.normalize("NFKC", answer)
    text = re.sub(r"[*`#]+|(?<!\w)_+|_+(?!\w)", "", text)
    return " ".join(text.split()).strip("\"'\u201c\u201d ")


def _letters(text: str, by_letter: dict[str, Choice]) -> set[str]:
    found = [m[1] or m[2] for m in _BRACKETED.finditer(text)]
    found += [m[1] for pattern in (_BARE, _BARE_WORDLIKE) for m in pattern.finditer(text)]
    return {letter.upper() for letter in found} & set(by_letter)


def _mentions(text: str, choices: Sequence[Choice]) -> tuple[list[Choice], str]:
    """Options whose text stands in `text` as whole words (the longest wins where two overlap), and what is left."""
    left = f" {normalise(text)} "
    found: list[Choice] = []
    outside = text
    for words in sorted({normalise(choice.text) for choice in choices}, key=lambda w: (-len(w), w)):
        if words and f" {words} " in left:
            left = left.replace(f" {words} ", " | ")
            found += [choice for choice in choices if normalise(choice.text) == words]
            outside = re.sub(re.escape(words), " ", outside, flags=re.IGNORECASE)
    return found, outside


def _agrees(chosen: Choice, rest: str, choices: Sequence[Choice]) -> bool:
    mentioned, _ = _mentions(rest, choices)
    return not mentioned or chosen in mentioned


def read_short(answer: str) -> str | None:
    """Normalised short answer without lead-ins ("The answer is", "It is"); None when it is empty or a refusal."""
    text = _SHORT_LEAD_IN.sub("", _LEAD_IN.sub("", _clean(answer)))
    if re.fullmatch(r"n\s*/\s*a\.?", text, re.IGNORECASE):
        return None
    text = normalise(text)
    return None if not text or _REFUSAL.fullmatch(text) else text


def score_answer(answer: str | None, reference: str, choices: Iterable[Choice] = ()) -> Scored:
    """Judge `answer` against `reference` (for multiple choice: an option's letter or text).

    A reference that names no option is compared as a short answer. A yes/no reference is compared with the answer's
    first word when that is yes or no.
    """
    options = tuple(choices)
    wanted = parse_choice(reference, options) if options else None
    if wanted is not None:
        told = normalise(wanted.text)
        got = parse_choice(answer, options) if answer else None
        return Scored(got == wanted, None if got is None else normalise(got.text), told)
    told = normalise(_SHORT_LEAD_IN.sub("", _LEAD_IN.sub("", _clean(reference)))) or reference.strip()
    if answer is None:
        return Scored(False, None, told)
    short = normalise(_clean(answer)) if normalise(_clean(answer)) == told else read_short(answer)
    if short is not None and told in ("yes", "no"):
        first = short.split()[0]
        short = first if first in ("yes", "no") else short
    return Scored(short == told, short, told)
