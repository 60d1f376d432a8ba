"""Which examples are shown."""

from __future__ import annotations

from typing import Any

from avlm.report.examples import LONGEST, choose, describe


def line(id: str, label: str, answer: str | None, clip: str, **more: Any) -> dict[str, Any]:
    media = [{"type": "video", "path": clip}]
    return {"id": id, "class": label, "question": "?", "answer": answer, "reference": "red", "media": media, **more}


def keyed(*lines: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in lines}


def test_classes_take_turns_and_changed_rows_come_first() -> None:
    after = keyed(
        *[line(f"p{i}", "picture", "red", f"{i}.mp4") for i in range(5)],
        *[line(f"s{i}", "sound", "red", f"{i}.mp4") for i in range(5)],
    )
    before = {id: {**one, "answer": "blue" if id in ("p3", "s4") else "red"} for id, one in after.items()}
    chosen = choose({"before": before, "after": after}, 4)
    assert chosen[:2] == ["p3", "s4"]
    assert [id[0] for id in chosen] == ["p", "s", "p", "s"]
    clips = [after[id]["media"][0]["path"] for id in chosen]
    assert len(set(clips)) == 4


def test_a_wrong_answer_is_among_them() -> None:
    after = keyed(*[line(f"{i}", "picture", "red" if i != 9 else "blue", f"{i}.mp4") for i in range(10)])
    assert choose({"after": after}) == ["0", "1", "2", "3", "4", "9"]


def test_nothing_to_choose_from() -> None:
    assert choose({}) == []
    assert choose({"after": {}}) == []


def test_description_of_multiple_choice() -> None:
    question = "Which colour?\nA. red\nB. blue"
    row = {"question": question, "reference": "B", "choices": {"A": "red", "B": "blue"}}
    before, after = (keyed(line("1", "picture", answer, "c.mp4") | row) for answer in ("", "blue"))
    card = describe("1", {"before": before, "after": after})
    assert (card.question, card.reference) == ("Which colour?", "B. blue")
    assert [choice["reference"] for choice in card.choices] == [False, True]
    assert [(a.when, a.text, a.mark) for a in card.answers] == [
        ("Before", "(empty)", "✗ unanswered"),
        ("After", "blue", "✓ right"),
    ]


def test_long_and_left_out_answers_say_so() -> None:
    card = describe("1", {"after": keyed(line("1", "a", "x" * 2000, "c.mp4"))})
    assert len(card.answers[0].text) < LONGEST + 40 and "2,000 characters" in card.answers[0].text
    card = describe("1", {"after": keyed(line("1", "a", None, "c.mp4", skipped="700 tokens"))})
    assert card.answers[0].text == "(left out: 700 tokens)"
