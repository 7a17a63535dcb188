"""Who answers slowly, or not at all, costs others nothing: verifiers, and learners that an auditor asks."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from nouns import beat
from still_host import still_host
from test_auditor_swarm import Tasks

from peers.audits import verdicts as module
from peers.audits.auditor_peer import AuditorPeer
from peers.audits.replayer import Replayer
from peers.audits.shown_groups import ASKED, Shown, Verdict
from peers.audits.submitted_groups import LISTED, Submitted, SubmittedGroup, SubmittedQuery
from peers.audits.verdicts import FETCHED, VerdictExchange
from peers.runtime.host import Host
from swarm.core.audits.accusations import Opinion
from swarm.core.audits.verifiers import Verifiers
from swarm.frames import wire
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role, Service
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.types import Digest, PeerId

SLOW, HONEST = PeerId("slow"), PeerId("honest")


class Replays:
    """Holds all versions; what is to be replayed waits."""

    def __init__(self) -> None:
        self.waiting = list[Shown]()

    def holds(self, version: int, weights: Digest) -> bool:
        return True

    def enqueue(self, shown: Shown) -> None:
        self.waiting.append(shown)


def said(verifier: PeerId, number: int) -> Verdict:
    return Verdict(verifier, True, PeerId("sampler"), Digest(f"{number:064x}"), 1, Digest("1" * 64))


def test_a_verifier_that_stalls_keeps_no_place_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Counter[PeerId]()

    async def shown(host: Host, inbox: Any, verdict: Verdict) -> Shown | None:
        asked[verdict.verifier] += 1
        await asyncio.sleep(0.99 * ASKED if verdict.verifier == SLOW else 0.1)
        return Shown(verdict, cast(Any, None), b"", "") if verdict.verifier == HONEST else None

    async def scene() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            host, replays = still_host(network, "learner", Role.LEARNER), Replays()
            exchange = VerdictExchange(host, cast(Any, None), cast(Any, replays), Verifiers(1.0, Random(1)))
            async with exchange._tasks:
                for number in range(10 * FETCHED):
                    exchange._take(said(SLOW, number), may_count=True)
                assert asked[SLOW] == 0  # they begin
                for number in range(10):
                    exchange._take(said(HONEST, 1000 + number), may_count=True)
                    await asyncio.sleep(1.0)
                    for one in replays.waiting:
                        exchange.judged(one.verdict, Opinion.DISAGREED)
                    replays.waiting.clear()
                assert asked[HONEST] == 10 and 0 < asked[SLOW] < FETCHED
            assert not exchange._fetched.total()

    monkeypatch.setattr(module, "shown", shown)
    run(scene())


def test_verifiers_share_the_places_and_one_alone_has_half_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def shown(*_: Any) -> None:
        await asyncio.sleep(1.0)

    async def scene() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            host = still_host(network, "learner", Role.LEARNER)
            exchange = VerdictExchange(host, cast(Any, None), cast(Any, Replays()), Verifiers(1.0, Random(1)))
            async with exchange._tasks:
                for number in range(10 * FETCHED):
                    exchange._take(said(PeerId(str(number // FETCHED)), number), may_count=True)
                assert [*exchange._fetched.values()] == [4, 2, 1, 1]
                await asyncio.sleep(2.0)
                assert not exchange._fetched.total()

    monkeypatch.setattr(module, "shown", shown)
    run(scene())


# --- learners that an auditor asks --------------------------------------------------------------------------


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
        return SubmittedGroup(group=group, sampler=sampler, version=1, weights=Digest("1" * 64), wanted=True)


def read(self: AuditorPeer, frame: bytes, one: SubmittedGroup) -> Any:
    assert frame.decode() == one.group
    return SimpleNamespace(sampler=one.sampler, task=1, weights=one.weights)


@pytest.mark.parametrize(("many", "seconds"), [(LISTED, 0.99 * ASKED), (0, 0.99 * ASKED), (LISTED - 1, 0.0)])
@pytest.mark.parametrize("beside", [False, True])
def test_a_learner_that_is_slow_or_lists_much_takes_nothing_from_another_one(
    monkeypatch: pytest.MonkeyPatch, many: int, seconds: float, beside: bool
) -> None:
    """A replay takes a second, and the honest learner has a group each heartbeat, of 2 s."""
    taken = Counter[str]()

    async def scene() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            host = still_host(network, "auditor", Role.AUDITOR)
            auditor = AuditorPeer(host, cast(Any, None), 8, cast(Any, object), beside)
            auditor._reward_calls = cast(Any, Tasks())
            honest, slow = Lists(HONEST, 1, 0.0), Lists(SLOW, many, seconds)
            for name, learner in ((HONEST, honest), (SLOW, slow)):
                mail = still_host(network, name, Role.LEARNER).ports.mail
                await mail.serve(Service.SUBMITTED, learner.answer)
                for seq in (1, 2):
                    host.roster.hear(name, beat(seq=seq, at=host.now(), role=Role.LEARNER), host.now())
            asking = asyncio.create_task(auditor._ask_forever())
            for _ in range(120):
                await asyncio.sleep(1.0)
                if auditor._queue:
                    taken[auditor._queue.take(None).group.sampler.partition("-")[0]] += 1
                assert len(auditor._queue) <= 2 * auditor._room
            asking.cancel()
            asked = 120 / host.config.run.pace.beat
            assert taken[HONEST] > 0.9 * honest._count > 0.8 * asked
            assert seconds or taken[SLOW] > 20

    monkeypatch.setattr(Replayer, "hold", lambda *_: object())
    monkeypatch.setattr(AuditorPeer, "_read", read)
    run(scene())
