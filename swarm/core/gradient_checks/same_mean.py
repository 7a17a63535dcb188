"""Whose mean of a round is another one than that of most of its members.

    the version that a round averages for, the mean that I got -> mark, in my heartbeat
    marks of the round's members                               -> those that got something else than most

All members of a round end with the same bytes, unless a reducer hands one of them something else: that one
steps otherwise, and its release is not what the round made, though it did what it should. Each member says
what it got. Who got something else than more than half of them knows it; where each got something else
nobody does. A release that is not what the round made names its publisher as a liar only where that one says
that it got what the witness got, too. Who says something else gains nothing by it: what it releases is
denied all the same, and it releases last from then on (peers.learner.agreement.other_bytes). Not handled:
which reducer it was.
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


def are_two(one: bytes, other: bytes) -> bool:
    """Do they name two means of one round?"""
    return one != other and bool(one) and one[:ROUND] == other[:ROUND]


def got_another(marks: Mapping[Name, bytes], members: int) -> set[Name]:
    """Of a round of so many members, those whose newest mark says that they got another mean than more than
    half of them did."""
    if not marks:
        return set()
    most, count = Counter(marks.values()).most_common(1)[0]
    return {peer for peer, its in marks.items() if are_two(its, most)} if 2 * count > members else set()
