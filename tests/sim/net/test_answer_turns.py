"""Turns of answers: who is next, who is turned away, and that no turn is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from swarm.net.ports import Busy
from swarm.net.turns import FROM_ONE, LONGEST, QUEUE, REMEMBERED, AnswerTurns
from swarm.sim.clock import VirtualLoop, run
from swarm.types import PeerId


class Line:
    """Peers that wait for turns of one second each; `order` is who had one."""

    def __init__(self, at_once: int = 1) -> None:
        self.turns, self.order = AnswerTurns(at_once), list[str]()

    async def turn(self, peer: str, seconds: float = 1.0) -> None:
        end = await self.turns.take(PeerId(peer))
        self.order.append(peer)
        await asyncio.sleep(seconds)
        end()


def in_line(play: Callable[[Line], Awaitable[None]], at_once: int = 1) -> None:
    async def main() -> None:
        await play(Line(at_once))

    run(main())


def test_the_next_turn_is_that_of_the_peer_whose_last_one_is_longest_ago() -> None:
    async def play(line: Line) -> None:
        for peer in ("first", "second", "third"):
            await line.turn(peer)
        line.order.clear()
        await asyncio.gather(*(line.turn(peer, 0.1) for peer in ("new", "third", "first", "second", "newer")))
        assert line.order == ["new", "newer", "first", "second", "third"]

    in_line(play)


def test_whoever_asks_more_often_has_no_more_turns() -> None:
    async def play(line: Line) -> None:
        asked = ("greedy", "greedy", "greedy", "modest", "greedy", "modest")
        await asyncio.gather(*(line.turn(peer, 0.1) for peer in asked))
        assert line.order == ["greedy", "modest", "greedy", "modest", "greedy", "greedy"]

    in_line(play)


def test_so_many_have_turns_at_once_and_a_turn_that_ends_is_another_ones() -> None:
    async def play(line: Line) -> None:
        waiting = [asyncio.ensure_future(line.turn(peer)) for peer in "abcde"]
        for had in ("ab", "abcd", "abcde"):
            await asyncio.sleep(0.5)
            assert "".join(line.order) == had
            await asyncio.sleep(0.5)
        await asyncio.gather(*waiting)

    in_line(play, at_once=2)


def test_a_turn_for_which_nobody_waits_costs_no_timer() -> None:
    async def play(line: Line) -> None:
        for _ in range(100):
            (await line.turns.take(PeerId("one")))()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop) and not loop._timers

    in_line(play)


def test_a_full_line_turns_the_next_one_away() -> None:
    async def play(line: Line) -> None:
        end = await line.turns.take(PeerId("at its turn"))
        waiting = [asyncio.ensure_future(line.turn(f"peer {k}", 0.0)) for k in range(QUEUE)]
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="too many wait already"):
            await line.turns.take(PeerId("late"))
        end()
        await asyncio.gather(*waiting)
        await line.turn("late")

    in_line(play)


def test_a_full_line_turns_the_last_call_of_who_has_most_away_for_one_that_has_fewer() -> None:
    async def play(line: Line) -> None:
        end = await line.turns.take(PeerId("at its turn"))
        names = [f"peer {k}" for k in range(QUEUE - 2)]
        names[1:1] = ["greedy", "greedy"]
        waiting = [asyncio.ensure_future(line.turn(name, 0.0)) for name in names]
        await asyncio.sleep(0)
        waiting.append(asyncio.ensure_future(line.turn("late", 0.0)))
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="too many wait already"):
            await line.turns.take(PeerId("later"))
        end()
        told = await asyncio.gather(*waiting, return_exceptions=True)
        assert [k for k, one in enumerate(told) if isinstance(one, Busy)] == [2]
        assert line.order == [*names[:2], *names[3:], "late"]

    in_line(play)


def test_one_that_goes_away_as_it_is_turned_away_is_gone() -> None:
    async def play(line: Line) -> None:
        end = await line.turns.take(PeerId("at its turn"))
        names = ["greedy"] * 2 + [f"peer {k}" for k in range(QUEUE - 2)]
        waiting = [asyncio.ensure_future(line.turn(name, 0.0)) for name in names]
        await asyncio.sleep(0)
        assert line.turns._make_room(PeerId("late"))
        waiting[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting.pop(1)
        end()
        await asyncio.gather(*waiting)
        assert not line.turns._of

    in_line(play)


def test_calls_at_their_turn_and_waiting_count_for_what_one_peer_may_have() -> None:
    async def play(line: Line) -> None:
        mine = [asyncio.ensure_future(line.turn("me")) for _ in range(FROM_ONE - 1)]
        await asyncio.sleep(0)
        mine.append(asyncio.ensure_future(line.turn("me")))
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="too many"):
            await line.turns.take(PeerId("me"))
        await asyncio.sleep(1.0)
        mine.append(asyncio.ensure_future(line.turn("me")))
        await asyncio.gather(*mine)
        assert len(line.order) == FROM_ONE + 1

    in_line(play, at_once=5)


def test_one_that_waits_too_long_is_told_to_come_later_and_leaves_its_place() -> None:
    async def play(line: Line) -> None:
        line.turns = AnswerTurns(1, wait=1.0)
        end = await line.turns.take(PeerId("slow"))
        loop = asyncio.get_running_loop()
        for _ in range(FROM_ONE + 1):
            began = loop.time()
            with pytest.raises(Busy, match="busy with others for 1 s"):
                await line.turns.take(PeerId("patient"))
            assert loop.time() - began == pytest.approx(1.0)
        end()
        await line.turn("patient")
        await line.turn("slow")

    in_line(play)


def test_one_that_goes_away_while_it_waits_or_as_its_turn_comes_takes_no_turn_along() -> None:
    async def play(line: Line) -> None:
        for gone_first in (True, False):
            for _ in range(FROM_ONE + 1):
                end = await line.turns.take(PeerId("other"))
                waits = asyncio.ensure_future(line.turns.take(PeerId("fickle")))
                await asyncio.sleep(0.1)
                for step in (waits.cancel, end) if gone_first else (end, waits.cancel):
                    step()
                with pytest.raises(asyncio.CancelledError):
                    await waits
        async with asyncio.timeout(1.5):
            await line.turn("fickle")

    in_line(play)


def test_a_turn_that_is_never_ended_is_over_after_a_while_and_ends_once() -> None:
    async def play(line: Line) -> None:
        end = await line.turns.take(PeerId("silent"))
        await asyncio.sleep(LONGEST - 1.0)
        waits = asyncio.ensure_future(line.turns.take(PeerId("next")))
        await asyncio.sleep(0.9)
        assert not waits.done()
        await asyncio.sleep(0.2)
        assert waits.done(), "its turn has come"
        end()
        with pytest.raises(Busy):
            await line.turns.take(PeerId("third"))

    in_line(play)


def test_of_many_peers_the_last_that_had_turns_are_remembered() -> None:
    async def play(line: Line) -> None:
        for k in range(REMEMBERED + 2):
            await line.turn(str(k), 0.0)
        assert len(line.turns._served) == REMEMBERED
        line.order.clear()
        asked = (str(REMEMBERED + 1), "3", "0")
        await asyncio.gather(*(line.turn(peer, 0.1) for peer in ("now", *asked)))
        assert line.order == ["now", "0", "3", str(REMEMBERED + 1)], "who was forgotten is as good as new"

    in_line(play)
