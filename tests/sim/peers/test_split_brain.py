"""A swarm that was cut in two: the larger part goes on at once, the smaller one after `run.window.seconds`.
When they meet, one of them says what it cost: versions and groups of the line that does not count."""

from __future__ import annotations

from functools import cache
from typing import cast

import pytest
from role_swarms import EPOCH, Told, scenario
from rows import nightly

from swarm.core.group_accounts import audit
from swarm.events import AnyEvent, CaughtUp, Forked, Released, Returned, Snapped, Stepped, Trained
from swarm.settings.config import Pace, Releasing, Window
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


# --- more than two learners: the larger part goes on, the smaller one waits for `run.window.seconds` --------

WAITS, CUT = 30.0, 20.0
Between = tuple[tuple[str, ...], tuple[str, ...]]
TWO_TO_ONE = ("learner-0", "learner-1", "sampler-[01]", "seed-0"), ("learner-2", "sampler-[23]")
HALVES = ("learner-0", "learner-2", "sampler-[01]", "seed-0"), ("learner-[13]", "sampler-[23]")


def cuts(since: float, until: float, between: Between) -> list[Fault]:
    return [
        Fault(at=since, fault="partition", between=between),
        Fault(at=until, fault="repair", between=between),
    ]


def waiting(*faults: Fault, learners: int = 3, minutes: float = 1.6) -> Told:
    settings = {"window": Window(seconds=WAITS), "pace": Pace(beat=1.0, patience=4.0)}
    return Told(scenario(minutes, (learners, 4), *faults, release=Releasing(timeout=2.0), **settings))


def versions(told: Told, learner: str, since: float, until: float) -> list[int]:
    return [event.version for event in told.of(Trained, learner, since=since, until=until)]


def assert_one_line(told: Told, since: float, learners: int) -> None:
    """From then on all learners are in the rounds of one line, and every group was trained on once."""
    found = audit(cast(list[AnyEvent], told.all))
    assert found.passed and found.once > 100, (found.lost, found.doubled)
    late = [event.release for event in told.of(Released, since=since)]
    assert len({one.version for one in late}) == len({one.weights for one in late}) > 10
    assert max(one.learners for one in late) == learners


def test_two_of_three_go_on_at_once_and_the_third_makes_no_version_without_them() -> None:
    told = waiting(*cuts(CUT, CUT + WAITS - 5.0, TWO_TO_ONE))
    assert len(versions(told, "learner-0", CUT + 5.0, CUT + 25.0)) > 5
    assert not versions(told, "learner-2", CUT + 2.0, CUT + 25.0) and not told.of(Forked)
    assert told.of(CaughtUp, "learner-2", since=CUT + 25.0)
    assert_one_line(told, CUT + 30.0, 3)


MEET = CUT + WAITS + 25.0
AGAIN = [cuts(MEET + after, MEET + after + 15.0, TWO_TO_ONE) for after in (0.5, 1.5, 2.5)]


@pytest.mark.parametrize("again", [[], *nightly(AGAIN)])
def test_after_the_window_the_third_goes_on_alone_and_gives_way_when_they_meet(again: list[Fault]) -> None:
    told = waiting(*cuts(CUT, MEET, TWO_TO_ONE), *again, minutes=2.0)
    alone = told.of(Trained, "learner-2", since=CUT + 2.0, until=MEET)
    assert len(alone) > 4 and {event.members for event in alone} == {1}
    assert CUT + WAITS - 2.0 < alone[0].at - EPOCH < CUT + WAITS + 5.0
    forked = told.of(Forked)
    if not again:  # while it is cut off again it cannot ask where the lines part
        assert [(event.peer, event.versions) for event in forked] == [("learner-2", len(alone))]
    assert {event.peer for event in forked} <= {"learner-2"}
    assert_one_line(told, MEET + (20.0 if again else 8.0), 3)


def test_of_four_cut_in_halves_that_of_the_first_one_goes_on() -> None:
    told = waiting(*cuts(CUT, CUT + WAITS - 5.0, HALVES), learners=4)
    assert len(versions(told, "learner-0", CUT + 5.0, CUT + 25.0)) > 5
    assert len(versions(told, "learner-1", CUT + 2.0, CUT + 25.0)) <= 1
    others = [peer for peer in ("learner-1", "learner-3") if told.of(Released, peer, CUT + 2.0, CUT + 25.0)]
    assert not others, "a step of theirs is not followed"
    assert_one_line(told, CUT + 35.0, 4)


def test_the_last_one_of_three_goes_on_after_the_window() -> None:
    told = waiting(*(Fault(at=CUT, fault="crash", peer=f"learner-{k}") for k in (0, 1)))
    alone = told.of(Trained, "learner-2", since=CUT + 2.0)
    assert CUT + WAITS - 2.0 < alone[0].at - EPOCH < CUT + WAITS + 5.0
    assert len(alone) > 15 and audit(cast(list[AnyEvent], told.all)).passed


def test_two_that_are_killed_one_after_the_other_are_not_waited_for() -> None:
    told = waiting(
        Fault(at=CUT, fault="crash", peer="learner-0"), Fault(at=CUT + 12.0, fault="crash", peer="learner-1")
    )
    alone = told.of(Trained, "learner-2", since=CUT + 14.0)
    assert alone[0].at - EPOCH < CUT + 20.0
