"""A peer's host that does not run: a role, or a part of one, is tried on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from peers.runtime.frames import Frames
from peers.runtime.host import Host
from peers.runtime.kernel import PeerInfo
from peers.runtime.membership.run_keys import RunKeys
from swarm.core.membership import Trust
from swarm.events import Bus
from swarm.frames.run_types import Delegation, Membership
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role
from swarm.settings.config import Config
from swarm.types import Digest, PeerId

RUN = Digest("5" * 64)


def still_host(
    network: MemoryNetwork,
    name: str,
    role: Role,
    config: Config | None = None,
    *,
    price: Callable[[str], float] = lambda kind: 0.0,
    private: bool = False,
    trust: Trust | None = None,
    shelf: Path | None = None,
    bus: Bus | None = None,
    **who: Any,
) -> Host:
    """The host of the peer `name`.

    `price(kind)`: seconds that Work of a kind takes; `trust`: without it every signature is good; `bus`: with
    what hears a host while it is made; `who`: more of its PeerInfo.
    """
    config, ports = config or Config(), network.ports(name, price)
    incarnation = int(1000 * ports.clock.now())
    told = PeerInfo(**{"name": name, "role": role, "run": RUN, "incarnation": incarnation} | who)
    keys = RunKeys(bytes(32)) if private else None
    frames = Frames(told.run, ports.keyring, told.membership, keys)
    trust = trust or Trust(config.run.name, b"owner", private, lambda *_: True)
    return Host(told, config, ports, frames, bus or Bus(), trust, shelf)


def membership(name: str, role: Role) -> Membership:
    """As large as a real one; good where every signature is."""
    delegation = Delegation(role=role, expires=1 << 40, key=bytes(range(32)), signature=bytes(range(64)))
    return Membership(peer=PeerId(name), delegation=delegation, signature=bytes(range(64, 128)))
