"""What a learner makes of a batch, and what becomes of one whose gradient or step fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from nouns import group
from still_host import still_host

from peers.errors import CannotHere
from peers.intake.inbox import TaskAndRewards
from peers.learner.gradients import MOST, Gradients
from peers.runtime.faults import FaultReports
from swarm.core.agreement.rounds import Cause
from swarm.core.intake.batcher import Waiting
from swarm.events import NOT_FINITE, Event, Faulted, Noted, RoundBroke
from swarm.learn.learners.microbatch import OutOfMemory
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.types import Task

BATCH = [Waiting(group(number), 0.0) for number in (0, 1)]


class Learner:
    """A stand-in that keeps what it is asked for; a gradient halves the groups that it takes at a time."""

    padded, passed, to_pass = "", 0, 0

    def __init__(self, error: Exception | None = None) -> None:
        self.version, self.asked, self._error = 7, list[Any](), error
        self._memory = {"micro": 8.0, "recomputed": 0.0}

    def statistics(self) -> dict[str, float]:
        return dict(self._memory)

    def gradient(self, *batch: Any) -> Any:
        self._memory = {"micro": 4.0, "recomputed": 1.0}
        return self.step(batch)

    def step(self, along: Any) -> Any:
        self.asked.append(along)
        if self._error is not None:
            raise self._error
        return SimpleNamespace(vector="the gradient")


class Inbox:
    def __init__(self, share: int) -> None:
        self.dropped, self._share = list[tuple[Any, str]](), share

    def drop(self, batch: Any, why: str) -> None:
        self.dropped.append((batch, why))

    def share(self) -> int:
        return self._share

    def task_and_rewards(self, one: Any) -> TaskAndRewards:
        return TaskAndRewards(Task("toy", one.draw, f"prompt {one.draw}", ""), (float(one.draw), 0.0))


Promise = Callable[[Gradients, Inbox, list[Event]], Awaitable[None]]


def with_gradients(learner: Any, promise: Promise, share: int = 2) -> None:
    async def main() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            host = still_host(network, "learner-0", Role.LEARNER, price=lambda kind: 4.0)
            told, inbox = list[Event](), Inbox(share)
            host.bus.add(told.append)
            gradients: Any = Gradients(host, learner, inbox, FaultReports(host))  # type: ignore[arg-type]
            await promise(gradients, inbox, told)

    run(main())


@pytest.mark.parametrize(
    ("error", "cause", "why", "kind"),
    [
        (ValueError("not finite"), Cause.ROUND_BROKE, "refused", RoundBroke),
        (OutOfMemory("no room"), Cause.OUT_OF_MEMORY, "out of memory", Faulted),
    ],
)
def test_a_step_that_fails_drops_its_batch_and_says_why(
    error: Exception, cause: Cause, why: str, kind: type[Event]
) -> None:
    learner = Learner(error)
    along: Any = SimpleNamespace(vector="the gradient")

    async def promise(gradients: Gradients, inbox: Inbox, told: list[Event]) -> None:
        assert await gradients.step(learner.step, along, BATCH) is cause
        assert learner.asked == ["the gradient"] and inbox.dropped == [(BATCH, why)]
        assert [type(event) for event in told] == [kind] and str(error) in str(told[0])

    with_gradients(learner, promise)


def test_a_learner_whose_gradients_are_never_finite_ends_and_says_what_to_lower() -> None:
    why = f"{NOT_FINITE}: lower run.optimizer.lr (1e+20)"
    learner = Learner(ValueError(why))
    along: Any = SimpleNamespace(vector="the gradient")

    async def promise(gradients: Gradients, inbox: Inbox, told: list[Event]) -> None:
        for _ in range(MOST - 1):
            assert await gradients.step(learner.step, along, BATCH) is Cause.ROUND_BROKE
        learner._error = None  # one that is finite begins the count anew
        await gradients.step(learner.step, along, BATCH)
        learner._error = ValueError(why)
        for _ in range(MOST - 1):
            assert await gradients.step(learner.step, along, BATCH) is Cause.ROUND_BROKE
        with pytest.raises(
            CannotHere, match=rf"{MOST} batches in a row have no gradient at version 7: .*1e\+20"
        ):
            await gradients.step(learner.step, along, BATCH)
        assert len(told) == len(inbox.dropped) == 2 * MOST - 1

    with_gradients(learner, promise)


def test_a_gradient_that_does_not_fit_drops_its_batch() -> None:
    async def promise(gradients: Gradients, inbox: Inbox, told: list[Event]) -> None:
        assert await gradients.compute(BATCH) is None
        assert inbox.dropped == [(BATCH, "out of memory")]
        (fault,) = told
        assert isinstance(fault, Faulted) and fault.part == "memory"
        assert fault.detail == "a batch of 2 groups is dropped: no room"
        assert gradients._host.status.speed == 0

    with_gradients(Learner(OutOfMemory("no room")), promise)


@pytest.mark.parametrize(("share", "speed"), [(2, 0.5), (3, 0.0)])
def test_a_gradient_of_a_full_batch_alone_tells_how_fast_this_learner_is(share: int, speed: float) -> None:
    learner = Learner()

    async def promise(gradients: Gradients, inbox: Inbox, told: list[Event]) -> None:
        host, others = gradients._host, iter(["theirs"])
        await asyncio.sleep(5.0)
        start = host.now()
        gradient = await gradients.compute(BATCH, others)  # type: ignore[arg-type]
        assert gradient is not None and not inbox.dropped
        ((groups, prompts, rewards, now, theirs),) = learner.asked
        assert groups == [item.group for item in BATCH] and prompts == ["prompt 0", "prompt 1"]
        assert rewards == [(0.0, 0.0), (1.0, 0.0)] and theirs == ("theirs",) and now == start
        assert host.status.speed == speed and host.now() == start + 4.0
        (noted,) = told
        assert isinstance(noted, Noted) and noted.text == (
            "memory of this learner: at most 4 groups at a time, activations recomputed;"
            " before, at most 8 groups at a time, activations kept"
        )

    with_gradients(learner, promise, share)
