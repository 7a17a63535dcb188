"""The real world of the contract suite: n Nodes on loopback, the first one is the bootstrap of the others."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from swarm.membership.identity import Keyring, open_key
from swarm.net.libp2p.node import Node, SteadyClock, ThreadWork
from swarm.net.messaging.board import DhtBoard
from swarm.net.messaging.gossip import PubSub
from swarm.net.messaging.mail import StreamMail
from swarm.processes.event_loop import EventLoop
from swarm.settings.config import Limits, Listen
from swarm.types import Digest, PeerId

LOOPBACK = Listen(host="127.0.0.1")
UNLIMITED = Limits()


@dataclass(frozen=True)
class HivePorts:
    """What a contract test needs of a Node."""

    node: Node
    keyring: Keyring

    @property
    def me(self) -> PeerId:
        return self.keyring.me

    @property
    def clock(self) -> SteadyClock:
        return self.node.clock

    @property
    def board(self) -> DhtBoard:
        return self.node.board

    @property
    def gossip(self) -> PubSub:
        return self.node.gossip

    @property
    def mail(self) -> StreamMail:
        return self.node.mail

    @property
    def work(self) -> ThreadWork:
        return self.node.work

    def addresses(self) -> tuple[str, ...]:
        return self.node.addresses()


def in_world(body: Callable[[HiveWorld], Awaitable[None]]) -> None:
    async def main() -> None:
        world = HiveWorld()
        try:
            await body(world)
        finally:
            await world.close()

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(main())


class HiveWorld:
    """Nodes of one run. `reports` collects (peer, part, detail, seconds) of all of them."""

    def __init__(self, run: str = "contract") -> None:
        self.run = Digest(hashlib.sha256(run.encode()).hexdigest())
        self.folder = Path(tempfile.mkdtemp(prefix="hive-"))
        self.nodes: list[Node] = []
        self.reports: list[tuple[PeerId, str, str, float | None]] = []
        self.watching: list[asyncio.Task[None]] = []

    async def start(
        self,
        name: str,
        bootstrap: tuple[str, ...] = (),
        listen: Listen = LOOPBACK,
        limits: Limits = UNLIMITED,
    ) -> HivePorts:
        """A Node under supervision; `name` names its key."""
        key = self.folder / name
        keyring = open_key(key)

        def report(part: str, detail: str, seconds: float | None) -> None:
            self.reports.append((keyring.me, part, detail, seconds))

        node = await Node.start(keyring, key, self.run, listen, bootstrap, report, limits)
        self.nodes.append(node)
        self.watching.append(asyncio.create_task(node.supervise()))
        return HivePorts(node, keyring)

    async def ports(self, n: int) -> list[HivePorts]:
        first = await self.start("peer0")
        others = await asyncio.gather(*(self.start(f"peer{i}", first.addresses()[:1]) for i in range(1, n)))
        return [first, *others]

    async def close(self) -> None:
        await self.end(self.nodes)
        shutil.rmtree(self.folder)

    async def end(self, nodes: Sequence[Node]) -> None:
        """Raises what ended the supervision of one."""
        ending = [(node, task) for node, task in zip(self.nodes, self.watching, strict=True) if node in nodes]
        for node, task in ending:
            self.nodes.remove(node)
            self.watching.remove(task)
            task.cancel()
        ends = await asyncio.gather(*(task for _, task in ending), return_exceptions=True)
        await asyncio.gather(*(node.close() for node, _ in ending))
        for end in ends:
            if isinstance(end, Exception):
                raise end
