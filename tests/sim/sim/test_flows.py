"""Flows share the lines of their ends: fairly, fully, and never more than there is."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.sim.clock import run
from swarm.sim.flows import AccessLine, Flow, Flows
from swarm.types import PeerId

MOST = 1e4
"""Bytes per second of a flow that is alone on lines without an end."""


class Told:
    """Flows, and when they ended."""

    def __init__(self, lines: Mapping[str, AccessLine], most: float = MOST) -> None:
        self.flows = Flows({PeerId(peer): line for peer, line in lines.items()}, most)
        self.arrived: dict[Flow, float] = {}
        self.lost: dict[Flow, tuple[float, bool]] = {}

    def start(self, sender: str, receiver: str, size: int, delay: float = 0.0) -> Flow:
        flow = self.flows.start(
            PeerId(sender),
            PeerId(receiver),
            size,
            delay,
            lambda: self.arrived.update({flow: now()}),
            lambda broke: self.lost.update({flow: (now(), broke)}),
        )
        return flow


def now() -> float:
    return asyncio.get_running_loop().time()


def play(promise: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await promise()

    run(main())


def test_two_flows_over_one_uplink_take_twice_as_long() -> None:
    async def promise() -> None:
        told = Told({"a": AccessLine(up=100.0)})
        first, second = told.start("a", "b", 1000), told.start("a", "c", 1000)
        await asyncio.sleep(100)
        assert told.arrived == pytest.approx({first: 20.0, second: 20.0})

    play(promise)


def test_a_flow_that_ends_gives_its_share_back() -> None:
    async def promise() -> None:
        told = Told({"a": AccessLine(up=90.0)})
        first, second, third = (
            told.start("a", peer, size) for peer, size in zip("bcd", (600, 600, 150), strict=True)
        )
        await asyncio.sleep(100)
        # Three at 30 for 5 s, then two at 45 for 10 s.
        assert told.arrived == pytest.approx({third: 5.0, first: 15.0, second: 15.0})

    play(promise)


def test_a_downlink_is_shared_by_those_who_send_to_it() -> None:
    async def promise() -> None:
        told = Told({"c": AccessLine(down=100.0)})
        first, second = told.start("a", "c", 1000), told.start("b", "c", 1000)
        await asyncio.sleep(100)
        assert told.arrived == pytest.approx({first: 20.0, second: 20.0})

    play(promise)


def test_what_a_slow_receiver_leaves_goes_to_the_others() -> None:
    async def promise() -> None:
        told = Told({"a": AccessLine(up=100.0), "slow": AccessLine(down=10.0)})
        slow, one, other = (told.start("a", peer, 10_000) for peer in ("slow", "one", "other"))
        await asyncio.sleep(1)
        assert [flow.rate for flow in (slow, one, other)] == pytest.approx([10.0, 45.0, 45.0])

    play(promise)


def test_what_changes_at_one_end_is_felt_where_it_matters_however_far_away() -> None:
    async def promise() -> None:
        told = Told(
            {
                "a": AccessLine(up=20.0),
                "b": AccessLine(up=100.0),
                "y": AccessLine(down=60.0),
                "z": AccessLine(down=90.0),
            }
        )
        told.start("a", "x", 10_000)
        middle, far, last = (told.start(*pair, 10_000) for pair in (("a", "y"), ("b", "y"), ("b", "z")))
        await asyncio.sleep(1)
        assert [flow.rate for flow in (middle, far, last)] == pytest.approx([10.0, 50.0, 50.0])
        told.start("a", "w", 10_000)
        await asyncio.sleep(1)
        assert [flow.rate for flow in (middle, far, last)] == pytest.approx([20 / 3, 50.0, 50.0])
        last.cancel()
        await asyncio.sleep(1)
        assert [flow.rate for flow in (middle, far)] == pytest.approx([20 / 3, 60 - 20 / 3])

    play(promise)


def test_a_flow_that_is_cancelled_gives_its_share_back_at_once() -> None:
    async def promise() -> None:
        told = Told({"a": AccessLine(up=100.0)})
        first, second = told.start("a", "b", 1000), told.start("a", "c", 1000)
        await asyncio.sleep(10)
        second.cancel()
        second.cancel()  # it has ended
        await asyncio.sleep(100)
        assert told.arrived == pytest.approx({first: 15.0}) and told.lost == {second: (10.0, False)}

    play(promise)


def test_a_crash_breaks_what_comes_and_goes_and_a_cut_loses_what_is_between() -> None:
    async def promise() -> None:
        told = Told({"a": AccessLine(up=100.0), "b": AccessLine(up=100.0)})
        out, back, beside, cut = (
            told.start(*pair, 1000) for pair in (("a", "b"), ("b", "a"), ("a", "c"), ("a", "d"))
        )
        await asyncio.sleep(3)
        told.flows.cut(lambda sender, receiver: receiver == "d")
        await asyncio.sleep(3)
        told.flows.crash(PeerId("b"))
        await asyncio.sleep(100)
        assert told.lost == {cut: (3.0, False), out: (6.0, True), back: (6.0, True)}
        assert told.arrived == pytest.approx({beside: 13.5})  # 3 s at 33, 3 s at 50, then alone

    play(promise)


def test_a_message_arrives_its_delay_after_its_last_byte_left() -> None:
    async def promise() -> None:
        told = Told({"a": AccessLine(up=100.0)})
        flow = told.start("a", "b", 1000, delay=3.0)
        await asyncio.sleep(5)
        assert flow.until == math.inf
        await asyncio.sleep(100)
        assert told.arrived == pytest.approx({flow: 13.0}) and flow.until == pytest.approx(13.0)

    play(promise)


def test_no_flow_is_faster_than_a_message_that_is_alone() -> None:
    async def promise() -> None:
        told = Told({"a": AccessLine(up=1e9)})
        flows = [told.start("a", peer, 30_000) for peer in "bcd"]
        await asyncio.sleep(100)
        assert told.arrived == pytest.approx(dict.fromkeys(flows, 30_000 / MOST))

    play(promise)


PEERS = "abcdef"
RATES = st.sampled_from([10.0, 40.0, 100.0, 333.0, math.inf])
LINES = st.tuples(*[st.builds(AccessLine, RATES, RATES)] * len(PEERS))
PAIRS = st.sampled_from(list(permutations(PEERS, 2)))
STARTS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.5, 3.0]),  # seconds after the one before
        PAIRS,
        st.integers(1, 5000),
        st.sampled_from([None, None, 0.0, 2.5]),  # seconds until it is cancelled
    ),
    min_size=1,
    max_size=25,
)


def fair(told: Told, lines: Mapping[str, AccessLine], going: list[Flow]) -> None:
    """Nobody has more than there is; and each flow has all that a message can have, or an end that is full,
    where no other flow has more: the definition of max-min fairness, under which lines are full that can be.
    """
    more = 1 + 1e-6
    sides = [
        (rate, [flow for flow in going if flow.pair[k] == peer])
        for peer, line in lines.items()
        for k, rate in enumerate(line)
    ]
    full = []
    for rate, flows in sides:
        total = sum(flow.rate for flow in flows)
        assert total <= rate * more
        if total * more >= rate:
            full.append(flows)
    for flow in going:
        assert flow.rate == MOST or any(
            flow in flows and flow.rate * more >= max(other.rate for other in flows) for flows in full
        )


@given(LINES, STARTS)
def test_lines_are_shared_fairly_and_never_carry_more_than_they_can(
    drawn: tuple[AccessLine, ...], starts: list[tuple[float, tuple[str, str], int, float | None]]
) -> None:
    lines = dict(zip(PEERS, drawn, strict=True))

    async def promise() -> None:
        told, began = Told(lines), dict[Flow, tuple[float, int]]()

        async def look() -> None:
            for _ in range(3):
                await asyncio.sleep(0)  # what changed in this moment is rated
            ended = told.arrived.keys() | told.lost.keys()
            fair(told, lines, [flow for flow in began if flow not in ended and flow.until == math.inf])

        for pause, pair, size, patience in starts:
            await asyncio.sleep(pause)
            if not told.flows.limited(*(PeerId(peer) for peer in pair)):
                continue
            flow = told.start(*pair, size)
            began[flow] = now(), size
            if patience is not None:
                asyncio.get_running_loop().call_later(patience, flow.cancel)
            await look()
        while len(told.arrived) + len(told.lost) < len(began):
            await asyncio.sleep(7.3)
            await look()
        for peer, line in lines.items():
            for k, rate in enumerate(line):
                whole = [
                    (since, told.arrived[flow], size)
                    for flow, (since, size) in began.items()
                    if flow in told.arrived and flow.pair[k] == peer
                ]
                windows = product([one[0] for one in whole], [one[1] for one in whole])
                for begin, end in windows if rate < math.inf else ():
                    sent = sum(size for since, till, size in whole if begin <= since and till <= end)
                    assert not sent or sent <= rate * (end - begin) * (1 + 1e-6)

    play(promise)
