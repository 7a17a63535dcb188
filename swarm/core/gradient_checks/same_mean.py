"""Members of a round that got another mean than most of its members.

    the version that a round averages for, a member's mean -> mark, in its heartbeat
    marks of the round's members                           -> those that got something else than most

All members of a round end with the same bytes, unless a reducer sends one of them something else: that
member steps differently, and its release is not the round's result, though it did everything right. Each
member announces its mean. A member with another one than more than half of them knows it; where all differ
none does. A release that is not the round's result names its publisher as a liar only where that publisher
announced the same mean as the witness. Announcing another one gains nothing: its release is denied all the
same, and it releases last from then on (peers.learner.agreement.other_bytes). Not handled: which reducer it
was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

Name = TypeVar("Name")

ROUND, MEAN = 4, 8
"""Bytes of a mark that distinguish a version's weights, and means of it: a collision gains nothing."""


def mark(weights: str, mean: bytes) -> bytes:
    """Names a mean of gradients of these weights (hex). `mean`: digest of its bytes."""
    return bytes.fromhex(weights)[:ROUND] + mean[:MEAN]


def are_two(one: bytes, other: bytes) -> bool:
    """Do they name two means of one round?"""
    return one != other and bool(one) and one[:ROUND] == other[:ROUND]


def got_another(marks: Mapping[Name, bytes], members: int) -> set[Name]:
    """Of a round of so many members, those whose newest mark differs from that of more than half of them."""
    if not marks:
        return set()
    most, count = Counter(marks.values()).most_common(1)[0]
    return {peer for peer, its in marks.items() if are_two(its, most)} if 2 * count > members else set()
