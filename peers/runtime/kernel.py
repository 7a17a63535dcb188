"""The foundation of every part of a peer: its ports, clock, bus and roster, and the notice that something
changed.

    a part: emit(...) -> bus      seal(noun) -> a frame      read(frame) -> noun, its sender
            move() -> whoever waits in `changed`             beat_now() -> a heartbeat at once

Not handled here: the parts themselves, and the messages that they handle (peers.runtime.host).
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from peers.runtime.frames import Frames, UnknownKey
from peers.runtime.notifier import Notifier
from peers.runtime.traffic import Traffic
from peers.runtime.watching.status import PeerStatus
from swarm import events
from swarm.core.gossip_limits import GossipLimits
from swarm.core.membership import Trust
from swarm.core.roster import Roster
from swarm.frames import wire
from swarm.frames.run_types import Membership
from swarm.limits import MAIL_LIMIT, Limit, cut, remember
from swarm.net.ports import Ports
from swarm.protocol import ROLES, Key, Role, Topic
from swarm.settings.config import Config
from swarm.types import Digest, PeerId

T = TypeVar("T")

DELIVERED_KEPT = 1024
"""Peers that are remembered for an admitted group: ten times the samplers that one learner serves."""


@dataclass(frozen=True)
class PeerInfo:
    """This peer's identity in the run."""

    name: str
    role: Role
    run: Digest
    incarnation: int
    hardware: str = ""
    membership: Membership | None = None
    observes: bool = False
    """Receives and journals all events and heartbeats: seeds and observers."""
    genesis: Digest | None = None
    """Digest of version 0's weights, from the run's specification; a simulation has none."""
    release_size: int | None = None
    """Bytes of every release, from there too."""


class Kernel:
    """One peer's."""

    def __init__(
        self, who: PeerInfo, config: Config, ports: Ports, frames: Frames, bus: events.Bus, trust: Trust
    ) -> None:
        self.traffic = Traffic(ports.clock.now())
        self.ports = self.traffic.counted(ports)
        self.who, self.config, self.frames, self.bus, self.trust = who, config, frames, bus, trust
        self.status = PeerStatus()
        self.stop = asyncio.Event()
        self.rng = random.Random(f"{config.run.seed}/{ports.me}")
        self.roster = Roster(config.run.pace.patience, self.rng)
        self.beat_due, self.beat_notifier = False, Notifier()
        """Whether a heartbeat is to be sent at once, and the tasks that wait for that
        (peers.runtime.heartbeats)."""
        self._changes = Notifier()
        self._author: PeerId | None = None
        """Author of the gossip message that is being read: it must also be the signer."""
        self._delivered: OrderedDict[PeerId, None] = OrderedDict()
        self.ports.mail.guard(self._shut_out)
        self.gossip_limits = GossipLimits(self.known_sender, self.now)
        self.ports.gossip.guard(self.gossip_limits.admits)

    def now(self) -> float:
        """Unix seconds by this machine's clock, which may be set at any time."""
        return self.ports.clock.now()

    @staticmethod
    def steady() -> float:
        """Seconds of a monotonic clock, for waits."""
        return asyncio.get_running_loop().time()

    def emit(self, what: type[events.Event], /, **fields: Any) -> None:
        short = {name: cut(value) if type(value) is str else value for name, value in fields.items()}
        self.bus.emit(what(at=self.now(), peer=self.ports.me, **short))

    def move(self) -> None:
        """Wake whoever waits in `changed`."""
        self._changes.wake()

    async def changed(self, timeout: float) -> None:
        """Wait until roster, releases, an inbox or `stop` changes, at most `timeout` seconds."""
        await self._changes.wait(timeout)

    def leave(self) -> None:
        """Ask the role to finish its current group or step, then to end."""
        self.stop.set()
        self.move()

    def beat_now(self) -> None:
        """Send a heartbeat at once: something changed that others wait for (credit, a new version)."""
        self.beat_due = True
        self.beat_notifier.wake()

    def delivered(self, peer: PeerId) -> None:
        """Remember that a group of this peer was admitted."""
        remember(self._delivered, peer, None, DELIVERED_KEPT)

    def has_delivered(self, peer: PeerId) -> bool:
        """Whether a group of this peer was admitted lately."""
        return peer in self._delivered

    def known_sender(self, peer: PeerId) -> bool:
        """Whether this peer's messages have priority over those of strangers: a group of it was admitted, or
        the run's owner vouches for it."""
        return self.has_delivered(peer) or self.roster.proven(peer)

    def posting(self) -> list[PeerId]:
        """Members that post to the board, this peer among them."""
        return [self.ports.me, *(peer for peer, beat in self.roster if ROLES[beat.role].posts)]

    def members(self) -> list[PeerId]:
        """Those that have shown their membership here, this peer among them: all peers of a private run."""
        return [self.ports.me, *self.trust.members(self.now())]

    def seal(self, noun: object, limit: Limit = MAIL_LIMIT) -> bytes:
        return self.frames.seal(noun, limit)

    def distrust(self, opened: wire.Opened, role: Role, said: float | None = None) -> str | None:
        """Why this frame's sender may not act in `role`, or None. `said`: see Revocations.why."""
        return self.trust.objection(opened.sender, role, opened.membership, self.now(), said)

    def invited(self, opened: wire.Opened, role: Role) -> bool:
        """Whether this frame has a membership by the run's owner that admits its sender to `role`."""
        return self.trust.invited(opened.sender, role, opened.membership, self.now())

    def _shut_out(self, peer: PeerId, service: str) -> str | None:
        """Why a peer's mail is not read, or None."""
        return self.trust.refusal(peer, service, self.now())

    def topic(self, name: Topic | Key) -> str:
        return wire.topic(self.who.run, name)

    @contextmanager
    def authored_by(self, author: PeerId) -> Iterator[None]:
        """Messages read inside come directly from their author, by gossip."""
        self._author = author
        try:
            yield
        finally:
            self._author = None

    @property
    def is_of_author(self) -> bool:
        """Whether the message that is being read is gossip of its own author, not repeated by another
        peer."""
        return self._author is not None

    def read(self, data: bytes, limit: Limit, kind: type[T]) -> tuple[wire.Opened, T]:
        """Open a frame of this run, and decode it. Raises WireError for everything else."""
        try:
            opened, noun = self.frames.read(data, limit, kind)
            if self._author not in (None, opened.sender):
                raise wire.WireError(f"it is signed by {opened.sender}, which did not publish it")
        except wire.WireError as error:
            if isinstance(error, UnknownKey) or self._author is None:
                raise
            seconds = self.gossip_limits.blame(self._author)
            until = f"; nothing of it is read for {seconds:g} s" if seconds else ""
            raise wire.WireError(f"{error}{until}") from error
        return opened, noun
