"""Learners that vote for each version: what one of them releases on its own is followed by no other peer, and
costs the others next to nothing; learners whose bytes differ follow each other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import msgspec
import pytest
import torch
from role_swarms import EPOCH, Told, scenario, without_rechecks
from rows import nightly

from lab.studies.liars import adversaries, false_publishers
from lab.studies.liars.adversaries import SAMPLERS, Attacked, Overheard
from lab.studies.liars.false_publishers import ELECTED, MEMBERS, RELEASES
from peers.learner.agreement.other_bytes import FAR
from swarm.events import (
    Adopted,
    Averaged,
    CaughtUp,
    Event,
    Forked,
    Noted,
    Rejected,
    Released,
    Snapped,
    Trained,
)
from swarm.learn.learners.learner import Learner
from swarm.protocol import Topic
from swarm.sim.scenario import Fault
from swarm.sim.world import World
from swarm.types import Release

SECONDS, LATE = 16.0, 9.0
"""Of a scene, and after how many of them the sampler JOINS joins it."""

JOINS = f"sampler-{SAMPLERS}"

BESIDE = "one beside the newest"
"""A release of the newest version and its parent, but other bytes."""


class Scene(NamedTuple):
    told: list[Event]
    lies: list[Release]
    """What the liar announced."""


def _liar(attack: str, learners: int) -> Attacked:
    return Attacked(attack=attack, defended=True, seconds=SECONDS, learners=learners)


@cache
def attacked(attack: str, learners: int = 4) -> Scene:
    """Learners of which the last one lies in its releases; a sampler comes late."""
    told, lies, one = list[Event](), list[Release](), _liar(attack, learners)
    make, plain = false_publishers._made_up, adversaries.scenario(one)

    def makes(*made: object, **more: int) -> Release:
        lies.append(make(*made, **more))  # type: ignore[arg-type]
        return lies[-1]

    swarm = msgspec.structs.replace(
        plain,
        peers=plain.peers | {"sampler": SAMPLERS + 1},
        faults=(Fault(at=LATE, fault="host", peer=JOINS),),
    )
    with pytest.MonkeyPatch.context() as patch:
        without_rechecks(patch)
        patch.setattr(false_publishers, "_made_up", makes)
        patch.setitem(RELEASES, BESIDE, lambda newest: (newest.version, newest.parent))
        World(swarm, lambda peer: adversaries.spawn(peer, one, Overheard(3)), sinks=[told.append]).run()
    return Scene(told, lies)


def versions(told: Sequence[Event], learners: int) -> int:
    """That the honest learners made."""
    liar = f"learner-{learners - 1}"
    return max(event.version for event in told if isinstance(event, Trained) and event.peer != liar)


def groups(told: Sequence[Event], but: str = "") -> int:
    """That learners trained, without this one."""
    return sum(event.groups for event in told if isinstance(event, Trained) and event.peer != but)


CELLS = [(attack, learners) for attack in (*RELEASES, BESIDE, *MEMBERS) for learners in (3, 4)]


@pytest.mark.parametrize(("attack", "learners"), CELLS)
def test_what_one_learner_releases_on_its_own_is_followed_by_no_other_peer(
    attack: str, learners: int
) -> None:
    told, lies = attacked(attack, learners)
    false = {(one.version, one.weights) for one in lies}
    assert len(false) > 2
    liar = f"learner-{learners - 1}"
    released = [event.release for event in told if isinstance(event, Released) and event.peer != liar]
    assert released and not [one for one in released if (one.version - 1, one.parent) in false]
    adopted = [event for event in told if isinstance(event, Adopted)]
    assert adopted and not [event for event in adopted if (event.version, event.weights) in false]
    late = [event.version for event in adopted if event.peer == JOINS]
    assert late and max(late) >= versions(told, learners) - 3


@pytest.mark.parametrize(("attack", "learners"), CELLS)
def test_the_honest_learners_go_on_as_fast_as_without_it_and_none_of_them_is_named(
    attack: str, learners: int
) -> None:
    told, _ = attacked(attack, learners)
    liar, share = f"learner-{learners - 1}", (learners - 1) / learners
    assert groups(told, liar) >= 0.95 * share * groups(attacked("honest", learners).told)
    honest = [f"learner-{number}" for number in range(learners - 1)]
    assert not [event for event in told if isinstance(event, Rejected) and event.kind == Topic.RELEASE]
    lost = (Snapped, Forked)
    assert not [event for event in told if isinstance(event, lost) and event.peer in honest]
    noted = [event.text for event in told if isinstance(event, Noted) and "is not followed" in event.text]
    assert not [text for text in noted if any(f" of {peer} " in text for peer in honest)]
    assert all(f" of {liar} " in text for text in noted)


@pytest.mark.parametrize("learners", [3, 4])
def test_one_that_votes_for_its_own_steps_makes_none_while_the_others_have_groups(
    learners: int,
) -> None:
    told, liar = attacked(ELECTED, learners).told, f"learner-{learners - 1}"
    released = [event for event in told if isinstance(event, Released) and event.release.version > 0]
    assert released and liar not in {event.release.publisher for event in released}
    assert versions(told, learners) > 7


def test_what_is_not_followed_is_told_with_the_number_of_learners_that_agree() -> None:
    told, _ = attacked("other bytes")
    texts = {event.text for event in told if isinstance(event, Noted) and event.peer.startswith("sampler")}
    assert [
        text for text in texts if text.endswith("of learner-3 is not followed: 1 of 4 learners agree to it")
    ]


# --- learners that make other bytes -------------------------------------------------------------------------


def with_steps(monkeypatch: pytest.MonkeyPatch, share: float, learners: int = 3) -> Told:
    """Learners of which each makes steps that differ by about this share of one."""
    order, step = dict[int, int](), Learner.step

    def differs(learner: Learner, vector: torch.Tensor) -> dict[str, float]:
        before = learner._optimizer.gather()
        metrics = step(learner, vector)
        made, mine = learner._optimizer.gather(), order.setdefault(id(learner), len(order))
        noise = torch.randn(len(made), generator=torch.Generator().manual_seed(mine))
        learner._optimizer.place(made + share * (made - before).norm() * noise / noise.norm())
        return metrics

    monkeypatch.setattr(Learner, "step", differs)
    return Told(scenario(0.5, (learners, 6)))


def assert_one_release_of_each(told: Told) -> None:
    released = [event.release for event in told.of(Released)]
    assert len({one.version for one in released}) == len({one.weights for one in released})


@pytest.mark.parametrize("learners", [2, 3])
def test_learners_whose_steps_differ_by_rounding_follow_each_other(
    learners: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = with_steps(monkeypatch, FAR / 10, learners)
    assert len(told.of(Snapped)) > 2 and not told.of(Rejected)
    assert max(event.version for event in told.of(Trained)) > 8
    assert_one_release_of_each(told)


@pytest.mark.parametrize("learners", [2, 3])
def test_where_no_two_learners_make_the_same_step_the_swarm_goes_on(
    learners: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = with_steps(monkeypatch, 10 * FAR, learners)
    assert max(event.version for event in told.of(Trained)) > 6
    assert_one_release_of_each(told)


# --- what a reducer does to a mean --------------------------------------------------------------------------

REDUCERS = [
    "a reducer that turns around for one",
    "the same, for who releases first",
    "the same, and for itself",
]


@pytest.mark.parametrize("attack", REDUCERS)
def test_a_member_that_a_reducer_deceives_follows_the_others_and_is_not_named(attack: str) -> None:
    told, _ = attacked(attack)
    honest = ("learner-0", "learner-1", "learner-2")
    assert not [event for event in told if isinstance(event, Rejected) and event.sender in honest]
    released = [event.release for event in told if isinstance(event, Released)]
    assert len({one.version for one in released}) == len({one.weights for one in released})
    assert versions(told, 4) > 7


# --- a learner that joins -----------------------------------------------------------------------------------


@pytest.mark.parametrize("learners", [3, *nightly([4, 5])])
def test_a_learner_that_joins_late_is_in_the_rounds_of_most(learners: int) -> None:
    late = f"learner-{learners - 1}"
    told = Told(scenario(0.9, (learners, 6), Fault(at=20, fault="host", peer=late)))
    rounds = [event.members for event in told.of(Averaged, "learner-0", since=32)]
    assert len(rounds) > 5 and sum(late in members for members in rounds) >= 0.8 * len(rounds)
    assert_one_release_of_each(told)
    assert told.of(CaughtUp, late)[0].at - EPOCH < 30
