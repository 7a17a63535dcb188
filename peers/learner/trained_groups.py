"""Which of a learner's groups were trained, and by which learner, so that each counts once despite crashes.

    admitted  -> its record on the disk, then the receipt                     (peers.intake.group_log)
    a step -> TrainedStep with the marks of all members' groups: ledger, disk (swarm.core.agreement.trained)
    a policy  -> the ledger knows the steps in it; others are asked for theirs (service `trained`)
                   own groups in it     -> trained: dropped wherever they wait
                   own groups not in it -> back to the batcher, from memory, or after a restart from the disk

So a group that another learner trained first is a duplicate here, and one whose step was lost (in a crash, to
a better release, at the smaller half of a split swarm) is trained again while it is inside the window. Of two
members that bring one group to a round, one counts (swarm.core.gradient_checks.norm_screening).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from peers.intake.group_log import GroupLog, KeptGroup, KeptStep
from peers.intake.inbox import LearnerInbox, Scored, TaskAndRewards
from peers.intake.unkept_steps import newest
from peers.learner.agreement.catch_up import SETTLE
from peers.learner.checkpoints import Progress
from peers.runtime.host import Host
from swarm import events
from swarm.core.agreement.lineage import Point
from swarm.core.agreement.trained import HeldPolicy, TrainedLedger, mark, marks_of, named
from swarm.core.intake.admission import REMEMBERED
from swarm.core.intake.batcher import Waiting
from swarm.frames import wire
from swarm.limits import remember
from swarm.net.ports import NetError, Refused, read_question
from swarm.protocol import Role, Service
from swarm.tasks.base import RewardError
from swarm.types import MARKED, STEP_BYTES, Digest, Group, PeerId, TrainedQuery, TrainedStep, TrainedSteps

T = TypeVar("T")

SEGMENT_BYTES = 8 << 20
"""A segment goes when nothing of it is needed: a small one goes soon, and a file is made each 8 MiB."""

REMEMBERED_BYTES = 64 << 20
"""Trained groups that are remembered, in bytes, for the case that their steps are lost."""

REPORT_AGAIN = 1.0
"""Seconds between reports of steps that the disk refused, to seeds that have not answered: a learner that
dies meanwhile trains their groups again."""

ASKED = 3.0
"""Seconds for another learner to report its trained steps: a learner that syncs waits for it."""


class TrainedGroups:
    def __init__(
        self,
        host: Host,
        inbox: LearnerInbox,
        at: Callable[[], tuple[int, Digest]],
        under_way: Callable[[], Sequence[Waiting]],
        folder: Path | None,
    ) -> None:
        """`at()`: my version, and its weights once they are known; `under_way()`: the groups that are learned
        on, or that no version has yet. Groups and steps are kept in `folder`; None keeps them in memory
        alone."""
        run = host.config.run
        limit = wire.group_limit(
            run.sampling.group_size, run.sampling.max_tokens, run.sampling.heads
        ).inflated
        room = (2 * run.batch.buffer + run.release.checkpoint_every) * run.batch.groups
        most = max(2 * SEGMENT_BYTES, int(room * limit))
        self._host, self._inbox, self._at, self._under_way = host, inbox, at, under_way
        self._steps = GroupLog(host, folder and folder / "trained", SEGMENT_BYTES, 8 * SEGMENT_BYTES, "steps")
        # a group of a step that is not on the disk would be trained again
        self._groups = GroupLog(host, folder and folder / "groups", SEGMENT_BYTES, most, after=self._steps)
        self._ledger = TrainedLedger(host.releases.known, host.releases.lines.lineage.parent, host.ports.me)
        self._segments: dict[int, tuple[int, float]] = {}
        """Segment -> (newest version of a group in it, when that was released)."""
        self._step_segments: dict[int, int] = {}
        """Segment -> the newest version of a step in it."""
        self._stepped: deque[dict[bytes, Scored]] = deque()
        """The groups of my last steps, by their marks, after those that were trained and came back."""
        self._stepped_bytes = 0
        self._unkept: tuple[TrainedStep, ...] = ()
        """My steps that the disk does not have."""
        self._reported = set[tuple[PeerId, int]]()
        """Seeds, each with its incarnation, that have all of these."""
        self._to_report = asyncio.Event()
        """There are such steps."""
        self._last = set[bytes]()  # marks of my groups in my last step
        self._follows = False
        """My policy is what my last step made."""
        self._loaded = asyncio.Queue[HeldPolicy]()
        self.placing = 0
        """Policies that I loaded, until my groups are where they belong in the last one."""
        self._unsure = False
        """Some were placed without knowing whether their step is in the policy."""
        self._reported_lines: dict[PeerId, frozenset[Point]] = {}
        """Another learner -> the line of the last policy whose steps it reported here."""
        self._unread: list[KeptGroup] = []
        """Groups that the disk had and that no policy was asked about yet."""
        self._found, self._opened = False, -math.inf
        """The disk had groups of an earlier life; and when this one began."""
        self._trained: set[bytes] = set()
        """Marks of the groups in my policy's line."""
        self._in_memory = OrderedDict[str, None]()
        """Groups that the disk refused and does not have yet."""

    async def open(self) -> None:
        """Read the records on the disk, and serve the trained steps."""
        for segment, kept in await self._read(self._steps, KeptStep):
            self._add(kept.step, kept.follows)
            self._place_step(kept.step, segment)
        self._ledger.begin_life()
        self._ledger.recall(self._host.releases.announced())
        found = dict[str, KeptGroup]()
        for segment, held in await self._read(self._groups, KeptGroup):
            found.setdefault(held.group.id, held)
            self._place(held.group.version, held.group.times.released, segment)
            self._inbox.admission.admitted(held.group)
        self._unread, self._found, self._opened = [*found.values()], bool(found), self._host.steady()
        self._emit(events.Found, [kept.group for kept in self._unread])
        await self._host.ports.mail.serve(Service.TRAINED, self._answer)

    async def keep_refused(self) -> None:
        """Write refused records as soon as the disk accepts them, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for log in (self._steps, self._groups):
                tasks.create_task(log.run())
            tasks.create_task(self._report_again())

    async def _read(self, log: GroupLog, kind: type[T]) -> list[tuple[int, T]]:
        found: list[tuple[int, T]] = []
        for segment, record in await log.read():
            try:
                found.append((segment, msgspec.msgpack.decode(record, type=kind)))
            except msgspec.DecodeError as error:  # of another version of this program
                self._host.disk.damaged(f"a record of groups is left out: {error}")
        return found

    @property
    def refused(self) -> bool:
        """Whether the disk refuses groups now."""
        return self._groups.refused

    def is_unkept(self, group: str) -> bool:
        """Whether the disk refused the group with this id, and does not have it yet."""
        return group in self._in_memory

    async def keep(self, group: Group, rewards: tuple[float, ...]) -> bool:
        """Whether an admitted group is on the disk."""
        kept = KeptGroup(admitted=self._host.now(), rewards=rewards, group=group)
        written = await self._groups.keep(wire.encode(kept), placed=partial(self._written, group))
        if not written and self._groups.refused:
            remember(self._in_memory, group.id, None, REMEMBERED)
        return written

    def _written(self, group: Group, segment: int) -> None:
        self._in_memory.pop(group.id, None)
        self._place(group.version, group.times.released, segment)

    def has(self, batch: Sequence[Waiting]) -> bool:
        """A group of the batch is in my policy already: another learner trained it."""
        return any(mark(item.group.id) in self._trained for item in batch)

    async def placed(self) -> None:
        """Wait until my groups are where they belong in the policy that I loaded."""
        while self.placing:
            await self._host.changed(self._host.config.run.pace.beat)

    async def stepped(
        self, members: Iterable[PeerId], batch: Sequence[Scored], marks: Mapping[PeerId, bytes]
    ) -> None:
        """A step from my version begins: along the average of `members`, with the marks of their groups, or
        alone."""
        mine = {mark(item.group.id) for item, _ in batch}
        others = [each for theirs in marks.values() for each in marks_of(theirs) if each not in mine]
        step = await self._step(members, batch, others)
        self._host.emit(
            events.Stepped,
            version=step.version,
            parent=step.parent,
            members=step.members,
            groups=tuple(item.group.id for item, _ in batch),
            others=tuple(each.hex() for each in others),
        )
        self._trained.update(others)
        self._drop(others)
        beyond = [kept.group for kept in self._unread if kept.group.version >= step.version]
        self._emit(events.Dropped, beyond, why="of another line")
        self._unread = [kept for kept in self._unread if kept.group.version < step.version]  # tasks failed

    async def contributed(self, batch: Sequence[Scored]) -> None:
        """These groups go into this learner's contribution to the next version: a release whose list stays
        unknown here, in this life or the next one, may contain them, as the others know."""
        await self._step((), batch, ())
        self._follows = False  # no step yet

    async def _step(
        self, members: Iterable[PeerId], batch: Sequence[Scored], others: Sequence[bytes]
    ) -> TrainedStep:
        """Record a step from my version."""
        version, weights = self._at()
        mine = {mark(item.group.id): (item, task) for item, task in batch}
        self._settle()
        step = TrainedStep(
            version=version + 1,
            parent=weights,
            members=tuple(sorted(members)),
            groups=b"".join((*mine, *others))[:STEP_BYTES],
        )
        follows, self._follows = self._follows, True
        self._add(step, follows)
        record, place = wire.encode(KeptStep(step=step, follows=follows)), partial(self._place_step, step)
        if not await self._steps.keep(record, placed=place) and self._steps.refused:
            self._unkept = newest((*self._unkept, step))
            self._reported.clear()
            self._to_report.set()
            await self._report_unkept()
        self._remember(mine)
        return step

    def _remember(self, step: dict[bytes, Scored]) -> None:
        self._last = set(step)
        if step:  # others' groups alone may have made it
            self._stepped.append(step)
        self._stepped_bytes += _bytes(step)
        while self._stepped_bytes > REMEMBERED_BYTES:
            self._stepped_bytes -= _bytes(self._stepped.popleft())

    def loaded(self, made_of: Progress, had: int, weights: Digest) -> None:
        """My version was loaded; before I had version `had` with these weights."""
        if self._follows:
            self._ledger.name(had, weights)
        self._follows = False
        policy = HeldPolicy(*self._at(), made_of.parent)
        if made_of.stepped:
            self._ledger.resume(policy)
        self._loaded.put_nowait(policy)
        self.placing += 1

    async def run(self) -> None:
        """After each load put my groups where they belong, beside the round, until cancelled: others answer
        while I learn, and wait for no learner that asks."""
        while True:
            try:
                async with asyncio.timeout(self._host.config.run.pace.patience):
                    policy = await self._loaded.get()
            except TimeoutError:
                await self._ask_again()
                continue
            if self._loaded.empty():  # else there is a later one
                await self._hear_others()
                await self._receive(policy)
                await self._place_groups(policy)
            self.placing -= 1
            self._host.move()

    async def _hear_others(self) -> None:
        """At the start, wait a while for another learner: it may know of a step of this one that the disk
        refused, and of which groups of the disk are."""
        host = self._host
        while self._unread and not self._others() and (left := self._opened + SETTLE - host.steady()) > 0:
            await host.changed(left)

    async def _ask_again(self) -> None:
        """Place this learner's groups again, where it was unknown whether one of its steps is in the policy,
        or their tasks could not be made; learners that were away then are asked."""
        policy = self._at_rest()
        if policy is None or not (self._unsure or self._unread):
            return
        if not self._others() <= self._reported_lines.keys():
            await self._receive(policy)
        if policy == self._at_rest():
            await self._place_groups(policy)

    def _at_rest(self) -> HeldPolicy | None:
        """My policy; None while it is about to be another one."""
        version, weights = self._at()
        steps = any(step.version > version for step in self._ledger.mine)
        return None if steps or not weights else HeldPolicy(version, weights, Digest(""))

    def give_back(self, batch: Sequence[Waiting]) -> None:
        """Return a batch that is not trained on, except groups that others have trained."""
        gone = [item for item in batch if mark(item.group.id) in self._trained]
        self._drop_duplicates(gone)
        self._inbox.batcher.give_back([item for item in batch if item not in gone])

    def undone(self, steps: Sequence[Scored]) -> None:
        """Undo the steps along these groups: they come back, except those that others have trained."""
        self._return(steps)
        self._drop(self._trained & {mark(item.group.id) for item, _ in steps})

    async def _place_groups(self, policy: HeldPolicy) -> None:
        steps, lost = self._ledger.split(policy)
        unsure = self._ledger.unsure(policy)
        self._unsure, self._trained = bool(unsure), _marks_in(steps)
        self._drop(self._trained)
        self._put_back(_marks_in(lost) - self._trained)
        sure = _marks_in(step for step in steps if step not in unsure)
        self._admit_again(_marks_in((*lost, *unsure)) - sure)
        await self._take_up(policy.version)

    async def saved(self, version: int) -> None:
        """A checkpoint of `version` is on the disk: remove records that no life of this learner can train
        again."""
        window, now = self._host.config.run.window, self._host.now()
        oldest = version - window.versions
        await self._groups.remove(
            one
            for one, (newest, released) in self._segments.items()
            if newest < oldest or (newest < version and now - released > window.seconds)
        )
        await self._steps.remove(one for one, newest in self._step_segments.items() if newest < oldest)
        self._ledger.forget(oldest)
        self._trained &= self._ledger.marks()

    def _settle(self) -> None:
        """My last step was taken: its groups are in my policy."""
        if self._follows and self._last and self._ledger.mine[-1].version == self._at()[0]:
            self._trained |= self._last

    def _add(self, step: TrainedStep, follows: bool) -> None:
        if follows:
            self._ledger.name(step.version - 1, step.parent)
        self._ledger.add(step)

    def _place(self, version: int, released: float, segment: int) -> None:
        newest, last = self._segments.get(segment, (0, 0.0))
        self._segments[segment] = (max(newest, version), max(last, released))

    def _place_step(self, step: TrainedStep, segment: int) -> None:
        self._step_segments[segment] = max(step.version, self._step_segments.get(segment, 0))
        self._unkept = tuple(each for each in self._unkept if each is not step)

    # --- to the batcher and out of it -----------------------------------------------------------------------

    def _drop(self, marks: Collection[bytes]) -> None:
        """Trained groups wait here no longer, and are not admitted again."""
        for each in marks:
            self._inbox.admission.remember(each)
        self._drop_duplicates(self._inbox.batcher.remove(lambda group: mark(group.id) in marks))

    def _drop_duplicates(self, gone: Sequence[Waiting]) -> None:
        """These are trained: they are remembered as those of my steps are, of which one may have them."""
        if not gone:
            return
        remembered = {mark(item.group.id): (item, task) for item, task in self._inbox.scored(gone)}
        self._stepped.appendleft(remembered)
        self._stepped_bytes += _bytes(remembered)
        self._inbox.drop(gone, "duplicate")

    def _put_back(self, marks: Collection[bytes]) -> None:
        """My groups of steps that are lost come back."""
        waiting = self._waiting()
        back = {each: its for step in self._stepped for each, its in step.items() if each in marks}
        left = ({each: step[each] for each in step if each not in marks} for step in self._stepped)
        self._stepped, self._last = deque(filter(None, left)), self._last.difference(marks)
        self._stepped_bytes = sum(map(_bytes, self._stepped))
        self._return([its for each, its in back.items() if each not in waiting])

    def _admit_again(self, marks: Collection[bytes]) -> None:
        """Groups that no policy is known to have are admitted when they come, unless they are here."""
        here = self._waiting().union(*self._stepped, (mark(kept.group.id) for kept in self._unread))
        for each in marks:
            if each not in here:
                self._inbox.admission.forget(each)

    def _waiting(self) -> set[bytes]:
        """Marks of the groups that wait here or are learned on."""
        under_way = [item.group for item in self._under_way()]
        return {mark(group.id) for group in (*self._inbox.batcher.groups(), *under_way)}

    async def _take_up(self, version: int) -> None:
        """The disk's groups of versions up to mine come back, those in my line do not."""
        ready = [kept for kept in self._unread if kept.group.version <= version]
        mine = _marks_in(self._ledger.mine) & self._trained
        wanted = [kept for kept in ready if mark(kept.group.id) not in self._trained - mine]
        try:
            tasks = await self._inbox.reward_calls.tasks([kept.group.task for kept in wanted])
        except RewardError:
            return  # a fault was reported; they are asked for again
        self._unread = [kept for kept in self._unread if kept.group.version > version]
        scored: list[Scored] = [
            (Waiting(kept.group, kept.admitted), TaskAndRewards(task, kept.rewards))
            for kept, task in zip(wanted, tasks, strict=True)
        ]
        # a checkpoint's last steps may be lost as those are that this life takes
        stepped = {mark(item.group.id): (item, task) for item, task in scored}
        if again := {each: its for each, its in stepped.items() if each in mine}:
            self._remember(again)
        self._return([its for each, its in stepped.items() if each not in mine])

    def _return(self, back: Sequence[Scored]) -> None:
        self._inbox.put_back(back)
        self._emit(events.Returned, [item.group for item, _ in back])

    def _emit(self, what: type[events.Event], groups: Sequence[Group], **fields: str) -> None:
        if groups:
            self._host.emit(what, groups=tuple(group.id for group in groups), **fields)

    # --- among learners -------------------------------------------------------------------------------------

    async def _answer(self, sender: PeerId, question: bytes) -> bytes:
        since = read_question(question, TrainedQuery).since
        if sender not in self._host.roster.learners():
            raise Refused("only learners of this run may ask which groups were trained")
        if self._follows:
            self._ledger.name(*self._at())
        steps = self._ledger.report(since, self._host.releases.announced())
        return wire.encode(TrainedSteps(steps=newest(steps)))

    async def _receive(self, policy: HeldPolicy) -> None:
        """Ask the other learners for the steps of the policy, each except for those that it reported with the
        last policy."""
        line, gap = self._ledger.line(policy)
        others = sorted(self._others())
        self._reported_lines = {
            peer: points for peer, points in self._reported_lines.items() if peer in others
        }
        since = {peer: self._since(peer, policy, line, gap) for peer in others}
        if self._found:  # the disk may have refused steps with these
            since |= dict.fromkeys(self._seeds(), 0)
        reports = await asyncio.gather(*map(self._ask, since, since.values()))  # rounds wait for the slowest
        steps = [step for its in reports for step in its or () if step.version <= policy.version]
        unnamed = (step for step in steps if not step.weights)  # a seed has no names for them
        self._ledger.receive((*steps, *named(unnamed, self._host.releases.announced()).values()))
        now = frozenset(self._ledger.line(policy)[0].items())
        self._reported_lines |= {
            peer: now for peer, steps in zip(others, reports, strict=False) if steps is not None
        }

    def _others(self) -> set[PeerId]:
        return {*self._host.roster.learners()} - {self._host.ports.me}

    def _seeds(self) -> dict[PeerId, int]:
        """Each with its incarnation."""
        return {peer: beat.incarnation for peer, beat in self._host.roster if beat.role is Role.SEED}

    def _since(self, peer: PeerId, policy: HeldPolicy, line: Mapping[int, Digest], gap: Point | None) -> int:
        """The version from whose step on a learner is asked."""
        reported = self._reported_lines.get(peer, frozenset())
        new = min((version for version, _ in line.items() - reported), default=policy.version)
        return max(0, new - 1) if gap is None or gap in reported else 0

    async def _report_again(self) -> None:
        """Report to seeds that were cut off or have restarted, until cancelled."""
        while True:
            await self._to_report.wait()
            await self._host.ports.clock.sleep(REPORT_AGAIN)
            await self._report_unkept()
            if not self._unkept:
                self._to_report.clear()

    async def _report_unkept(self) -> None:
        """Report steps that the disk refused to the seeds that lack them: the next life of this learner asks
        them."""
        steps = self._unkept
        report = partial(self._report, steps, wire.encode(TrainedSteps(steps=steps)))
        await asyncio.gather(*(report(*seed) for seed in self._seeds().items() - self._reported))

    async def _report(
        self, steps: Sequence[TrainedStep], message: bytes, seed: PeerId, incarnation: int
    ) -> None:
        with contextlib.suppress(NetError):  # asked again soon; the disk's own fault was reported
            await self._host.ports.mail.send(seed, Service.UNKEPT, message, ASKED)
            if steps is self._unkept:
                self._reported.add((seed, incarnation))

    async def _ask(self, learner: PeerId, since: int) -> Sequence[TrainedStep] | None:
        """The steps that a learner reports; None where it does not answer."""
        question = wire.encode(TrainedQuery(since=since))
        try:
            answer = await self._host.ports.mail.send(learner, Service.TRAINED, question, ASKED)
            return wire.decode(answer, TrainedSteps).steps
        except NetError:
            return None
        except wire.WireError as error:
            self._host.emit(events.Rejected, sender=learner, kind=Service.TRAINED, reason=str(error))
            return None


def marks(batch: Sequence[Waiting]) -> bytes:
    """The marks of a batch, for a round; none of a batch too large for that."""
    return b"".join(mark(item.group.id) for item in batch) if len(batch) <= MARKED else b""


def _marks_in(steps: Iterable[TrainedStep]) -> set[bytes]:
    """The marks of the groups of these steps."""
    return set().union(*(marks_of(step.groups) for step in steps))


def _bytes(step: dict[bytes, Scored]) -> int:
    groups = [item.group for item, _ in step.values()]
    heads = sum(len(heads.tokens) + len(heads.logprobs) for group in groups if (heads := group.heads))
    return heads + sum(len(group.tokens.data) + len(group.logprobs.data) for group in groups)
