"""A learner's audits: replays some of the groups that it admitted, and suspends samplers by the results.

    a group is admitted --drawn?--> waits here, with the weights that it names
    run   -> the group replayed (peers.audits.replayer) -> swarm.core.audits.auditing
          -> Audited event; a forger's groups: `unverified` from then on, untrained ones are dropped,
             and the other learners are informed
    another peer accuses a sampler --peers.audits.accusations--> its group waits here, too
    an auditor asks for submissions --peers.audits.submitted_groups--> it draws from them by itself

Drawn are groups of samplers without an invite, or of all (`peer.audit.invited`), after they were submitted,
by randomness that only this peer's key gives. Audits take at most `peer.audit.share` of the time of the
thread that computes gradients, and the time in which this learner has no batch. Excess draws wait: first come
groups of samplers without any replay yet, then those of samplers whose claims are unlikely, all of which are
drawn; beyond WAITING one is dropped, which verifies no sampler (peers.audits.replay_queue). Not handled here:
the meaning of margins (swarm.core.audits.auditing).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from pathlib import Path

import msgspec

from peers.audits.accusations import AccusationExchange
from peers.audits.evidence import SUFFIX, SUSPENDED, Evidence, keep, read_suspended, stamp, update_suspended
from peers.audits.replay_queue import QueuedReplay, ReplayQueue
from peers.audits.replayer import MakeReplay, Replayer
from peers.audits.shown_groups import AccusedGroup, ShownGroups
from peers.audits.submitted_groups import SubmittedGroups
from peers.intake.inbox import LearnerInbox
from peers.runtime.host import Host
from swarm import events
from swarm.core.audits.accusations import Opinion, is_conclusive
from swarm.core.audits.auditing import COUNT, Audits, Finding, Weighed
from swarm.core.intake.batcher import NO_LIMIT, Room
from swarm.core.roster import CLOCK
from swarm.core.suspensions import Suspension
from swarm.draws.replays import Replayed
from swarm.protocol import Kind, Role, Service
from swarm.storage.blocks import Damaged
from swarm.storage.durable import Torn
from swarm.types import Digest, Group, PeerId, Verdict


class Auditor:
    def __init__(self, host: Host, inbox: LearnerInbox, make: MakeReplay | None, folder: Path | None) -> None:
        """`make` makes what replays, on the work port; None: nothing is ever replayed. Evidence is kept in
        `folder`; None keeps none."""
        self.host, self._inbox, self._folder = host, inbox, folder
        self.audits = Audits()
        secret = host.ports.keyring.sign(f"audits {host.who.incarnation}".encode())
        self._rng = random.Random(secret)
        self._replayer = Replayer(host, make, self._gave_up)
        self._queue = ReplayQueue(self.audits.proven, self._is_urgent)
        self._seen = (0, 0)
        """The file of suspended samplers as I read it last: when it was written, nanoseconds, and its
        inode."""
        self._listed: frozenset[PeerId] = frozenset()
        """Samplers in that file, as last read or written here: `swarm pardon` removes names from it."""
        self._list = 0
        """Number of the owner's last list whose pardons were applied."""
        self._obeyed: dict[PeerId, float] = {}
        """Peer that this list readmits -> when the owner pardoned it, so that each pardon is applied once."""
        self._unwritten = False
        """A suspension differs from the file."""
        self._news = asyncio.Event()
        self._shown, self._submitted = ShownGroups(host), SubmittedGroups(host)
        self._accusations = AccusationExchange(host, inbox, self, self._shown)
        if self._works():
            self._look()

    def _works(self) -> bool:
        return self._replayer.works and self.host.config.peer.audit.share > 0

    def suspended(self, sampler: PeerId) -> Suspension | None:
        """Why a sampler is suspended now, or None."""
        now = self.host.now()
        if self.audits.suspensions.of(sampler, now) is not None:
            self._look()  # it may have been pardoned in this folder
        self._obey_pardons()
        return self.audits.suspensions.of(sampler, now)

    def suspend(self, sampler: PeerId, why: str) -> None:
        """Suspend a sampler for its claims, of which this learner's gradients are the only evidence. Not
        again while it is suspended: its groups came before."""
        host = self.host
        if (suspension := self.audits.suspend(sampler, why, host.now())) is not None:
            reason = suspension.objection(host.now())
            host.emit(events.Rejected, sender=sampler, kind=Service.GROUPS, reason=reason)
            self._unwritten = True
            self._news.set()

    def _look(self) -> None:
        """Read the file of suspended samplers: an earlier life's, or one that `swarm pardon` changed
        meanwhile."""
        path = self._folder and self._folder / SUSPENDED
        if path is None or not path.exists() or stamp(path) == self._seen:
            return
        try:
            self._seen, listed = stamp(path), read_suspended(path.parent)
        except (OSError, Torn, msgspec.DecodeError) as error:
            self.host.disk.damaged(f"{path} is damaged ({error}): which samplers were suspended is forgotten")
            return
        self._let_back(self._listed - listed.keys())
        suspensions = self.audits.suspensions
        known = self._listed | suspensions.all().keys()
        suspensions.restore({sampler: each for sampler, each in listed.items() if sampler not in known})
        self._listed = frozenset(listed)

    def _let_back(self, pardoned: Collection[PeerId]) -> None:
        for sampler in pardoned:
            self.audits.pardon(sampler)

    def _obey_pardons(self) -> None:
        """Forget findings about samplers that the run's owner pardons, once for each pardon. Findings up to
        CLOCK seconds after a pardon may be older than it: clocks differ by that."""
        revocations = self.host.trust.revocations
        if self._list == revocations.number:
            return
        self._list, before = revocations.number, self._obeyed
        self._obeyed = {one.peer: one.at for one in revocations.list.pardons}
        for sampler, suspension in self.audits.suspensions.all().items():
            at = self._obeyed.get(sampler)
            if at is not None and at != before.get(sampler) and suspension.since <= self._here(at) + CLOCK:
                self.audits.pardon(sampler)
                self._unwritten = True
                self._news.set()

    def _here(self, at: float) -> float:
        """The owner's time `at` by this machine's clock; both are unix seconds."""
        return at + self.host.roster.wrong()

    def _is_pardoned(self, group: Group) -> bool:
        """Whether the run's owner let the sampler back after the group's version was released."""
        if (at := self.host.trust.revocations.pardoned(group.sampler)) <= 0:
            return False
        known, at = self.host.releases.known(group.version, group.weights), self._here(at)
        return all(self.host.releases.released_here(one) <= at for one in known)

    def draw(self, group: Group, frame: bytes) -> None:
        """Take an admitted group for an audit, or leave it to auditors."""
        sampler = group.sampler
        if not (self._is_audited(sampler) and group.noise == self._inbox.opener.noise):
            return
        if self._is_pardoned(group):
            return
        if (newest := self.host.releases.held) is not None:
            self._replayer.hold(newest.version, newest.weights)
        weights = self._replayer.hold(group.version, group.weights)
        due = self._is_urgent(sampler) or self.audits.drawn(sampler, self._rng)
        if any(beat.role is Role.AUDITOR for _, beat in self.host.roster):
            self._submitted.add(group, frame)
        if weights is not None:
            self.audits.taken(sampler)
            if due:
                prompt = self._inbox.task_and_rewards(group).task.prompt
                self._append(QueuedReplay(group, frame, prompt, weights))

    def _is_urgent(self, sampler: PeerId) -> bool:
        """Whether all groups of this sampler are replayed, before those of others that are proven."""
        return self._inbox.sampler_evidence.suspects(sampler) or self._is_behind(sampler)

    def _is_audited(self, sampler: PeerId) -> bool:
        """Whether groups of this sampler are replayed here: the run's owner vouches for others."""
        invited = self._inbox.batcher.quotas.vouched(sampler)
        return self._works() and (self.host.config.peer.audit.invited or not invited)

    def room(self, sampler: PeerId) -> Room:
        """How many groups of a sampler are taken before more of them are replayed: one at a time, which is
        drawn, where none of it waits for that."""
        if not self._is_audited(sampler):
            return NO_LIMIT
        left, waits = self.audits.room(sampler), self._queue.waits(sampler)
        left = max(left - self._inbox.batcher.scoring[sampler], 0 if waits else 1)
        return Room(left, "the last groups of yours wait to be replayed: send more later")

    def is_replayable(self, group: Group) -> bool:
        """Whether a group that names my arithmetic could be replayed here."""
        return not self._works() or self._replayer.holds(group.version, group.weights)

    def is_unproven(self, sampler: PeerId) -> bool:
        """Whether a group of this sampler is to be replayed before one is trained on."""
        return sampler in self._queue.unproven

    def _append(self, drawn: QueuedReplay) -> None:
        gone = self._queue.append(drawn)
        if gone is not None and gone.shown is not None:
            self._accusations.let_go(gone.shown.claim)
        self._news.set()

    def holds(self, version: int, weights: Digest) -> bool:
        """As peers.audits.accusations.Replays."""
        return self._replayer.holds(version, weights)

    def enqueue(self, shown: AccusedGroup) -> None:
        group = shown.group
        if (weights := self._replayer.hold(group.version, group.weights)) is not None:
            self._append(QueuedReplay(group, shown.frame, shown.prompt, weights, shown))
            self.host.move()
        else:
            self._accusations.judged(shown, Opinion.UNDECIDED)

    async def run(self) -> None:
        """Replay what waits, until cancelled."""
        if self._works():
            await self._shown.serve()
            await self._submitted.serve()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._accusations.run())
                tasks.create_task(self._replay_forever())

    async def _replay_forever(self) -> None:
        while True:
            await self._news.wait()
            if self._unwritten:
                await self._write_suspended()
            while self._queue and await self._replayer.ready():
                drawn = self._queue.take(self._replayer.loaded)
                spent = await self._audit(drawn)
                self._queue.settle(drawn.group.sampler)
                self.host.move()
                await self._rest(spent)
            self._news.clear()

    def _is_waited_for(self) -> bool:
        """Whether this learner waits for groups that replays let in: it has none to train on, or too few for
        a batch while samplers are held back."""
        closes = self._inbox.closes(self.host.now())
        if any(map(self._is_behind, self._queue.samplers())):
            return closes != 0.0
        return bool(self._queue.unproven) and closes is None

    def _is_behind(self, sampler: PeerId) -> bool:
        """Whether no group of it is taken before one is replayed."""
        return self.audits.room(sampler) <= 0

    async def _rest(self, spent: float) -> None:
        """Leave the others their share of the time, unless this learner waits for what replays let in."""
        host = self.host
        until = host.steady() + spent * (1 / host.config.peer.audit.share - 1)
        while (left := until - host.steady()) > 0 and not self._is_waited_for():
            await host.changed(left)

    async def _audit(self, drawn: QueuedReplay) -> float:
        """Returns the seconds that it took on the work port."""
        replayed, spent = await self._replayer.replayed(drawn)
        if replayed is None:
            self._undecided(drawn)
        elif (suspension := self._judge(drawn, replayed)) is not None:
            await self._keep(drawn, suspension)
        return spent

    def _judge(self, drawn: QueuedReplay, replayed: Replayed) -> Suspension | None:
        group = drawn.group
        found, opinion = self._replayer.weighed(drawn, replayed)
        self._look()  # a pardoned sampler's findings no longer count
        self._obey_pardons()
        if drawn.shown is None:
            finding, suspension = self.audits.take(group.sampler, found, self.host.now())
            accuses = suspension is not None and is_conclusive(found)
        else:
            self._accusations.judged(drawn.shown, opinion)
            finding, suspension = self._judge_accused(drawn.shown, found, opinion)
            accuses = opinion is Opinion.AGREED
        self._emit_audited(group.id, group.sampler, finding, found, suspension)
        if suspension is not None:
            self._drop(group.sampler)
        if accuses:
            in_force = self.audits.suspensions.of(group.sampler, self.host.now())
            self._accusations.accuse(group, drawn.frame, in_force)
        return suspension

    def _judge_accused(
        self, accused: AccusedGroup, found: Weighed, opinion: Opinion
    ) -> tuple[Finding, Suspension | None]:
        """An honest group that an accuser selected verifies no sampler."""
        host, group, suspension = self.host, accused.group, None
        if opinion is Opinion.DISAGREED:
            return Finding.HONEST, None
        if opinion is Opinion.UNDECIDED:
            if found.off:
                self.audits.doubt(group.sampler)
            return Finding.UNLIKELY if found.off else Finding.UNDECIDED, None
        if (release := host.releases.named(group.version, group.weights)) is not None:
            released = host.releases.released_here(release)
            if not self._is_pardoned(group):
                suspension = self.audits.accused(group.sampler, found, released, host.now())
        if suspension is not None:
            suspension = suspension._replace(why=f"{suspension.why}; {accused.accuser} found it first")
        return Finding.FORGED if found.off >= COUNT else Finding.DRIFTED, suspension

    def _undecided(self, drawn: QueuedReplay) -> None:
        """A group is not replayed: that blames no peer."""
        if drawn.shown is not None:
            self._accusations.judged(drawn.shown, Opinion.UNDECIDED)

    def _emit_audited(
        self, group: str, sampler: PeerId, finding: Finding, found: Weighed, suspension: Suspension | None
    ) -> None:
        self.host.emit(
            events.Audited,
            group=group,
            sampler=sampler,
            finding=finding,
            tokens=found.tokens,
            off=found.off,
            largest=round(found.largest, 4),
            until=suspension.until if suspension is not None else 0.0,
            strikes=suspension.strikes if suspension is not None else 0,
            why=suspension.why if suspension is not None else "",
        )

    def _drop(self, sampler: PeerId) -> None:
        """Drop a sampler's waiting groups: they are not trained, and replayed only if a peer accuses it."""
        gone = self._inbox.batcher.remove(lambda each: each.sampler == sampler)
        self._inbox.drop(gone, Verdict.UNVERIFIED)
        self._inbox.batcher.quotas.forget(sampler)
        self._queue.drop(sampler)
        self._submitted.drop(sampler)

    async def _keep(self, drawn: QueuedReplay, suspension: Suspension) -> None:
        """Write the suspended samplers, and evidence that others can replay, where the disk has room for
        it."""
        host, group = self.host, drawn.group
        await self._write_suspended()
        release = host.releases.named(group.version, group.weights)
        if self._folder is None or release is None:
            return
        evidence = Evidence(
            run=host.who.run,
            frame=drawn.frame,
            release=host.releases.sealed(release),
            auditor=host.ports.me,
            at=host.now(),
            why=suspension.why,
        )
        try:
            await host.ports.work.run(Kind.SAVE, keep, self._folder, group.id, evidence, drawn.weights)
        except (OSError, Damaged) as error:
            host.disk.report("evidence", str(error))
            return
        host.disk.report("evidence", "")
        path = self._folder / f"{group.id}{SUFFIX}"
        text = f"evidence against {group.sampler} is kept: `swarm verify {path}` replays it"
        host.emit(events.Noted, level="info", text=text)

    async def _write_suspended(self) -> None:
        """Write the suspended samplers, without those that were pardoned in the file since it was last read
        or written here."""
        self._unwritten = False
        if self._folder is None:
            return
        self._look()
        suspended = self.audits.suspensions.all()
        try:
            pardoned = await self.host.ports.work.run(
                Kind.SAVE, update_suspended, self._folder, suspended, self._listed
            )
        except OSError as error:
            self._unwritten = True
            self.host.disk.report("suspensions", str(error))
            return
        self.host.disk.report("suspensions", "")
        self._let_back(pardoned)
        self._listed = frozenset(suspended.keys() - pardoned)

    def make_room(self) -> None:
        """A gradient does not fit into memory: free the memory of the second policy."""
        self._replayer.make_room("the learner's own gradient did not fit beside them")

    def _gave_up(self) -> None:
        """Nothing is replayed any more."""
        while self._queue:
            self._undecided(self._queue.take(None))
        self._queue.unproven.clear()
