"""A member of a round that releases something else than the round made: it is denied and named; what rounding
makes of a step is followed."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import cast

import pytest
import torch
from nouns import release
from role_swarms import Told, scenario, without_rechecks
from still_host import still_host
from version_liars import HONEST, LIAR

from lab.studies.liars import adversaries
from lab.studies.liars.adversaries import Attacked, Overheard
from lab.studies.liars.false_publishers import EQUIVOCATION
from peers.learner.agreement.other_bytes import FAR, NEAR, OtherBytes
from peers.learner.agreement.own_release import OwnRelease
from peers.runtime.releases.votes import QUIET
from swarm.events import Event, Noted, Rejected, Released, Snapped, Trained
from swarm.learn.learners.learner import Learner
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role, Topic
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.sim.world import World
from swarm.types import PeerId


@cache
def attacked(attack: str) -> tuple[Event, ...]:
    told, one = list[Event](), Attacked(attack=attack, defended=True, seconds=12.0)
    swarm = adversaries.scenario(one)
    with pytest.MonkeyPatch.context() as patch:
        without_rechecks(patch)
        World(swarm, lambda peer: adversaries.spawn(peer, one, Overheard(3)), sinks=[told.append]).run()
    return tuple(told)


@pytest.mark.parametrize("attack", ["other bytes", EQUIVOCATION])
def test_no_version_goes_on_from_what_its_round_did_not_make(attack: str) -> None:
    told = attacked(attack)
    released = [event.release for event in told if isinstance(event, Released)]
    line = {(one.version, one.weights) for one in released if one.publisher != LIAR or one.groups < 100}
    assert all((one.version - 1, one.parent) in line for one in released if one.version > 0)
    steps = [event for event in told if isinstance(event, Trained) and event.peer in HONEST]
    assert max(event.version for event in steps) > 7
    assert not [event for event in told if isinstance(event, Snapped) and event.peer in HONEST]


@pytest.mark.parametrize("attack", ["other bytes", EQUIVOCATION])
def test_each_learner_names_who_released_it_and_nobody_else(attack: str) -> None:
    told = attacked(attack)
    named = [event for event in told if isinstance(event, Rejected) and event.kind == Topic.RELEASE]
    assert {event.sender for event in named} == {LIAR} and {event.peer for event in named} > {*HONEST}
    for text in ("not what their round made", "it comes of none"):
        assert [event for event in named if text in event.reason]
    compared = [event for event in told if isinstance(event, Noted) and "4 steps from" in event.text]
    assert len(compared) == len(HONEST), f"after that it is doubted for {QUIET} s, and nothing is fetched"


def astray_after(*steps: float) -> list[bool]:
    """Whether a learner without the optimizer's moments counts as astray after each of its rounds, in which
    its step was so far from another's."""

    async def main() -> list[bool]:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            host, found = still_host(network, "learner-0", Role.LEARNER), list[bool]()
            compared = OtherBytes(host, cast(OwnRelease, None))
            compared.set_astray(True)
            for version, each in enumerate(steps, 2):
                theirs = release(version=version, publisher=PeerId("learner-1"), learners=3)
                assert not compared.judge(theirs, each)
                found.append(host.status.astray)
                assert not host.releases.doubts.votes.is_doubted(theirs.publisher)
            return found

    return run(main())


def test_who_has_no_moments_steps_as_the_others_when_it_did_so_several_times_in_a_row() -> None:
    near, off = NEAR / 2, 2 * FAR
    assert astray_after(near, off, off) == [True, True, True], "once may be by chance"
    assert astray_after(near, near, off, near, near, near) == [True, True, True, True, True, False]


def with_steps(monkeypatch: pytest.MonkeyPatch, share: float) -> Told:
    """Three learners, of which each makes steps that differ by about this share of one."""
    order, step = dict[int, int](), Learner.step

    def differs(learner: Learner, vector: torch.Tensor) -> dict[str, float]:
        before = learner._optimizer.gather()
        metrics = step(learner, vector)
        made = learner._optimizer.gather()
        noise = torch.randn(len(made), generator=torch.Generator().manual_seed(_mine(order, learner)))
        learner._optimizer.place(made + share * (made - before).norm() * noise / noise.norm())
        return metrics

    monkeypatch.setattr(Learner, "step", differs)
    return Told(scenario(0.3, (3, 6)))


def _mine(order: dict[int, int], learner: Learner) -> int:
    return order.setdefault(id(learner), len(order))


def test_learners_whose_steps_differ_by_rounding_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    told = with_steps(monkeypatch, FAR / 10)
    assert len(told.of(Snapped)) > 2 and not told.of(Rejected)
    assert max(event.version for event in told.of(Trained)) > 4


def test_where_no_two_learners_make_the_same_step_the_swarm_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    told = with_steps(monkeypatch, 10 * FAR)
    assert max(event.version for event in told.of(Trained)) > 2


@pytest.mark.parametrize(
    ("attack", "deceived"),
    [
        ("a reducer that turns around for one", "learner-1"),
        ("the same, for who releases first", "learner-0"),
    ],
)
def test_a_member_that_a_reducer_deceives_knows_it_and_is_named_by_nobody(attack: str, deceived: str) -> None:
    told = attacked(attack)
    assert not [event for event in told if isinstance(event, Rejected) and event.sender in HONEST]
    steps = [event for event in told if isinstance(event, Trained) and event.peer in HONEST]
    assert max(event.version for event in steps) > 7
    noted = [event for event in told if isinstance(event, Noted)]
    assert {event.peer for event in noted if "handed me another mean" in event.text} == {deceived}


def test_where_two_of_four_got_another_mean_nobody_honest_is_named() -> None:
    told = attacked("the same, and for itself")
    assert not [event for event in told if isinstance(event, Rejected) and event.sender in HONEST]


def test_what_a_deceived_member_releases_first_is_followed_by_nobody() -> None:
    told = attacked("the same, for who releases first")
    noted = [event for event in told if isinstance(event, Noted)]
    denied = [event for event in noted if "says that it got another mean" in event.text]
    assert {event.peer for event in denied} > {*HONEST} and all("of learner-0" in one.text for one in denied)
    released = [event.release for event in told if isinstance(event, Released)]
    (first, *_) = [one for one in released if one.publisher == "learner-0" and one.version > 0]
    assert not [one for one in released if (one.version - 1, one.parent) == (first.version, first.weights)]
