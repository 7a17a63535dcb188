"""A learner's duty to audit: replays some of the groups that it admitted, and sets samplers aside by what it
finds.

    a group is admitted --drawn?--> waits here, with the weights that it names
    run   -> weights loaded, the group replayed on the work port -> swarm.core.auditing
          -> Audited event; whose groups are forged: `unverified` from then on, what is not trained yet is
             dropped, and the other learners hear of it
    another learner accuses a sampler --peers.roles.accusations--> its group waits here, too

Drawn are groups of samplers without an invite, or of all (`peer.audit.invited`), after they were submitted,
by randomness that only this peer's key gives. Audits take at most `peer.audit.share` of the time of the
thread that computes gradients, and what this learner has no batch for anyway: what is drawn beyond it waits,
first the groups of samplers of which none was replayed yet, and beyond WAITING the oldest is let go, which
verifies nobody (peers.roles.replay_queue). A policy of its own is made for the first replay, beside the
learner's. What cannot be replayed here (a group whose noise has no Replay, weights that are gone, a run whose
samplers may use fewer bits) says nothing about anybody. Not handled here: what margins mean
(swarm.core.auditing).
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import msgspec

from peers.errors import UserError
from peers.roles.accusations import AccusationExchange, Accused
from peers.roles.evidence import ASIDE, SUFFIX, Evidence, keep, keep_aside, read_aside
from peers.roles.learner_inbox import LearnerInbox
from peers.roles.replay_queue import Drawn, ReplayQueue
from peers.runtime.host import Host
from swarm import events
from swarm.blocks import Damaged
from swarm.core import auditing
from swarm.core.accusations import Opinion, opinion_of, speaks_alone
from swarm.core.auditing import COUNT, LEAST, Audits, Consequence, Finding, Tolerance, Weighed
from swarm.durable import Torn
from swarm.learn.microbatch import ran_out
from swarm.protocol import Kind
from swarm.replays import Replay, Replayed, claims_of, replay_group, weigh
from swarm.types import Digest, Group, PeerId, Verdict
from swarm.weights import Weights

MakeReplay = Callable[[], Replay]


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
        self._queue = ReplayQueue(self.audits.proven)
        self._read = 0
        """When the file of those that are set aside was written, as far as I have read it, nanoseconds."""
        self._held: OrderedDict[Digest, Weights] = OrderedDict()
        """The newest versions, of which a learner itself keeps two."""
        self._list = 0
        """Number of the owner's list whose pardons were obeyed."""
        self._unwritten = False
        """Somebody is set aside for another time than the file says."""
        self._news = asyncio.Event()
        self._accusations = AccusationExchange(host, inbox, self)
        if self._works():
            inbox.audit, inbox.aside = self.draw, self.aside
            inbox.batcher.unproven = self._queue.unproven
            self._look()

    def _works(self) -> bool:
        config = self.host.config
        return self._make is not None and config.peer.audit.share > 0 and not config.run.sampling.quantized

    def aside(self, sampler: PeerId) -> str | None:
        """Why a sampler is set aside now, or None."""
        now = self.host.now()
        if self.audits.aside(sampler, now) is not None:
            self._look()  # it may have been pardoned in this folder
        self._obey_pardons()
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

    def _obey_pardons(self) -> None:
        """Forget what the run's owner pardons, once for each of its lists."""
        revocations = self.host.trust.revocations
        if self._list == revocations.number:
            return
        self._list = revocations.number
        for sampler, aside in self.audits.all_aside().items():
            pardoned = revocations.pardoned(sampler)
            if pardoned and aside.since <= pardoned:
                self.audits.pardon(sampler)
                self._unwritten = True
                self._news.set()

    def _is_pardoned(self, group: Group) -> bool:
        """Whether the run's owner let the sampler back after the group's version was released."""
        at = self.host.trust.revocations.pardoned(group.sampler)
        known = self.host.releases.known(group.version, group.weights)
        return at > 0 and all(self.host.releases.released_here(one) <= at for one in known)

    def draw(self, group: Group, frame: bytes) -> None:
        """Take an admitted group for an audit, or leave it."""
        sampler, settings = group.sampler, self.host.config.peer.audit
        if not settings.invited and self._inbox.batcher.quotas.vouched(sampler):
            return
        if self._make is None or not group.noise or self._is_pardoned(group):
            return
        if (newest := self.host.releases.held) is not None:
            self._hold(newest.version, newest.weights)
        if self._hold(group.version, group.weights) and self.audits.drawn(sampler, self._rng):
            self._wait(group, frame)

    def _wait(self, group: Group, frame: bytes) -> None:
        prompt = self._inbox.task_and_rewards(group).task.prompt
        self._append(Drawn(group, frame, prompt, self._held[group.weights]))

    def _append(self, drawn: Drawn) -> None:
        if (let_go := self._queue.append(drawn)) is not None:
            self._undecided(let_go)
        self._news.set()

    def holds(self, version: int, weights: Digest) -> bool:
        """As peers.roles.accusations.Replays."""
        known = self._make is not None and self.host.releases.known(version, weights)
        return bool(known) and self._hold(version, weights)

    def enqueue(self, accused: Accused) -> None:
        group = accused.group
        if (weights := self._held.get(group.weights)) is not None:
            self._append(Drawn(group, accused.frame, accused.prompt, weights, accused))
        else:
            self._accusations.judged(accused, Opinion.UNDECIDED)

    def second(self, sampler: PeerId, strikes: int, by: PeerId) -> None:
        if (aside := self.audits.second(sampler, strikes, self.host.now())) is not None:
            self._tell(
                "", sampler, Finding.FORGED, None, aside._replace(why=f"{aside.why}; {by} found it, too")
            )
            self._unwritten = True
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
        if self._works():
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._accusations.run())
                tasks.create_task(self._replay_forever())

    async def _replay_forever(self) -> None:
        while True:
            await self._news.wait()
            if self._unwritten:
                await self._write_aside()
            while self._queue and (replay := await self._ready()) is not None:
                drawn = self._queue.take(self._loaded)
                spent = await self._audit(drawn, replay)
                self._queue.settle(drawn.group.sampler)
                self.host.move()
                await self._rest(spent)
            self._news.clear()

    async def _rest(self, spent: float) -> None:
        """Leave the others their share of the time, unless this learner waits for what replays let in."""
        host = self.host
        until = host.now() + spent * (1 / host.config.peer.audit.share - 1)
        while (left := until - host.now()) > 0:
            if self._queue.unproven and self._inbox.closes(host.now()) is None:
                return
            await host.changed(left)

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
            self._undecided(drawn)
            return host.now() - began
        except (RuntimeError, MemoryError) as error:
            if not ran_out(error):
                raise
            self._undecided(drawn)
            self._give_up(str(error))
            return 0.0
        spent = host.now() - began
        if found is None:
            self._undecided(drawn)
        elif (aside := self._judge(drawn, found, replay.allowed)) is not None:
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
        return replay_group(replay, drawn.prompt, group)

    def _judge(self, drawn: Drawn, replayed: Replayed, allowed: Tolerance) -> Consequence | None:
        group, claims = drawn.group, claims_of(drawn.group)
        found = weigh(replayed, claims, allowed)
        if drawn.accused is None:
            finding, aside = self.audits.take(group.sampler, found, self.host.now(), self._alone())
            accuses = aside is not None and speaks_alone(found)
        else:
            opinion = opinion_of(found, weigh(replayed, claims, LEAST))
            finding, aside = self._judge_accused(drawn.accused, found, opinion)
            accuses = opinion is Opinion.AGREED
        self._tell(group.id, group.sampler, finding, found, aside)
        if aside is not None:
            self._drop(group.sampler)
        if accuses:
            self._accusations.accuse(group, drawn.frame, self.audits.strikes(group.sampler))
        return aside

    def _judge_accused(
        self, accused: Accused, found: Weighed, opinion: Opinion
    ) -> tuple[Finding, Consequence | None]:
        host, group, aside = self.host, accused.group, None
        self._accusations.judged(accused, opinion)
        if opinion is Opinion.DISAGREED:
            return Finding.HONEST, None
        if opinion is Opinion.UNDECIDED:
            if found.off:
                self.audits.doubt(group.sampler)
            return Finding.UNLIKELY if found.off else Finding.UNDECIDED, None
        if (release := host.releases.named(group.version, group.weights)) is not None:
            self._obey_pardons()
            released = host.releases.released_here(release)
            if not self._is_pardoned(group):
                aside = self.audits.accused(group.sampler, found, released, host.now())
        if aside is not None:
            aside = aside._replace(why=f"{aside.why}; {accused.accuser} found it first")
        return Finding.FORGED if found.off >= COUNT else Finding.DRIFTED, aside

    def _alone(self) -> bool:
        """Whether the run has no other learner."""
        return not {*self.host.roster.learners()} - {self.host.ports.me}

    def _undecided(self, drawn: Drawn) -> None:
        """A group is not replayed: that blames nobody."""
        if drawn.accused is not None:
            self._accusations.judged(drawn.accused, Opinion.UNDECIDED)

    def _tell(
        self, group: str, sampler: PeerId, finding: Finding, found: Weighed | None, aside: Consequence | None
    ) -> None:
        self.host.emit(
            events.Audited,
            group=group,
            sampler=sampler,
            finding=finding,
            tokens=found.tokens if found else 0,
            off=found.off if found else 0,
            largest=round(found.largest, 4) if found else 0.0,
            until=aside.until if aside is not None else 0.0,
            strikes=aside.strikes if aside is not None else 0,
            why=aside.why if aside is not None else "",
        )

    def _drop(self, sampler: PeerId) -> None:
        """Nothing of a sampler that waits is trained, or replayed unless somebody accuses it."""
        gone = self._inbox.batcher.remove(lambda each: each.sampler == sampler)
        self._inbox.drop(gone, Verdict.UNVERIFIED)
        self._queue.drop(sampler)

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
        except (OSError, Damaged) as error:
            host.disk.tell("evidence", str(error))
            return
        await self._write_aside()
        path = self._folder / f"{group.id}{SUFFIX}"
        text = f"evidence against {group.sampler} is kept: `swarm verify {path}` replays it"
        host.emit(events.Noted, level="info", text=text)

    async def _write_aside(self) -> None:
        self._unwritten = False
        if self._folder is None:
            return
        try:
            await self.host.ports.work.run(Kind.SAVE, keep_aside, self._folder, self.audits.all_aside())
            self._read = (self._folder / ASIDE).stat().st_mtime_ns
        except OSError as error:
            self.host.disk.tell("evidence", str(error))

    def make_room(self) -> None:
        """A gradient does not fit into memory: give back what the second policy takes."""
        if self._replay is not None:
            self._give_up("the learner's own gradient did not fit beside them")

    def _give_up(self, why: str) -> None:
        """Replay nothing any more."""
        self._make = self._replay = self._loaded = None
        while self._queue:
            self._undecided(self._queue.take(None))
        self._queue.unproven.clear()
        self._held.clear()
        text = f"groups are not audited here any more: {why}; set peer.audit.share = 0, or free memory"
        self.host.emit(events.Noted, level="warning", text=text)
