"""Traps: crash a peer at a step of its next publication, wherever its code is then.

    Ports -> trapped -> the same ports; the peer ends at the step at which a trap is set

Steps are those of swarm.sim.scenario. A publication is recognised by its calls to ports: work that packs or
patches, an announcement, an answer with blocks. Not handled here: the crash itself (swarm.sim.world).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, TypeVar

from swarm.net.ports import Gossip, Handler, Mail, Ports, Turns, Work
from swarm.protocol import Kind, Service, Topic

T = TypeVar("T")

WAIT = 15.0
"""Seconds in which a trap is set: a learner that is well publishes within them."""

WORK = {Kind.PACK: "packed", Kind.PATCH: "patched"}
BLOCKS = (Service.BLOBS, Service.PATCHES)


class CrashPoint:
    """Of a peer, for all its lives."""

    def __init__(self) -> None:
        self._step, self._until, self._spring = "", 0.0, _nothing

    def set(self, step: str, spring: Callable[[], None]) -> None:
        """Call `spring`, which ends the peer, at this step."""
        self._step, self._spring = step, spring
        self._until = asyncio.get_running_loop().time() + WAIT

    def reached(self, step: str) -> bool:
        """Whether the peer ends now."""
        if step != self._step or asyncio.get_running_loop().time() > self._until:
            return False
        self._step = ""
        return True

    async def pass_(self, step: str) -> None:
        """Never returns where the peer ends at this step."""
        if self.reached(step):
            self._spring()
            await asyncio.get_running_loop().create_future()

    def answered(self) -> None:
        """An answer leaves, and was the last thing that the peer did."""
        if self.reached("given"):
            asyncio.get_running_loop().call_soon(self._spring)


def _nothing() -> None:
    """No trap was set yet."""


def with_crash_point(ports: Ports, crash_point: CrashPoint) -> Ports:
    """These ports, with a trap on the way."""
    gossip = CrashingGossip(ports.gossip, crash_point)
    return replace(
        ports,
        work=CrashingWork(ports.work, crash_point),
        gossip=gossip,
        mail=CrashingMail(ports.mail, crash_point, gossip),
    )


class CrashingWork:
    def __init__(self, work: Work, crash_point: CrashPoint) -> None:
        self._work, self._crash_point = work, crash_point

    async def run(self, kind: Kind, function: Callable[..., T], *args: Any) -> T:
        result = await self._work.run(kind, function, *args)
        if kind in WORK:
            await self._crash_point.pass_(WORK[kind])
        return result


class CrashingGossip:
    def __init__(self, gossip: Gossip, crash_point: CrashPoint) -> None:
        self._gossip, self._crash_point, self.announced = gossip, crash_point, False
        self.guard = gossip.guard

    async def publish(self, topic: str, data: bytes) -> None:
        is_release = topic.endswith(Topic.RELEASE)
        if is_release:
            await self._crash_point.pass_("announcing")
        await self._gossip.publish(topic, data)
        if is_release:
            self.announced = True
            await self._crash_point.pass_("announced")

    def subscribe(self, topic: str) -> AbstractAsyncContextManager[Any]:
        return self._gossip.subscribe(topic)


class CrashingMail:
    def __init__(self, mail: Mail, crash_point: CrashPoint, gossip: CrashingGossip) -> None:
        self._mail, self._crash_point, self._gossip = mail, crash_point, gossip
        self.send, self.guard = mail.send, mail.guard

    async def serve(self, service: str, handler: Handler, turns: Turns | None = None) -> None:
        async def watched(sender: Any, message: bytes) -> bytes:
            answer = await handler(sender, message)
            if self._gossip.announced:
                self._crash_point.answered()
            return answer

        await self._mail.serve(service, watched if service in BLOCKS else handler, turns)
