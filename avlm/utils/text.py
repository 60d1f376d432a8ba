"""Text for messages."""

from __future__ import annotations

LONGEST = 120
"""Characters of a value that a message repeats."""


def clipped(text: str, longest: int = LONGEST) -> str:
    """`text`, with its middle left out when it is over `longest` characters: both ends tell what it is."""
    if len(text) <= longest:
        return text
    head = longest * 2 // 3
    return f"{text[:head]} … {text[len(text) - (longest - head - 3) :]}"
