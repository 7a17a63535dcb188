"""A real node in a process that measures, and a Host on one without a run folder."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from swarm.protocol import Role
from swarm.settings.config import Config, Listen
from swarm.types import Digest


@asynccontextmanager
async def node(
    folder: Path, run: Digest, listen: Listen, bootstrap: Sequence[str] = ()
) -> AsyncIterator[tuple[Any, Any]]:
    """A supervised node, and its key, which lies in `folder`."""
    from swarm.membership.identity import open_key
    from swarm.net.libp2p.node import Node

    keyring = open_key(folder / "key")
    started = await Node.start(
        keyring=keyring,
        key_path=folder / "key",
        run=run,
        listen=listen,
        bootstrap=bootstrap,
        report=lambda *_: None,
    )
    supervision = asyncio.create_task(started.supervise())
    try:
        yield started, keyring
    finally:
        supervision.cancel()
        await started.close()


def host(node: Any, keyring: Any, config: Config, role: Role, folder: Path) -> Any:
    """A Host as peers.build.assembly builds it, with its journal in `folder` and its releases in
    memory. Its run is the node's, and this peer is the run's owner."""
    from peers.build.model.learner_averager import NoAverager
    from peers.runtime.frames import Frames
    from peers.runtime.host import Host
    from peers.runtime.kernel import PeerInfo
    from swarm import events
    from swarm.core.membership import Trust
    from swarm.journal import Journal
    from swarm.membership.identity import verify
    from swarm.net.ports import Ports

    run: Digest = node.run
    ports = Ports(
        clock=node.clock,
        board=node.board,
        gossip=node.gossip,
        mail=node.mail,
        averager=NoAverager(),
        work=node.work,
        keyring=keyring,
        addresses=node.addresses,
    )
    bus = events.Bus()
    bus.add(Journal(folder / "journal.jsonl"))
    who = PeerInfo(name="bench", role=role, run=run, incarnation=int(time.time() * 1000))
    trust = Trust(config.run.name, keyring.public, config.run.private, verify)
    return Host(who, config, ports, Frames(run, keyring, None, None), bus, trust, None)
