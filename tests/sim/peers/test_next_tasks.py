"""The engine's next call: its tasks are there when it comes, and it comes before anything else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random

import pytest
from still_host import still_host

from peers.intake.reward_calls import RewardCalls
from peers.runtime.host import Host
from peers.sampler.engine_calls import EngineCalls
from peers.sampler.next_tasks import NextTasks
from swarm.core.intake.curriculum import Curriculum, Draw, Draws
from swarm.learn.files.weights import from_bytes
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role
from swarm.sample.base import Completions
from swarm.sample.toy import ToyEngine
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.tasks.base import RewardError
from swarm.tasks.toy import Toy
from swarm.types import Digest, Task

FIRST, SECOND = Digest("1" * 64), Digest("2" * 64)
CALL = 2
"""Tasks of a call."""


class Slow(Toy):
    """Tasks that take a second a question; those of some indices cannot be made."""

    slow_tasks = True

    def __init__(self) -> None:
        super().__init__(1, {})
        self.asked: list[list[int]] = []
        self.broken: set[int] = set()

    def tasks(self, indices: Sequence[int]) -> list[Task]:
        self.asked.append([*indices])
        if self.broken & {*indices}:
            raise RewardError("the environment is away")
        return super().tasks(indices)


def on_a_host(played: Callable[[Host], Awaitable[None]]) -> None:
    async def main() -> None:
        links = SimLinks(DelayLaw(law="constant", seconds=0.05), 1e6, Random(1))
        async with MemoryNetwork(Random(2), links) as network:
            host = still_host(network, "sampler", Role.SAMPLER, price=lambda kind: float(kind == "draw"))
            await played(host)

    run(main())


class Turns:
    """A sampler's calls, a second apart."""

    def __init__(self, host: Host, beside: asyncio.TaskGroup) -> None:
        self.host, self.beside, self.source = host, beside, Slow()
        self.curriculum = Curriculum(Draws(host.who.run, 8), host.ports.me)
        self.given = asyncio.Event()
        self.given.set()
        calls = RewardCalls(host, self.source)
        self.next_tasks = NextTasks(calls, self.curriculum, self.given)

    def draw(self, weights: Digest) -> list[Draw]:
        return [self.curriculum.next(weights) for _ in range(CALL)]

    async def take(self, weights: Digest, draws: Sequence[Draw]) -> float:
        """Take a call's tasks, have the next ones made; the seconds that the engine waits."""
        self.next_tasks.ask(weights, self.beside)
        began = self.host.steady()
        tasks = await self.next_tasks.of(draws)
        assert [task.index for task in tasks] == [self.source.task(draw.task).index for draw in draws]
        waited = self.host.steady() - began
        await asyncio.sleep(1.5)
        return waited


def turns(played: Callable[[Turns], Awaitable[None]]) -> None:
    async def on(host: Host) -> None:
        async with asyncio.TaskGroup() as beside:
            await played(Turns(host, beside))

    on_a_host(on)


def test_only_the_first_call_waits_for_its_tasks_and_each_is_made_once() -> None:
    async def played(turns: Turns) -> None:
        draws = turns.curriculum.following(FIRST, 4 * CALL)
        waited = [await turns.take(FIRST, turns.draw(FIRST)) for _ in range(3)]
        assert waited == [1.0, 0.0, 0.0]
        asked = [index for call in turns.source.asked for index in call]
        assert asked[: len(draws)] == [draw.task for draw in draws]

    turns(played)


def test_what_a_call_did_not_take_is_not_made_again() -> None:
    async def played(turns: Turns) -> None:
        await turns.take(FIRST, turns.draw(FIRST))
        one = [turns.curriculum.next(FIRST)]
        assert await turns.take(FIRST, one) == 0.0
        asked = [index for call in turns.source.asked for index in call]
        assert len(asked) == len({*asked}) == 2 * CALL

    turns(played)


def test_a_new_release_has_its_own_tasks_ready_when_it_was_asked_for() -> None:
    async def played(turns: Turns) -> None:
        await turns.take(FIRST, turns.draw(FIRST))
        turns.next_tasks.ask(SECOND, turns.beside)
        await asyncio.sleep(1.5)
        assert await turns.take(SECOND, turns.draw(SECOND)) == 0.0

    turns(played)


def test_tasks_of_a_release_that_is_left_are_dropped() -> None:
    async def played(turns: Turns) -> None:
        await turns.take(FIRST, turns.draw(FIRST))
        turns.next_tasks.ask(SECOND, turns.beside)
        await asyncio.sleep(1.5)
        coming = turns.curriculum.following(SECOND, CALL)
        assert turns.next_tasks._made.keys() == {draw.task for draw in coming}

    turns(played)


def test_one_task_may_be_drawn_twice_in_a_call() -> None:
    async def played(turns: Turns) -> None:
        (one,) = {turns.draw(FIRST)[0]}
        tasks = await turns.next_tasks.of([one, one._replace(seed=one.seed + 1)])
        assert tasks[0] == tasks[1]

    turns(played)


def test_tasks_that_could_not_be_made_ahead_are_asked_for_again_and_the_call_fails_if_they_still_cannot() -> (
    None
):
    async def played(turns: Turns) -> None:
        turns.source.broken = {draw.task for draw in turns.curriculum.following(FIRST, 2 * CALL)[CALL:]}
        await turns.take(FIRST, turns.draw(FIRST))
        second = turns.draw(FIRST)
        with pytest.raises(RewardError, match="is away"):
            await turns.next_tasks.of(second)
        turns.source.broken = set()
        assert len(await turns.next_tasks.of(second)) == CALL

    turns(played)


def test_nothing_is_asked_ahead_while_the_engine_waits_for_its_call() -> None:
    async def played(turns: Turns) -> None:
        await turns.take(FIRST, turns.draw(FIRST))
        asked = len(turns.source.asked)
        turns.given.clear()
        turns.next_tasks.ask(SECOND, turns.beside)
        await asyncio.sleep(5)
        assert len(turns.source.asked) == asked
        turns.given.set()
        await asyncio.sleep(1.5)
        assert len(turns.source.asked) == asked + 1

    turns(played)


def test_who_leaves_does_not_wait_for_tasks_that_nobody_samples() -> None:
    async def played(host: Host) -> None:
        async with asyncio.TaskGroup() as beside:
            turns = Turns(host, beside)
            await turns.take(FIRST, turns.draw(FIRST))
            turns.next_tasks.ask(SECOND, beside)
            await asyncio.sleep(0.1)
            turns.next_tasks.cancel()
            left = host.steady()
        assert host.steady() == left

    on_a_host(played)


def test_the_engine_has_its_call_before_anything_goes_on_that_waited_until_it_has() -> None:
    order: list[str] = []

    class Told(ToyEngine):
        def sample(self, prompts: Sequence[str], group_size: int, seeds: Sequence[int]) -> list[Completions]:
            order.append("sampled")
            return []

    async def played(host: Host) -> None:
        calls = EngineCalls(host)

        async def score() -> None:
            await calls.given.wait()
            order.append("scored")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(score())
            with calls.first():
                call = calls.sample(Told(from_bytes), ["1"], [1])
            await call
        assert order == ["sampled", "scored"]

    on_a_host(played)
