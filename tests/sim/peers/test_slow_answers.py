"""A learner that answers an auditor slowly costs other learners nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from auditor_tasks import Tasks
from nouns import beat
from still_host import still_host

from peers.audits.auditor_peer import BUSY, AuditorPeer
from peers.audits.replayer import Replayer
from peers.audits.shown_groups import ASKED
from peers.audits.submitted_groups import LISTED, Submitted, SubmittedGroup, SubmittedQuery
from swarm.frames import wire
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role, Service
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.types import Digest, PeerId

SLOW, HONEST = PeerId("slow"), PeerId("honest")


class Lists:
    """A learner that lists `many` new groups of throw-away samplers each time, `seconds` after each
    question."""

    def __init__(self, name: PeerId, many: int, seconds: float) -> None:
        self._name, self._many, self._seconds, self._count = name, many, seconds, 0

    async def answer(self, _: PeerId, question: bytes) -> bytes:
        await asyncio.sleep(self._seconds)
        if (asked := wire.decode(question, SubmittedQuery)).group:
            return asked.group.encode()
        return wire.encode(Submitted(life=1, last=0, groups=tuple(self._next() for _ in range(self._many))))

    def _next(self) -> SubmittedGroup:
        self._count += 1
        sampler = PeerId(f"{self._name}-{self._count}")
        group = Digest(f"{self._count if self._name == SLOW else 1 << 32 | self._count:064x}")
        return SubmittedGroup(group=group, sampler=sampler, version=1, weights=Digest("1" * 64))


def read(self: AuditorPeer, frame: bytes, one: SubmittedGroup) -> Any:
    assert frame.decode() == one.group
    return SimpleNamespace(sampler=one.sampler, task=1, weights=one.weights)


@pytest.mark.parametrize(("many", "seconds"), [(LISTED, 0.99 * ASKED), (0, 0.99 * ASKED), (LISTED - 1, 0.0)])
def test_a_learner_that_is_slow_or_lists_much_takes_nothing_from_another_one(
    monkeypatch: pytest.MonkeyPatch, many: int, seconds: float
) -> None:
    """A replay takes a second, and the honest learner has a group each heartbeat, of 2 s."""
    taken = Counter[str]()

    async def scene() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            host = still_host(network, "auditor", Role.AUDITOR)
            auditor = AuditorPeer(host, cast(Any, None), 8, cast(Any, object))
            auditor._reward_calls = cast(Any, Tasks())
            honest, slow = Lists(HONEST, 1, 0.0), Lists(SLOW, many, seconds)
            for name, learner in ((HONEST, honest), (SLOW, slow)):
                mail = still_host(network, name, Role.LEARNER).ports.mail
                await mail.serve(Service.SUBMITTED, learner.answer)
                for seq in (1, 2):
                    host.roster.receive(name, beat(seq=seq, at=host.now(), role=Role.LEARNER), host.now())
            asking = asyncio.create_task(auditor._ask_forever())
            for _ in range(120):
                await asyncio.sleep(1.0)
                if auditor._queue:
                    taken[auditor._queue.take(None).group.sampler.partition("-")[0]] += 1
                assert len(auditor._queue) <= 2 * BUSY
            asking.cancel()
            asked = 120 / host.config.run.pace.beat
            assert taken[HONEST] > 0.9 * honest._count > 0.8 * asked
            assert seconds or taken[SLOW] > 20

    monkeypatch.setattr(Replayer, "hold", lambda *_: object())
    monkeypatch.setattr(AuditorPeer, "_read", read)
    run(scene())
