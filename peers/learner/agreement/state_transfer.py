"""Copies fp32 weights and optimizer state from another learner, so that next steps are bit-identical.

A release has bf16 weights; the next step also depends on the fp32 master copy and the optimizer's moments. A
learner that only loads releases would differ from the others in every version, and would load every release
again. So it asks a learner that is at the newest release for the full state of that version (service
`state`), checks that its bf16 weights are exactly that version's release, and makes the same bytes itself
from then on.

    service state  --> after the round, where one is under way: a copy -> hashed and cut, beside -> offer
    service states --> blocks, from a store of one entry, dropped when its blocks are requested no more

Only learners are served: a state is six times as large as a release, and its moments cannot be verified. A
transfer has a deadline, and is given up as soon as its rate shows that it will miss it. Not handled here:
when a state is requested (peers.learner.agreement.catch_up), that the others wait meanwhile
(swarm.core.agreement.state_sync), one state from several learners.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from peers.learner.agreement.other_learners import OtherLearners
from peers.runtime.host import Host
from swarm import events
from swarm.frames import wire
from swarm.learn.fsdp.driver import RankLost
from swarm.learn.learners.base_learner import BaseLearner
from swarm.net.blobs.store import Blobs
from swarm.net.ports import Busy, NetError, Refused
from swarm.protocol import Kind, Phase, Service
from swarm.storage.blocks import Blocks
from swarm.types import Count, Digest, PeerId, Release, Struct

STATE_PER_RELEASE = 16
"""Most bytes of a state for each byte of its release: fp32 weights and two moments are 6, the largest
optimizers below 12."""

STATE_BASE = 1 << 20
"""Bytes of a state beside these: names, settings, counts."""

PATIENCE = 30.0
"""Seconds until a round that is under way must be over for the next version's state: later the asker has gone
on without it."""

HELD_FOR = 60.0
"""Seconds for which a state is held after the last request for a chunk of it."""

TAKER_SILENT = 15.0
"""Seconds without a request for a chunk after which another learner may replace the state: a fetch asks every
few seconds."""


class Offer(Struct):
    """A learner's state, as blobs."""

    version: Count
    weights: Digest
    """Of the release that it is the state of."""
    root: Digest
    """See swarm.storage.blocks."""
    size: int


class StateTransfer:
    def __init__(
        self,
        host: Host,
        learner: BaseLearner,
        at_rest: Callable[[], tuple[int, Digest] | None],
        other_learners: OtherLearners,
    ) -> None:
        """`at_rest()`: my version and its weights; None while they are about to be others."""
        self._host, self._learner, self._at_rest = host, learner, at_rest
        self._other_learners = other_learners
        self._states = self._store()
        self._offered: tuple[Offer, PeerId] | None = None
        """The state that is held, and the learner that asked for it last."""
        self._one = asyncio.Lock()
        self._waiting = 0
        """Learners that wait for a state."""
        self._taken: Blobs | None = None
        """Where a state of another learner comes."""
        host.status.taking = lambda: self._taken.coming() if self._taken is not None else None

    async def serve(self) -> None:
        await self._states.serve()
        await self._host.ports.mail.serve(Service.STATE, self._offer)

    def _store(self) -> Blobs:
        host = self._host

        def blame(holder: PeerId, reason: str) -> None:
            host.emit(events.Rejected, sender=holder, kind=Service.STATES, reason=reason)

        return Blobs(host.ports.mail, service=Service.STATES, keep=1, rng=host.rng, on_bad=blame)

    @property
    def comes_first(self) -> bool:
        """A copy of my state is waited for: the next gradient would make the others wait for it, too."""
        return self._waiting > 0

    async def _offer(self, sender: PeerId, request: bytes) -> bytes:
        if sender not in self._host.roster.learners():
            raise Refused("only learners of this run get a learner's state")
        self._waiting += 1
        try:
            async with self._one:
                return wire.encode(await self._newest(sender))
        finally:
            self._waiting -= 1
            self._host.move()

    async def _newest(self, sender: PeerId) -> Offer:
        """The state that I have at rest, held for this learner."""
        loop = asyncio.get_running_loop()
        at, held = await self._rest(), self._offered
        if held is not None and (held[0].version, held[0].weights) == at:
            offer = held[0]
        elif held is not None and held[1] != sender and self._is_fetching(held[1]):
            raise Busy("another learner is fetching an earlier state: try later")
        else:
            offer = await self._make(*at)
            if self._offered is None:
                loop.call_later(HELD_FOR, self._expire)
        self._offered, self._states.asked = (offer, sender), self._host.steady()
        self._other_learners.reached(sender)
        return offer

    def _is_fetching(self, taker: PeerId) -> bool:
        """Whether the last asker is still fetching that state."""
        beat, silent = self._host.roster.beat(taker), self._host.steady() - self._states.asked
        return beat is not None and beat.phase is Phase.SYNCING and silent < TAKER_SILENT

    async def _rest(self) -> tuple[int, Digest]:
        """My version and its weights, once no round is under way: the state before it would come too late."""
        until = self._host.steady() + PATIENCE
        while (at := self._at_rest()) is None:
            if (left := until - self._host.steady()) <= 0:
                raise Busy("this learner is in a round: try later")
            await self._host.changed(min(left, self._host.config.run.pace.beat))
        return at

    async def _make(self, version: int, weights: Digest) -> Offer:
        """Put the current state into the store, in place of the last one."""
        work = self._host.ports.work
        try:
            at, state = await work.run(Kind.COPY, lambda: (self._learner.version, self._learner.state()))
        except RankLost as error:
            raise Refused(f"this learner has no state now: {error}") from error
        if at != version:
            raise Busy(f"this learner is at version {at} by now: try later")
        blocks = await work.run(Kind.CUT, Blocks.of, state)
        self._states.clear()
        self._states.hold(version, blocks)
        return Offer(version=version, weights=weights, root=blocks.root, size=blocks.size)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        if self._host.steady() < self._states.asked + HELD_FOR:
            loop.call_at(self._states.asked + HELD_FOR, self._expire)
        else:
            self._states.clear()
            self._offered = None

    async def take(
        self, giver: PeerId, release: Release, until: float, unused: Callable[[], Awaitable[None]]
    ) -> Release | None:
        """Load the full state of a learner that is at `release` or beyond it by now, once mine is `unused`;
        returns the release that it is the state of. None when it will not be here at the time `until`; the
        learner is unchanged then."""
        host, self._taken = self._host, self._store()
        most = STATE_PER_RELEASE * release.size + STATE_BASE
        try:
            waits = until - host.steady()
            offer = wire.decode(await host.ports.mail.send(giver, Service.STATE, b"", waits), Offer)
            if offer.size > most or offer.version < release.version:
                raise ValueError(f"a state of {offer.size} bytes is offered of version {offer.version}")
            self._other_learners.reached(giver)
            async with asyncio.timeout(until - host.steady()) as limit:
                look = asyncio.ensure_future(self._give_up_early(limit, offer.size, until))
                try:
                    state = await self._taken.fetch(offer.version, offer.root, offer.size, [giver])
                finally:
                    look.cancel()
                while (taken := host.releases.named(offer.version, offer.weights)) is None:
                    if self._has_another(giver, offer):
                        raise ValueError("the state is of weights that its learner did not release")
                    await host.changed(host.config.run.pace.beat)
            await unused()
            await host.ports.work.run(Kind.LOAD, self._load_state, state.whole, taken)
        except (NetError, TimeoutError, ValueError):  # (wire.WireError is a ValueError)
            return None
        finally:
            self._taken = None
        return taken

    def _has_another(self, giver: PeerId, offer: Offer) -> bool:
        """Whether it loaded another release of the version whose state it offered: its own step made other
        bytes, which no learner announces any more."""
        beat = self._host.roster.beat(giver)
        return beat is not None and beat.version == offer.version and beat.weights != offer.weights

    async def _give_up_early(self, limit: asyncio.Timeout, size: int, until: float) -> None:
        """End the fetch when its rate has been too low twice in a row: blocks come in bursts."""
        host, began, late = self._host, self._host.steady(), 0
        while True:
            await host.ports.clock.sleep(host.config.run.pace.beat)
            coming = self._taken.coming() if self._taken is not None else None
            if coming is not None and coming.held:
                late = late + 1 if began + (host.steady() - began) * size / coming.held > until else 0
            if late == 2:
                limit.reschedule(self._host.steady())

    def _load_state(self, state: bytes, release: Release) -> None:
        """Load a state. Raises ValueError, with the old state restored, when it is not the release's."""
        restore = self._learner.restorer()
        self._learner.load_state(state)
        if self._learner.version != release.version or self._learner.digest() != release.weights:
            restore()
            raise ValueError(f"the state is not that of release {release.version}")
