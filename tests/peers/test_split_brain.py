"""A swarm that was cut in two says what it cost: versions and groups of the part whose line does not
count."""

from __future__ import annotations

from functools import cache

import pytest
from test_roles_swarm import EPOCH, Told, scenario

from swarm.events import CaughtUp, Forked, Released, Returned, Snapped, Stepped
from swarm.sim.scenario import Fault
from swarm.types import Digest

SIDES = (("learner-0", "sampler-0"), ("learner-1", "sampler-1", "sampler-2", "seed-0"))
HEALED = 120


@cache
def cut() -> Told:
    faults = [
        Fault(at=40, fault="partition", between=SIDES),
        Fault(at=HEALED, fault="repair", between=SIDES),
    ]
    return Told(scenario(3.0, (2, 3), *faults))


def lines(told: Told, version: int, weights: Digest) -> dict[int, str]:
    """Version -> weights of what a release was made of."""
    made = {(event.release.version, event.release.weights): event.release for event in told.of(Released)}
    found = {}
    while (release := made.get((version, weights))) is not None and version > 0:
        found[version] = weights
        version, weights = version - 1, release.parent
    return found


def test_the_side_that_lost_says_how_many_versions_and_groups_do_not_count_and_since_when() -> None:
    told = cut()
    (forked,) = told.of(Forked)
    newest = max((event.release for event in told.of(Released)), key=lambda one: one.version)
    won = lines(told, newest.version, newest.weights)
    apart = [event.release for event in told.of(Released, forked.peer, until=HEALED + 10)]
    lost = {one.version: one for one in apart if one.weights != won.get(one.version) and one.version > 0}
    assert forked.since == min(lost) - 1 and forked.versions == len(lost) > 10
    assert forked.groups == sum(one.groups for one in lost.values()) > 40
    assert forked.first == lost[forked.since + 1].weights
    assert HEALED <= forked.at - EPOCH < HEALED + 15


def test_it_is_not_said_to_have_been_behind() -> None:
    told = cut()
    (forked,) = told.of(Forked)
    assert not told.of((CaughtUp, Snapped), forked.peer, since=HEALED, until=forked.at - EPOCH + 1e-3)  # type: ignore[arg-type]


def test_the_groups_of_the_part_that_lost_come_back_once() -> None:
    told = cut()
    (forked,) = told.of(Forked)
    back = [group for event in told.of(Returned, forked.peer, since=HEALED) for group in event.groups]
    own = {group for event in told.of(Stepped, forked.peer, until=HEALED + 15) for group in event.groups}
    assert set(back) <= own and len(back) == len(set(back)) > 40


@pytest.mark.parametrize("seed", [1, 2])
def test_who_was_only_away_is_told_to_have_been_behind(seed: int) -> None:
    told = Told(scenario(1.5, (2, 3), Fault(at=30, fault="bounce", peer="learner-1", down=20), seed=seed))
    assert told.of(CaughtUp, "learner-1", since=50) and not told.of(Forked)
