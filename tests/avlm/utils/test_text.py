"""Values in messages."""

from __future__ import annotations

from avlm.utils.text import LONGEST, clipped


def test_short_text_stays_and_long_text_keeps_both_ends() -> None:
    assert clipped("x" * LONGEST) == "x" * LONGEST
    long = clipped("a" * 500 + "z" * 500)
    assert len(long) == LONGEST and long.startswith("aaa") and long.endswith("zzz") and " … " in long
