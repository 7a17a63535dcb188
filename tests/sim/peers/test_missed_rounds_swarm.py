"""Two learners that nobody can dial hear each other through the seed and never meet: they are found out,
told, and do not cost each version the time of a round. One that stood still is met again soon, and so are two
between which a learner's state goes."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

import msgspec
import pytest
from role_swarms import EPOCH, Told, scenario

from swarm.core.agreement.missed_rounds import RETRY
from swarm.events import Averaged, RoundBroke, Trained, Unreached
from swarm.net.memory.network import MemoryAverager
from swarm.net.ports import Average, RoundLost
from swarm.settings.config import Averaging
from swarm.sim.scenario import LineLaw

MATCH = 4.0


@cache
def behind_nat() -> Told:
    """Two learners of which nobody can dial one, with rounds that take long to find out."""
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


def test_one_whose_averager_stood_still_is_met_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    freeze(monkeypatch, "learner-0", at=15.0, seconds=13.0)
    told = Told(scenario(0.6, (2, 4), sample=0.5, averaging=Averaging(match=2.0)))
    (broken,) = told.of(RoundBroke)
    since = broken.at - EPOCH
    assert len(told.of(Trained, "learner-1", since=since - 13.0, until=since)) >= 3, "the other one goes on"
    assert told.of(Averaged, since=since)[0].at - EPOCH < since + 4.0, "twice the match time"


def test_two_that_met_in_no_round_for_a_while_meet_after_a_state_went_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    average, match, until = MemoryAverager.average, 2.0, 30.0

    async def nobody_comes(port: MemoryAverager, *of: Any, **more: Any) -> Average | None:
        if until - 18.0 < asyncio.get_running_loop().time() < until:
            await asyncio.sleep(match)
            return None
        return await average(port, *of, **more)

    monkeypatch.setattr(MemoryAverager, "average", nobody_comes)
    settings = Averaging(match=match, overlap=True)
    told = Told(scenario(0.65, (2, 6), sample=0.3, seed=2, averaging=settings))
    assert told.of(Unreached, until=until)
    assert told.of(Averaged, since=until)[0].at - EPOCH < until + 6.0
