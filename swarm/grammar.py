"""Articles and plurals in sentences for people."""

from __future__ import annotations


def an(noun: str) -> str:
    """`a learner`, `an evaluator`."""
    return f"an {noun}" if noun[:1].lower() in set("aeio") else f"a {noun}"


def some(count: int, noun: str) -> str:
    """`1 peer`, `2 peers`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
