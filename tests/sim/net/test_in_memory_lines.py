"""Mail and rounds on lines that have an end: they share them, and give back what nobody waits for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from swarm.net.memory.network import MemoryNetwork
from swarm.net.ports import Ports, RoundLost, Silent, Unreachable
from swarm.net.turns import AnswerTurns
from swarm.settings.config import Averaging, DelayLaw
from swarm.sim.clock import run
from swarm.sim.flows import AccessLine
from swarm.sim.links import SMALL, SimLinks
from swarm.types import PeerId

LATENCY = 0.1
HOME = AccessLine(up=100_000.0, down=500_000.0)
"""Bytes per second."""


def at_home(
    promise: Callable[..., Awaitable[None]],
    peers: str = "abc",
    lines: Mapping[PeerId, AccessLine] | None = None,
    **averaging: Any,
) -> None:
    """`promise(network, *ports)` with everybody at a home line of its own, or at one of `lines`."""

    async def main() -> None:
        links = SimLinks(
            DelayLaw(law="constant", seconds=LATENCY),
            1e9,
            random.Random(1),
            dict.fromkeys(map(PeerId, peers), HOME) | (lines or {}),
        )
        settings = Averaging(**{"compression": "none", **averaging})
        async with MemoryNetwork(random.Random(2), links, averaging=settings) as network:
            await promise(network, *(network.ports(name, lambda kind: 0.0) for name in peers))

    run(main())


def now() -> float:
    return asyncio.get_running_loop().time()


async def gives(ports: Ports, size: int, turns: AnswerTurns | None = None) -> None:
    async def give(sender: PeerId, message: bytes) -> bytes:
        return bytes(size)

    await ports.mail.serve("large", give, turns)


async def end_of(call: Awaitable[Any]) -> tuple[float, Any]:
    try:
        outcome: Any = await call
    except Exception as error:
        outcome = error
    return now(), outcome


def test_answers_share_the_line_of_who_gives_them_and_small_ones_pass_between() -> None:
    async def promise(network: Any, a: Ports, b: Ports, c: Ports) -> None:
        async def echo(sender: PeerId, message: bytes) -> bytes:
            return message

        await gives(a, 1_000_000)
        await a.mail.serve("echo", echo)
        calls = [asyncio.ensure_future(end_of(one.mail.send(a.me, "large", b"?", 60.0))) for one in (b, c)]
        await asyncio.sleep(5)
        began = now()
        assert len(await b.mail.send(a.me, "echo", bytes(SMALL))) == SMALL
        assert now() - began == pytest.approx(2 * LATENCY, abs=1e-4)
        assert [when for when, _ in await asyncio.gather(*calls)] == pytest.approx([20 + 2 * LATENCY] * 2)

    at_home(promise)


def test_the_next_answer_leaves_when_the_last_byte_of_one_before_has_left() -> None:
    async def promise(network: Any, a: Ports, b: Ports, c: Ports) -> None:
        await gives(a, 1_000_000, AnswerTurns(at_once=1, wait=60.0))
        calls = [asyncio.ensure_future(end_of(one.mail.send(a.me, "large", b"?", 60.0))) for one in (b, c)]
        ends = [when for when, _ in await asyncio.gather(*calls)]
        assert ends == pytest.approx([10 + 2 * LATENCY, 20 + 2 * LATENCY])

    at_home(promise)


def test_who_cannot_be_dialled_answers_those_whom_it_has_called() -> None:
    async def promise(network: Any, a: Ports, b: Ports, c: Ports) -> None:
        hidden = network.ports("hidden", lambda kind: 0.0, one_way=True)
        assert not hidden.addresses() and a.addresses()
        await gives(hidden, 10)
        await gives(a, 10)
        with pytest.raises(Unreachable, match="cannot be dialled"):
            await a.mail.send(hidden.me, "large", b"?")
        assert now() == pytest.approx(LATENCY)
        await hidden.mail.send(a.me, "large", b"?")
        assert await a.mail.send(hidden.me, "large", b"?") == bytes(10)
        with pytest.raises(Unreachable):
            await b.mail.send(hidden.me, "large", b"?")
        network.crash(a.me)
        again = network.ports("a", lambda kind: 0.0)
        with pytest.raises(Unreachable):
            await again.mail.send(hidden.me, "large", b"?")

    at_home(promise)


def test_a_call_that_has_not_arrived_is_no_connection() -> None:
    async def promise(network: Any, a: Ports, b: Ports, c: Ports) -> None:
        hidden = network.ports("hidden", lambda kind: 0.0, one_way=True)
        for one in (hidden, a):
            await gives(one, 10)

        async def is_connected() -> bool:
            return (await end_of(a.mail.send(hidden.me, "large", b"?")))[1] == bytes(10)

        network.links.partition([hidden.me], [a.me])
        assert isinstance((await end_of(hidden.mail.send(a.me, "large", b"?")))[1], Unreachable)
        network.links.repair([hidden.me], [a.me])
        assert not await is_connected()
        network.links.oneway([a.me], [hidden.me])
        network.crash(a.me)
        lost = await end_of(hidden.mail.send(a.me, "large", b"?"))
        assert isinstance(lost[1], Silent | Unreachable)
        a = network.ports("a", lambda kind: 0.0)
        network.links.repair([hidden.me], [a.me])
        assert not await is_connected()
        under_way = asyncio.ensure_future(hidden.mail.send(a.me, "nothing of that name", b"?"))
        await asyncio.sleep(LATENCY / 2)
        assert not await is_connected()
        with pytest.raises(Unreachable, match="does not serve"):
            await under_way
        assert await is_connected()

    at_home(promise)


def test_messages_share_the_line_of_who_takes_them() -> None:
    async def promise(network: Any, a: Ports, *others: Ports) -> None:
        await gives(a, 0)
        began = [end_of(one.mail.send(a.me, "large", bytes(1_000_000), 60.0)) for one in others]
        ended = [when for when, _ in await asyncio.gather(*began)]
        assert ended == pytest.approx([len(others) * 2 + 2 * LATENCY] * len(others), rel=1e-3)

    at_home(promise, "abcdefghi")


def test_a_slow_answer_is_not_silent_while_its_bytes_come() -> None:
    async def promise(network: Any, a: Ports, b: Ports, c: Ports) -> None:
        await gives(a, 3_000_000)
        assert len(await b.mail.send(a.me, "large", b"?", 60.0, idle=1.0)) == 3_000_000
        assert now() == pytest.approx(30 + 2 * LATENCY)

    at_home(promise)


def test_an_answer_that_is_cut_in_the_middle_is_silent_from_then_on() -> None:
    async def promise(network: Any, a: Ports, b: Ports, c: Ports) -> None:
        await gives(a, 3_000_000)
        asyncio.get_running_loop().call_later(10, network.links.partition, [a.me], [b.me])
        when, outcome = await end_of(b.mail.send(a.me, "large", b"?", 60.0, idle=2.0))
        assert isinstance(outcome, Silent) and when == pytest.approx(12)

    at_home(promise)


@pytest.mark.parametrize("way", ["message", "answer"])
def test_a_call_breaks_when_the_other_side_crashes_in_the_middle_of_it(way: str) -> None:
    async def promise(network: Any, a: Ports, b: Ports, c: Ports) -> None:
        await gives(a, 3_000_000 if way == "answer" else 0)
        asyncio.get_running_loop().call_later(5, network.crash, a.me)
        message = bytes(3_000_000 if way == "message" else 0)
        when, outcome = await end_of(b.mail.send(a.me, "large", message, 60.0))
        assert isinstance(outcome, Unreachable) and when == pytest.approx(5 + LATENCY)

    at_home(promise)


def test_a_call_that_ran_out_of_time_gives_back_the_line_and_its_turn() -> None:
    async def promise(network: Any, a: Ports, b: Ports, c: Ports) -> None:
        await gives(a, 1_000_000, AnswerTurns(at_once=1))
        first = asyncio.ensure_future(end_of(b.mail.send(a.me, "large", b"?", 3.0)))
        await asyncio.sleep(2)
        when, outcome = await end_of(c.mail.send(a.me, "large", b"?", 60.0))
        assert isinstance((await first)[1], Silent)
        assert len(outcome) == 1_000_000 and when == pytest.approx(3 + 10 + LATENCY)

    at_home(promise)


def test_an_answer_that_nobody_waits_for_any_more_is_not_sent() -> None:
    async def promise(network: Any, a: Ports, b: Ports, c: Ports) -> None:
        async def late(sender: PeerId, message: bytes) -> bytes:
            await asyncio.sleep(float(message))
            return bytes(1_000_000)

        await a.mail.serve("large", late)
        with pytest.raises(Silent):
            await b.mail.send(a.me, "large", b"5", 3.0)
        when, _ = await end_of(c.mail.send(a.me, "large", b"0", 60.0))
        assert when == pytest.approx(3 + 10 + 2 * LATENCY)

    at_home(promise)


def test_a_round_takes_what_its_parts_and_means_need() -> None:
    async def promise(network: Any, *peers: Ports) -> None:
        outcomes = await average(peers)
        # Each sends 2/3 of 600 kB twice over an uplink of 100 kB/s.
        assert [outcome.seconds for outcome in outcomes] == pytest.approx([8 + LATENCY] * 3)
        assert dict(outcomes[0].exchanged) == {"b": 400_000, "c": 400_000}

    at_home(promise)


def test_a_slow_member_sends_its_own_parts_only() -> None:
    async def promise(network: Any, *peers: Ports) -> None:
        outcomes = await average(peers)
        # 600 kB at 25 kB/s; with equal shares it would send a quarter of that as means to each of two others.
        assert [outcome.seconds for outcome in outcomes] == pytest.approx([24 + LATENCY] * 4)
        assert dict(outcomes[0].exchanged) == dict.fromkeys("bcd", 200_000)

    at_home(promise, "abcd", {PeerId("a"): AccessLine(up=25_000.0, down=500_000.0)})


def test_a_round_takes_the_bytes_of_its_encoding() -> None:
    async def promise(network: Any, *peers: Ports) -> None:
        assert [outcome.seconds for outcome in await average(peers)] == pytest.approx([4 + LATENCY] * 3)

    at_home(promise, compression="float16")


def test_without_a_deadline_a_round_may_take_twice_what_its_lines_ask_for() -> None:
    async def promise(network: Any, a: Ports, b: Ports, c: Ports) -> None:
        outcomes = await average([a, b], deadline=1000.0)
        assert [outcome.seconds for outcome in outcomes] == pytest.approx([30 + LATENCY] * 2)
        began = now()
        await gives(a, 40_000_000)
        fetches = [asyncio.ensure_future(end_of(c.mail.send(a.me, "large", b"?", 900.0))) for _ in range(2)]
        lost = await average([a, b], deadline=1000.0)
        assert all(isinstance(outcome, RoundLost) for outcome in lost)
        assert now() - began == pytest.approx(60)
        for fetch in fetches:
            fetch.cancel()

    at_home(promise, lines={PeerId("a"): AccessLine(up=20_000.0, down=500_000.0)})


def test_a_round_and_a_release_share_the_line() -> None:
    async def promise(network: Any, a: Ports, b: Ports, c: Ports, d: Ports) -> None:
        await gives(a, 4_000_000)
        fetch = asyncio.ensure_future(end_of(d.mail.send(a.me, "large", b"?", 60.0)))
        await asyncio.sleep(2 * LATENCY)
        outcomes = await average([a, b, c])
        assert [outcome.seconds for outcome in outcomes] == pytest.approx([12 + LATENCY] * 3, rel=0.01)
        fetch.cancel()

    at_home(promise, "abcd")


@pytest.mark.parametrize("how", ["crash", "cut", "deadline"])
def test_a_round_that_breaks_gives_the_lines_back(how: str) -> None:
    async def promise(network: Any, a: Ports, b: Ports, c: Ports, d: Ports) -> None:
        loop = asyncio.get_running_loop()
        if how == "crash":
            loop.call_later(3, network.crash, "c")
        elif how == "cut":
            loop.call_later(3, network.links.partition, ["c"], ["b"])
        outcomes = await average([a, b, c], deadline=3.0 if how == "deadline" else 60.0)
        assert all(isinstance(outcome, RoundLost) for outcome in outcomes[:2]) and now() == 3.0
        await gives(a, 1_000_000)
        when, _ = await end_of(d.mail.send(a.me, "large", b"?", 60.0))
        assert when == pytest.approx(3 + 10 + 2 * LATENCY)

    at_home(promise, "abcd")


async def average(peers: Sequence[Ports], deadline: float = 60.0) -> list[Any]:
    """A round over 600 kB at each of `peers` -> its outcome or error at each."""
    calls = [
        one.averager.average(
            1, [torch.ones(150_000)], 1.0, [other.me for other in peers if other is not one], deadline
        )
        for one in peers
    ]
    return await asyncio.gather(*calls, return_exceptions=True)
