"""Queries of peers about releases whose announcements they missed.

    newest     the newest release that a peer holds
    release    a certain one, that a group was sampled from
    heartbeats of samplers, for a while, by a peer that cannot get a release from those it knows

Invariant: the newest release that a peer names is one that it holds, not one that it only knows of. Not
handled here: the use of an answer (peers.runtime.releases.exchange), the way from an older version
(peers.runtime.releases.missed).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from peers.runtime.kernel import Kernel
from peers.runtime.releases.exchange import ReleaseExchange
from swarm.frames import wire
from swarm.net.ports import NetError, read_question
from swarm.protocol import ROLES, Service, Topic
from swarm.types import Digest, PeerId, ReleaseQuery

ASK_TIMEOUT = 5.0
"""Seconds for an answer of less than a kilobyte."""

ASKED = 8
"""Peers that are asked for the newest release at a time: any peer that claims a version can be asked for it,
and may stay silent for 5 s."""


class ReleaseQueries:
    def __init__(self, kernel: Kernel, releases: ReleaseExchange) -> None:
        self._kernel, self._releases = kernel, releases

    async def serve(self) -> None:
        await self._kernel.ports.mail.serve(Service.NEWEST, self._answer_newest)
        await self._kernel.ports.mail.serve(Service.RELEASE, self._answer_release)

    async def ask_newest(self, peers: list[PeerId]) -> None:
        """Ask some of these peers, until one has news, for the newest release that they hold: an announcement
        may have been missed."""
        for peer in self._kernel.rng.sample(peers, min(ASKED, len(peers))):
            if self._remember_answer(peer, await self._ask(peer, Service.NEWEST, b"")):
                return

    async def ask_release(self, peer: PeerId, version: int, weights: Digest, released: float) -> None:
        """Ask a peer that names a release for it; the answer is remembered when its publisher signed it."""
        question = wire.encode(ReleaseQuery(version=version, weights=weights, released=released))
        self._remember_answer(peer, await self._ask(peer, Service.RELEASE, question))

    async def _ask(self, peer: PeerId, service: Service, question: bytes) -> bytes:
        """A sealed release; empty when there is none, or no answer."""
        try:
            return await self._kernel.ports.mail.send(peer, service, question, timeout=ASK_TIMEOUT)
        except NetError:
            return b""

    def _remember_answer(self, peer: PeerId, sealed: bytes) -> bool:
        return bool(sealed) and self._releases.remember(sealed, by=peer)

    async def run(self) -> None:
        """Gossip may miss a peer: one whose heartbeat names an unannounced release, at two looks, is asked
        for it."""
        kernel, releases, beat_seconds = self._kernel, self._releases, self._kernel.config.run.pace.beat
        looked: set[PeerId] = set()
        while True:
            held = releases.held
            mine = held.version if held else -1
            unheard = [
                peer
                for peer, beat in kernel.roster
                if beat.version > mine and not releases.was_announced(beat)
            ]
            if due := [peer for peer in unheard if held is None or peer in looked]:
                await self.ask_newest(due)
            looked = set(unheard)
            await (kernel.changed(beat_seconds) if held is None else kernel.ports.clock.sleep(beat_seconds))

    async def _answer_newest(self, sender: PeerId, _: bytes) -> bytes:
        return self._releases.sealed_newest()

    async def _answer_release(self, sender: PeerId, question: bytes) -> bytes:
        """The release that is sought as its publisher signed it; empty when it is not known here."""
        sought = read_question(question, ReleaseQuery)
        known = self._releases.known(sought.version, sought.weights)
        found = min(known, key=lambda release: abs(release.released - sought.released), default=None)
        return self._releases.sealed(found) if found else b""


class HolderSearch:
    """Of a peer that cannot have a release, among samplers."""

    def __init__(
        self,
        kernel: Kernel,
        releases: ReleaseExchange,
        listen_to_samplers: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """`listen_to_samplers` takes their heartbeats until it is cancelled."""
        self._kernel, self._releases, self._listen = kernel, releases, listen_to_samplers

    async def run(self) -> None:
        """Samplers hold releases too: a peer that cannot get one, or holds none, receives their heartbeats
        for a while."""
        kernel = self._kernel
        if kernel.who.observes:
            return  # it receives them always
        patience, lacked = kernel.config.run.pace.patience, kernel.now()
        while True:
            if self._releases.lacks or (self._releases.held is None and kernel.now() - lacked >= patience):
                async with asyncio.TaskGroup() as tasks:
                    listening = tasks.create_task(self._listen())
                    await kernel.ports.clock.sleep(2 * patience)
                    listening.cancel()
                for peer in [
                    peer for peer, beat in kernel.roster if ROLES[beat.role].heartbeat is Topic.BEAT_SAMPLER
                ]:
                    kernel.roster.forget(peer)  # no longer subscribed: its silence means nothing
            await self._releases.changed(kernel.config.run.pace.beat)
