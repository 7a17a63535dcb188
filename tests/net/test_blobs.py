"""Blobs over memory mail: releases travel, liars are skipped, only the newest are held, and a folder survives
a restart."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarm.config import DelayLaw
from swarm.net import shelves
from swarm.net.blobs import CHUNK, Blobs, digest_of
from swarm.net.in_memory import MemoryNetwork
from swarm.net.ports import NetError
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.types import Digest, PeerId, Release

WHOLE = random.Random(1).randbytes(5 * CHUNK + 17)


def release_of(data: bytes, version: int, manifest: Digest) -> Release:
    return Release(
        version=version,
        weights=digest_of(data),
        manifest=manifest,
        size=len(data),
        parent=Digest("0" * 64),
        publisher=PeerId("a"),
        learners=1,
        groups=1,
        released=0.0,
    )


def with_peers(promise: Callable[..., Awaitable[None]]) -> None:
    async def main() -> None:
        links = SimLinks(DelayLaw(law="constant", seconds=0.05), 12.5e6, random.Random(1))
        async with MemoryNetwork(random.Random(2), links) as network:
            await promise(*(network.ports(name, lambda kind: 0.0) for name in "abc"))

    run(main())


async def lie(sender: PeerId, message: bytes) -> bytes:
    return bytes(CHUNK)


def test_a_release_travels_whole_and_its_receiver_holds_it_for_others() -> None:
    async def promise(a: Any, b: Any, c: Any) -> None:
        publisher, second, third = Blobs(a.mail), Blobs(b.mail), Blobs(c.mail)
        await publisher.serve()
        await second.serve()
        release = release_of(WHOLE, 1, publisher.publish(WHOLE, 1, digest_of(WHOLE))[1])
        assert await second.fetch_release(release, [a.me]) == WHOLE
        assert await third.fetch_release(release, [b.me]) == WHOLE

    with_peers(promise)


def test_chunks_come_from_several_holders() -> None:
    async def promise(a: Any, b: Any, c: Any) -> None:
        asked: list[str] = []
        one, other = Blobs(a.mail), Blobs(b.mail)
        manifest = one.publish(WHOLE, 1, digest_of(WHOLE))[1]
        other.publish(WHOLE, 1, digest_of(WHOLE))
        for ports, blobs in ((a, one), (b, other)):

            async def answer(
                sender: PeerId, message: bytes, who: str = ports.me, blobs: Blobs = blobs
            ) -> bytes:
                asked.append(who)
                return blobs.get(Digest(message.decode())) or b""

            await ports.mail.serve("blobs", answer)
        assert await Blobs(c.mail).fetch_release(release_of(WHOLE, 1, manifest), [a.me, b.me]) == WHOLE
        assert asked.count("a") == 4 and asked.count("b") == 3  # the manifest and three chunks each

    with_peers(promise)


def test_a_release_of_more_chunks_than_a_manifest_names_has_larger_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("swarm.net.blobs.MOST", 4)

    async def promise(a: Any, b: Any, c: Any) -> None:
        publisher = Blobs(a.mail)
        await publisher.serve()
        manifest, address = publisher.publish(WHOLE, 1, digest_of(WHOLE))
        assert len(manifest.chunks) == 3 and len(publisher.get(manifest.chunks[0]) or b"") == 2 * CHUNK
        assert await Blobs(b.mail).fetch_release(release_of(WHOLE, 1, address), [a.me]) == WHOLE

    with_peers(promise)


def test_a_liar_is_reported_once_and_the_release_still_arrives() -> None:
    async def promise(a: Any, b: Any, c: Any) -> None:
        bad: list[PeerId] = []
        publisher = Blobs(a.mail)
        await publisher.serve()
        await b.mail.serve("blobs", lie)
        release = release_of(WHOLE, 1, publisher.publish(WHOLE, 1, digest_of(WHOLE))[1])
        wants = Blobs(c.mail, on_bad=lambda peer, reason: bad.append(peer))
        assert await wants.fetch_release(release, [b.me, a.me]) == WHOLE
        assert bad == ["b"]

    with_peers(promise)


def test_when_all_fail_the_error_names_who_failed_how() -> None:
    async def promise(a: Any, b: Any, c: Any) -> None:
        await Blobs(a.mail).serve()
        await b.mail.serve("blobs", lie)
        with pytest.raises(
            NetError, match=r"a refused: not held here; b sent .* that are not .*; z failed: z is not there"
        ):
            await Blobs(c.mail).fetch(digest_of(b"wanted"), [a.me, b.me, PeerId("z")])

    with_peers(promise)


WRONG = [{"size": 1 << 50}, {"size": CHUNK}, {"size": 0}, {"weights": Digest("1" * 64)}, {"version": 2}]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_release_that_its_manifest_does_not_fit_is_not_fetched(wrong: dict[str, Any]) -> None:
    async def promise(a: Any, b: Any, c: Any) -> None:
        publisher = Blobs(a.mail)
        await publisher.serve()
        release = release_of(WHOLE, 1, publisher.publish(WHOLE, 1, digest_of(WHOLE))[1])
        wants = Blobs(b.mail)
        with pytest.raises(NetError):
            await wants.fetch_release(msgspec.structs.replace(release, **wrong), [a.me])
        assert wants.statistics() == {"releases": 0, "blobs": 0}

    with_peers(promise)


def test_only_the_newest_releases_are_held_and_what_was_put_stays() -> None:
    async def promise(a: Any, b: Any, c: Any) -> None:
        blobs = Blobs(a.mail, keep=2)
        pinned = blobs.put(b"spec")
        wholes = [f"weights {version}".encode() for version in range(4)]
        manifests = [
            blobs.publish(whole, version, digest_of(whole))[1] for version, whole in enumerate(wholes)
        ]
        assert [blobs.get(manifest) is not None for manifest in manifests] == [False, False, True, True]
        assert [blobs.get(digest_of(whole)) is not None for whole in wholes] == [False, False, True, True]
        assert blobs.get(pinned) == b"spec"

    with_peers(promise)


def test_a_chunk_that_two_releases_share_is_held_as_long_as_one_of_them() -> None:
    async def promise(a: Any, b: Any, c: Any) -> None:
        blobs = Blobs(a.mail, keep=1)
        for version in (1, 2):
            blobs.publish(b"the same", version, digest_of(b"the same"))
        assert blobs.get(digest_of(b"the same")) == b"the same"

    with_peers(promise)


def test_a_folder_is_read_back_and_a_damaged_release_is_dropped(tmp_path: Path) -> None:
    async def promise(a: Any, b: Any, c: Any) -> None:
        first = Blobs(a.mail, folder=tmp_path)
        pinned = first.put(b"spec")
        good = first.publish(b"good weights", 1, digest_of(b"good weights"))[1]
        torn = first.publish(b"torn weights", 2, digest_of(b"torn weights"))[1]
        (tmp_path / digest_of(b"torn weights")).write_bytes(b"torn")
        again = Blobs(b.mail, folder=tmp_path)
        assert again.get(pinned) == b"spec"
        assert again.get(good) is not None and again.get(digest_of(b"good weights")) == b"good weights"
        assert again.get(torn) is None and again.statistics()["releases"] == 1
        again.keep(0)

    with_peers(promise)
    left = sorted(file.name for file in tmp_path.iterdir())
    assert len(left) == 2 and left[1] == f"{left[0]}.pin"


@pytest.mark.parametrize("why", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_disk_that_takes_no_more_costs_what_would_outlive_the_peer_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: int
) -> None:
    told: list[str] = []

    def full(path: Path, data: bytes) -> None:
        raise OSError(why, os.strerror(why), str(path))

    async def scene(a: Any, b: Any, c: Any) -> None:
        publisher = Blobs(a.mail)
        await publisher.serve()
        keeps, later = Blobs(b.mail, folder=tmp_path, keep=2, on_damage=told.append), Blobs(c.mail)
        keeps._disk = None  # virtual time knows no threads
        await keeps.serve()
        with monkeypatch.context() as patch:
            patch.setattr(shelves, "write_durably", full)
            for version in (1, 2, 3):
                _, address = publisher.publish(
                    bytes([version]) * 99, version, digest_of(bytes([version]) * 99)
                )
                assert await keeps.fetch_release(release_of(bytes([version]) * 99, version, address), [a.me])
            keeps.publish(b"mine", 4, digest_of(b"mine"))
        # What is held in memory is given to others, and goes when it is old.
        assert await later.fetch_release(release_of(bytes([3]) * 99, 3, address), [b.me]) == bytes([3]) * 99
        assert keeps.statistics()["blobs"] == 4
        _, address = publisher.publish(b"room again", 5, digest_of(b"room again"))
        await keeps.fetch_release(release_of(b"room again", 5, address), [a.me])
        again = Blobs(c.mail, folder=tmp_path)
        assert again.holds(release_of(b"room again", 5, address)) and again.statistics()["releases"] == 1

    with_peers(scene)
    assert len(told) == 1 and os.strerror(why) in told[0] and "held in memory alone" in told[0]
