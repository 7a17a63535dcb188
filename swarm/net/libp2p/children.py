"""p2pd and the DHT on it: the parts of a node that end and are made anew while the node lives on.

    key, port         --launch_daemon--> p2pd (swarm.net.libp2p.p2pd)  --line-->     streams, gossip, dials
          attach (services)  <-----------'
    rules, place      --launch_dht-----> DHT  (swarm.net.messaging.board) --live_dht--> board

Callers ask for the current one each time, and wait while there is none. Invariants: a p2pd is handed out only
once it has all services; the DHT ends before the p2pd that it stands on; every p2pd has the same identity,
and the same port unless another program took one that the settings do not name; every DHT has the same place
among the others'. Not handled: noticing that one is dead (swarm.net.libp2p.supervision), connections
(swarm.net.libp2p.network).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from hivemind.dht.routing import DHTID

from swarm.membership.identity import Keyring
from swarm.net.libp2p.addresses import Address
from swarm.net.libp2p.dht import ChildDHT
from swarm.net.libp2p.listening import PortTaken, announced, check_port, free_port, is_here
from swarm.net.libp2p.p2pd import Daemon, DaemonKilled
from swarm.net.messaging import guard
from swarm.net.messaging.board import Dht, LoopDHT
from swarm.net.ports import NetError, Silent
from swarm.protocol import Part
from swarm.settings.config import Listen
from swarm.types import Digest, PeerId

LINK_LOCAL = "/ip6/fe80:"
"""Such an address cannot be dialled without the name of an interface of the dialling machine."""


class NodeChildren:
    """One caller at a time launches and stops; any number may ask."""

    def __init__(
        self,
        keyring: Keyring,
        key: Path,
        run: Digest,
        listen: Listen,
        port: int,
        attach: Callable[[Daemon], Awaitable[None]],
        in_loop: bool,
    ) -> None:
        """`port`: the one to have where `listen` names none; 0: any. `attach(daemon)` sets up a new p2pd
        before any caller gets it. `in_loop`: the DHT only asks, in this process's loop; otherwise its child
        is forked here."""
        self.daemon: Daemon | None = None
        """The last one launched, dead or alive; None while there is none."""
        self.addresses: tuple[str, ...] = ()
        """Where this p2pd listens, or the addresses in the settings, as of `locate`; empty for one that only
        dials."""
        self.port = 0 if listen.dial_only else listen.port or port or free_port(listen.host)
        self.doubted = asyncio.Event()
        """A call found no answer: the living are to be asked now."""
        self._me, self._key, self._listen = keyring.me, key, listen
        self._rules = guard.RecordRules(keyring, guard.allowed_keys(run))
        self._attach = attach
        self._in_loop = in_loop
        self._waiting = None if in_loop else ChildDHT(self._rules)
        """Forked before this process imports what computes."""
        self._dht: Dht | None = None
        self._once_here = frozenset[str]()
        """IP addresses that p2pd names and the machine has or had."""
        self._daemon_up, self._dht_up = asyncio.Event(), asyncio.Event()

    async def line(self) -> Daemon:
        """The p2pd of the moment; waits while it is being replaced."""
        await self._daemon_up.wait()
        assert self.daemon is not None
        return self.daemon

    async def live_dht(self) -> Dht:
        """The DHT of the moment; waits while it is being replaced."""
        await self._dht_up.wait()
        assert self._dht is not None
        return self._dht

    @property
    def dht(self) -> Dht | None:
        """The DHT of the moment; None while there is none."""
        return self._dht if self._dht_up.is_set() else None

    def pids(self) -> dict[str, int]:
        """Process ids, for `doctor` and for tests."""
        both = {"p2pd": self.daemon.pid if self.daemon else None, "dht": self._dht.pid if self._dht else None}
        return {name: pid for name, pid in both.items() if pid is not None}

    async def launch_daemon(self) -> None:
        """Raises NetError: the port of the settings is taken, or p2pd's last words."""
        if not self._listen.dial_only:
            self._have_port()
        self.daemon = await Daemon.launch(self._key, self._me, self._listen, self.port)
        await self.locate(self.daemon)
        await self._attach(self.daemon)
        self._daemon_up.set()

    async def locate(self, daemon: Daemon) -> None:
        """Ask p2pd where it listens now: a machine's addresses change. Raises Unreachable or Silent."""
        found, configured = await daemon.identify(), announced(self._listen, self.port)
        hosts = {host for address in found if (host := _ip(address)) is not None}
        here = frozenset(host for host in hosts if is_here(host))
        # others told p2pd of an address that the machine had, and it keeps naming it
        gone = (self._once_here & hosts) - here
        self._once_here = here | gone
        kept = [address for address in found if _ip(address) not in gone]
        self.addresses = _addresses_to_announce(self._me, configured, kept)

    def _have_port(self) -> None:
        """Another one where a program took mine, unless the settings name it. Raises PortTaken."""
        host = self._listen.host
        try:
            check_port(host, self.port)
        except PortTaken:
            if not self._listen.port:
                with contextlib.suppress(OSError):  # no port of that host is to be had here
                    self.port = free_port(host)
                    return
            raise

    async def launch_dht(self) -> None:
        """On the current p2pd; it has no neighbours yet. Raises NetError."""
        daemon = await self.line()
        # No caches: a board must not return records that their owner has replaced. A constant ban: otherwise
        # a lost node is never asked again.
        options: dict[str, Any] = {
            "cache_locally": False,
            "cache_on_store": False,
            "cache_nearest": 0,
            "backoff_rate": 1.0,
        }
        # The same place for every life of a peer: with hivemind's random ids a restarted one is in the
        # others' tables twice.
        options |= {"node_id": DHTID.generate(source=self._me), "client_mode": self._listen.dial_only}
        if self._in_loop:
            self._dht = await LoopDHT.launch(daemon, self._rules, options)
        else:
            child, self._waiting = self._waiting or ChildDHT(self._rules), None
            await child.launch(daemon, options)
            self._dht = child
        self._dht_up.set()

    def withhold(self) -> None:
        """Hand out no p2pd before the next is launched."""
        self._daemon_up.clear()

    async def killed(self, error: NetError) -> Part | None:
        """Which of the two was ended by a signal, or hangs, if that is why a launch or a call failed with
        `error`."""
        if isinstance(error, DaemonKilled) or (self.daemon is not None and await self.daemon.killed()):
            return Part.P2PD
        return Part.DHT if isinstance(error, Silent) else None

    async def stop(self) -> None:
        """End both; no process and no socket is left."""
        self.withhold()
        if self._waiting is not None:
            await self._waiting.stop()
            self._waiting = None
        await self.stop_dht()
        if self.daemon is not None:
            await self.daemon.stop()
            self.daemon = None

    async def stop_dht(self) -> None:
        self._dht_up.clear()
        if self._dht is not None:
            await self._dht.stop()
            self._dht = None


def _ip(address: str) -> str | None:
    """The IP address that a multiaddr begins with."""
    kind, _, rest = address[1:].partition("/")
    return rest.partition("/")[0] if kind in ("ip4", "ip6") else None


def _addresses_to_announce(me: PeerId, configured: Sequence[str], found: Sequence[str]) -> tuple[str, ...]:
    """The addresses to announce: those of the settings, else TCP ones that p2pd found, loopback last."""
    configured = configured or [
        address
        for address in found
        if "/tcp/" in address and not address.endswith(("/ws", "/wss")) and not address.startswith(LINK_LOCAL)
    ]
    texts = [address if address.endswith(f"/p2p/{me}") else f"{address}/p2p/{me}" for address in configured]
    local = ("/ip4/127.", "/ip6/::1/")
    return tuple(
        sorted(
            (text for text in dict.fromkeys(texts) if Address.parse(text)),
            key=lambda text: text.startswith(local),
        )
    )
