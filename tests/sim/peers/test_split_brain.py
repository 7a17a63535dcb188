"""A swarm that was cut in two says what it cost: versions and groups of the part whose line does not
count."""

from __future__ import annotations

from functools import cache
from typing import cast

import pytest
from role_swarms import EPOCH, Told, scenario
from rows import nightly

from swarm.core.group_accounts import audit
from swarm.events import AnyEvent, CaughtUp, Forked, Released, Returned, Snapped, Stepped
from swarm.settings.config import Pace, Releasing
from swarm.sim.scenario import Fault
from swarm.types import Digest

SIDES = (("learner-0", "sampler-0"), ("learner-1", "sampler-1", "sampler-2", "seed-0"))
HEALED = 60


@cache
def cut() -> Told:
    faults = [
        Fault(at=12, fault="partition", between=SIDES),
        Fault(at=HEALED, fault="repair", between=SIDES),
    ]
    return Told(scenario(1.35, (2, 3), *faults))


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


@pytest.mark.parametrize("seed", [1, *nightly([2])])
def test_who_was_only_away_is_told_to_have_been_behind(seed: int) -> None:
    told = Told(scenario(0.75, (2, 3), Fault(at=10, fault="bounce", peer="learner-1", down=20), seed=seed))
    assert told.of(CaughtUp, "learner-1", since=30) and not told.of(Forked)


THREE = (("learner-0", "learner-2", "sampler-0"), ("learner-1", "sampler-[123]", "seed-0"))
MEET = 50.0


def met(*faults: Fault) -> Told:
    """Two learners and a sampler on one side, which has fewer versions, one and three on the other."""
    cut = [Fault(at=25, fault="partition", between=THREE), Fault(at=MEET, fault="repair", between=THREE)]
    pace = Pace(beat=1.0, patience=4.0)
    return Told(scenario(1.5, (3, 4), *cut, *faults, release=Releasing(timeout=2.0), pace=pace))


AGAIN = [
    [
        Fault(at=MEET + after, fault="partition", between=THREE),
        Fault(at=MEET + after + 15, fault="repair", between=THREE),
    ]
    for after in (0.5, 1.5, 2.5)
]


@pytest.mark.parametrize("again", [[], *nightly(AGAIN)])
def test_all_learners_go_on_from_one_line_and_every_group_is_trained_once(again: list[Fault]) -> None:
    told = met(*again)
    found = audit(cast(list[AnyEvent], told.all))
    assert told.of(Forked) and found.passed and found.once > 60
    late = [event.release for event in told.of(Released, since=MEET + (35 if again else 15))]
    assert len({one.version for one in late}) == len({one.weights for one in late}) > 5
    assert max(one.learners for one in late) == 3
