"""A swarm that was cut in two says what it cost: versions and groups of the part whose line does not count;
or both lines are merged."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import cast

import pytest
from role_swarms import EPOCH, Told, scenario
from rows import nightly

from swarm.core.group_accounts import JournalAudit, audit
from swarm.events import AnyEvent, CaughtUp, Forked, Released, Returned, Snapped, Stepped
from swarm.settings.config import Pace, Releasing, Window
from swarm.sim.scenario import Fault
from swarm.types import Digest, Release

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


def merged(*faults: Fault, disks: Path | None = None, seconds: float = 1800.0) -> Told:
    """Two learners and a sampler on one side, which has fewer versions, one and three on the other."""
    cut = [Fault(at=25, fault="partition", between=THREE), Fault(at=MEET, fault="repair", between=THREE)]
    settings = {
        "release": Releasing(fork="merge", timeout=2.0),
        "pace": Pace(beat=1.0, patience=4.0),
        "window": Window(seconds=seconds),
    }
    return Told(scenario(1.5, (3, 4), *cut, *faults, **settings), disks)  # type: ignore[arg-type]


def merges(told: Told) -> list[Release]:
    return [event.release for event in told.of(Released, "learner") if event.release.merged]


def audited(told: Told) -> JournalAudit:
    return audit(cast(list[AnyEvent], told.all))


@cache
def met() -> Told:
    return merged()


def test_two_lines_become_one_release_that_names_both() -> None:
    told = met()
    (release,), (forked,) = merges(told), told.of(Forked)
    made = {(event.release.version, event.release.weights): event.release for event in told.of(Released)}
    assert release.merged is not None
    winner = made[release.version - 1, release.parent]
    other = made[release.merged.version, release.merged.weights]
    assert winner.publisher == "learner-1" and other.publisher in ("learner-0", "learner-2")
    lost = [one for one in lines(told, other.version, other.weights).items() if one[0] > forked.since]
    won = [one for one in lines(told, winner.version, winner.weights).items() if one[0] > forked.since]
    groups, others = (sum(made[point].groups for point in each) for each in (lost, won))
    assert (forked.versions, forked.groups) == (len(lost), groups) and release.groups == groups > 10
    assert forked.share == pytest.approx(groups / (groups + others), abs=1e-4)
    assert MEET < forked.at - EPOCH < MEET + 10


def test_groups_of_both_lines_are_trained_once_and_none_comes_back() -> None:
    told, found = met(), audited(met())
    (release,) = merges(told)
    assert release.merged is not None
    # a step of the losing side beyond the version that is merged is in no line
    steps = (event for event in told.of(Stepped, until=MEET + 10) if event.peer in THREE[0])
    late = {group for event in steps if event.version > release.merged.version for group in event.groups}
    back = {group for event in told.of(Returned) for group in event.groups}
    assert found.passed and len(found.merged) == 1 and back <= late
    assert found.once + found.waiting == found.acknowledged > 80 and found.waiting < 10


def test_all_learners_go_on_from_the_merge() -> None:
    told = met()
    (release,) = merges(told)
    newest = max((event.release for event in told.of(Released)), key=lambda one: one.version)
    assert lines(told, newest.version, newest.weights)[release.version] == release.weights
    late = [event.release for event in told.of(Released, since=MEET + 10)]
    assert len({one.version for one in late}) == len({one.weights for one in late}) > 10
    assert max(one.learners for one in late) == 3


@pytest.mark.nightly
@pytest.mark.parametrize("step", ["packed", "announcing", "announced", "given"])
def test_when_the_merger_dies_and_is_back_every_group_counts_once(step: str, tmp_path: Path) -> None:
    dies = Fault(at=MEET + 0.5, fault="bounce", peer="learner-0", down=6.0, step=step)
    told = merged(dies, disks=tmp_path)
    found = audited(told)
    assert found.passed and len(found.merged) <= 1
    assert max(event.release.learners for event in told.of(Released, since=MEET + 25)) == 3


def test_when_the_merger_is_gone_for_good_the_next_one_merges() -> None:
    told = merged(Fault(at=MEET + 0.2, fault="crash", peer="learner-0"))
    (release,) = merges(told)
    assert release.publisher == "learner-2" and len(audited(told).merged) == 1 and not audited(told).doubled


@pytest.mark.nightly
@pytest.mark.parametrize("after", [0.5, 1.5, 2.5])
def test_a_cut_that_comes_back_during_the_merge_is_merged_again_or_not_needed(after: float) -> None:
    again = [
        Fault(at=MEET + after, fault="partition", between=THREE),
        Fault(at=MEET + after + 15, fault="repair", between=THREE),
    ]
    told = merged(*again)
    found = audited(told)
    assert found.passed and found.merged
    assert max(event.release.learners for event in told.of(Released, since=MEET + 35)) == 3


@pytest.mark.nightly
def test_a_fork_that_is_older_than_the_window_is_not_merged() -> None:
    told = merged(seconds=20.0)
    assert not merges(told) and told.of(Forked)
    assert not audited(told).doubled and not audited(told).lost
