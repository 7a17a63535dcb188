"""The real side of the ports: a Node is one p2pd, one DHT of hivemind's on it, and what keeps both alive.

    p2pd (swarm.net.p2pd) ---+--- streams    -> node.mail   (swarm.net.mail)
      identity, TCP port     +--- GossipSub  -> node.gossip (swarm.net.gossip)
                             +--- DHT        -> node.board  (swarm.net.board)

In come a key, a listen section and bootstrap addresses; out come ports that go on working while `supervise()`
replaces a dead or hung p2pd (same identity, same port, all services and subscriptions again) or DHT child,
and finds the network again after it was lost. `generation` grows with every replacement. Invariant: no
process outlives this one. Start a Node in the main thread, before torch computes and before CUDA: hivemind
forks, except in a process without torch (swarm.net.torch_free), whose DHT runs in its loop. Not handled:
relays beyond the bootstrap's, two Nodes with one key.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import base58

from swarm.net import guard, torch_free
from swarm.net.addresses import Address, check_port, free_port
from swarm.net.board import Dht, DhtBoard, LoopDHT, alive, meet
from swarm.net.gossip import PubSub, Unheard
from swarm.net.mail import StreamMail
from swarm.net.p2pd import Daemon, hang_up
from swarm.net.ports import NetError, Unreachable
from swarm.protocol import KINDS, Kind, Part, Thread

# isort: split
from hivemind.dht.routing import DHTID

from swarm.config import Listen
from swarm.identity import Keyring
from swarm.types import Digest, PeerId

if TYPE_CHECKING:
    from swarm.net.dht import ChildDHT

log = logging.getLogger(__name__)
T = TypeVar("T")
Report = Callable[[str, str, float | None], None]
"""(part, what happened, None) for a fault; (part, what happened, seconds it lasted) when it is over."""

LOOK_SECONDS = 0.25
"""Seconds between two looks at whether the children live."""

HEALTH_SECONDS = 10.0
"""Seconds between two health questions to living children: a hung one is found within two of these."""

NETWORK_SECONDS = 2.0
"""Seconds between two looks at who is connected; the network is found again within a few of these."""

AGAIN_SECONDS = 5.0
"""Seconds between two tries to replace p2pd when that fails, and between two dials of missing peers at the
slowest."""

STOP_SECONDS = 3.0
"""Seconds for each step of `close`."""

SOME = 8
"""Peers dialled or greeted at a time."""


class WallClock:
    """The Clock port."""

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ThreadWork:
    """The Work port."""

    def __init__(self) -> None:
        self._threads = {name: ThreadPoolExecutor(1, thread_name_prefix=name) for name in Thread}

    async def run(self, kind: Kind, function: Callable[..., T], *args: Any) -> T:
        thread = self._threads[KINDS[kind].thread]
        return await asyncio.get_running_loop().run_in_executor(thread, partial(function, *args))

    def close(self) -> None:
        for thread in self._threads.values():
            thread.shutdown(wait=False, cancel_futures=True)


# --- the node -----------------------------------------------------------------------------------------------


class Node:
    """See the module. Made by `await Node.start(...)`; give `supervise()` a task; end with `await
    close()`."""

    def __init__(self, keyring: Keyring, key: Path, run: Digest, listen: Listen, report: Report) -> None:
        self.me, self.run, self.listen = keyring.me, run, listen
        self.generation = 0
        self.port = listen.port or (0 if listen.dial_only else free_port(listen.host))
        self.clock = WallClock()
        self.work = ThreadWork()
        self.gossip = PubSub(self.me, self.line)
        self.mail = StreamMail(run, self.line, self._find, hang_up, self._bug)
        self.board = DhtBoard(self)
        self._key, self._report = key, report
        self._rules = guard.RecordRules(keyring, guard.allowed_keys(run))
        self._bootstrap: tuple[Address, ...] = ()
        self._peers: frozenset[PeerId] = frozenset()
        self._addresses: tuple[str, ...] = ()
        self._daemon: Daemon | None = None
        self._dht: Dht | None = None
        self._daemon_up, self._dht_up, self._doubt = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @classmethod
    async def start(
        cls,
        keyring: Keyring,
        key_path: Path,
        run: Digest,
        listen: Listen,
        bootstrap: Sequence[str],
        report: Report,
    ) -> Node:
        """p2pd, a way into the network, DHT. Raises NetError (port taken, bad address) or Unreachable (no
        bootstrap answered)."""
        guard.install()
        node = cls(keyring, key_path, run, listen, report)
        node._bootstrap = node._parsed(bootstrap)
        if not listen.dial_only:
            check_port(listen.host, node.port)
        try:
            await node._launch_daemon()
            await node._enter()
            complaints = await node._launch_dht()
            if complaints:
                log.warning("%s", "; ".join(complaints))
            if any("local time" in complaint for complaint in complaints):
                raise NetError(
                    f"this machine's clock is off, and the others refuse it: {complaints[0]}; set the clock"
                    " (NTP)"
                )
        except BaseException:
            await node.close()
            raise
        return node

    def _parsed(self, bootstrap: Sequence[str]) -> tuple[Address, ...]:
        addresses = [(text, Address.parse(text)) for text in bootstrap]
        for text, address in addresses:
            if address is None:
                raise NetError(
                    f"{text!r} is not an address of a peer: it should look like"
                    " /ip4/1.2.3.4/tcp/31337/p2p/12D3Koo..."
                )
        return tuple(address for _, address in addresses if address is not None and address.peer != self.me)

    # --- what others ask of it ------------------------------------------------------------------------------

    async def control(self) -> str:
        """The control address of the p2pd of the moment, for the averager's process; waits while it is being
        replaced."""
        return str((await self.line()).daemon_listen_maddr)

    def addresses(self) -> tuple[str, ...]:
        """Where others may dial me, most widely reachable first; empty for one that only dials."""
        return self._addresses

    def peers(self) -> frozenset[PeerId]:
        """Connected peers, as of at most NETWORK_SECONDS ago."""
        return self._peers

    def relayed(self) -> frozenset[PeerId]:
        """Those of them that are connected over a relay alone."""
        return self._daemon.relayed if self._daemon is not None else frozenset()

    def pids(self) -> dict[str, int]:
        """Process ids of the children, for `doctor` and for tests."""
        children = {
            "p2pd": self._daemon.pid if self._daemon else None,
            "dht": self._dht.pid if self._dht else None,
        }
        return {name: pid for name, pid in children.items() if pid is not None}

    @property
    def alone(self) -> bool:
        """Nobody is connected and nobody should be."""
        return not self._peers and not self._bootstrap

    async def line(self) -> Daemon:
        """The p2pd of the moment; waits while it is being replaced."""
        await self._daemon_up.wait()
        assert self._daemon is not None
        return self._daemon

    async def live_dht(self) -> Dht:
        await self._dht_up.wait()
        assert self._dht is not None
        return self._dht

    def doubt(self) -> None:
        """A call found no answer: look at the DHT child now."""
        self._doubt.set()

    def _bug(self, service: str, what: str) -> None:
        self._report(Part.MAIL, f"the handler of {service!r} failed: {what}", None)

    async def _find(self, peer: PeerId, timeout: float) -> None:
        """Before a stream is opened: dial by the addresses that the peer told, unless it is connected.

        libp2p must not dial a peer that is down again and again: it would wait minutes before it noticed the
        peer's return.
        """
        if peer in self._peers:
            return
        line = await self.line()
        self._peers = await line.connected()
        if peer in self._peers:
            return
        parsed = map(Address.parse, self.mail.addresses().get(peer, ()))
        told = [
            address for address in (*parsed, *self._bootstrap) if address is not None and address.peer == peer
        ]
        try:
            async with asyncio.timeout(timeout):
                reasons = await asyncio.gather(*map(line.reach, told))
        except TimeoutError:
            reasons = [f"timed out after {timeout:g} s"]
        if told and all(reasons):
            raise Unreachable("; ".join(reasons))

    # --- starting and stopping parts ------------------------------------------------------------------------

    async def _launch_daemon(self) -> None:
        relays = [address.text for address in self._bootstrap]
        self._daemon = await Daemon.launch(self._key, self.me, self.listen, self.port, relays)
        self._addresses = _announced(self.me, self.listen, await self._daemon.identify())
        self._peers = frozenset()
        await self.mail.attach(self._daemon)
        self._daemon_up.set()

    async def _enter(self) -> None:
        """Connect with a bootstrap peer, if there are any. Raises Unreachable naming each and how it
        failed."""
        line = await self.line()
        reasons = await asyncio.gather(*map(line.reach, self._bootstrap))
        self._peers = await line.connected()
        if self._bootstrap and all(reasons):
            each = "; ".join(
                f"{address.text}: {why}" for address, why in zip(self._bootstrap, reasons, strict=True)
            )
            raise Unreachable(f"no bootstrap peer could be reached: {each}")

    async def _launch_dht(self) -> tuple[str, ...]:
        """Start the DHT and greet connected peers. Returns complaints."""
        daemon = await self.line()
        # No caches: a board must not return what its owner has replaced. A constant ban, or a lost node is
        # never asked again.
        options: dict[str, Any] = {
            "cache_locally": False,
            "cache_on_store": False,
            "cache_nearest": 0,
            "backoff_rate": 1.0,
        }
        # The same place for every life of a peer: with hivemind's random ids a restarted one is in the
        # others' tables twice.
        options |= {"node_id": DHTID.generate(source=self.me), "client_mode": self.listen.dial_only}
        self._dht = await _dht_kind().launch(daemon, self._rules, options)
        self._dht_up.set()
        return await self._greet(self._peers)

    async def _greet(self, peers: frozenset[PeerId]) -> tuple[str, ...]:
        """Make connected peers known to the DHT. Returns complaints."""
        if not peers or self._dht is None:
            return ()
        some = random.sample(sorted(peers), min(SOME, len(peers)))
        _, complaints = await self._dht.ask(meet, [base58.b58decode(peer) for peer in some])
        return complaints

    async def _stop_dht(self) -> None:
        self._dht_up.clear()
        if self._dht is not None:
            await self._dht.stop()
            self._dht = None

    async def close(self) -> None:
        """End the parts in reverse order, each with a deadline; no process and no socket is left."""
        self._daemon_up.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self.mail.close()
        self.work.close()
        await self._stop_dht()
        if self._daemon is not None:
            daemon, self._daemon = self._daemon, None
            await daemon.stop()

    # --- supervision ----------------------------------------------------------------------------------------

    async def supervise(self) -> None:
        """Run for ever: replace dead parts, reconnect to a network that was lost."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_children(), name="children of the node")
            tasks.create_task(self._watch_network(), name="network of the node")

    async def _watch_children(self) -> None:
        asked = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            why = {Part.P2PD: "", Part.DHT: ""}
            if self._daemon is None or self._daemon.dead:
                why[Part.P2PD] = "p2pd died"
            elif self._dht is None or not self._dht.is_alive():
                why[Part.DHT] = "the DHT child died"
            elif self._doubt.is_set() or time.monotonic() > asked + HEALTH_SECONDS:
                self._doubt.clear()
                why = await self._health(self._daemon, self._dht)
                asked = time.monotonic()
            if why[Part.P2PD]:
                await self._replace(Part.P2PD, why[Part.P2PD], self._renew_daemon)
            elif why[Part.DHT]:
                await self._replace(Part.DHT, why[Part.DHT], self._renew_dht)

    async def _health(self, daemon: Daemon, dht: Dht) -> dict[Part, str]:
        why = {Part.P2PD: "", Part.DHT: ""}
        for part, question in ((Part.P2PD, daemon.identify), (Part.DHT, partial(dht.ask, alive))):
            try:
                await question()
            except NetError as error:
                why[part] = f"{part} lives but does not answer: {error}"
        return why

    async def _replace(self, part: Part, why: str, renew: Callable[[], Coroutine[Any, Any, None]]) -> None:
        began = time.monotonic()
        self._report(part, why, None)
        while True:
            try:
                await renew()
                break
            except NetError as error:
                self._report(
                    part, f"{part} could not be replaced, next try in {AGAIN_SECONDS:g} s: {error}", None
                )
                await asyncio.sleep(AGAIN_SECONDS)
                if self._daemon is None or self._daemon.dead:
                    renew = self._renew_daemon  # no DHT without it
        self.generation += 1
        self._report(part, f"{part} was replaced", time.monotonic() - began)

    async def _renew_daemon(self) -> None:
        self._daemon_up.clear()
        await self._stop_dht()
        if self._daemon is not None:
            await self._daemon.stop()
            self._daemon = None
        if not self.listen.dial_only:
            check_port(self.listen.host, self.port)
        await self._launch_daemon()
        with contextlib.suppress(Unreachable):  # the network's watcher goes on trying
            await self._enter()
        await self._launch_dht()

    async def _renew_dht(self) -> None:
        await self._stop_dht()
        await self._launch_dht()

    async def _watch_network(self) -> None:
        lost_at: float | None = None
        dialled = 0.0
        known, unheard = self._peers, Unheard()
        while True:
            await asyncio.sleep(NETWORK_SECONDS)
            self.mail.tidy()
            try:
                line = await self.line()
                self._peers = await line.connected()
                missing = [address for address in self._bootstrap if address.peer not in self._peers]
                if lost_at is None and known and not self._peers:
                    lost_at = time.monotonic()
                    self._report(Part.NETWORK, "no peer is connected any more", None)
                if (missing or lost_at is not None) and time.monotonic() > dialled + AGAIN_SECONDS:
                    dialled = time.monotonic()
                    await self._dial(line, missing)
                    self._peers = await line.connected()
                if self._dht_up.is_set():
                    await self._greet(self._peers - known)
                known = self._peers
                await self._be_heard(line, unheard)
                if lost_at is not None and self._peers:
                    self._report(
                        Part.NETWORK,
                        f"connected again with {len(self._peers)} peers",
                        time.monotonic() - lost_at,
                    )
                    lost_at = None
            except NetError as error:
                log.debug("p2pd or the DHT was replaced meanwhile: %s", error)
                self.doubt()

    async def _be_heard(self, line: Daemon, unheard: Unheard) -> None:
        """Where nobody listens to what is published here, connect anew with the bootstrap peers, who then
        tell again what they subscribe to: p2pd says it once to a connection, and when the stream for it
        fails, all that is published is lost.
        """
        near = [address for address in self._bootstrap if address.peer in self._peers]
        if not near:
            return  # others are dialled first
        deaf = [topic for topic in sorted(self.gossip.published) if not await line.listeners(topic)]
        if deaf and unheard.due(time.monotonic()):
            self._report(
                Part.GOSSIP,
                f"nobody listens to {', '.join(deaf)}: connecting anew with the bootstrap peers",
                None,
            )
            for address in near:
                await line.disconnect(address.peer)
            await self._dial(line, near)
        elif not deaf and (seconds := unheard.over(time.monotonic())) is not None:
            self._report(Part.GOSSIP, "connected peers listen again", seconds)

    async def _dial(self, line: Daemon, missing: list[Address]) -> None:
        """Try the bootstrap peers that are missing and, when nobody is connected, some of those who told
        their addresses."""
        wanted = missing[:SOME]
        if not self._peers:
            told = self.mail.addresses()
            some = random.sample(list(told), min(SOME, len(told)))
            parsed = [(peer, Address.parse(text)) for peer in some for text in told[peer]]
            wanted += [
                address for peer, address in parsed if address is not None and address.peer == peer != self.me
            ]
        reasons = await asyncio.gather(*map(line.reach, wanted))
        for address, why in zip(wanted, reasons, strict=True):
            log.debug("dialled %s: %s", address.text, why or "connected")


def _dht_kind() -> type[LoopDHT] | type[ChildDHT]:
    """A child, which stores for others whatever this loop does; in a process without torch one that only
    asks."""
    if torch_free.slim():
        return LoopDHT
    from swarm.net.dht import ChildDHT

    return ChildDHT


def _announced(me: PeerId, listen: Listen, found: Sequence[str]) -> tuple[str, ...]:
    """The addresses to tell: what the config says, else TCP ones that p2pd found, loopback last."""
    said = [address.split("/p2p/")[0] for address in listen.announce] or [
        address for address in found if "/tcp/" in address and not address.endswith(("/ws", "/wss"))
    ]
    texts = [address if address.endswith(f"/p2p/{me}") else f"{address}/p2p/{me}" for address in said]
    local = ("/ip4/127.", "/ip6/::1/")
    return tuple(
        sorted(
            (text for text in dict.fromkeys(texts) if Address.parse(text)),
            key=lambda text: text.startswith(local),
        )
    )
