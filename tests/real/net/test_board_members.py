"""The board's DHT is told who is a member, so that strangers fill no key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import base58
import pytest

from swarm.membership.identity import Keyring, peer_id
from swarm.types import Digest, PeerId

hive_world = pytest.importorskip("hive_world", exc_type=ImportError)

from swarm.frames.wire import topic  # noqa: E402
from swarm.net.messaging import guard  # noqa: E402 (hivemind is there)
from swarm.net.messaging.board import AT_ONCE, DhtBoard, _put  # noqa: E402
from swarm.net.ports import Silent  # noqa: E402

RUN = Digest("5" * 64)


class Told:
    """A DHT that notes what it is told; it fails as often as `fails` says."""

    def __init__(self, fails: int = 0) -> None:
        self.calls: list[tuple[int, bool]] = []
        self.fails = fails

    async def ask(self, coroutine: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        if self.fails:
            self.fails -= 1
            raise Silent("it hangs")
        if args:
            self.calls.append((len(args[0]), args[1]))
        return True


class Owner:
    me, run, alone = Keyring.new().me, RUN, False

    def __init__(self, dht: Told) -> None:
        self.dht = dht

    async def live_dht(self) -> Told:
        return self.dht

    def doubt(self) -> None:
        """Nobody looks."""


def many(number: int) -> list[PeerId]:
    return [peer_id(bytes([k % 256, k // 256]) * 16) for k in range(number)]


def test_each_dht_is_told_of_the_members_once_in_pieces_and_again_where_it_did_not_answer() -> None:
    async def scene() -> None:
        owner = Owner(first := Told(fails=1))
        board, members = DhtBoard(owner), many(AT_ONCE + 1)  # type: ignore[arg-type]
        board.prefer(lambda: members)
        for _ in range(3):
            await board.pass_members()
        assert first.calls == [(AT_ONCE, True), (1, False)], "the first time it did not answer"
        owner.dht = second = Told()
        await board.pass_members()
        members.pop()
        await board.pass_members()
        assert second.calls == [(AT_ONCE, True), (1, False), (AT_ONCE, True)]

    asyncio.run(scene())


def test_a_closed_board_says_who_is_answered_from_now_on_and_an_open_one_nobody() -> None:
    async def scene() -> None:
        board, members = DhtBoard(Owner(Told())), many(3)  # type: ignore[arg-type]
        board.prefer(lambda: members[:2])
        assert await board.pass_members() == frozenset()
        board.prefer(lambda: members, closed=True)
        assert await board.pass_members() == {members[2]}
        board._node.dht = Told()  # type: ignore[attr-defined]
        assert await board.pass_members() == {*members}, "a new one has no neighbours"

    asyncio.run(scene())


@pytest.mark.nightly
def test_a_real_dht_that_strangers_fill_keeps_a_members_record() -> None:
    async def body(world: Any) -> None:
        seed, member, stranger = await world.ports(3)
        seed.board.prefer(lambda: [seed.me, member.me])
        await seed.board.pass_members()
        key = topic(world.run, "member")

        async def flood(at: int) -> None:
            dht = await seed.node.live_dht()
            for peer in many(at):  # as if each had come with its own signature
                await dht.ask(_put, (key, base58.b58decode(peer), b"x", 4e9), True)

        await flood(guard.NEWCOMERS + 20)
        assert await member.board.put(key, b"here", 60.0)
        await flood(guard.NEWCOMERS + 20)
        found = await stranger.board.get(key)
        assert found[member.me] == b"here"
        assert len(await seed.board.get(key)) <= guard.NEWCOMERS + 2

    hive_world.in_world(body)
