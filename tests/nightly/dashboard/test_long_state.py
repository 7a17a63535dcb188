"""The fold: the same events give the same state, bounded and clean."""

from __future__ import annotations

import gc
import sys

from dashboard_story import LEARNERS, SEED, digest, heard, released

from dashboard.fold.bounds import Bounds
from dashboard.fold.folds import fold
from dashboard.fold.state import CURVES, SwarmState
from swarm import events as happened
from swarm.protocol import Role
from swarm.types import Link, PeerId


def test_memory_is_bounded_after_twenty_thousand_events() -> None:
    bounds = Bounds(points=200, events=100, peers=200, samples=4, releases=80, columns=40)
    state = SwarmState(bounds=bounds)
    sizes = []
    for number in range(20_000):
        fold(state, _ever_new(number))
        if number in (10_000, 19_999):
            sizes.append(_deep_size(state))
    assert len(state.peers) <= bounds.peers and len(state.events()) <= bounds.events
    assert (
        len(state.series) <= CURVES + 5
        and max(len(curve.xs) for curve in state.series.values()) <= bounds.points
    )
    assert len(state.releases) <= bounds.releases and len(state.samples.view(0)) <= bounds.samples
    assert state.heat.view().columns <= bounds.columns and len(state.heat.view().rows) <= bounds.peers
    assert sizes[1] < sizes[0] * 1.1 and sizes[1] < 20e6


MANY = tuple(PeerId(f"learner{number}") for number in range(90))


def _ever_new(number: int) -> happened.Event:
    """An event of some kind in which everything that can be new is."""
    at, peer, ones, version = float(number), PeerId(f"peer{number}"), {str(number): 1}, number // 11
    received = {f"x{number}": number, "weights": number}
    texts = (f"{number}" * 50,) * 80
    makes = (
        lambda: heard(peer, number, at, role=Role.LEARNER if number % 2 else Role.SAMPLER),
        lambda: happened.Trained(
            at=at,
            peer=LEARNERS[0],
            version=number,
            groups=1,
            members=1,
            metrics={f"m{number}": 1.0, "kl": 0.1},
            gather=0,
            learn=0,
            average=0,
            step=0,
        ),
        lambda: happened.Noted(at=at, peer=SEED, level="info", text=f"{number} " * 400),
        lambda: happened.Counted(
            at=at, peer=SEED, verdicts=ones, versions=ones, seconds=ones, samplers={f"s{number}": ones}
        ),
        lambda: happened.Adopted(
            at=at, peer=peer, version=number, weights=digest(number), fetch=0, load=0, age=number
        ),
        lambda: happened.Released(at=at, peer=SEED, release=released(version, at, publisher=peer)),
        lambda: happened.Moved(at=at, peer=peer, version=number, state="learning", cause=""),
        lambda: happened.Averaged(at=at, peer=peer, version=number, members=MANY, seconds=1.0),
        lambda: happened.Shown(
            at=at,
            peer=peer,
            group=f"{number}",
            sampler=peer,
            version=1,
            prompt=texts[0],
            answer="",
            completions=texts,
            rewards=(),
        ),
        lambda: happened.Transferred(
            at=at,
            peer=peer,
            seconds=1.0,
            sent={},
            received=received,
            links={f"peer{number + other}": Link(received=received) for other in range(80)},
        ),
        lambda: happened.CaughtUp(at=at, peer=peer, version=version + 2, behind=1),
    )
    return makes[number % len(makes)]()


def _deep_size(root: object) -> int:
    """Bytes of everything that `root` alone keeps alive: its containers and their values."""
    seen: dict[int, object] = {}
    open_ends = [root]
    while open_ends:
        thing = open_ends.pop()
        if id(thing) not in seen and not isinstance(thing, type):
            seen[id(thing)] = thing
            open_ends += gc.get_referents(thing)
    return sum(map(sys.getsizeof, seen.values()))
