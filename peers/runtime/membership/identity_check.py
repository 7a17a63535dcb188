"""Detects that two processes act with one key, because a peer's folder was copied.

    heartbeats of all -> the last ones of each peer's two newest incarnations
    service `beats`:  own heartbeat  -> the last heartbeat with the same key and another incarnation
                      -> the newer process continues and reports it, the older one stops with a Refusal

A peer's own gossip does not come back to it, so others are asked which heartbeats with this key they receive;
and gossip reaches them from the process that connected last, so the request itself shows that the other one
lives, too. Invariant: only an incarnation whose heartbeats continue counts, since those from before a restart
arrive late, too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, NamedTuple

from msgspec import Meta

from peers.errors import Refusal, say
from peers.runtime.faults import FaultReport
from peers.runtime.kernel import Kernel
from swarm.core.roster import REMEMBERED
from swarm.frames import wire
from swarm.limits import BEAT_LIMIT, remember
from swarm.net.ports import NetError, read_question
from swarm.protocol import ROLES, Part, Service, Topic
from swarm.types import Beat, PeerId, Struct

LOOK = 3
"""Times the run's patience between two questions; half a minute by default, at a seed of 500 peers 17 a
second."""

ASKED = 8
"""One of this many peers, those with the newest heartbeats, is asked."""

ASK_TIMEOUT = 5.0
"""Seconds for an answer of less than a kilobyte."""

WENT_ON = 2
"""Times that another incarnation goes on until it counts: a dead one does so once, where gossip brings one of
its last heartbeats and an answer a later one."""

WHAT_TO_DO = (
    "delete the file `key` in the folder of one of the two, which then is another peer at its next start, or"
    " join anew from an empty folder"
)


class BeatQuery(Struct, tag="beat-query"):
    """Asks for the last heartbeat with the asker's key and another incarnation."""

    incarnation: int
    """The asker's."""
    beat: Annotated[bytes, Meta(max_length=BEAT_LIMIT.sealed)] = b""
    """The asker's heartbeat as of now: of two processes with one key, gossip carries that of one."""


class Sighting(NamedTuple):
    """The last heartbeat of another incarnation of this peer."""

    incarnation: int
    seq: int
    at: float
    went_on: int = 0
    """Times that a later heartbeat of it came, each the run's patience after the one before."""


class IdentityCheck:
    def __init__(
        self,
        kernel: Kernel,
        sealed_beat: Callable[[], bytes],
        take: Callable[[str, PeerId, bytes], None],
    ) -> None:
        """`sealed_beat` makes this peer's heartbeat; `take(service, sender, sealed)` takes another one."""
        self._sealed_beat, self._take = sealed_beat, take
        self._kernel, self._fault = kernel, FaultReport(kernel, Part.IDENTITY)
        self._seen: OrderedDict[PeerId, dict[int, tuple[int, bytes]]] = OrderedDict()
        """Peer -> incarnation -> number of its last heartbeat, and that as it was sealed."""
        self._hearers: OrderedDict[PeerId, None] = OrderedDict()
        """Peers that receive this one's heartbeats, by their own last heartbeat: also lost ones, since gossip
        for a key in two places reaches one of them only."""
        self._other: Sighting | None = None
        self._reported = 0
        self.replaced = False
        """A newer process has this key: this one announces no departure in its name."""

    async def serve(self) -> None:
        await self._kernel.ports.mail.serve(Service.BEATS, self._answer)

    def receive(self, peer: PeerId, beat: Beat, sealed: bytes) -> None:
        """A heartbeat that is believed. Raises Refusal when it is of a newer process with my key."""
        if peer == self._kernel.ports.me:
            return self._on_own_beat(beat)
        if ROLES[self._kernel.who.role].heartbeat is Topic.BEAT or ROLES[beat.role].observes:
            remember(self._hearers, peer, None, REMEMBERED)
        lives = self._seen.get(peer, {})
        remember(self._seen, peer, lives, REMEMBERED)
        if beat.seq > lives.get(beat.incarnation, (-1, b""))[0]:
            lives[beat.incarnation] = beat.seq, sealed
        if len(lives) > 2:
            del lives[min(lives)]

    async def run(self) -> None:
        """Ask one of the peers that receive these heartbeats; sooner again where it named another
        incarnation."""
        kernel, patience = self._kernel, self._kernel.config.run.pace.patience
        while True:
            recent = self._other is not None and kernel.now() - self._other.at < 2 * LOOK * patience
            await kernel.ports.clock.sleep(patience if recent else LOOK * patience)
            if self._hearers:
                await self._ask(kernel.rng.choice([*self._hearers][-ASKED:]))

    async def _ask(self, peer: PeerId) -> None:
        kernel = self._kernel
        question = wire.encode(BeatQuery(incarnation=kernel.who.incarnation, beat=self._sealed_beat()))
        try:
            sealed = await kernel.ports.mail.send(peer, Service.BEATS, question, timeout=ASK_TIMEOUT)
        except NetError:
            return  # another one is asked the next time
        if sealed:
            self._take(Service.BEATS, peer, sealed)

    async def _answer(self, sender: PeerId, question: bytes) -> bytes:
        asked = read_question(question, BeatQuery)
        if asked.beat:
            self._take(Service.BEATS, sender, asked.beat)
        lives = self._seen.get(sender, {})
        other = max((life for life in lives if life != asked.incarnation), default=None)
        return b"" if other is None else lives[other][1]

    def _on_own_beat(self, beat: Beat) -> None:
        kernel, other = self._kernel, self._other
        if beat.incarnation == kernel.who.incarnation:
            return
        now, patience = kernel.now(), kernel.config.run.pace.patience
        if other is None or other.incarnation < beat.incarnation:
            self._other = Sighting(beat.incarnation, beat.seq, now)
        elif other[:2] < (beat.incarnation, beat.seq) and now - other.at >= patience:
            self._other = Sighting(beat.incarnation, beat.seq, now, other.went_on + 1)
            if self._other.went_on >= WENT_ON:
                self._lives(beat)

    def _lives(self, beat: Beat) -> None:
        """Another process has my key, now."""
        where = f"at {' and '.join(beat.addresses) or 'an address that it does not name'} ({beat.hardware})"
        if beat.incarnation > self._kernel.who.incarnation:
            self.replaced = True
            raise Refusal(
                f"another process, {where}, has this peer's key and was started later: two with one key"
                f" disturb each other, so this one stops; {WHAT_TO_DO}"
            )
        text = (
            f"another process, {where}, has this peer's key: this one was started later and goes on, the"
            f" other is to stop; {WHAT_TO_DO}"
        )
        self._fault.failed(text)
        if self._reported != beat.incarnation:
            self._reported = beat.incarnation
            say(f"swarm: {text}")
