"""What so few learners are not protected from, in a sentence (docs/trust.md). It is so as long as they are so
few: a note, which the page and the terminal show apart from what is wrong or well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from swarm.protocol import Role

if TYPE_CHECKING:
    from dashboard.fold.state import State

UNPROTECTED: Mapping[int, str] = {
    1: "One learner trains: no other checks what it does.",
    2: "Two learners train: neither can outvote the other; if their gradients oppose each other, or"
    " differ grossly in length, both stop.",
    3: "Three learners train: they outvote one that lies, until one of them goes.",
}
"""Learners that are here -> what to know. From four on one may go, and one lie."""


def unprotected(state: State, now: float) -> str:
    """Empty where no learner is here, or enough are."""
    learners = [peer for peer in state.alive(Role.LEARNER, now) if state.counts(peer.id)]
    return UNPROTECTED.get(len(learners), "")
