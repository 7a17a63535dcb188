"""News of samplers that learners suspend: for this peer's own journal, which `swarm status` and `swarm why`
read.

    topic `accused`, a learner's Accusation with a time   -> SetAside event
    a receipt of a group of this peer's, with a time      -> the same, of this peer itself; a group that is
                                                             admitted ends it

An accusation binds its learner alone; another acts by it only after a replay of its group
(peers.audits.accusations). Observers have the learner's own event. Not handled here: replays.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from peers.runtime.kernel import Kernel
from swarm import events
from swarm.core.suspensions import Suspension
from swarm.frames import wire
from swarm.limits import RELEASE_LIMIT, cut, remember
from swarm.protocol import Role, Topic
from swarm.types import Count, Digest, Finite, PeerId, Struct, Text, Word

REMEMBERED = 1024
"""Suspensions that were recorded, so that each is recorded once."""


class Accusation(Struct, tag="accusation"):
    """A replay of a sampler's group shows a forgery."""

    sampler: PeerId
    group: Digest
    """Of the frame that its sampler signed."""
    version: Count
    weights: Digest
    """Of the version that the group names."""
    until: Finite = 0.0
    """Unix seconds until which the accuser suspends the sampler; 0: it does not."""
    evidence: Word = ""
    """The group's id: a learner's file of evidence is named after it."""
    why: Text = ""


def unverifying(kernel: Kernel, opened: wire.Opened) -> str | None:
    """Why a frame's sender may not accuse, or None."""
    why = kernel.distrust(opened, Role.LEARNER)
    return None if why is None or kernel.invited(opened, Role.AUDITOR) else why


class SuspensionNews:
    """Receives the suspensions for one peer."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._reported: OrderedDict[tuple[PeerId, PeerId], Suspension] = OrderedDict()
        """Of each learner and sampler."""

    def handlers(self) -> dict[Topic, Callable[[bytes], object]]:
        """None for a learner, which subscribes itself and acts by accusations (peers.audits.accusations)."""
        return {} if self._kernel.who.role is Role.LEARNER else {Topic.ACCUSED: self.receive}

    def receive(self, sealed: bytes) -> None:
        """Receive an accusation. Raises WireError for anything but an accusation by a learner or an
        auditor."""
        opened, accusation = self._kernel.read(sealed, RELEASE_LIMIT, Accusation)
        if (why := unverifying(self._kernel, opened)) is not None:
            raise wire.WireError(f"accusation by {opened.sender}: {why}")
        self.take(opened, accusation)

    def take(self, opened: wire.Opened, accusation: Accusation) -> None:
        """Record a learner's suspension."""
        if self._kernel.distrust(opened, Role.LEARNER) is None:
            self.record(
                opened.sender, accusation.sampler, accusation.until, accusation.why, accusation.evidence
            )

    def record(self, by: PeerId, sampler: PeerId, until: float, why: str, group: str = "") -> None:
        """A learner suspends a sampler."""
        kernel, now = self._kernel, self._kernel.now()
        known = Suspension(until, why=why, since=now, evidence=group)
        before = self._reported.get((by, sampler), Suspension(0.0))
        news = (until, bool(group)) > (before.until, bool(before.evidence))
        if kernel.who.observes or until <= now or not news:
            return
        remember(self._reported, (by, sampler), known, REMEMBERED)
        kernel.emit(events.SetAside, by=by, sampler=sampler, until=until, why=cut(why), group=cut(group))

    def back(self, by: PeerId, sampler: PeerId, sent: float) -> None:
        """A learner admits a sampler's group that was sent then."""
        before = self._reported.get((by, sampler))
        if before is not None and before.since < sent:
            del self._reported[by, sampler]
            self._kernel.emit(events.SetAside, by=by, sampler=sampler, until=0.0, why="")
