"""Blobs over memory mail: releases travel, liars are skipped, only the newest are held, and a folder survives
a restart."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from liars import lie

from swarm.net.blobs import shelves
from swarm.net.blobs.store import Blobs
from swarm.net.memory.network import MemoryNetwork
from swarm.net.ports import NetError
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.storage.blocks import BLOCK, LEAF, Blocks, digest_of
from swarm.types import Digest, PeerId, Release

WHOLE = random.Random(1).randbytes(5 * BLOCK + 17)


def release_of(data: bytes, version: int) -> Release:
    return Release(
        version=version,
        weights=Blocks.of(data).root,
        size=len(data),
        parent=Digest("0" * 64),
        publisher=PeerId("a"),
        learners=1,
        groups=1,
        released=0.0,
    )


def held(blobs: Blobs, data: bytes, version: int) -> Release:
    blobs.hold(version, Blocks.of(data))
    return release_of(data, version)


async def fetched(blobs: Blobs, release: Release, holders: Sequence[PeerId]) -> bytes:
    return (await blobs.fetch(release.version, release.weights, release.size, holders)).whole


def given_away(blobs: Blobs, release: Release) -> int:
    """Blocks of a release that others had from here."""
    return blobs._shared[release.weights]._given.total()


def with_peers(promise: Callable[..., Awaitable[None]]) -> None:
    async def main() -> None:
        links = SimLinks(DelayLaw(law="constant", seconds=0.05), 12.5e6, random.Random(1))
        async with MemoryNetwork(random.Random(2), links) as network:
            await promise(*(network.ports(name, lambda kind: 0.0) for name in "abc"))

    run(main())


def test_a_release_travels_whole_and_its_receiver_holds_it_for_others() -> None:
    async def promise(a: Any, b: Any, c: Any) -> None:
        publisher, second, third = Blobs(a.mail), Blobs(b.mail), Blobs(c.mail)
        await publisher.serve()
        await second.serve()
        release = held(publisher, WHOLE, 1)
        assert await fetched(second, release, [a.me]) == WHOLE
        assert await fetched(third, release, [b.me]) == WHOLE

    with_peers(promise)


def test_the_same_bytes_are_fetched_twice_at_a_time(tmp_path: Path) -> None:

    async def promise(a: Any, b: Any, c: Any) -> None:
        publisher, wants = Blobs(a.mail), Blobs(b.mail, folder=tmp_path)
        await publisher.serve()
        release = held(publisher, WHOLE, 1)
        both = asyncio.gather(*(fetched(wants, release, [a.me]) for _ in range(2)))
        assert await both == [WHOLE, WHOLE]
        assert wants.is_whole(release.weights)

    with_peers(promise)


def test_chunks_come_from_several_holders() -> None:
    async def promise(a: Any, b: Any, c: Any) -> None:
        one, other = Blobs(a.mail), Blobs(b.mail)
        release = held(one, WHOLE, 1)
        held(other, WHOLE, 1)
        for blobs in (one, other):
            await blobs.serve()
        assert await fetched(Blobs(c.mail), release, [a.me, b.me]) == WHOLE
        given = [given_away(blobs, release) for blobs in (one, other)]
        assert sum(given) <= 7 and min(given) >= 2

    with_peers(promise)


def test_what_has_more_blocks_than_a_mail_has_leaves_is_cut_into_larger_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("swarm.storage.blocks.MOST", 4)

    async def promise(a: Any, b: Any, c: Any) -> None:
        publisher = Blobs(a.mail)
        await publisher.serve()
        release, leaves = held(publisher, WHOLE, 1), Blocks.of(WHOLE).leaves
        assert len(leaves) == 3 and len(publisher.get(leaves[0]) or b"") == 2 * BLOCK
        assert await fetched(Blobs(b.mail), release, [a.me]) == WHOLE

    with_peers(promise)


def test_a_liar_is_reported_once_and_the_release_still_arrives() -> None:
    async def promise(a: Any, b: Any, c: Any) -> None:
        bad: list[PeerId] = []
        publisher = Blobs(a.mail)
        await publisher.serve()
        await lie(b.mail, bytes(BLOCK), leaves=bytes(6 * LEAF))
        release = held(publisher, WHOLE, 1)
        wants = Blobs(c.mail, on_bad=lambda peer, reason: bad.append(peer))
        assert await fetched(wants, release, [b.me, a.me]) == WHOLE
        assert bad == ["b"]

    with_peers(promise)


def test_when_all_fail_the_error_names_who_failed_how() -> None:
    async def promise(a: Any, b: Any, c: Any) -> None:
        await Blobs(a.mail).serve()
        await lie(b.mail, bytes(BLOCK), leaves=bytes(6 * LEAF))
        with pytest.raises(
            NetError, match=r"a refused: not held here; b sent .* that are not .*; z failed: z is not there"
        ):
            await Blobs(c.mail).fetch(1, digest_of(b"wanted"), 6, [a.me, b.me, PeerId("z")])

    with_peers(promise)


WRONG = [{"size": 1 << 50}, {"size": BLOCK}, {"size": 0}, {"weights": Digest("1" * 64)}]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_release_that_its_leaf_list_does_not_fit_is_not_fetched(wrong: dict[str, Any]) -> None:
    async def promise(a: Any, b: Any, c: Any) -> None:
        publisher = Blobs(a.mail)
        await publisher.serve()
        release = held(publisher, WHOLE, 1)
        wants = Blobs(b.mail)
        with pytest.raises(NetError):
            await fetched(wants, msgspec.structs.replace(release, **wrong), [a.me])
        assert wants.statistics() == {"releases": 0, "blobs": 0}

    with_peers(promise)


def test_only_the_newest_versions_are_held() -> None:
    async def promise(a: Any, b: Any, c: Any) -> None:
        blobs = Blobs(a.mail, keep=2)
        wholes = [f"weights {version}".encode() for version in range(4)]
        releases = [held(blobs, whole, version) for version, whole in enumerate(wholes)]
        here = [blobs.get(release.weights) is not None for release in releases]
        assert here == [False, False, True, True]
        assert [blobs.get(digest_of(whole)) is not None for whole in wholes] == [False, False, True, True]

    with_peers(promise)


def test_a_chunk_that_two_releases_share_is_held_as_long_as_one_of_them() -> None:
    async def promise(a: Any, b: Any, c: Any) -> None:
        blobs = Blobs(a.mail, keep=1)
        for version in (1, 2):
            held(blobs, b"the same", version)
        assert blobs.get(digest_of(b"the same")) == b"the same"

    with_peers(promise)


def test_a_folder_is_read_back_and_a_damaged_release_is_dropped(tmp_path: Path) -> None:
    async def promise(a: Any, b: Any, c: Any) -> None:
        first = Blobs(a.mail, folder=tmp_path)
        good, torn = held(first, b"good weights", 1), held(first, b"torn weights", 2)
        (tmp_path / torn.weights).write_bytes(b"torn")
        again = Blobs(b.mail, folder=tmp_path)
        assert (
            again.get(good.weights) is not None and again.get(digest_of(b"good weights")) == b"good weights"
        )
        assert again.blocks(torn.weights) is None and again.statistics()["releases"] == 1
        again.clear()

    with_peers(promise)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("why", "failing"), [(errno.ENOSPC, "pwrite"), (errno.EIO, "pwrite"), (errno.EROFS, "open")]
)
def test_a_disk_that_takes_no_more_costs_what_would_outlive_the_peer_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: int, failing: str
) -> None:
    told: list[str] = []

    def full(*_: Any) -> Any:
        raise OSError(why, os.strerror(why))

    async def scene(a: Any, b: Any, c: Any) -> None:
        publisher = Blobs(a.mail)
        await publisher.serve()
        keeps, later = Blobs(b.mail, folder=tmp_path, keep=2), Blobs(c.mail)
        keeps.on_disk = told.append
        keeps._disk = None  # virtual time knows no threads
        await keeps.serve()
        with monkeypatch.context() as patch:
            patch.setattr(shelves, "write_checked", full)
            patch.setattr(os, failing, full)
            for version in (1, 2, 3):
                release = held(publisher, bytes([version]) * 99, version)
                assert await fetched(keeps, release, [a.me])
            held(keeps, b"mine", 4)
        # What is held in memory is given to others, and goes when it is old.
        assert await fetched(later, release, [b.me]) == bytes([3]) * 99
        assert keeps.statistics()["blobs"] == 2 and all(told) and os.strerror(why) in told[0]
        assert "held in memory only" in told[0]
        room = held(publisher, b"room again", 5)
        await fetched(keeps, room, [a.me])
        assert Blobs(c.mail, folder=tmp_path).holds(room.weights, room.size)

    with_peers(scene)


@pytest.mark.parametrize("failing", ["open", "pwrite", "ftruncate", "rename", "fsync"])
def test_what_the_disk_refused_is_on_it_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def scene(a: Any, b: Any, c: Any) -> None:
        told: list[str] = []
        publisher, keeps = Blobs(a.mail), Blobs(b.mail, folder=tmp_path)
        keeps.on_disk = told.append
        keeps._disk = None  # virtual time knows no threads
        await publisher.serve()
        with monkeypatch.context() as patch:
            patch.setattr(os, failing, full)
            fetched_one = held(publisher, WHOLE, 1)
            assert await fetched(keeps, fetched_one, [a.me]) == WHOLE
            made = await keeps.take(2, Blocks.of(WHOLE[1:]))
            await keeps.store()
            refused = told[told.index(next(filter(None, told))) :]
            assert all(refused), "it is told once that it takes something, when it takes everything"
        await keeps.store()
        assert told[-1] == ""
        roots = fetched_one.weights, made.root
        assert {*os.listdir(tmp_path)} == {f"{root}{end}" for root in roots for end in ("", ".release")}
        assert made.whole == WHOLE[1:], "who reads it does not notice"
        again = Blobs(c.mail, folder=tmp_path)
        assert again.is_whole(fetched_one.weights) and again.is_whole(made.root)

    with_peers(scene)


def test_who_reads_a_version_ends_with_it_and_its_file_goes_then(tmp_path: Path) -> None:
    async def promise(a: Any, b: Any, c: Any) -> None:
        blobs = Blobs(a.mail, folder=tmp_path, keep=1)
        blobs.hold(1, Blocks.of(WHOLE))
        reads = blobs.blocks(Blocks.of(WHOLE).root)
        blobs.hold(2, Blocks.of(WHOLE[1:]))
        assert blobs.blocks(Blocks.of(WHOLE).root) is None and blobs.statistics()["releases"] == 1
        assert reads is not None and reads.source.path is not None and reads.source.path.is_file()
        blobs.hold(3, Blocks.of(WHOLE))  # the same bytes again, while somebody reads them
        assert reads.whole == WHOLE
        blobs.hold(4, Blocks.of(WHOLE[2:]))
        path = reads.source.path
        assert path.read_bytes() == reads.whole == WHOLE
        del reads
        assert not path.exists()

    with_peers(promise)
