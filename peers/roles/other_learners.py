"""The other learners by their heartbeats: who can take part in a round, whose turn it is without one.

A heartbeat that names a release may be here before the release is announced: nobody makes a second one of
that version meanwhile. Not handled here: how members of a round find each other (the Averager port), the
order of turns (swarm.core.solo_turns).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from peers.runtime.host import Host
from swarm.core.rounds import State
from swarm.core.solo_turns import HEARD, SoloTurns
from swarm.protocol import Phase
from swarm.types import Beat, PeerId

TOLD = (State.LEARNING, State.MATCHING)
"""States that the other learners hear of at once: they close their batches too, and know who may step
alone."""

LONG = 0.2
"""Seconds of a step from which they hear of it, too. Most steps are over by then, and the release says it."""

UNDER_WAY = (Phase.LEARNING, Phase.MATCHING)
"""Phases of who has closed its batch and is to be met in a round."""


class OtherLearners:
    def __init__(self, host: Host, version: Callable[[], int]) -> None:
        """`version` is mine."""
        self._host, self._version = host, version
        run, me = host.config.run, (host.who.incarnation, host.ports.me)
        self.turns = SoloTurns(me, run.release.timeout, run.pace.beat, keep=run.averaging.alone == "keep")
        self._later: asyncio.TimerHandle | None = None
        """Tells of a step that takes long."""

    def others(self) -> list[PeerId]:
        """Learners that can take part in a round now."""
        found = (
            (peer, self._host.roster.beat(peer))
            for peer in self._host.roster.learners()
            if peer != self._host.ports.me
        )
        return [peer for peer, beat in found if beat is not None and beat.version >= 0]

    def learners(self) -> int:
        return 1 + len(self.others())

    def abreast(self) -> dict[PeerId, Beat]:
        """Those at my version."""
        beats = ((peer, self._host.roster.beat(peer)) for peer in self.others())
        return {peer: beat for peer, beat in beats if beat is not None and beat.version == self._version()}

    def called(self) -> bool:
        """Another learner has closed its batch for my version: a smaller batch in the common round beats a
        whole one alone."""
        return any(beat.phase in UNDER_WAY for beat in self.abreast().values())

    def coming(self, version: int) -> set[PeerId]:
        """Whose heartbeat names a release of `version`, or a later one, that I have not heard of."""
        beats = ((peer, self._host.roster.beat(peer)) for peer in self.others())
        return {
            peer
            for peer, beat in beats
            if beat is not None and beat.version >= version and not self._host.releases.heard_of(beat)
        }

    def incarnation(self, peer: PeerId) -> int:
        beat = self._host.roster.beat(peer)
        return (
            self._host.who.incarnation
            if peer == self._host.ports.me
            else (beat.incarnation if beat else 1 << 62)
        )

    def enter(self, state: State) -> None:
        """I am in this state now."""
        phase = Phase(state.value)
        news = phase is not self._host.status.phase
        self._host.status.phase = phase
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if news and state in TOLD:
            self._host.beat_now()
        elif news and state is State.STEPPING:
            self._later = asyncio.get_running_loop().call_later(LONG, self._host.beat_now)

    async def my_turn(self) -> bool:
        """No round came about: do I step alone? If not, `turns` says when to ask again."""
        host = self._host
        if not self.turns.ask(self.abreast(), host.now(), self._next()):
            return False
        if not self.turns.contested(self.abreast()):
            return True
        self.enter(State.STEPPING)
        host.beat_now()
        await host.ports.clock.sleep(HEARD)
        mine = self.turns.claim(self.abreast(), host.now(), self._next())
        if not mine:
            self.enter(State.MATCHING)  # whoever gives way to me goes on
        return mine

    async def give_way(self, members: Collection[PeerId], ahead: Callable[[], bool]) -> None:
        """My round succeeded, but somebody outside of it may step already: let its release come first, for
        one time-out."""
        host = self._host
        until = host.now() + host.config.run.release.timeout
        while (
            self.turns.steps(self.abreast()).union(self._next()).difference(members)
            and not ahead()
            and not host.stop.is_set()
        ):
            if (left := until - host.now()) <= 0:
                return
            await host.changed(left)

    def _next(self) -> set[PeerId]:
        return self.coming(self._version() + 1)
