"""The other learners by their heartbeats: which can take part in a round, and how long it waits for them.

Not handled here: how members of a round find each other (the Averager port), which learner steps alone
(peers.learner.agreement.common_round).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from peers.runtime.host import Host
from swarm import events
from swarm.core.agreement.batch_shares import batch_shares, in_groups, worth_waiting
from swarm.core.agreement.missed_rounds import MissedRounds
from swarm.core.agreement.rounds import State
from swarm.core.agreement.state_sync import SLOWER, WINDOW_SHARE, StateSync
from swarm.protocol import RESTING, Phase
from swarm.types import Beat, PeerId, Release

ANNOUNCED = (Phase.LEARNING, Phase.EARLY, Phase.MATCHING, Phase.SYNCING)
"""Phases that are announced by a heartbeat at once: the other learners close their batches too, wait, and
know which of them may step alone."""

GIVEN_UP = Phase.MATCHING, Phase.GATHERING
"""The phase before and after a learner gives its wait up, which is announced, too."""

UNRELEASED = {State.GATHERING: Phase.RELEASING, State.LEARNING: Phase.EARLY, State.RELEASING: Phase.EARLY}
"""State of a round whose version is not released yet -> its phase, in which others wait for the release."""

LONG_STEP = 0.2
"""Seconds after which a step is announced, too. Most steps end earlier, and the release announces them."""

IN_ROUND = (Phase.LEARNING, Phase.MATCHING)
"""Phases of a learner that has closed its batch and waits for a round."""


class OtherLearners:
    def __init__(self, host: Host, version: Callable[[], int]) -> None:
        """`version()` is this learner's version."""
        self._host, self._version = host, version
        self._long_step: asyncio.TimerHandle | None = None
        """Announces a step that takes long."""
        self._state, self._releasing, self._syncs = State.GATHERING, False, False
        self._meets = False
        """A round is under way."""
        self._missed_rounds, self.most = MissedRounds(), host.config.run.window.seconds / WINDOW_SHARE
        """Seconds that the state of a learner may take."""
        self._met: frozenset[PeerId] = frozenset()
        """Members of my last round."""
        self._state_sync = StateSync(self.most)
        self._shared: tuple[tuple[int, int, float], float] | None = None
        """`as_fast` at each group: its inputs, and its value."""

    def ready(self) -> list[PeerId]:
        """Other learners that can take part in a round now."""
        return [peer for peer, beat in self._all_beats().items() if _takes_part(beat)]

    def syncing(self) -> list[PeerId]:
        """Learners that sync, for which others wait with their round."""
        return [peer for peer, beat in self._all_beats().items() if beat.phase is Phase.SYNCING]

    def may_meet(self) -> set[PeerId]:
        """Those that may come to a round of my version."""
        version, beats = self._version(), self._all_beats().items()
        return {
            peer
            for peer, beat in beats
            if beat.phase is Phase.SYNCING or (_takes_part(beat) and beat.version <= version)
        }

    def waiting(self) -> set[PeerId]:
        """Those of them that wait for others with their gradients of my version."""
        beats = self.at_my_version().items()
        return {peer for peer, beat in beats if beat.phase is Phase.MATCHING}

    def _all_beats(self) -> dict[PeerId, Beat]:
        beats = ((peer, self._host.roster.beat(peer)) for peer in self._host.roster.learners())
        return {peer: beat for peer, beat in beats if beat is not None and peer != self._host.ports.me}

    async def all_here(self, learns: float, ahead: Callable[[], bool], against: Collection[PeerId]) -> None:
        """Wait for learners that sync, before a round, except those in `against`; this learner's gradient
        takes `learns` seconds."""
        host = self._host
        while not (host.stop.is_set() or ahead()):
            now = host.steady()
            beats = {peer: beat for peer, beat in self._all_beats().items() if peer not in against}
            if not self._state_sync.awaited(beats, self._version(), learns, now) or self._met_before():
                return
            await host.changed(host.config.run.pace.beat)

    def _met_before(self) -> bool:
        """Whether others wait for this learner in a round that began before the awaited learner announced its
        sync. None of them gives it a state before that is over. A learner that waited for another one before
        waits as this one does."""
        roster, one = self._host.roster, self._state_sync.one
        if (
            one is None
            or self._state_sync.beside
            or (beat := roster.beat(one)) is None
            or beat.phase is not Phase.SYNCING
        ):
            return False
        here = self.at_my_version().items()
        return any(
            beat.phase is Phase.MATCHING and roster.phased(peer) < roster.phased(one) for peer, beat in here
        )

    def partners(self) -> list[PeerId]:
        """Those of them that are worth waiting for in a round of my version: that came to the last ones, and
        compute a group in the time of one."""
        here = self._expected()
        mine, *counts = self._groups([*here.values()])
        found = [peer for peer, count in zip(here, counts, strict=True) if count or not mine]
        self._host.releases.agreement.meets = bool(found)
        return found

    def to_meet(self) -> list[PeerId]:
        """Those, and the slower ones that wait with a gradient of my version: meeting them costs nothing."""
        waiting = self.waiting()
        here = (peer for peer in self._expected() if peer in waiting)
        return [*dict.fromkeys((*self.partners(), *here))]

    def _expected(self) -> dict[PeerId, Beat]:
        """Those that came to the last rounds."""
        expected = self._missed_rounds.expected(self.ready(), self._version())
        beats = {peer: self._host.roster.beat(peer) for peer in expected}
        return {peer: beat for peer, beat in beats.items() if beat is not None}

    @contextmanager
    def meeting(self) -> Iterator[set[PeerId]]:
        """While the body averages this version: yields a set for the members of its round. A learner that
        waited for a round of it as this one did, and missed it, again and again, is no longer awaited."""
        members, self._meets = set[PeerId](), True
        try:
            yield members
        finally:
            self._meets = False
            self._met = frozenset(members)
        self._shared = None
        others, beats = members - {self._host.ports.me}, self._all_beats()
        waited = [*filter(self._has_waited, beats)]
        for peer, rounds in self._missed_rounds.ended(waited, others).items():
            self._host.emit(events.Unreached, version=self._version(), subject=peer, rounds=rounds)
        self._missed_rounds.forget(self._missed_rounds.missed() - beats.keys())

    def reached(self, peer: PeerId) -> None:
        """A learner's state goes between this one and me: we can meet."""
        self._missed_rounds.forget([peer])

    def _has_waited(self, peer: PeerId) -> bool:
        """Did another learner wait for a round of my version, for half of a match window at least?"""
        roster, host = self._host.roster, self._host
        since, beat = host.now() - host.config.run.averaging.match / 2, roster.beat(peer)
        waits = beat is not None and beat.phase is Phase.MATCHING and beat.version <= self._version()
        return waits and roster.phased(peer)[0] < since

    def as_fast(self) -> float:
        """How many learners of this speed would share the batch of a round of all learners."""
        follows = self._host.roster.changes, self._version(), self._host.status.speed
        if self._shared is None or self._shared[0] != follows:
            groups = max(1, self._groups(self._beats())[0])
            self._shared = follows, self._host.config.run.batch.groups / groups
        return self._shared[1]

    def worth_waiting(self, took: float) -> float:
        """Seconds that learners still computing gradients for this version are worth waiting for; this
        learner's took `took` seconds, in which it computes the next one where learners compute ahead."""
        beats = {peer: beat for peer in self.partners() if (beat := self._host.roster.beat(peer)) is not None}
        mine, *shares = self._shares([*beats.values()])
        here = [*zip(shares, beats.items(), strict=True)]
        learning = sum(share for share, (peer, beat) in here if self._learns(peer, beat))
        matching = (self._version(), Phase.MATCHING)
        ready = sum(share for share, (_, beat) in here if (beat.version, beat.phase) == matching)
        free = took if self._host.config.run.averaging.overlap and learning else 0.0
        return max(free, worth_waiting(took, mine + ready, learning))

    def longest_wait(self) -> float:
        """Seconds that others wait for each other's gradients at most: twice what those of a batch take."""
        speed = sum(beat.speed for beat in self._beats())
        return SLOWER * self._host.config.run.batch.groups / speed if speed else 0.0

    def _learns(self, peer: PeerId, beat: Beat) -> bool:
        """Whether it computes a gradient for a round of this version. A learner that computes ahead and was
        in the last round steps to this version when that gradient is ready."""
        ahead = self._host.config.run.averaging.overlap and beat.early and peer in self._met
        if ahead and beat.version == self._version() - 1:
            return beat.phase in (Phase.MATCHING, Phase.STEPPING)
        return beat.version == self._version() and beat.phase is Phase.LEARNING

    def _groups(self, beats: Sequence[Beat]) -> list[int]:
        """Of the run's batch: mine, then those of the learners with these heartbeats."""
        return in_groups(tuple(self._shares(beats)), self._host.config.run.batch.groups)

    def _shares(self, beats: Sequence[Beat]) -> list[float]:
        """The same, as parts of one."""
        return batch_shares([self._host.status.speed, *(beat.speed for beat in beats)])

    def at_my_version(self) -> dict[PeerId, Beat]:
        """Heartbeats of the other learners that are at my version."""
        beats = ((peer, self._host.roster.beat(peer)) for peer in self.ready())
        return {peer: beat for peer, beat in beats if beat is not None and beat.version == self._version()}

    def at_release(self, release: Release) -> PeerId | None:
        """A learner that has the state of a release: its publisher, or one that is not syncing now."""
        beats, point = self._all_beats(), (release.version, release.weights)
        here = (peer for peer, beat in beats.items() if (beat.version, beat.weights) == point)
        found = (peer for peer in here if beats[peer].phase is not Phase.SYNCING)
        return release.publisher if release.publisher in beats else next(found, None)

    def batch_closed_elsewhere(self) -> bool:
        """Another learner at my version has closed its batch: then a smaller batch in the common round is
        better than a whole one alone."""
        version = self._version()
        return any(
            beat.phase in IN_ROUND if beat.version == version else beat.phase is Phase.EARLY
            for beat in self._beats()
            if version - 1 <= beat.version <= version
        )

    def are_learning(self) -> bool:
        """Another learner computes its gradient of my version."""
        return any(beat.phase is Phase.LEARNING for beat in self.at_my_version().values())

    def all_early(self) -> bool:
        """Whether the others can all learn before a release as this one can. One that cannot would be too
        late for the round; one that syncs takes part with the groups that it has by then."""
        return all(beat.early or beat.phase is Phase.SYNCING for beat in self._beats())

    def _beats(self) -> list[Beat]:
        beats = (self._host.roster.beat(peer) for peer in self.partners())
        return [beat for beat in beats if beat is not None]

    def incarnation(self, peer: PeerId) -> int:
        """When a learner started, in milliseconds; an unknown one counts as the youngest."""
        beat = self._host.roster.beat(peer)
        return (
            self._host.who.incarnation
            if peer == self._host.ports.me
            else (beat.incarnation if beat else 1 << 62)
        )

    def set_state(self, state: State) -> None:
        """Publish my round's state as my phase."""
        if state is self._state:
            return
        self._state = state
        if self._long_step is not None:
            self._long_step.cancel()
            self._long_step = None
        if self._set_phase() and state is State.STEPPING:
            self._long_step = asyncio.get_running_loop().call_later(LONG_STEP, self._host.beat_now)

    def set_releasing(self, releasing: bool) -> None:
        """Whether a version that I stepped to is to be released: others wait for that, whatever my round does
        meanwhile."""
        self._releasing = releasing
        self._set_phase()

    def set_syncing(self, syncs: bool) -> None:
        """Whether I take over another learner's state: the others wait for that."""
        self._syncs = syncs
        self._set_phase()

    @property
    def is_changing(self) -> bool:
        """My version is about to be another one."""
        return self._meets or self._syncs or self._state is State.STEPPING

    def _set_phase(self) -> bool:
        """Whether the phase changed."""
        phase = Phase(self._state.value)
        if self._syncs:
            phase = Phase.SYNCING
        elif self._releasing:
            phase = UNRELEASED.get(self._state, phase)
        before, self._host.status.phase = self._host.status.phase, phase
        if phase is not before and (phase in ANNOUNCED or (before, phase) == GIVEN_UP):
            self._host.beat_now()
        return phase is not before


def _takes_part(beat: Beat) -> bool:
    return beat.version >= 0 and beat.phase not in RESTING
