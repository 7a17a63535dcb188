"""Steps that a learner's disk refused are known at a seed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import pytest
from nouns import beat
from still_host import still_host

from peers.intake import unkept_steps
from peers.intake.unkept_steps import UnkeptSteps
from swarm.core.agreement.trained import mark
from swarm.frames import wire
from swarm.net.memory.network import MemoryNetwork
from swarm.net.ports import Refused
from swarm.protocol import Role
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.types import MARK_BYTES, Digest, PeerId, TrainedQuery, TrainedStep, TrainedSteps

ONE, OTHER, SAMPLER = PeerId("learner-1"), PeerId("learner-2"), PeerId("sampler-0")


def step(version: int, *members: PeerId, groups: int = 1) -> TrainedStep:
    marks = b"".join(mark(f"{version:08x}{k:08x}") for k in range(groups))
    return TrainedStep(version=version, parent=digest(version - 1), members=members or (ONE,), groups=marks)


def digest(version: int) -> Digest:
    return Digest(f"{version:064}")


def at_a_seed(body: Callable[[UnkeptSteps], Awaitable[None]]) -> None:
    async def live() -> None:
        links = SimLinks(DelayLaw(law="constant", seconds=0.01), 1e9, Random(3))
        async with MemoryNetwork(Random(2), links) as network:
            host = still_host(network, "seed-0", Role.SEED)
            for peer, role in ((ONE, Role.LEARNER), (OTHER, Role.LEARNER), (SAMPLER, Role.SAMPLER)):
                host.roster.receive(peer, beat(name=peer, role=role), host.now())
            await body(UnkeptSteps(host))

    run(live())


async def told(seed: UnkeptSteps, since: int = 0) -> list[TrainedStep]:
    answer = await seed._answer(OTHER, wire.encode(TrainedQuery(since=since)))
    return [*wire.decode(answer, TrainedSteps).steps]


def said(*steps: TrainedStep) -> bytes:
    return wire.encode(TrainedSteps(steps=steps))


def test_a_seed_reports_the_last_steps_that_a_disk_refused() -> None:
    async def body(seed: UnkeptSteps) -> None:
        await seed._accept(ONE, said(step(2), step(3)))
        assert await told(seed) == [step(2), step(3)]
        assert [one.version for one in await told(seed, since=3)] == [3]
        await seed._accept(ONE, said(step(5)))
        assert [one.version for one in await told(seed)] == [5], "the disk has the others by now"

    at_a_seed(body)


def test_a_learner_speaks_for_itself_and_nobody_else_is_heard_or_told() -> None:
    async def body(seed: UnkeptSteps) -> None:
        await seed._accept(OTHER, said(step(2, ONE)))
        assert not await told(seed)
        for stranger in (SAMPLER, PeerId("nobody")):
            with pytest.raises(Refused, match="only learners"):
                await seed._accept(stranger, said(step(2, stranger)))
            with pytest.raises(Refused, match="only learners"):
                await seed._answer(stranger, wire.encode(TrainedQuery(since=0)))

    at_a_seed(body)


def test_what_a_seed_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unkept_steps, "LEARNERS", 1)
    monkeypatch.setattr(unkept_steps, "TOLD", 3)
    monkeypatch.setattr(unkept_steps, "TOLD_BYTES", 3 * MARK_BYTES)

    async def body(seed: UnkeptSteps) -> None:
        await seed._accept(ONE, said(*map(step, range(1, 7))))
        assert [one.version for one in await told(seed)] == [4, 5, 6]
        await seed._accept(ONE, said(step(6), step(7, groups=3)))
        assert [one.version for one in await told(seed)] == [7]
        await seed._accept(OTHER, said(step(7, OTHER)))
        assert [*seed._steps] == [OTHER]

    at_a_seed(body)
