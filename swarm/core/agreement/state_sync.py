"""Whether the learners' round waits for one that syncs: it copies the full state of another learner, so that
it makes the same bytes from then on.

    a learner announces its sync --> its state comes --> it has this version, and matches: no wait
                                     at most `most`      or learns: at most twice as long as this one did

A learner that has a state in time is in the round, with the gradient that it computed meanwhile
(run.averaging.overlap) or without one; where it has no groups for one, it learns first.

All learners wait for the same one, whose heartbeats they all receive; where some stepped on, the state would
be one of an earlier version. They are awaited one after the other; after a wait in vain no further one before
this round, and the same one not again until RESTS times as long is over. Not handled here: how often a
learner syncs (peers.learner.agreement.catch_up), the state itself (peers.learner.agreement.state_transfer).
"""

from __future__ import annotations

from collections.abc import Mapping

from swarm.protocol import Phase
from swarm.types import Beat, PeerId

GOSSIP_SECONDS = 1.0
"""Seconds in which a heartbeat reaches all learners: gossip takes a few hops, each with a link's delay."""

RESTS = 20
"""A learner that is waited for in vain costs the others a twentieth of their time at most."""

SLOWER = 2.0
"""A learner that takes longer for a gradient than this many times what I take is late in every round."""

WINDOW_SHARE = 8
"""A state may take this part of the window's seconds: the groups that wait meanwhile are not stale by it."""


class StateSync:
    """The syncing learner that others wait for."""

    def __init__(self, most: float) -> None:
        """`most`: seconds that its state may take."""
        self._most = most
        self.one: PeerId | None = None
        """That is waited for."""
        self.beside = False
        """It is waited for since another one came, that all waited for."""
        self._since = self._here = 0.0
        """When it announced its sync; when it had finished."""
        self._rests: dict[PeerId, float] = {}
        """Waited for in vain -> until when it is not waited for."""

    def awaited(self, beats: Mapping[PeerId, Beat], version: int, learns: float, now: float) -> bool:
        """Whether there is one to wait for. `beats`: the other learners' heartbeats; `version`: this
        learner's, whose gradient took `learns` seconds."""
        if self.one is None and not self._choose(beats, now):
            return False
        assert self.one is not None
        beat = beats.get(self.one)
        if beat is not None and beat.phase is Phase.SYNCING:
            self._here = now
            if now - self._since < self._most:
                return True
        elif beat is not None and beat.version == version and self._comes(beat, learns, now):
            return True
        came = beat is not None and beat.version == version and beat.phase is not Phase.LEARNING
        if not came:
            self._rests[self.one] = now + RESTS * (now - self._since)
        self.one = None
        self.beside = came and self._choose(beats, now)
        return self.beside

    def _choose(self, beats: Mapping[PeerId, Beat], now: float) -> bool:
        self._rests = {peer: until for peer, until in self._rests.items() if until > now}
        falling = [peer for peer, beat in beats.items() if beat.phase is Phase.SYNCING]
        fresh = [(beats[peer].incarnation, peer) for peer in falling if peer not in self._rests]
        if fresh:
            self.one, self._since = min(fresh)[1], now
        return bool(fresh)

    def _comes(self, beat: Beat, learns: float, now: float) -> bool:
        """It has my version, and something to learn on."""
        learning = beat.phase is Phase.LEARNING or (beat.phase is Phase.GATHERING and beat.inbox > 0)
        return learning and now - self._here < SLOWER * learns + GOSSIP_SECONDS
