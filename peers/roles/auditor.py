"""A learner's duty to audit: replays some of the groups that it admitted, and sets samplers aside by what it
finds.

    a group is admitted --drawn?--> waits here, with the weights that it names
    run   -> weights loaded, the group replayed on the work port -> swarm.core.auditing
          -> Audited event; whose groups are forged: `unverified` from then on, and what is not trained yet is
             dropped

Drawn are groups of samplers without an invite, or of all (`peer.audit.invited`), after they were submitted,
by randomness that only this peer's key gives. Audits take at most `peer.audit.share` of the time of the
thread that computes gradients: what is drawn beyond it waits, and beyond WAITING the oldest is let go, which
verifies nobody. A policy of its own is made for the first replay, beside the learner's. What cannot be
replayed here (a group whose noise has no Replay, weights that are gone, a run whose samplers may use fewer
bits) says nothing about anybody. Not handled here: what margins mean (swarm.core.auditing).
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from peers.errors import UserError
from peers.roles.evidence import ASIDE, SUFFIX, Evidence, keep, keep_aside, read_aside
from peers.roles.learner_inbox import LearnerInbox
from peers.runtime.host import Host
from swarm import events
from swarm.blocks import Damaged
from swarm.core import auditing
from swarm.core.auditing import Audits, Consequence, Tolerance
from swarm.durable import Torn
from swarm.learn.microbatch import ran_out
from swarm.protocol import Kind
from swarm.replays import Replay, Replayed, claims_of, rows_of, weigh
from swarm.types import Digest, Group, PeerId, Verdict
from swarm.weights import Weights

WAITING = 64
"""Groups that wait for their replay."""

MakeReplay = Callable[[], Replay]


@dataclass(frozen=True)
class Drawn:
    """A group that is to be replayed."""

    group: Group
    frame: bytes
    """As its sampler signed it."""
    prompt: str
    weights: Weights


class Auditor:
    def __init__(self, host: Host, inbox: LearnerInbox, make: MakeReplay | None, folder: Path | None) -> None:
        """`make` makes what replays, on the work port; None: nothing is ever replayed. Evidence is kept in
        `folder`; None keeps none."""
        self.host, self._inbox, self._make, self._folder = host, inbox, make, folder
        self.audits = Audits()
        secret = host.ports.keyring.sign(f"audits {host.who.incarnation}".encode())
        self._rng = random.Random(secret)
        self._replay: Replay | None = None
        self._loaded: Digest | None = None
        self._waiting: deque[Drawn] = deque()
        self._read = 0
        """When the file of those that are set aside was written, as far as I have read it, nanoseconds."""
        self._held: OrderedDict[Digest, Weights] = OrderedDict()
        """The newest versions, of which a learner itself keeps two."""
        self._news = asyncio.Event()
        if self._works():
            inbox.audit, inbox.aside = self.draw, self.aside
            self._look()

    def _works(self) -> bool:
        config = self.host.config
        return self._make is not None and config.peer.audit.share > 0 and not config.run.sampling.quantized

    def aside(self, sampler: PeerId) -> str | None:
        """Why a sampler is set aside now, or None."""
        now = self.host.now()
        if self.audits.aside(sampler, now) is not None:
            self._look()  # it may have been pardoned
        found = self.audits.aside(sampler, now)
        return auditing.objection(found, now) if found is not None else None

    def _look(self) -> None:
        """Take up the file of those that are set aside: an earlier life's, or one that `swarm pardon` changed
        meanwhile."""
        path = self._folder and self._folder / ASIDE
        if path is None or not path.exists() or path.stat().st_mtime_ns == self._read:
            return
        try:
            self._read, aside = path.stat().st_mtime_ns, read_aside(path.parent)
        except (OSError, Torn, msgspec.DecodeError) as error:
            self.host.disk_damaged(f"{path} is damaged ({error}): who was set aside is forgotten")
            return
        for sampler in self.audits.all_aside().keys() - aside.keys():
            self.audits.pardon(sampler)
        self.audits.restore(aside)

    def draw(self, group: Group, frame: bytes) -> None:
        """Take an admitted group for an audit, or leave it."""
        sampler, settings = group.sampler, self.host.config.peer.audit
        if not settings.invited and self._inbox.batcher.quotas.vouched(sampler):
            return
        if self._make is None or not group.noise:
            return
        if (newest := self.host.releases.held) is not None:
            self._hold(newest.version, newest.weights)
        if self._hold(group.version, group.weights) and self.audits.drawn(sampler, self._rng):
            self._wait(group, frame)

    def _wait(self, group: Group, frame: bytes) -> None:
        prompt = self._inbox.task_and_rewards(group).task.prompt
        self._waiting.append(Drawn(group, frame, prompt, self._held[group.weights]))
        if len(self._waiting) > WAITING:
            self._waiting.popleft()
        self._news.set()

    def _hold(self, version: int, weights: Digest) -> bool:
        """Keep a version's bytes, where they are here, for as long as they are among the newest ones. False
        where they are not here."""
        if weights not in self._held:
            if (blocks := self.host.releases.blobs.blocks(weights)) is None:
                return False
            self._held[weights] = Weights(version, blocks)
            if len(self._held) > self.host.config.peer.audit.versions:
                del self._held[min(self._held, key=lambda each: self._held[each].version)]
        return weights in self._held

    async def run(self) -> None:
        """Replay what waits, until cancelled."""
        while True:
            await self._news.wait()
            while self._waiting and (replay := await self._ready()) is not None:
                spent = await self._audit(self._next(), replay)
                await self.host.ports.clock.sleep(spent * (1 / self.host.config.peer.audit.share - 1))
            self._news.clear()

    async def _ready(self) -> Replay | None:
        """What replays; None where it cannot be had, and nothing is audited from then on."""
        if self._replay is None and self._make is not None:
            try:
                self._replay = await self.host.ports.work.run(Kind.LOAD, self._make)
            except (UserError, ValueError, RuntimeError, MemoryError) as error:
                if isinstance(error, RuntimeError) and not ran_out(error):
                    raise
                self._give_up(str(error))
        return self._replay

    def _next(self) -> Drawn:
        """The oldest group of the version that is loaded, or else of all."""
        for drawn in self._waiting:
            if drawn.group.weights == self._loaded:
                self._waiting.remove(drawn)
                return drawn
        return self._waiting.popleft()

    async def _audit(self, drawn: Drawn, replay: Replay) -> float:
        """Returns the seconds that it took on the work port."""
        host = self.host
        began = host.now()

        def replayed() -> Replayed | None:
            nonlocal began
            began = host.now()  # it waited for gradients until here
            return self._replayed(drawn, replay)

        try:
            found = await host.ports.work.run(Kind.AUDIT, replayed)
        except (Damaged, ValueError):
            self._loaded = None  # the bytes are gone, or of no policy here: that blames nobody
            return host.now() - began
        except (RuntimeError, MemoryError) as error:
            if not ran_out(error):
                raise
            self._give_up(str(error))
            return 0.0
        spent = host.now() - began
        if found is not None and (aside := self._judge(drawn.group, found, replay.allowed)) is not None:
            await self._keep(drawn, aside)
        return spent

    def _replayed(self, drawn: Drawn, replay: Replay) -> Replayed | None:
        """On the work port. None where the group's noise is another one."""
        group = drawn.group
        if group.noise != replay.noise:
            return None
        if self._loaded != group.weights:
            replay.load(drawn.weights)
            self._loaded = group.weights
        return replay.replay(drawn.prompt, rows_of(group), group.seed)

    def _judge(self, group: Group, replayed: Replayed, allowed: Tolerance) -> Consequence | None:
        host, sampler = self.host, group.sampler
        found = weigh(replayed, claims_of(group), allowed)
        finding, aside = self.audits.take(sampler, found, host.now())
        host.emit(
            events.Audited,
            group=group.id,
            sampler=sampler,
            finding=finding,
            tokens=found.tokens,
            off=found.off,
            largest=round(found.largest, 4),
            until=aside.until if aside is not None else 0.0,
            strikes=aside.strikes if aside is not None else 0,
            why=aside.why if aside is not None else "",
        )
        if aside is not None:
            gone = self._inbox.batcher.remove(lambda each: each.sampler == sampler)
            self._inbox.drop(gone, Verdict.UNVERIFIED)
            self._waiting = deque(each for each in self._waiting if each.group.sampler != sampler)
        return aside

    async def _keep(self, drawn: Drawn, aside: Consequence) -> None:
        """Write evidence that others can replay."""
        host, group = self.host, drawn.group
        release = host.releases.named(group.version, group.weights)
        if self._folder is None or release is None:
            return
        said = Evidence(
            run=host.who.run,
            frame=drawn.frame,
            release=host.releases.sealed(release),
            auditor=host.ports.me,
            at=host.now(),
            why=aside.why,
        )
        try:
            await host.ports.work.run(Kind.SAVE, keep, self._folder, group.id, said, drawn.weights)
            await host.ports.work.run(Kind.SAVE, keep_aside, self._folder, self.audits.all_aside())
            self._read = (self._folder / ASIDE).stat().st_mtime_ns
        except (OSError, Damaged) as error:
            host.disk.tell("evidence", str(error))
            return
        path = self._folder / f"{group.id}{SUFFIX}"
        text = f"evidence against {group.sampler} is kept: `swarm verify {path}` replays it"
        host.emit(events.Noted, level="info", text=text)

    def make_room(self) -> None:
        """A gradient does not fit into memory: give back what the second policy takes."""
        if self._replay is not None:
            self._give_up("the learner's own gradient did not fit beside them")

    def _give_up(self, why: str) -> None:
        """Replay nothing any more."""
        self._make = self._replay = self._loaded = None
        self._waiting.clear()
        self._held.clear()
        text = f"groups are not audited here any more: {why}; set peer.audit.share = 0, or free memory"
        self.host.emit(events.Noted, level="warning", text=text)
