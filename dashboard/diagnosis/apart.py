"""Rules about learners that train apart: parts of a swarm without contact, and the cost once they meet
again."""

from __future__ import annotations

from collections.abc import Iterator

from dashboard.diagnosis.situation import HISTORY, MANY, Situation, listed, problem
from dashboard.fold.peer import PeerRow
from dashboard.text import duration
from dashboard.views import Problem
from swarm.frames.grammar import some
from swarm.types import PeerId

APART = 15.0
"""Seconds in which two learners that step must have met."""

UNMET, UNMET_VERSIONS = 120.0, 40
"""Seconds and versions for which a missed learner is reported; it is tried each 16th version
(swarm.core.agreement.missed_rounds), and every vain try is reported again."""

STEPS = 3
"""Own steps before a learner's company is judged."""


def split(s: Situation) -> Iterator[Problem]:
    """Learners that step, but not together."""
    span = max(APART, 5 * s.beat, 5 * (s.usual or 0.0))
    active = [p for p in s.learners() if s.now - p.heard < 2 * s.beat and _steps(s, p, span) >= STEPS]
    if len(active) < 2 or any(s.now - s.trace(peer).first < span for peer in active):
        return
    if any(s.trace(peer).together >= len(active) for peer in active):
        return
    parts = _parts(s, active, span)
    if len(parts) < 2:
        return
    names = listed([s.names(part) for part in parts], most=4)
    yield problem(
        "split",
        "error",
        (
            (
                f"The learners train apart: {names} have not averaged with each other for {duration(span)}."
                if len(parts) == len(active)
                else (
                    f"The learners split into {len(parts)} parties that average apart: "
                    f"{' | '.join(s.names(part) for part in parts)}."
                )
            ),
            (
                "They do not find or reach each other. A version counts with the votes of most learners: the"
                " groups of the others wait, or are lost."
            ),
            (
                "See that every learner's address can be dialled from the others (firewall, NAT, relay);"
                " start the smaller party again."
            ),
        ),
        active,
    )


def _steps(s: Situation, peer: PeerRow, span: float) -> int:
    return sum(s.now - at < span for at in s.trace(peer).steps)


def _parts(s: Situation, active: list[PeerRow], span: float) -> list[list[PeerRow]]:
    """Learners grouped by common rounds of late."""
    part: dict[PeerId, set[PeerId]] = {peer.id: {peer.id} for peer in active}
    for peer in active:
        for at, members in s.trace(peer).rounds:
            for other in members & part.keys() if s.now - at < span else ():
                if part[other] is not part[peer.id]:
                    part[peer.id] |= part[other]
                    for one in part[other]:
                        part[one] = part[peer.id]
    by_id = {peer.id: peer for peer in active}
    return [
        [by_id[one] for one in sorted(each)] for each in {id(each): each for each in part.values()}.values()
    ]


def unreached(s: Situation) -> Iterator[Problem]:
    """Learners that receive each other's heartbeats and cannot average."""
    span = max(UNMET, UNMET_VERSIONS * (s.usual or 0.0))
    pairs: dict[frozenset[PeerId], float] = {}
    for pair, (last, _) in s.recent.unreached.items():
        if s.now - last < span and s.here.issuperset(pair):
            pairs.setdefault(frozenset(pair), last)
    for both, last in list(pairs.items())[:MANY]:
        peers = [s.state.peers[peer] for peer in sorted(both)]
        yield problem(
            f"unreached {' '.join(sorted(both))}",
            "warning",
            (
                (
                    f"Learners {s.names(peers)} receive each other's heartbeats but never complete a round"
                    " together."
                ),
                (
                    "Neither can dial the other: heartbeats come through other peers, gradients do not. One"
                    " of them steps at a time, and what the other computes meanwhile is computed again."
                ),
                (
                    "Let one of them be dialled from outside: open or forward its port, or put it where the"
                    " other can reach it; they are tried again by themselves."
                ),
            ),
            peers,
            last,
        )


def forked(s: Situation) -> Iterator[Problem]:
    """Parts of the swarm that trained apart and met again: the cost."""
    for fork in s.recent.forks.values():
        if s.now - fork.last > HISTORY:
            continue
        names = listed([s.name(peer) for peer in fork.learners])
        lost = f"{some(fork.versions, 'version')} of {names} with {some(fork.groups, 'group')}"
        yield problem(
            f"forked {fork.first}",
            "warning",
            (
                f"Learners trained apart after version {fork.since}: {lost} do not count any more.",
                (
                    "The swarm was cut in two and both parts made versions; when they met, the other part's"
                    f" line counted, with version {fork.version}."
                ),
                (
                    "Nothing now: all go on from one policy, and groups inside the window are trained again."
                    f" If it comes again, look at the network of {names} at the time when it was silent."
                ),
            ),
            [peer for one in fork.learners if (peer := s.state.peers.get(one)) is not None],
            fork.last,
        )
