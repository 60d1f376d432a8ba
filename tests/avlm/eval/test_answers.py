"""Answer parsing: what counts as a choice, what is left unread."""

from __future__ import annotations

import pytest

from avlm.eval.answers import Choice, find_choices, normalise, parse_choice, read_short, score_answer, stem


def options(**texts: str) -> tuple[Choice, ...]:
    return tuple(Choice(letter, text) for letter, text in texts.items())


COLOURS = options(A="red", B="blue", C="green", D="dark red")
SHAPES = options(A="a green circle", B="a red square")
ANSWERS = options(A="yes", B="no")


@pytest.mark.parametrize(
    ("question", "texts"),
    [
        ("Which colour?\nA. red\nB. blue\nC. green", ["red", "blue", "green"]),
        ("Which colour?\n(A) red\n(B) blue", ["red", "blue"]),
        ("Which colour?\nA: red\nB: blue\nAnswer with the letter.", ["red", "blue"]),
        ("Which colour comes first? A) red B) blue C) green D) white", ["red", "blue", "green", "white"]),
        ("Which colour? A) red, B) blue or C) dark green?", ["red", "blue", "dark green"]),
        ("Which colour? (a) red; (b) blue. Answer with one letter.", ["red", "blue"]),
        ("Pick one: A. 3.5 Hz B. 4.5 Hz. Answer with the letter.", ["3.5 Hz", "4.5 Hz"]),
        ("Which? A)red B)blue", ["red", "blue"]),
        ("Options:\n  A. The square is red.\n  B. The square is blue.\n", ["The square is red", "The square is blue"]),
        (
            "Which fits?\nA. red, low or middle\nB. red, high or top\nC. no red, low or middle",
            ["red, low or middle", "red, high or top", "no red, low or middle"],
        ),
        ("Which colour comes first?", []),
        ("Is vitamin A. good?", []),
        ("Only one: A) red", []),
        ("A) red C) blue", []),
        ("Was it plan A (the short one) or plan B (the long one)?", []),
        ("Which colour does the square have: red, green, blue or white?", []),
    ],
)
def test_find_choices(question: str, texts: list[str]) -> None:
    found = find_choices(question)
    assert [choice.text for choice in found] == texts
    assert [choice.letter for choice in found] == list("ABCDEFG"[: len(texts)])


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        # letters
        ("B", "B"),
        ("b", "B"),
        ("a", "A"),
        ("B.", "B"),
        ("(B)", "B"),
        ("[B]", "B"),
        ("b)", "B"),
        ("B) blue", "B"),
        ("B. blue", "B"),
        ("B: blue", "B"),
        ("B, blue", "B"),
        ("B blue", "B"),
        ("**B**", "B"),
        ("**B.** blue", "B"),
        ("'B'", "B"),
        (" B\n", "B"),
        ("Option B", "B"),
        ("choice (b)", "B"),
        ("B is correct", "B"),
        ("A is correct.", "A"),
        ("I choose B", "B"),
        ("I think it's B.", "B"),
        # text
        ("blue", "B"),
        ("Blue.", "B"),
        ("BLUE!", "B"),
        ("It is blue.", "B"),
        ("The square is blue", "B"),
        ("the blue one", "B"),
        ("dark red", "D"),
        ("It is dark red.", "D"),
        # sentences
        ("The answer is B.", "B"),
        ("The answer is (b).", "B"),
        ("The answer is: B", "B"),
        ("The correct answer is B. blue", "B"),
        ("The answer is blue", "B"),
        ("Answer: B", "B"),
        ("answer: a", "A"),
        ("First it is red, then it is green.\nAnswer: C", "C"),
        ("The answer is A because the square is red.", "A"),
        ("The answer is A, red.", "A"),
        # not readable as one option
        ("", None),
        ("   ", None),
        ("...", None),
        ("Both", None),
        ("Both A and B", None),
        ("A and B", None),
        ("A, B", None),
        ("A or B", None),
        ("red and blue", None),
        ("red blue", None),
        ("B. red", None),
        ("The answer is A, blue", None),
        ("E", None),
        ("purple", None),
        ("I am not sure", None),
        ("I", None),
        ("I'm not sure, maybe red", None),
        ("It is not red", None),
        ("It isn't blue", None),
        ("neither", None),
        ("bluebird", None),
        ("A purple square", None),
        ("The answer is a purple square.", None),
        ("A B C D", None),
    ],
)
def test_parse_choice(answer: str, letter: str | None) -> None:
    found = parse_choice(answer, COLOURS)
    assert (found and found.letter) == letter


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("A red square", "B"),
        ("A red square.", "B"),
        ("a green circle", "A"),
        ("A green circle", "A"),
        ("A", "A"),
        ("A. A red square", None),
        ("B. A red square", "B"),
        ("A square", None),
        ("The answer is a red square", "B"),
    ],
)
def test_article_is_not_a_letter(answer: str, letter: str | None) -> None:
    found = parse_choice(answer, SHAPES)
    assert (found and found.letter) == letter


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("Yes", "A"),
        ("No.", "B"),
        ("No, the square is not red.", "B"),
        ("Yes, it is, not blue", "A"),
        ("Nothing", None),
        ("The answer is no", "B"),
    ],
)
def test_yes_no_options(answer: str, letter: str | None) -> None:
    found = parse_choice(answer, ANSWERS)
    assert (found and found.letter) == letter


def test_option_called_both_and_option_texts_that_are_letters() -> None:
    both = options(A="red", B="blue", C="both")
    assert parse_choice("Both", both) == both[2]
    swapped = options(A="B", B="A")
    assert parse_choice("A", swapped) == swapped[0]


def test_option_inside_another_and_options_with_no() -> None:
    fits = options(A="red, low or middle", B="red, high or top", C="no red, low or middle", D="no red, high or top")
    for choice in fits:
        assert parse_choice(choice.text, fits) == choice
        assert parse_choice(f"The answer is: {choice.text.capitalize()}.", fits) == choice
        assert parse_choice(f"It has {choice.text}", fits) == choice
    assert parse_choice("no", fits) is None


def test_equal_option_texts_are_not_told_apart_by_text() -> None:
    twice = options(A="red", B="red")
    assert parse_choice("red", twice) is None
    assert parse_choice("B", twice) == twice[1]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("The Red Square!", "red square"),
        ("A", "a"),
        ("two", "2"),
        ("3.5 Hz.", "3.5 hz"),
        ("1,000", "1000"),
        ("-3", "-3"),
        ("left-hand", "left hand"),
        ("don\u2019t", "dont"),
        ("\uff32ed", "red"),
    ],
)
def test_normalise(text: str, same: str) -> None:
    assert normalise(text) == same


@pytest.mark.parametrize(
    ("answer", "reference", "correct", "unanswered"),
    [
        ("red", "red", True, False),
        ("Red.", "red", True, False),
        ("The red", "red", True, False),
        ("It is red.", "red", True, False),
        ("The answer is: red", "red", True, False),
        ("Two", "2", True, False),
        ("yes, it is", "yes", True, False),
        ("No.", "yes", False, False),
        ("not red", "red", False, False),
        ("redder", "red", False, False),
        ("blue red", "red blue", False, False),
        ("", "red", False, True),
        (" ?! ", "red", False, True),
        ("I don't know", "red", False, True),
        ("I am not sure.", "red", False, True),
        ("I'm not sure about it", "red", False, True),
        ("It cannot be determined from the clip", "red", False, True),
        ("I do not know", "I do not know", True, False),
        ("B", "B", True, False),
        (None, "red", False, True),
    ],
)
def test_short_answers(answer: str | None, reference: str, correct: bool, unanswered: bool) -> None:
    scored = score_answer(answer, reference)
    assert (scored.correct, scored.answer is None) == (correct, unanswered)


@pytest.mark.parametrize("reference", ["B", "(B)", "B. blue", "blue", "Blue"])
@pytest.mark.parametrize(
    ("answer", "correct"), [("B", True), ("blue", True), ("A", False), ("", False), ("Both", False)]
)
def test_reference_as_letter_or_text(reference: str, answer: str, correct: bool) -> None:
    scored = score_answer(answer, reference, COLOURS)
    assert scored.correct is correct
    assert scored.reference == "blue"
    assert scored.answer == {"B": "blue", "blue": "blue", "A": "red"}.get(answer)


def test_reference_outside_the_options_is_a_short_answer() -> None:
    assert score_answer("purple", "purple", COLOURS).correct
    assert not score_answer("A", "purple", COLOURS).correct


def test_read_short_keeps_what_is_not_a_refusal() -> None:
    assert read_short("none") == "none"
    assert read_short("n/a") is None


def test_stem_is_the_question_without_its_options() -> None:
    assert stem("Which colour?\nA. red\nB. blue\nAnswer with the letter.") == "Which colour?"
    assert stem("Which colour comes first?") == "Which colour comes first?"
