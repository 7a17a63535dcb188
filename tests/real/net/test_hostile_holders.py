"""Releases over real nodes: forgeries are refused with real signatures, and an upload that stops after any
number of bytes costs a question."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Iterator

import msgspec
import pytest
from forged_patches import BOMB, raw
from hive_world import HivePorts, HiveWorld
from shared_nodes import Shared, shared_nodes
from still_host import RUN, membership

from peers.build.model.learner_averager import NoAverager
from peers.runtime.frames import Frames
from peers.runtime.host import Host
from peers.runtime.kernel import PeerInfo
from swarm import events
from swarm.core.membership import Trust
from swarm.events import Bus
from swarm.frames import wire
from swarm.limits import RELEASE_LIMIT
from swarm.net.blobs.store import Blobs
from swarm.net.ports import NetError, Ports
from swarm.protocol import Role
from swarm.settings.config import Config
from swarm.storage.blocks import BLOCK, Blocks
from swarm.types import Patch, PeerId, Release

SMALL = random.Random(3).randbytes(BLOCK + 5)
"""A leaf list and two blocks."""

STOPS = (0, 1, 4, 5, 6, 5 + 63, 5 + 64, 70_000, 5 + BLOCK - 1)
"""Bytes of a reply after which an upload ends: in its head, behind it, at the end of a leaf list, behind a
first piece, before the last byte of a block."""


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    with shared_nodes(lambda world: world.ports(3)) as run:
        yield run


def test_an_upload_that_stops_after_any_number_of_bytes_costs_a_question(shared: Shared) -> None:
    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        stops, honest, wants = peers
        whole = Blocks.of(SMALL)
        source, other = Blobs(stops.mail), Blobs(honest.mail)
        source.hold(1, whole)
        other.hold(1, whole)
        await other.serve()
        most, blamed = 0, list[PeerId]()

        async def answer(peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            size = int.from_bytes(await reader.readexactly(4), "big")
            data = await source._sharing._give(peer, await reader.readexactly(size))
            writer.write((b"\0" + len(data).to_bytes(4, "big") + data)[:most])
            await writer.drain()
            writer.close()

        await stops.mail.serve("held/blobs", source._sharing._answer)
        await (await stops.node.line()).on_stream(f"{world.run[:16]}/blobs", answer)
        for most in STOPS:
            lone, both = (Blobs(wants.mail, on_bad=lambda peer, why: blamed.append(peer)) for _ in range(2))
            with pytest.raises(NetError, match="broke before the answer"):
                await lone.fetch(1, whole.root, whole.size, [stops.me])
            found = await both.fetch(1, whole.root, whole.size, [stops.me, honest.me])
            assert found.whole == SMALL and not blamed, f"after {most} bytes"

    shared(body)


def host_of(ports: HivePorts, role: Role, seen: list[events.Event], **who: object) -> Host:
    node = ports.node
    parts = Ports(
        clock=node.clock,
        board=node.board,
        gossip=node.gossip,
        mail=node.mail,
        averager=NoAverager(),
        work=node.work,
        keyring=ports.keyring,
        addresses=node.addresses,
    )
    me = PeerInfo(name="x", role=role, run=RUN, incarnation=1, membership=membership(ports.me, role), **who)  # type: ignore[arg-type]
    bus = Bus()
    bus.add(seen.append)
    config = Config()
    trust = Trust(config.run.name, b"owner", False, lambda *_: True)
    return Host(me, config, parts, Frames(RUN, ports.keyring, me.membership, None), bus, trust)


def release_of(publisher: Host, version: int, blocks: Blocks, *patches: Patch) -> Release:
    return Release(
        version=version,
        weights=blocks.root,
        size=blocks.size,
        parent=blocks.root,
        publisher=publisher.ports.me,
        learners=1,
        groups=1,
        released=publisher.now(),
        patches=patches,
    )


def test_over_real_nodes_a_forged_patch_or_signature_is_named_and_the_honest_bytes_come(
    shared: Shared,
) -> None:
    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        seen: list[events.Event] = []
        ports = [peers[2], peers[0]]  # of which the first serves no blocks yet
        forger = host_of(ports[0], Role.LEARNER, seen)
        victim = host_of(ports[1], Role.SAMPLER, seen, release_size=len(SMALL))
        await forger.releases.serve()
        old, new, bomb = (
            Blocks.of(SMALL),
            Blocks.of(bytes(len(SMALL))),
            Blocks.of(first_block(raw(BOMB, BLOCK))),
        )
        victim.releases.blobs.hold(0, old)
        forger.releases.blobs.hold(1, new)
        forger.releases.patches.files.hold(1, bomb)
        patch = Patch(base=old.root, root=bomb.root, size=bomb.size)
        release = release_of(forger, 1, new, patch)
        sealed = forger.seal(release, RELEASE_LIMIT)

        def refused(frame: bytes) -> str:
            assert not victim.releases.remember(frame)
            return [event.reason for event in seen if isinstance(event, events.Rejected)][-1]

        mine = Frames(RUN, ports[1].keyring, membership(ports[1].me, Role.LEARNER), None)
        assert "not signed by its publisher" in refused(mine.seal(release, RELEASE_LIMIT))
        assert "signature is not that of" in refused(sealed[:-1] + bytes([sealed[-1] ^ 1]))
        assert "of another run" in refused(
            wire.seal(release, "6" * 64, ports[0].keyring, None, RELEASE_LIMIT)
        )
        larger = msgspec.structs.replace(release, size=release.size + 1)
        assert "those of this run have" in refused(forger.seal(larger, RELEASE_LIMIT))
        assert victim.releases.remember(sealed)
        found = await victim.releases.obtain(())
        assert found is not None and found[1].data == new.whole
        told = [(event.sender, event.reason) for event in seen if isinstance(event, events.Rejected)][-1]
        assert told[0] == ports[0].me and "patch to version 1: a frame declares" in told[1]

    shared(body)


def first_block(patch: bytes) -> bytes:
    """A file in which only the first of two blocks has a patch."""
    return struct.pack("<2I", len(patch), 0) + patch
