"""Detects a p2pd or a DHT that died or hangs, and replaces it.

    look: dead? ------------------------------+
    health question, in turn or in doubt -----+--> replace: p2pd -> enter the network -> DHT -> greet peers
                                                                    (the DHT alone: only the last two)

Invariants: nothing of a part is left when its successor starts; a replacement is tried until it succeeds, and
then `generation` has grown; the fault and its end are both reported. Services come back with the new p2pd
(swarm.net.libp2p.children), subscriptions resume by themselves (swarm.net.messaging.gossip). Not handled: a
network that is lost while both live (swarm.net.libp2p.network).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial

from swarm.net.libp2p.children import NodeChildren
from swarm.net.libp2p.network import Network, Report, go_on_alone
from swarm.net.messaging.board import alive
from swarm.net.ports import NetError, Silent
from swarm.processes.processors import CoreWaits
from swarm.protocol import Part

LOOK_SECONDS = 0.25
"""Seconds between two looks at whether the children live."""

HEALTH_SECONDS = 10.0
"""Seconds between two health questions to living children: a hung one is found within two of these."""

BUSY_SECONDS = 3.0
"""Seconds of waiting for a core after which a missing answer proves nothing about a child: it has ten seconds
for an answer of milliseconds."""

RAN_SECONDS = 10.0
"""Seconds with a core, in all, after which a child that was asked again and again hangs."""

AGAIN_SECONDS = 5.0
"""Seconds between two tries to replace a part when that fails."""


async def _unanswered(question: Callable[[], Awaitable[object]], pid: int | None) -> NetError | None:
    """Why a child does not answer; asked again where this process or the child had no core to answer on,
    until both had one for RAN_SECONDS."""
    ran = 0.0
    while True:
        began, waits = time.monotonic(), CoreWaits([os.getpid(), *([] if pid is None else [pid])])
        try:
            await question()
            return None
        except NetError as error:
            waited = waits.seconds()
            ran += time.monotonic() - began - waited
            if not isinstance(error, Silent) or waited < BUSY_SECONDS or ran >= RAN_SECONDS:
                return error


class Supervisor:
    """See the module. It alone stops and launches children while `watch` runs."""

    def __init__(self, children: NodeChildren, network: Network, report: Report) -> None:
        self.generation = 0
        """Replacements so far."""
        self._children, self._network, self._report = children, network, report
        self._asked = 0.0

    async def watch(self) -> None:
        """Run for ever."""
        self._asked = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if (fault := self._dead() or await self._hung()) is not None:
                await self._replace(*fault)

    def _dead(self) -> tuple[Part, str] | None:
        daemon = self._children.daemon
        if daemon is None or daemon.dead:
            return Part.P2PD, "p2pd died"
        if daemon.cut_off:
            return (
                Part.P2PD,
                "p2pd lives but its socket in /tmp was removed: spare hivemind-* when cleaning there",
            )
        dht = self._children.dht
        return (Part.DHT, "the DHT child died") if dht is None or not dht.is_alive() else None

    async def _hung(self) -> tuple[Part, str] | None:
        """The first that does not answer, if it is time to ask."""
        if not self._children.doubted.is_set() and time.monotonic() <= self._asked + HEALTH_SECONDS:
            return None
        self._children.doubted.clear()
        daemon, dht = await self._children.line(), await self._children.live_dht()
        for part, pid, question in (
            (Part.P2PD, daemon.pid, daemon.identify),
            (Part.DHT, dht.pid, partial(dht.ask, alive)),
        ):
            why = await _unanswered(question, pid)
            self._asked = time.monotonic()
            if why is not None:
                return part, f"{part} lives but does not answer: {why}"
        return None

    async def _replace(self, part: Part, why: str) -> None:
        began = time.monotonic()
        self._report(part, why, None)
        renew = self._renew_daemon if part is Part.P2PD else self._renew_dht
        while True:
            try:
                await renew()
                break
            except (NetError, OSError) as error:  # OSError: this machine has no memory or no process to give
                again = f"{part} could not be replaced, next try in {AGAIN_SECONDS:g} s: {error}"
                self._report(part, again, None)
                await asyncio.sleep(AGAIN_SECONDS)
                if self._without_daemon:
                    renew = self._renew_daemon  # no DHT without it
        self.generation += 1
        self._report(part, f"{part} was replaced", time.monotonic() - began)

    async def _renew_daemon(self) -> None:
        await self._children.stop()
        await self._children.launch_daemon()
        await self._network.enter(go_on_alone)
        await self._renew_dht()

    async def _renew_dht(self) -> None:
        await self._children.stop_dht()
        await self._children.launch_dht()
        await self._network.greet(self._network.peers)

    @property
    def _without_daemon(self) -> bool:
        return self._children.daemon is None or self._children.daemon.dead
