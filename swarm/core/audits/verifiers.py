"""Verifiers are verified: which honest verdicts of others count here, and which are looked at again.

    an honest verdict --fresh?--> drawn, secretly --> replayed here: agreed      it counts, as one of TRUSTED
                                                                    wrong       none counts, for IGNORED s
                              --> not drawn       --> counts for the sampler, if the verifier's last TRUSTED
                                                      ones that were replayed here were right

A verdict takes the place of a replay that this learner would have made itself, no more: so the rate at which
a sampler is audited, and which of its groups, is the learner's own choice, whatever verifiers say. Not
handled here: replays, which groups the learner draws (swarm.core.audits.auditing), accusations
(swarm.core.audits.accusations).
"""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass

from swarm.limits import remember
from swarm.protocol import Role
from swarm.types import Beat, Digest, PeerId

TRUSTED = 20
"""Verdicts of a verifier that were right by replays here before any of them counts: as many as a sampler's
groups that are all replayed."""

IGNORED = 3600.0
"""Seconds in which nothing of a verifier counts that was wrong: as long as a sampler is set aside for its
first forgery."""

REMEMBERED = 4096
"""Verdicts that are remembered, so that none counts twice."""


def is_auditor(beat: Beat) -> bool:
    """Whether a peer with this heartbeat audits what comes to learners: that is its role, or its duty."""
    return beat.role is Role.AUDITOR or beat.audits


@dataclass(slots=True)
class Verifier:
    right: int = 0
    """Verdicts that were right since one was not."""
    ignored: float = 0.0
    """Until when, unix seconds."""


class Verifiers:
    """All verifiers, as one learner sees them. They are members of the run: their number is bounded."""

    def __init__(self, share: float, rng: random.Random) -> None:
        """`share` of the verdicts is replayed here; nobody else knows `rng`."""
        self._share, self._rng = share, rng
        self._known: dict[PeerId, Verifier] = {}
        self._heard: OrderedDict[tuple[PeerId, Digest], None] = OrderedDict()

    def fresh(self, verifier: PeerId, group: Digest, now: float) -> bool:
        """Whether this verdict is looked at: it was not heard before, and its verifier is not ignored."""
        if self.ignores(verifier, now) or (verifier, group) in self._heard:
            return False
        remember(self._heard, (verifier, group), None, REMEMBERED)
        return True

    def ignores(self, verifier: PeerId, now: float) -> bool:
        return self._of(verifier).ignored > now

    def drawn(self) -> bool:
        """Whether this verdict is replayed here."""
        return self._rng.random() < self._share

    def counts(self, verifier: PeerId) -> bool:
        return self._of(verifier).right >= TRUSTED

    def right(self, verifier: PeerId) -> None:
        self._of(verifier).right += 1

    def wrong(self, verifier: PeerId, now: float) -> None:
        """A verdict is not what a replay here finds."""
        self._known[verifier] = Verifier(ignored=now + IGNORED)

    def unshown(self, verifier: PeerId) -> None:
        """The verifier does not show what it judged: it may have been started again."""
        self._of(verifier).right = 0

    def _of(self, verifier: PeerId) -> Verifier:
        return self._known.setdefault(verifier, Verifier())
