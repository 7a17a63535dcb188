"""The real side of the ports: a Node is one p2pd, one DHT of hivemind's on it, and the supervision of both.

    p2pd (swarm.net.libp2p.p2pd) ---+--- streams    -> node.mail   (swarm.net.messaging.mail)
      identity, TCP port     +--- GossipSub  -> node.gossip (swarm.net.messaging.gossip)
                             +--- DHT        -> node.board  (swarm.net.messaging.board)
                             +--- circuits   -> node.reachability (swarm.net.libp2p.reachability)

    children (swarm.net.libp2p.children) <-- network (swarm.net.libp2p.network) <-- supervision
    (swarm.net.libp2p.supervision)
      both processes                    connections                     dead or hung parts are replaced

In come a key, a listen section and bootstrap addresses; out come ports that keep working while `supervise()`
replaces a dead or hung p2pd (same identity, same port, all services and subscriptions again) or DHT child,
and finds the network again after it was lost. `generation` grows with every replacement. Invariant: no
process outlives this one. A Node forks its DHT's process when it is made, and again when that one dies: made
before torch is imported, it has a child without it. Not handled: two Nodes with one key.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from swarm.frames.wire import topic
from swarm.membership.identity import Keyring
from swarm.net.libp2p.children import NodeChildren
from swarm.net.libp2p.circuits import Circuits
from swarm.net.libp2p.network import BOOTSTRAP_ALONE, Network, Report, WayIn, parsed
from swarm.net.libp2p.p2pd import Daemon, hang_up
from swarm.net.libp2p.reachability import Reachability
from swarm.net.libp2p.supervision import Supervisor
from swarm.net.messaging import guard
from swarm.net.messaging.board import Dht, DhtBoard
from swarm.net.messaging.gossip import PubSub
from swarm.net.messaging.mail import StreamMail
from swarm.net.ports import NetError, Silent
from swarm.net.rate import RateLimits
from swarm.processes.process import STARTS
from swarm.protocol import KINDS, Kind, Part, Thread, Topic
from swarm.settings.config import Listen
from swarm.settings.peer_limits import Limits
from swarm.types import Digest, PeerId

log = logging.getLogger(__name__)
T = TypeVar("T")

UNLIMITED = Limits()

TIDY_SECONDS = 2.0
"""Seconds between two looks for streams that have been idle too long."""

MEMBERS_SECONDS = 2.0
"""Seconds between two updates of the peers whose records the board prefers: in a private run a newcomer waits
for it."""

STOP_SECONDS = 3.0
"""Seconds for streams to end in `close`."""


def _passed() -> float:
    """Seconds since the machine's start."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class SteadyClock:
    """The Clock port: the unix time of its start, and the seconds since, the machine's sleep included. No age
    and no patience jumps when the machine's clock is set."""

    def __init__(self) -> None:
        self._start = time.time() - _passed()

    def now(self) -> float:
        return self._start + _passed()

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


class Node:
    """See the module. Made by `await Node.start(...)`; give `supervise()` a task; end with `await
    close()`."""

    def __init__(
        self,
        keyring: Keyring,
        key: Path,
        run: Digest,
        listen: Listen,
        bootstrap: Sequence[str],
        report: Report,
        limits: Limits,
        way_in: WayIn,
    ) -> None:
        self.me, self.run, self.listen = keyring.me, run, listen
        self.limits = RateLimits.of(limits)
        self.clock = SteadyClock()
        self.work = ThreadWork()
        self._report = report
        others = parsed(bootstrap, self.me)
        self._children = NodeChildren(keyring, key, run, listen, way_in.port, self._attach, way_in.watches)
        self.gossip = PubSub(self.me, self.line, topic(run, Topic.BEAT))
        self.network = Network(self.me, others, self._children, self.gossip, report)
        self.mail = StreamMail(run, self.line, self.network.find, hang_up, self._bug, self.limits)
        self.board = DhtBoard(self)
        self._circuits = Circuits(self.line, hang_up, self.limits)
        self.reachability = Reachability(
            self.me, listen, self.network, self.line, lambda: self._children.addresses, self._circuits
        )
        self._offenders: Callable[[], Collection[PeerId]] = tuple
        self._supervisor = Supervisor(self._children, self.network, report)

    @classmethod
    async def start(
        cls,
        keyring: Keyring,
        key_path: Path,
        run: Digest,
        listen: Listen,
        bootstrap: Sequence[str],
        report: Report,
        limits: Limits = UNLIMITED,
        way_in: WayIn = BOOTSTRAP_ALONE,
    ) -> Node:
        """p2pd, a way into the network, DHT. Raises NetError (port taken, bad address, clock), or the error
        of `way_in.unreached` when no peer answered: by default Unreachable."""
        guard.install()
        node = cls(keyring, key_path, run, listen, bootstrap, report, limits, way_in)
        try:
            await node._begin(way_in)
        except BaseException:
            await node.close()
            raise
        return node

    async def _begin(self, way_in: WayIn) -> None:
        """Once more, from p2pd on, where one of the children is killed meanwhile. Raises as `start`."""
        since: dict[Part, float] = {}
        for left in reversed(range(STARTS)):
            try:
                await self._enter(way_in)
                break
            except NetError as error:
                part = await self._children.killed(error)
                if part is None or not left:
                    raise
                since.setdefault(part, time.monotonic())
                self._report(part, f"while this peer starts: {error}", None)
                await self._children.stop()
        for part, began in since.items():
            self._report(part, f"{part} was replaced", time.monotonic() - began)

    async def _enter(self, way_in: WayIn) -> None:
        await self._children.launch_daemon()
        for peer, addresses in way_in.met.items():
            self.network.remember(peer, addresses)
        await self.network.enter(way_in.unreached, way_in.dialled)
        await self._children.launch_dht()
        greeted = await self.network.greet(self.network.peers)
        if greeted.complaints:
            log.warning("%s", "; ".join(greeted.complaints))
        if greeted.clock_off is not None:
            raise NetError("; ".join(greeted.clock_off))

    async def supervise(self) -> None:
        """Run for ever: replace dead parts, reconnect to a network that was lost, close idle streams."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._supervisor.watch(), name="children of the node")
            tasks.create_task(self.network.watch(), name="network of the node")
            tasks.create_task(self._tidy(), name="idle streams of the node")
            tasks.create_task(self._pass_members(), name="members of the node's board")
            tasks.create_task(self._hang_up_on_offenders(), name="offenders at the node")

    async def close(self) -> None:
        """End the parts in reverse order, each with a deadline; no process and no socket is left."""
        self._children.withhold()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await asyncio.gather(self.mail.close(), self._circuits.close())
        self.work.close()
        await self._children.stop()

    # --- interface for others -------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """Replacements of p2pd or the DHT so far."""
        return self._supervisor.generation

    @property
    def port(self) -> int:
        """TCP; 0 for one that only dials."""
        return self._children.port

    async def control(self) -> str:
        """The control address of the p2pd of the moment, for the averager's process; waits while it is being
        replaced."""
        return str((await self.line()).daemon_listen_maddr)

    def addresses(self) -> tuple[str, ...]:
        """Where others may dial me, most widely reachable first; empty where they cannot."""
        return self.reachability.addresses()

    def peers(self) -> frozenset[PeerId]:
        """Connected peers, as of a few seconds ago at most."""
        return self.network.peers

    def relayed(self) -> frozenset[PeerId]:
        """Those of them that are connected over a relay alone."""
        daemon = self._children.daemon
        return daemon.relayed if daemon is not None else frozenset()

    def carried(self) -> int:
        """Bytes that this node has carried between others so far; each passed its line twice, in and out."""
        return self._circuits.passed

    def pids(self) -> dict[str, int]:
        """Process ids of the children, for `doctor` and for tests."""
        return self._children.pids()

    @property
    def alone(self) -> bool:
        """There is no connection and none is expected."""
        return self.network.alone

    async def line(self) -> Daemon:
        """The p2pd of the moment; waits while it is being replaced."""
        return await self._children.line()

    async def live_dht(self) -> Dht:
        """The DHT of the moment; waits while it is being replaced."""
        return await self._children.live_dht()

    def doubt(self) -> None:
        """A call found no answer: look at the children now."""
        self._children.doubted.set()

    # --- interface for its parts ----------------------------------------------------------------------------

    async def _attach(self, daemon: Daemon) -> None:
        """A new p2pd has no connections and no services."""
        self.network.forget()
        await self.mail.attach(daemon)
        if self.listen.relay and not self.listen.dial_only:
            await self._circuits.attach(daemon)

    def _bug(self, service: str, what: str) -> None:
        self._report(Part.MAIL, f"the handler of {service!r} failed: {what}", None)

    def shun(self, offenders: Callable[[], Collection[PeerId]]) -> None:
        """Hang up on these from now on, whenever they are connected."""
        self._offenders = offenders

    async def _hang_up_on_offenders(self) -> None:
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            for peer in self.network.peers & frozenset(self._offenders()):
                await self.hang_up_on(peer)

    async def hang_up_on(self, peer: PeerId) -> None:
        """End all connections with a peer: a message that is stuck on one holds up all later ones."""
        self.network.peers -= {peer}
        with contextlib.suppress(NetError):
            await (await self.line()).disconnect(peer)

    async def _pass_members(self) -> None:
        while True:
            new = await self.board.pass_members()
            with contextlib.suppress(Silent):  # the board's next call reports it
                await self.network.greet(self.network.peers & new)
            await asyncio.sleep(MEMBERS_SECONDS)

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            self.mail.tidy()
