"""The phase of each learner in its averaging round, and the last rounds.

Takes Moved events, the phases in learners' heartbeats, and Averaged events. For each learner the newest phase
by its own clock counts; the time shown is by this peer's clock. Phases that are neither of a round
nor a rest change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dashboard.fold.peer import PeerRow
from dashboard.text import moment, number, proper, version_of, whole
from dashboard.views import PhaseView, RoundView
from swarm.protocol import RESTING, ROUND, Phase
from swarm.types import PeerId

SHOWN = (*ROUND, *RESTING)

LEARNERS = 64
"""Most learners that are tracked, and most members of a round that are named: more than the dashboard
shows."""


class LearnerPhase(msgspec.Struct):
    state: Phase
    since: float
    """Unix seconds by the window's clock."""
    version: int
    told: float
    """Unix seconds by the learner's clock."""


class EndedRound(msgspec.Struct):
    """A round that ended."""

    version: int
    members: tuple[PeerId, ...]
    seconds: float
    at: float


class LearnerRounds(msgspec.Struct):
    phases: dict[PeerId, LearnerPhase] = {}
    averaged: dict[PeerId, EndedRound] = {}
    """Learner -> the last round that it reported."""

    def move(self, learner: PeerId, state: Phase, version: int, at: float, told: float) -> None:
        """Record a phase; `at` by this peer's clock, `told` by the learner's."""
        known = self.phases.get(learner)
        if state not in SHOWN or (known is not None and told < known.told):
            return
        if known is not None and known.state == state and known.version == version:
            known.told = told
            return
        self.phases.pop(learner, None)
        self.phases[learner] = LearnerPhase(state, at, version, told)
        if len(self.phases) > LEARNERS:
            del self.phases[next(iter(self.phases))]

    def restart(self, learner: PeerId) -> None:
        """It was started again, maybe after its clock was set back: its earlier times are no bound."""
        self.phases.pop(learner, None)

    def average(self, learner: PeerId, mean: EndedRound) -> None:
        self.averaged.pop(learner, None)
        self.averaged[learner] = mean
        if len(self.averaged) > LEARNERS:
            del self.averaged[next(iter(self.averaged))]

    def drop(self, peer: PeerId) -> None:
        self.phases.pop(peer, None)
        self.averaged.pop(peer, None)

    def view(self, learners: Iterable[PeerRow]) -> RoundView:
        """`learners`: those alive."""
        strip = [
            PhaseView(
                peer=peer.id, name=peer.name, state=phase.state, since=phase.since, version=phase.version
            )
            for peer in learners
            if (phase := self.phases.get(peer.id)) is not None
        ]
        strip.sort(key=lambda phase: (phase.name, phase.peer))
        last = max(self.averaged.values(), key=lambda mean: (mean.at, mean.version), default=None)
        if last is None:
            return RoundView(learners=tuple(strip))
        return RoundView(
            learners=tuple(strip),
            last_version=last.version,
            last_members=last.members,
            last_seconds=last.seconds,
            last_at=last.at,
        )

    def sanitize(self) -> None:
        """Clip a part from a snapshot to the bounds that a fold keeps."""
        phases, averaged = list(self.phases.items())[:LEARNERS], list(self.averaged.items())[:LEARNERS]
        self.phases = {peer: phase for peer, phase in phases if proper(peer) and phase.state in SHOWN}
        for phase in self.phases.values():
            phase.since, phase.version, phase.told = (
                moment(phase.since),
                version_of(phase.version),
                moment(phase.told),
            )
        self.averaged = {
            peer: EndedRound(
                whole(mean.version), members(mean.members), number(mean.seconds), moment(mean.at)
            )
            for peer, mean in averaged
            if proper(peer)
        }


def members(peers: Iterable[PeerId]) -> tuple[PeerId, ...]:
    """Members of a round, as a learner reported them."""
    return tuple(sorted(peer for peer in set(peers) if proper(peer)))[:LEARNERS]
