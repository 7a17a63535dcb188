"""The situation that a diagnosis judges: present peers, silent peers, usual values. Computed once per
diagnosis, in one pass.

Silence is counted from the last heartbeat, or from when this dashboard began to receive (again). Suspicion
comes after three missed heartbeats or the run's patience, whichever is shorter: a killed peer is named before
the roster gives it up.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable
from statistics import median

from dashboard.fold.peer import PeerRow
from dashboard.fold.recent import Trace
from dashboard.fold.state import SwarmState
from dashboard.text import clean
from dashboard.views import Level, Problem
from swarm.core.completion import is_complete
from swarm.protocol import RESTING, Phase, Role
from swarm.types import PeerId, Release

LONGEST_BEAT = 1.25
"""Heartbeats come at the run's pace plus up to a quarter of jitter."""

MISSED = 3
"""Heartbeats in a row that gossip does not lose while a peer is well."""

HISTORY = 600.0
"""Seconds after which a peer that is gone is history: the table and the events still have it."""

GRACE = 30.0
"""Seconds in which a peer that has just come may still warm up; ten heartbeats where those are slow."""

BYTES_PER_SECOND = 5e6
"""The slowest link that is expected to carry weights: a 40 Mbit/s home line."""

MINUTE = 60.0
"""Seconds of verdicts that a sampler is judged by; thirty heartbeats where those are slow."""

LATEST, ENOUGH = 8.0, 8
"""Judge by the last 8 s once they hold 8 groups: problems appear and clear within 8 s."""

MANY = 4
"""Peers that are named one by one; more with the same trouble share one problem."""


class Situation:
    def __init__(self, state: SwarmState, now: float) -> None:
        self.state, self.now, self.run, self.recent = state, now, state.run, state.recent
        self.beat = self.run.pace.beat
        self.patience = self.run.pace.patience
        self.suspicion = min(MISSED * LONGEST_BEAT * self.beat, self.patience)
        self.grace = max(GRACE, 10.0 * self.beat)
        end, length = self.recent.pause
        self.listening = max(self.recent.began, end if length > 2.0 * LONGEST_BEAT * self.beat else 0.0)
        """Since when this dashboard receives without a gap."""
        self.alive: dict[Role, list[PeerRow]] = {role: [] for role in Role}
        """Peers that are here and count; this window's own peer is, whatever its machine is busy with."""
        self.strangers: dict[Role, list[PeerRow]] = {role: [] for role in Role}
        """Others that are here, of which the run has seen nothing yet."""
        self.silent: list[tuple[PeerRow, float]] = []
        """Peers that should be here, and the seconds of their silence; without those that are history."""
        self.here: set[PeerId] = set()
        """Ids of all that are here."""
        self.gone: dict[Role, PeerRow] = {}
        """Role -> the most recent one of those that left, were revoked or are history."""
        self.unsure: set[Role] = set()
        """Roles of peers that were lost while this dashboard did not receive either, and of its own where it
        does not receive itself."""
        for peer in state.peers.values():
            self._sort_in(peer)
        self.newest: Release | None = state.newest
        self.version = state.version
        self.usual = self._usual()
        self.judged = {
            peer.id: judged for peer in self.samplers() if (judged := self._verdicts(peer.id)) is not None
        }
        """The newest groups by verdict, of samplers of which any was refused of late."""

    def _sort_in(self, peer: PeerRow) -> None:
        counts, me = self.state.counts(peer.id) or bool(peer.verdicts), peer.id == self.recent.me
        # As long as it would be at the run's pace.
        silence = (self.now - max(peer.heard, self.listening)) / peer.slower if peer.beating else 0.0
        if peer.gone == "left" or (silence > self.patience + HISTORY and not me):
            if counts and not (peer.role in self.gone and self.gone[peer.role].heard > peer.heard):
                self.gone[peer.role] = peer
        elif silence > self.patience if me else silence <= self.suspicion and peer.gone == "lost":
            self.unsure.add(peer.role)
        elif silence <= self.suspicion or me:
            self.here.add(peer.id)
            (self.alive if counts else self.strangers)[peer.role].append(peer)
        elif counts and peer.role is not Role.OBSERVER and self.receives(peer.role):
            self.silent.append((peer, self.now - peer.heard))

    def _usual(self) -> float | None:
        """Seconds from one version to the next of late; None before there are a few. Version 0 waits for all
        peers to come."""
        times = [at for version, at in sorted(self.recent.releases.items()) if version > 0][-20:]
        return median(b - a for a, b in itertools.pairwise(times)) if len(times) > 3 else None

    def _verdicts(self, peer: PeerId) -> dict[str, int] | None:
        span = max(MINUTE, 30 * self.beat)
        trace = self.recent.traces.get(peer)
        if trace is None or self.now - trace.refused > span:
            return None
        judged: dict[str, int] = {}
        for start, counts in reversed(trace.verdicts):
            if self.now - start > span:
                break
            for verdict, groups in counts.items():
                judged[verdict] = judged.get(verdict, 0) + groups
            if self.now - start >= LATEST and sum(judged.values()) >= ENOUGH:
                break
        # An expired group was counted as admitted before.
        judged["admit"] = max(judged.get("admit", 0) - judged.get("expired", 0), 0)
        return judged

    @property
    def silent_window(self) -> bool:
        """Whether this dashboard has not even received itself."""
        clock = self.recent.clock
        return (
            self.recent.beating
            and clock is not None
            and self.now - clock > max(10.0, self.suspicion)
            and not self.over
        )

    @property
    def over(self) -> bool:
        """Whether the run is complete or all peers left: ending peers are no problem then."""
        stop, judged = self.run.stop, self.state.accuracies.get("last", (0, 0.0))[1]
        here = any(self.alive[role] for role in Role if role is not Role.OBSERVER) or self.silent
        # Accuracy goes up and down, so the view of a run that it ended also checks whether all have left.
        alone = not self.alive[Role.OBSERVER] or 0 < stop.accuracy <= judged
        farewell = any(peer.gone == "left" for peer in self.gone.values()) and not here and alone
        return farewell or self.complete

    @property
    def complete(self) -> bool:
        """Whether the run is at its end, by its settings: by its accuracy only if its seed confirms it."""
        called = any(peer.phase is Phase.COMPLETE for peer in self.alive[Role.SEED])
        gone = self.gone.get(Role.EVALUATOR)
        judges = [*self.alive[Role.EVALUATOR], *([gone] if gone is not None else [])]
        judged = [peer.judged for peer in judges] if called else []
        return is_complete(self.run, self.version, judged)

    def receives(self, role: Role) -> bool:
        """See SwarmState.receives."""
        return self.state.receives(role)

    def learners(self) -> list[PeerRow]:
        return self.alive[Role.LEARNER]

    def samplers(self) -> list[PeerRow]:
        return self.alive[Role.SAMPLER]

    def working(self, role: Role) -> list[PeerRow]:
        """Those alive that do not rest by their owners' will."""
        return [peer for peer in self.alive[role] if peer.phase not in RESTING]

    def trace(self, peer: PeerRow) -> Trace:
        """A peer's trace; one that is not traced counts as having just come."""
        return self.recent.traces.get(peer.id) or Trace(self.now, since=self.now, worked=self.now)

    def settled(self, peer: PeerRow) -> bool:
        """Whether it has been here for long enough to be judged."""
        trace = self.recent.traces.get(peer.id)
        return trace is not None and self.now - trace.first > self.grace

    def since(self, peer: PeerRow) -> float:
        """Seconds since it came into its state, as far as this window could see it."""
        return self.now - max(self.trace(peer).since, self.listening)

    def stalled(self, peer: PeerRow, since: float) -> float:
        """Seconds, from `since` on, without progress of its download."""
        return self.now - max(since, self.trace(peer).arrived, self.listening)

    def versions(self, seconds: float) -> int:
        """Versions that usually come in so many seconds."""
        return math.ceil(seconds / self.usual) if self.usual else 0

    def transfer(self) -> float:
        """Seconds that the newest release's bytes may take."""
        return self.newest.size / BYTES_PER_SECOND if self.newest else 0.0

    def name(self, peer: PeerId) -> str:
        return self.state.name(peer)

    def names(self, peers: Iterable[PeerRow]) -> str:
        return listed([peer.name for peer in peers])


def strange(state: SwarmState, problem: Problem) -> bool:
    """Whether a problem is one of strangers alone."""
    return bool(problem.peers) and not any(state.counts(PeerId(peer)) for peer in problem.peers)


def problem(
    key: str,
    level: Level,
    sentences: tuple[str, str, str],
    peers: Collection[PeerRow] = (),
    since: float | None = None,
) -> Problem:
    """`sentences` are the problem, the cause, and what to do."""
    text, cause, todo = (clean(sentence, 400) for sentence in sentences)
    ids = tuple(str(peer.id) for peer in peers)[:64]
    return Problem(key=key, level=level, text=text, cause=cause, todo=todo, peers=ids, since=since)


def listed(names: list[str], most: int = 3) -> str:
    """`a`, `a and b`, `a, b and 7 more`."""
    shown = names if len(names) <= most else [*names[: most - 1], f"{len(names) - most + 1} more"]
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else "".join(shown)
