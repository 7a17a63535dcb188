"""The members of a round that most of the others name.

All members of a round know what each of them announced, so that all leave out the same ones. A minority is
left out, never half.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)

CROWD = 3
"""Members of which a single liar is a minority."""


def named_by_most(named: Mapping[Name, Collection[Name]]) -> Collection[Name]:
    """Those of a round's members that more than half of the others name. `named`: by each member."""
    votes = Counter(peer for member, its in named.items() for peer in set(its) if peer != member)
    return minority([peer for peer in named if 2 * votes[peer] > len(named) - 1], len(named))


def minority(found: Sequence[Name], members: int) -> Sequence[Name]:
    """`found`, where these are fewer than half of so many members; else none."""
    return found if 2 * len(found) < members else ()
