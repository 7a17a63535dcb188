"""Fetches over slow and shared lines, in virtual time: they end, they end soon, and nobody is blamed for a
slow line."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from swarm.frames.wire import decode
from swarm.net.blobs.sharing import Holding
from swarm.net.blobs.store import Blobs
from swarm.net.memory.network import MemoryNetwork
from swarm.net.ports import Busy, NetError, Ports
from swarm.net.turns import FROM_ONE, LONGEST, AnswerTurns
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.flows import AccessLine
from swarm.sim.links import SimLinks
from swarm.storage.blocks import BLOCK, Blocks
from swarm.types import PeerId, Release

MBIT = 1e6 / 8
TRIP = 0.08
WHOLE = hashlib.shake_128(b"whole").digest(64_000_000)
SMALL = random.Random(2).randbytes(12 * BLOCK + 5)


class Uplinks(SimLinks):
    """Everybody has 100 Mbit/s; who is in `rates` sends at most so many bytes per second to all together."""

    def __init__(self, rates: Mapping[str, float]) -> None:
        lines = {PeerId(peer): AccessLine(up=rate, down=100 * MBIT) for peer, rate in rates.items()}
        super().__init__(DelayLaw(law="constant", seconds=TRIP / 2), 100 * MBIT, random.Random(1), lines)


class Peer:
    """A peer with blobs, and whom it blamed."""

    def __init__(self, ports: Ports, folder: Path | None = None, keep: int = 4) -> None:
        self.ports, self.blamed = ports, list[tuple[PeerId, str]]()
        self.blobs = Blobs(
            ports.mail,
            folder=folder,
            keep=keep,
            rng=random.Random(ports.me),
            on_bad=lambda peer, why: self.blamed.append((peer, why)),
            reach=ports.reach,
        )

    async def offer(self, whole: bytes, version: int = 1) -> Release:
        await self.blobs.serve()
        blocks = Blocks.of(whole)
        self.blobs.hold(version, blocks)
        return Release(
            version=version,
            weights=blocks.root,
            size=len(whole),
            parent=blocks.root,
            publisher=self.ports.me,
            learners=1,
            groups=1,
            released=0.0,
        )


async def fetched(blobs: Blobs, release: Release, holders: Sequence[PeerId]) -> bytes:
    return (await blobs.fetch(release.version, release.weights, release.size, holders)).whole


Promise = Callable[[MemoryNetwork, Callable[..., Peer]], Awaitable[None]]


def over(links: SimLinks, promise: Promise) -> None:
    async def main() -> None:
        async with MemoryNetwork(random.Random(2), links) as network:
            await promise(network, lambda name, **rest: Peer(network.ports(name, lambda kind: 0.0), **rest))

    run(main())


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.nightly
def test_twelve_fetchers_of_64_megabytes_over_20_megabits_take_half_as_long_again_as_one() -> None:
    async def promise(network: MemoryNetwork, peer: Callable[..., Peer]) -> None:
        source, fetchers = peer("source"), [peer(f"fetcher-{k}") for k in range(12)]
        release = await source.offer(WHOLE)
        for one in fetchers:
            await one.blobs.serve()
        found = await asyncio.gather(*(fetched(one.blobs, release, [source.ports.me]) for one in fetchers))
        assert all(whole == WHOLE for whole in found)
        assert now() < 1.5 * len(WHOLE) / (20 * MBIT)
        assert not any(one.blamed for one in fetchers)

    over(Uplinks(dict.fromkeys(["source", *(f"fetcher-{k}" for k in range(12))], 20 * MBIT)), promise)


def test_a_fetcher_that_is_interrupted_goes_on_where_it_ended() -> None:
    async def promise(network: MemoryNetwork, peer: Callable[..., Peer]) -> None:
        source, fetchers = peer("source"), [peer(f"fetcher-{k}") for k in range(3)]
        release = await source.offer(WHOLE)

        async def in_pieces(one: Peer, seconds: float) -> bytes:
            while True:
                try:
                    async with asyncio.timeout(seconds):
                        return await fetched(one.blobs, release, [source.ports.me])
                except TimeoutError:
                    continue

        found = await asyncio.gather(*(in_pieces(one, 8.0 + k) for k, one in enumerate(fetchers)))
        assert all(whole == WHOLE for whole in found)
        ideal, again = 3 * len(WHOLE) / (20 * MBIT), 3 * 4 * BLOCK / (20 * MBIT)
        # What is under way at an interruption, four chunks at most, goes over the line again.
        assert now() < 1.1 * (ideal + again * now() / 8.0)

    over(Uplinks({"source": 20 * MBIT}), promise)


@pytest.mark.parametrize("stays", [True, False], ids=["a folder", "memory"])
def test_what_was_fetched_before_a_restart_is_not_asked_for_again(tmp_path: Path, stays: bool) -> None:
    async def promise(network: MemoryNetwork, peer: Callable[..., Peer]) -> None:
        source, asked = peer("source"), Counter[int]()
        release = await source.offer(SMALL)
        leaves, most, refused = Blocks.of(SMALL).leaves, 6, asyncio.Event()

        async def answer(sender: PeerId, message: bytes) -> bytes:
            if asked.total() == most:
                refused.set()
                raise Busy("later")
            given = await source.blobs._sharing._give(sender, message)
            asked[decode(given, Holding).block or 0] += 1
            return given

        await source.ports.mail.serve("blobs", answer)
        folder = tmp_path if stays else None
        first = peer("first", folder=folder)
        fetching = asyncio.create_task(fetched(first.blobs, release, [source.ports.me]))
        await refused.wait()
        while not all(first.blobs.get(leaves[block]) for block in asked):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # the other questions that are on their way are refused, too
        fetching.cancel()
        await asyncio.wait({fetching})
        assert fetching.cancelled()
        assert len(asked) == most and all(first.blobs.get(leaves[block]) for block in asked)
        again = peer("again", folder=folder) if stays else first
        most = 100
        assert await fetched(again.blobs, release, [source.ports.me]) == SMALL
        assert len(asked) == 13 and set(asked.values()) == {1}
        assert again.blobs.statistics() == {"releases": 1, "blobs": 14}

    over(SimLinks(DelayLaw(law="constant", seconds=0.001), 1e9, random.Random(1)), promise)
    assert not list(tmp_path.glob("*.begun"))


def test_a_slow_holder_is_waited_for_as_long_as_bytes_come() -> None:
    async def promise(network: MemoryNetwork, peer: Callable[..., Peer]) -> None:
        source, one = peer("source"), peer("one")
        release = await source.offer(SMALL)
        assert await fetched(one.blobs, release, [source.ports.me]) == SMALL
        assert not one.blamed and now() < 1.05 * len(SMALL) / (0.25 * MBIT)

    over(Uplinks({"source": 0.25 * MBIT}), promise)


def test_a_slow_holder_beside_a_fast_one_costs_a_tenth_more_and_is_not_blamed() -> None:
    async def promise(network: MemoryNetwork, peer: Callable[..., Peer]) -> None:
        fast, slow, one = peer("fast"), peer("slow"), peer("one")
        release = await fast.offer(WHOLE)
        await slow.offer(WHOLE)
        assert await fetched(one.blobs, release, [slow.ports.me, fast.ports.me]) == WHOLE
        assert not one.blamed and now() < 1.1 * len(WHOLE) / (20 * MBIT)

    over(Uplinks({"fast": 20 * MBIT, "slow": 0.1 * MBIT}), promise)


@pytest.mark.parametrize("how", ["cut", "crash", "stuck"])
def test_a_holder_that_stops_in_the_middle_costs_seconds(how: str) -> None:
    async def promise(network: MemoryNetwork, peer: Callable[..., Peer]) -> None:
        stops, other, one = peer("stops"), peer("other"), peer("one")
        release = await stops.offer(WHOLE)
        await other.offer(WHOLE)

        async def stop() -> None:
            await asyncio.sleep(5.0)
            if how == "cut":
                network.links.partition([stops.ports.me], [one.ports.me])  # type: ignore[attr-defined]
            elif how == "crash":
                network.crash(stops.ports.me)
            else:
                await stops.ports.mail.serve("blobs", lambda sender, message: asyncio.sleep(1e6, b""))

        network.tasks.create_task(stop())
        assert await fetched(one.blobs, release, [stops.ports.me, other.ports.me]) == WHOLE
        assert not one.blamed
        # Two lines for five seconds, then one; and silence shows after 5 s and 8 round trips, of which one
        # may be a chunk's time.
        assert now() < len(WHOLE) / (20 * MBIT) + 10.0
        network.crash(stops.ports.me)

    over(Uplinks({"stops": 20 * MBIT, "other": 20 * MBIT}), promise)


def test_one_silence_of_the_only_holder_counts_once_however_many_questions_it_left_open() -> None:
    async def promise(network: MemoryNetwork, peer: Callable[..., Peer]) -> None:
        source, one = peer("source"), peer("one")
        release, ends = await source.offer(WHOLE), ([source.ports.me], [one.ports.me])

        async def fall_silent() -> None:
            await asyncio.sleep(5.0)
            network.links.partition(*ends)  # type: ignore[attr-defined]
            await asyncio.sleep(7.0)
            network.links.repair(*ends)  # type: ignore[attr-defined]

        network.tasks.create_task(fall_silent())
        assert await fetched(one.blobs, release, [source.ports.me]) == WHOLE
        assert not one.blamed
        # The silence, what shows it twice, and the blocks that it cost.
        assert now() < len(WHOLE) / (20 * MBIT) + 7.0 + 10.0

    over(Uplinks({"source": 20 * MBIT}), promise)


def test_a_holder_that_is_busy_is_asked_again_and_not_blamed() -> None:
    async def promise(network: MemoryNetwork, peer: Callable[..., Peer]) -> None:
        source, one, calls = peer("source"), peer("one"), 0
        release = await source.offer(SMALL)

        async def answer(sender: PeerId, message: bytes) -> bytes:
            nonlocal calls
            calls += 1
            if calls % 3:
                raise Busy("later")
            return await source.blobs._sharing._give(sender, message)

        await source.ports.mail.serve("blobs", answer)
        assert await fetched(one.blobs, release, [source.ports.me]) == SMALL
        assert 36 < calls <= 39 + 12 and not one.blamed

    over(Uplinks({}), promise)


def test_a_holder_that_was_busy_is_asked_one_question_at_a_time_until_it_gives() -> None:
    async def promise(network: MemoryNetwork, peer: Callable[..., Peer]) -> None:
        source, one, waiting = peer("source"), peer("one"), 0
        release = await source.offer(SMALL)
        first, later = list[int](), list[int]()

        async def answer(sender: PeerId, message: bytes) -> bytes:
            nonlocal waiting
            waiting += 1
            (first if now() < 1.0 else later).append(waiting)
            await asyncio.sleep(2.0)
            waiting -= 1
            raise Busy("later")

        await source.ports.mail.serve("blobs", answer)
        with pytest.raises(NetError, match="source is busy for 120 s"):
            await fetched(one.blobs, release, [source.ports.me])
        assert max(first) > 1 and set(later) == {1}

    over(Uplinks({}), promise)


def test_a_holder_that_is_busy_for_ever_ends_a_fetch_after_two_minutes() -> None:
    async def promise(network: MemoryNetwork, peer: Callable[..., Peer]) -> None:
        source, one = peer("source"), peer("one")
        release = await source.offer(SMALL)

        async def answer(sender: PeerId, message: bytes) -> bytes:
            raise Busy("later")

        await source.ports.mail.serve("blobs", answer)
        with pytest.raises(NetError, match="source is busy for 120 s"):
            await fetched(one.blobs, release, [source.ports.me])
        assert 120 < now() < 130

    over(Uplinks({}), promise)


@pytest.mark.parametrize("silent", [0, 2])
def test_for_one_block_two_of_twenty_holders_are_asked_and_others_where_these_are_silent(silent: int) -> None:
    asked = list[PeerId]()

    async def promise(network: MemoryNetwork, peer: Callable[..., Peer]) -> None:
        holders, fetcher = [peer(f"holder-{k:02}") for k in range(20)], peer("fetcher")
        for holder in holders:
            release = await holder.offer(b"one block")
        network.links.hold([holder.ports.me for holder in holders[:silent]], [fetcher.ports.me])  # type: ignore[attr-defined]
        send = fetcher.ports.mail.send

        async def counted(to: PeerId, *question: Any) -> bytes:
            asked.append(to)
            return await send(to, *question)

        fetcher.ports.mail.send = counted  # type: ignore[method-assign]
        assert await fetched(fetcher.blobs, release, [holder.ports.me for holder in holders]) == b"one block"
        assert now() < 2 * (1 + silent) and not fetcher.blamed

    over(Uplinks({}), promise)
    assert len(asked) == 3 + silent and len(set(asked)) == 2 + silent, "one question more brings the block"


def test_a_release_is_not_dropped_while_it_is_being_fetched() -> None:
    async def promise(network: MemoryNetwork, peer: Callable[..., Peer]) -> None:
        source, one = peer("source"), peer("one", keep=1)
        release = await source.offer(SMALL, version=3)
        fetch = asyncio.ensure_future(fetched(one.blobs, release, [source.ports.me]))
        for version in range(4, 8):
            await asyncio.sleep(0.5)
            one.blobs.hold(version, Blocks.of(b"%d" % version))
            assert not fetch.done()
        assert await fetch == SMALL
        assert one.blobs.statistics() == {"releases": 1, "blobs": 1}  # now it is older than what is kept

    over(Uplinks({"source": 20 * MBIT}), promise)


def test_a_line_too_slow_for_every_version_gets_some_of_them() -> None:
    """A hundredth of 1.2 GB over 50 Mbit/s, a version every half minute, of which a holder keeps two."""

    async def promise(network: MemoryNetwork, peer: Callable[..., Peer]) -> None:
        source, one, got = peer("source", keep=2), peer("one", keep=2), list[int]()
        newest = await source.offer(SMALL)

        async def fetch() -> None:
            while True:
                release = newest
                assert await fetched(one.blobs, release, [source.ports.me])
                got.append(release.version)

        fetching = network.tasks.create_task(fetch())
        for version in range(2, 32):
            await asyncio.sleep(30.0)
            newest = await source.offer(SMALL[version:], version)
            assert source.blobs.statistics()["releases"] <= 2 + 2  # the newest, and as many being fetched
        fetching.cancel()
        assert len(got) == 4 and got == sorted(got) and not one.blamed

    over(Uplinks({"source": 0.5 * MBIT}), promise)


def test_of_releases_that_were_only_begun_no_more_are_held_than_of_whole_ones() -> None:
    async def promise(network: MemoryNetwork, peer: Callable[..., Peer]) -> None:
        source, one = peer("source", keep=99), peer("one", keep=2)
        releases = [await source.offer(SMALL[version:], version) for version in range(1, 7)]
        for release in releases:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2.0):
                    await fetched(one.blobs, release, [source.ports.me])
            await asyncio.sleep(10.0)  # what is under way arrives
        held = [release.version for release in releases if one.blobs.get(release.weights) is not None]
        assert held == [5, 6]
        one.blobs.hold(6, Blocks.of(b"whole"))
        assert [release.version for release in releases if one.blobs.get(release.weights) is not None] == [6]

    over(Uplinks({"source": 20 * MBIT}), promise)


def test_a_turn_is_waited_for_in_order_and_not_for_long() -> None:
    async def main() -> None:
        turns, order = AnswerTurns(at_once=1), list[str]()
        end = await turns.take(PeerId("first"))

        async def take(name: str) -> None:
            over = await turns.take(PeerId(name))
            order.append(name)
            over()

        waiting = [asyncio.ensure_future(take(name)) for name in ("second", "third")]
        await asyncio.sleep(1.0)
        end()
        end()  # only once
        await asyncio.gather(*waiting)
        assert order == ["second", "third"]
        await turns.take(PeerId("slow"))
        with pytest.raises(Busy, match="busy with others"):
            await turns.take(PeerId("late"))
        await asyncio.sleep(LONGEST)
        (await turns.take(PeerId("late")))()

    run(main())


def test_one_peer_does_not_have_all_turns() -> None:
    async def main() -> None:
        turns = AnswerTurns(at_once=FROM_ONE + 1)
        for _ in range(FROM_ONE):
            await turns.take(PeerId("greedy"))
        with pytest.raises(Busy, match="too many"):
            await turns.take(PeerId("greedy"))
        (await turns.take(PeerId("modest")))()

    run(main())
