"""Replays of groups on the work port, under the versions that this peer holds.

    hold(version)   -> its bytes, as long as it is among the newest ones
    replayed(group) -> weights loaded, the group replayed: Replayed, or None where that cannot be done here

The policy is made for the first replay, beside a learner's own; where memory runs out it is given back, and
nothing is replayed from then on. A group that cannot be replayed (its noise has no Replay, its weights are
gone, or the run's samplers may use fewer bits) proves nothing about any peer. Not handled here: which groups
are replayed, and the consequences (peers.audits.auditor, peers.audits.auditor_peer).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from peers.audits.replay_queue import QueuedReplay
from peers.errors import UserError
from peers.runtime.host import Host
from swarm import events
from swarm.core.audits.accusations import Opinion, opinion_of
from swarm.core.audits.auditing import LEAST, Weighed
from swarm.draws.replays import Replay, Replayed, claims_of, replay_group, weigh
from swarm.learn.learners.microbatch import ran_out
from swarm.protocol import Kind
from swarm.storage.blocks import Damaged
from swarm.storage.weights import Weights
from swarm.types import Digest

VERSIONS = 8
"""Newest versions whose bytes stay on this disk once a group of a sampler that is audited came: most groups
are of a few versions before."""

MakeReplay = Callable[[], Replay]


class Replayer:
    def __init__(self, host: Host, make: MakeReplay | None, gave_up: Callable[[], None]) -> None:
        """`make` makes what replays, on the work port; None: nothing is ever replayed. `gave_up`: nor from
        now on."""
        self._host, self._gave_up = host, gave_up
        self._make = None if host.config.run.sampling.quantized else make
        self._replay: Replay | None = None
        self.loaded: Digest | None = None
        """Weights of the last replay."""
        self._held: OrderedDict[Digest, Weights] = OrderedDict()
        """The newest versions, of which a peer itself keeps two."""

    @property
    def works(self) -> bool:
        return self._make is not None

    def hold(self, version: int, weights: Digest) -> Weights | None:
        """Keep a version's bytes, where they are here, for as long as they are among the newest ones. None
        where they are not here."""
        if weights not in self._held:
            if (blocks := self._host.releases.blobs.blocks(weights)) is None:
                return None
            self._held[weights] = Weights(version, blocks)
            if len(self._held) > VERSIONS:
                del self._held[min(self._held, key=lambda each: self._held[each].version)]
        return self._held.get(weights)

    def holds(self, version: int, weights: Digest) -> bool:
        """Whether groups of a version that was announced can be replayed here."""
        known = self.works and self._host.releases.known(version, weights)
        return bool(known) and self.hold(version, weights) is not None

    async def ready(self) -> bool:
        """False where what replays cannot be had, and nothing is replayed from then on."""
        if self._replay is None and self._make is not None:
            try:
                self._replay = await self._host.ports.work.run(Kind.LOAD, self._make)
            except (UserError, ValueError, RuntimeError, MemoryError) as error:
                if isinstance(error, RuntimeError) and not ran_out(error):
                    raise
                self.give_up(str(error))
        return self._replay is not None

    async def replayed(self, drawn: QueuedReplay) -> tuple[Replayed | None, float]:
        """The replay of a group, and the seconds that it took on the work port."""
        host = self._host
        began = host.now()

        def work() -> Replayed | None:
            nonlocal began
            began = host.now()  # it waited for gradients until here
            return self._replayed(drawn)

        found = None
        try:
            found = await host.ports.work.run(Kind.AUDIT, work)
        except (Damaged, ValueError):
            self.loaded = None  # the bytes are gone, or of no policy here: that blames no peer
        except (RuntimeError, MemoryError) as error:
            if not ran_out(error):
                raise
            self.give_up(str(error))
            return None, 0.0
        return found, host.now() - began

    def _replayed(self, drawn: QueuedReplay) -> Replayed | None:
        """On the work port. None where the group's noise is another one."""
        group, replay = drawn.group, self._replay
        if replay is None or group.noise != replay.noise:
            return None
        if self.loaded != group.weights:
            replay.load(drawn.weights)
            self.loaded = group.weights
        return replay_group(replay, drawn.prompt, group)

    def weighed(self, drawn: QueuedReplay, replayed: Replayed) -> tuple[Weighed, Opinion]:
        """A replay, weighed by the deviations that are allowed here, and its opinion of an accusation of the
        group."""
        assert self._replay is not None
        claims = claims_of(drawn.group)
        found = weigh(replayed, claims, self._replay.allowed)
        return found, opinion_of(found, weigh(replayed, claims, LEAST))

    def make_room(self, why: str) -> None:
        """The peer's own work failed: give back the memory that the second policy takes."""
        if self._replay is not None:
            self.give_up(why)

    def give_up(self, why: str) -> None:
        """Replay nothing any more."""
        self._make = self._replay = self.loaded = None
        self._held.clear()
        self._gave_up()
        text = f"groups are not audited here any more: {why}; set peer.audit.share = 0, or free memory"
        self._host.emit(events.Noted, level="warning", text=text)
