"""Articles, plurals and near words in sentences for people."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def an(noun: str) -> str:
    """`a learner`, `an evaluator`."""
    return f"an {noun}" if noun[:1].lower() in set("aeio") else f"a {noun}"


def some(count: int, noun: str) -> str:
    """`1 peer`, `2 peers`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'X'?)` for the known word that is closest; empty when none is close."""
    close = difflib.get_close_matches(word, sorted(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
