"""Which learners count, and whether enough of them voted for a release.

    heartbeats of learners -> electors, the longest silent first
        most of them were heard `patience` after it -> it counts no more
        fewer were                                  -> it counts for `window`: others may hear it; for peers
                                                       without a vote it counts no more
    votes for a version    -> more than half of the electors, or half with the first one by its id: most
        of two electors one is enough

So the larger part of a swarm that was cut in two goes on at once, the smaller one after `window` seconds, and
learners that leave one after the other are counted no more one after the other. Where a new learner takes the
place of dead ones that it never heard, the others follow it at once. Not handled here: the content of a
vote, its signature (peers.runtime.releases.agreement).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from swarm.types import PeerId

PAIR = 2
"""Electors of which one is enough: of two that disagree neither is most."""


def are_most(some: Collection[PeerId], electors: Collection[PeerId]) -> bool:
    """Whether these electors are enough to decide. Of two disjoint parts of more than two at most one is."""
    if len(electors) <= PAIR:
        return bool(some)
    twice = 2 * len(some)
    return twice > len(electors) or (twice == len(electors) and min(electors) in some)


def favourite(votes: Mapping[PeerId, str], order: Sequence[PeerId]) -> str:
    """The choice with the most votes; of several the one of the elector that comes first in `order`. Empty
    where there is no vote."""
    counts = Counter(votes.values())
    places = {peer: place for place, peer in enumerate(order)}

    def key(peer: PeerId) -> tuple[int, int, str]:
        return -counts[votes[peer]], places.get(peer, len(places)), peer

    return votes[min(votes, key=key)] if votes else ""


def table(most: int = 6) -> str:
    """The votes that are enough of so many electors at most, in Markdown, for docs/agreement.md."""
    lines = ["| electors | votes that are enough |", "|---|---|"]
    for many in range(1, most + 1):
        electors = [PeerId(str(k)) for k in range(many)]
        enough = min(k for k in range(1, many + 1) if are_most(electors[-k:], electors))
        with_first = are_most(electors[: enough - 1], electors)
        half = f", or {enough - 1} with that of the first one by its id" if with_first else ""
        lines.append(f"| {many} | {enough}{half} |")
    return "\n".join(lines)


class Electorate:
    """The electors that one peer knows. Times are in seconds of a monotonic clock."""

    def __init__(self, patience: float, window: float, votes: bool = True) -> None:
        """`votes`: this peer is a learner."""
        self._patience, self._window, self._votes = patience, window, votes
        self._heard: dict[PeerId, float] = {}
        """Elector -> when it was last heard."""

    def heard(self, peer: PeerId, now: float) -> None:
        self._heard[peer] = now

    def left(self, peer: PeerId) -> None:
        """It rests, leaves, or has no version yet."""
        self._heard.pop(peer, None)

    def electors(self, now: float) -> Collection[PeerId]:
        for peer, at in sorted(self._heard.items(), key=lambda item: item[1]):
            later = [other for other, heard in self._heard.items() if heard - at > self._patience]
            others_go_on = bool(later) and (not self._votes or are_most(later, self._heard))
            if others_go_on or now - at > self._window:
                del self._heard[peer]
        return self._heard.keys()
