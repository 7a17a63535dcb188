"""Stand-in roles: they use every port as the real ones do, and compute nothing. For tests of the world and
its speed."""

from __future__ import annotations

import asyncio
import random

from swarm.events import Judged, Sampled, Trained
from swarm.frames.wire import decode, seal, unseal
from swarm.net.ports import NetError
from swarm.protocol import Role
from swarm.sim.world import SimPeer
from swarm.types import Array, Digest, Group, PeerId, Receipt, Times, Verdict

RUN = "0" * 64


def group_of(peer: SimPeer, task: int, now: float) -> Group:
    """About 500 bytes sealed."""
    return Group(
        id=f"{peer.name}/{peer.life}/{task}",
        sampler=peer.ports.me,
        task=task,
        version=0,
        weights=Digest("0" * 64),
        draw=0,
        seed=task,
        lengths=(6,) * 4,
        tokens=Array(dtype="int32", shape=(24,), data=bytes(96)),
        logprobs=Array(dtype="float32", shape=(24,), data=bytes(96)),
        rewards=(1.0, 0.0, 1.0, 0.0),
        times=Times(released=now, fetched=now, used=now, finished=now, sent=now),
    )


async def beats(peer: SimPeer) -> None:
    rng = random.Random(peer.seed)
    every = peer.config.run.pace.beat
    while True:
        await peer.ports.clock.sleep(every * rng.uniform(1, 1.25))
        receipt = Receipt(verdict=Verdict.ADMIT, detail=peer.name, version=0, credit=1)
        await peer.ports.gossip.publish("beat", seal(receipt, RUN, peer.ports.keyring))


async def hears(peer: SimPeer) -> None:
    async with peer.ports.gossip.subscribe("beat") as messages:
        async for _, data in messages:
            unseal(data, RUN, peer.ports.keyring)


async def samples(peer: SimPeer) -> None:
    ports = peer.ports
    for task in range(1 << 30):
        group = await ports.work.run("sample", group_of, peer, task, ports.clock.now())
        now = ports.clock.now()
        peer.bus.emit(
            Sampled(
                at=now, peer=ports.me, group=group.id, task=task, version=0, seconds=0, tokens=24, reward=0.5
            )
        )
        to = PeerId(f"learner-{task % peer.config.peer.swarm.learners}")
        try:
            decode(await ports.mail.send(to, "groups", seal(group, RUN, ports.keyring)), Receipt)
        except NetError:
            await ports.clock.sleep(5)


async def learns(peer: SimPeer) -> None:
    ports = peer.ports
    inbox: list[Group] = []

    async def admit(sender: PeerId, data: bytes) -> bytes:
        group = decode(unseal(data, RUN, ports.keyring).body, Group)
        inbox.append(group)
        now = ports.clock.now()
        peer.bus.emit(
            Judged(
                at=now,
                peer=ports.me,
                group=group.id,
                sampler=sender,
                verdict=Verdict.ADMIT,
                detail="",
                versions=0,
                seconds=now - group.times.released,
            )
        )
        return seal(Receipt(verdict=Verdict.ADMIT, detail="", version=0, credit=1), RUN, ports.keyring)

    async def answer(sender: PeerId, data: bytes) -> bytes:
        return unseal(await admit(sender, data), RUN, ports.keyring).body

    await ports.mail.serve("groups", answer)
    for version in range(1, 1 << 30):
        await ports.clock.sleep(60)
        await ports.work.run("learn", len, inbox)
        peer.bus.emit(
            Trained(
                at=ports.clock.now(),
                peer=ports.me,
                version=version,
                groups=len(inbox),
                members=1,
                metrics={"reward": version / 100},
                gather=60,
                learn=0,
                average=0,
                step=0,
            )
        )
        inbox.clear()


async def stand_in(peer: SimPeer) -> None:
    """All hear all heartbeats, learners answer groups."""
    async with asyncio.TaskGroup() as group:
        group.create_task(beats(peer))
        group.create_task(hears(peer))
        group.create_task((learns if peer.role is Role.LEARNER else samples)(peer))
