"""Whose mean of a round is another one than that of most of its members.

    the version that a round averages for, the mean that I got -> mark, in my heartbeat
    marks of the round's members                               -> those that got something else than most

All members of a round end with the same bytes, unless a reducer hands one of them something else: that one
steps otherwise, and its release is not what the round made, though it did what it should. Each member says
what it got; more than half of them have to have the same, for one alone may lie, and so where each got
something else nobody is found. Who says that it got something else gains nothing: it releases last, and what
it releases is denied as any other bytes are (peers.roles.other_bytes). Not handled: which reducer it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

Name = TypeVar("Name")

ROUND, MEAN = 4, 8
"""Bytes of a mark that tell a version's weights from others, and means of it: nobody gains by two alike."""


def mark(weights: str, mean: bytes) -> bytes:
    """Names a mean of gradients of these weights (hex). `mean`: digest of its bytes."""
    return bytes.fromhex(weights)[:ROUND] + mean[:MEAN]


def got_another(marks: Mapping[Name, bytes], members: int) -> set[Name]:
    """Of a round of so many members, those whose newest mark says that they got another mean than more than
    half of them did."""
    if not marks:
        return set()
    most, count = Counter(marks.values()).most_common(1)[0]
    same_round = most[:ROUND]
    others = {peer for peer, its in marks.items() if its != most and its.startswith(same_round)}
    return others if most and 2 * count > members else set()
