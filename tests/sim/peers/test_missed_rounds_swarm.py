"""Learners that hear each other through other peers and never meet, since neither can dial the other: they
are found out, told, and do not cost each version the time of a round. One that stood still is met again
soon."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

import msgspec
import pytest
from role_swarms import EPOCH, Told, scenario, without_rechecks

from swarm.core.agreement.missed_rounds import RETRY
from swarm.events import Averaged, Released, RoundBroke, Trained, Unreached
from swarm.net.memory.links import Dials
from swarm.net.memory.network import MemoryAverager
from swarm.net.ports import Average, RoundLost
from swarm.settings.config import Averaging
from swarm.sim.scenario import LineLaw
from swarm.types import PeerId

MATCH = 4.0


@cache
def behind_nat() -> Told:
    """Two learners that cannot be dialled, with rounds that take long to find out."""
    settings = Averaging(match=MATCH, deadline=12.0, chunk=3.0)
    played = scenario(1.6, (2, 4), sample=0.5, averaging=settings)
    return Told(msgspec.structs.replace(played, lines={"learner": LineLaw(one_way=1.0)}))


def test_they_are_found_out_and_each_names_the_other() -> None:
    told = behind_nat()
    assert not told.of(Averaged)
    named = {(event.peer, event.subject) for event in told.of(Unreached)}
    assert named == {("learner-0", "learner-1"), ("learner-1", "learner-0")}


def test_a_version_does_not_wait_for_a_round_that_cannot_be() -> None:
    told = behind_nat()
    steps = told.of(Trained, since=40)
    waited = [event.version for event in steps if event.average >= MATCH]
    assert len(steps) > 15 and len(waited) <= 2 + len(steps) / RETRY, "those that try again"
    assert len({event.version for event in steps}) >= 0.9 * len(steps), "one release of a version"


def versions(told: Told) -> int:
    return max(event.version for event in told.of(Trained))


def test_two_of_three_that_cannot_meet_train_with_the_third_one(monkeypatch: pytest.MonkeyPatch) -> None:
    without_rechecks(monkeypatch)
    played = scenario(1.2, (3, 6), sample=0.5)
    together, real = versions(Told(played)), Dials.reaches

    def reaches(dials: Dials, sender: PeerId, receiver: PeerId) -> bool:
        return {sender, receiver} != {"learner-1", "learner-2"} and real(dials, sender, receiver)

    monkeypatch.setattr(Dials, "reaches", reaches)
    told = Told(played)
    assert versions(told) > 0.5 * together
    rounds = {event.members for event in told.of(Averaged)}
    assert rounds <= {("learner-0", "learner-1"), ("learner-0", "learner-2")} and rounds
    released = [event.release for event in told.of(Released)]
    assert len({one.version for one in released}) == len({one.weights for one in released})


def freeze(patch: pytest.MonkeyPatch, learner: str, at: float, seconds: float) -> None:
    """The averager of this learner stands still from `at` on, once."""
    average, frozen = MemoryAverager.average, list[int]()

    async def freezes(port: MemoryAverager, version: int, *more: Any) -> Average | None:
        if port._me.startswith(learner) and not frozen and asyncio.get_running_loop().time() > at:
            frozen.append(version)
            await asyncio.sleep(seconds)
            raise RoundLost("the averager did not answer and is replaced")
        return await average(port, version, *more)

    patch.setattr(MemoryAverager, "average", freezes)


@pytest.mark.parametrize("learner", ["learner-0", "learner-1"])
def test_one_whose_averager_stood_still_is_met_again_soon(
    learner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze(monkeypatch, learner, at=15.0, seconds=40.0)
    told = Told(scenario(1.4, (2, 4), sample=0.5, averaging=Averaging(match=2.0)))
    (broken,) = [event for event in told.of(RoundBroke) if event.peer == learner]
    since, other = broken.at - EPOCH, "learner-1" if learner == "learner-0" else "learner-0"
    alone = told.of(Trained, other, since=since - 40.0, until=since)
    assert len(alone) >= 4, "the other one goes on, with a time-out for each version"
    assert told.of(Averaged, since=since)[0].at - EPOCH < since + 10.0
