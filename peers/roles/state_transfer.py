"""Copies fp32 weights and optimizer state from a release's publisher, so that next steps are bit-identical.

A release has bf16 weights; the next step also depends on the fp32 master copy and the optimizer's moments. A
learner that only loads releases would differ from the others in every version, and would load every release
again. So it asks the publisher once, after it joined the rounds, for the state behind the release (service
`state`), checks that its bf16 weights are exactly the release's, and makes the same bytes itself from then
on. When the publisher is at a later version by then, the release alone is loaded, and the state is asked for
again later.

    service state  --> copy of the state, between steps -> hashed and cut, beside them --> offer
    service states --> blocks, from a store of one entry, dropped when nobody asks for its blocks any more

Only learners are served: a state is six times as large as a release, and nothing can verify its moments. The
time-out follows from the state's size, since a learner does not learn while it waits. Not handled: one state
from several learners.
"""

from __future__ import annotations

import asyncio

from peers.runtime.host import Host
from swarm import events, wire
from swarm.blocks import Blocks
from swarm.learn.base_learner import BaseLearner
from swarm.learn.fsdp.driver import RankLost
from swarm.net.blobs import Blobs
from swarm.net.ports import Busy, NetError, Refused
from swarm.protocol import Kind, Service
from swarm.types import Digest, PeerId, Release, Struct

STATE_PER_RELEASE = 16
"""Most bytes of a state for each byte of its release: fp32 weights and two moments are 6, the largest
optimizers below 12."""

STATE_BASE = 1 << 20
"""Bytes of a state beside these: names, settings, counts."""

PATIENCE = 30.0
"""Seconds that the smallest state may take: the publisher may be in the middle of a batch."""

PACKED_PER_SECOND, SENT_PER_SECOND = 50e6, 12.5e6
"""Lowest rates in bytes a second. A state is copied, hashed and cut at an eighth of what one core does. It is
sent at 100 Mbit/s: over a slower line it would arrive many versions too late, and the release alone is
loaded."""

HELD_FOR = 60.0
"""Seconds for which a state is held after the last request for a chunk of it."""

TAKER_SILENT = 15.0
"""Seconds without a request for a chunk after which another learner may replace the state: a fetch asks every
few seconds."""


class Offer(Struct):
    """A learner's state, as blobs."""

    root: Digest
    """See swarm.blocks."""
    size: int


class StateTransfer:
    def __init__(self, host: Host, learner: BaseLearner) -> None:
        self._host, self._learner = host, learner
        self._states = self._store()
        self._offered: tuple[str, Offer, PeerId] | None = None
        """(weights' digest of the state's release, its offer, the learner that asked for it last)."""
        self._one = asyncio.Lock()

    async def serve(self) -> None:
        await self._states.serve()
        await self._host.ports.mail.serve(Service.STATE, self._offer)

    def _store(self) -> Blobs:
        host = self._host

        def blame(holder: PeerId, reason: str) -> None:
            host.emit(events.Rejected, sender=holder, kind=Service.STATES, reason=reason)

        return Blobs(host.ports.mail, service=Service.STATES, keep=1, rng=host.rng, on_bad=blame)

    async def _offer(self, sender: PeerId, request: bytes) -> bytes:
        """`request` is the weights' digest of the release whose state is wanted."""
        if sender not in self._host.roster.learners():
            raise Refused("only learners of this run get a learner's state")
        wanted, loop = request.decode(errors="replace"), asyncio.get_running_loop()
        async with self._one:
            held = self._offered
            if held is not None and held[0] == wanted:
                offer = held[1]
            elif held is not None and held[2] != sender and loop.time() < self._states.asked + TAKER_SILENT:
                raise Busy("another learner is fetching an earlier state: try later")
            else:
                offer = await self._make(wanted)
                if self._offered is None:
                    loop.call_later(HELD_FOR, self._expire)
            self._offered, self._states.asked = (wanted, offer, sender), loop.time()
            return wire.encode(offer)

    async def _make(self, wanted: str) -> Offer:
        """Put the current state into the store, in place of the last one."""
        work = self._host.ports.work
        try:
            version, state = await work.run(Kind.COPY, self._snapshot, wanted)
        except RankLost as error:
            raise Refused(f"this learner has no state now: {error}") from error
        if state is None:
            raise Refused(f"this learner is at version {version} by now, not at the release's")
        blocks = await work.run(Kind.CUT, Blocks.of, state)
        self._states.clear()
        self._states.hold(version, blocks)
        return Offer(root=blocks.root, size=blocks.size)

    def _snapshot(self, wanted: str) -> tuple[int, bytes | None]:
        right = self._learner.digest() == wanted
        return self._learner.version, self._learner.state() if right else None

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._states.asked + HELD_FOR:
            loop.call_at(self._states.asked + HELD_FOR, self._expire)
        else:
            self._states.clear()
            self._offered = None

    async def take(self, release: Release) -> bool:
        """Load the full state of a release's publisher. False when it did not come in time; the learner is
        unchanged then."""
        host = self._host
        most = STATE_PER_RELEASE * release.size + STATE_BASE
        waits = PATIENCE + most / PACKED_PER_SECOND
        try:
            answer = await host.ports.mail.send(
                release.publisher, Service.STATE, release.weights.encode(), waits
            )
            offer = wire.decode(answer, Offer)
            if offer.size > most:
                raise ValueError(
                    f"a state of {offer.size} bytes is offered behind a release of {release.size}"
                )
            async with asyncio.timeout(PATIENCE + offer.size / SENT_PER_SECOND):
                state = await self._store().fetch(
                    release.version, offer.root, offer.size, [release.publisher]
                )
            await host.ports.work.run(Kind.LOAD, self._load_state, state.whole, release)
        except (NetError, TimeoutError, ValueError):  # (wire.WireError is a ValueError)
            return False
        return True

    def _load_state(self, state: bytes, release: Release) -> None:
        """Load a state. Raises ValueError, with the old state restored, when it is not the release's."""
        before = self._learner.state()
        self._learner.load_state(state)
        if self._learner.version != release.version or self._learner.digest() != release.weights:
            self._learner.load_state(before)
            raise ValueError(f"the state is not that of release {release.version}")
