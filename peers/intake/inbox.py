"""A learner's inbox: judges each delivered group and packs admitted groups into batches.

    stream "groups" -> unseal -> trust -> admission -> heads -> task, rewards regenerated -> batcher -> take()
     (large ones off the loop)   |  its sampler is asked            off the loop where rewards are slow
                                 +- for a release that is not known here

Every delivery gets one verdict; the sampler gets it in a receipt, with the learner's version and the
sampler's share of the credit. No claim of a sampler is used: the task follows from its index, the rewards
from the tokens; a group whose rewards cannot be computed here is `unscored` and dropped. Groups that are
being scored take room in the buffer as waiting ones do, and other groups are judged meanwhile. With
`run.batch.refill` groups without signal leave here, for others. Whether a group's log-probabilities agree
with the learner's own is known with the gradient: a group that disagrees is dropped, and a sampler that sends
several such groups is suspended. The Tally counts verdicts and the ages of trained groups for the
dashboard. Not handled here: rounds, gradients.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Protocol

from peers.intake.group_opening import Decoder, GroupOpener
from peers.intake.reward_calls import RewardCalls
from peers.intake.tally import DROPPED, FLAT, OTHERS, Tally
from peers.runtime.faults import REPEAT_AFTER
from peers.runtime.host import Host
from peers.runtime.watching.long_work import StageCounts
from swarm import events
from swarm.core.intake.admission import OVERFLOWED, REPEATED, Admission, Judgement, staleness
from swarm.core.intake.batcher import NO_LIMIT, Batcher, Room, Waiting
from swarm.core.intake.claimed_logprobs import UNTRUE, ClaimCheck, SamplerEvidence, objection
from swarm.core.intake.curriculum import Draws
from swarm.core.intake.overlong import penalized
from swarm.core.roster import share
from swarm.core.suspensions import Suspension
from swarm.frames import wire
from swarm.learn import objectives
from swarm.limits import cut, remember
from swarm.protocol import Role, Service
from swarm.tasks.base import RewardError, TaskSource
from swarm.types import Group, PeerId, Receipt, Task, Verdict

SCORING_AT_ONCE = 32
"""Groups that are scored at once, where rewards are slow: each occupies a mail call, and strangers have twice
as many of those."""

COUNTED = frozenset((*Verdict, "expired"))
"""Reasons for not training a group that are counted by sampler; the others are no sampler's fault."""

SHOWN_COMPLETIONS = 16
"""Completions in a Shown event: a person reads no more of them, and each costs 30 bytes beside its text."""

SHOWN_TEXT = 2900
"""Bytes of prompt, answer, completions and their figures: 4 KiB less about a thousand for names, envelope and
membership."""

SHOWN_PROMPT, SHOWN_ANSWER, SHOWN_COMPLETION_TEXT = 600, 300, 400
"""Most bytes of each text: some lines on a dashboard."""

SHOWN_EVERY = 1.0
"""Seconds between two Shown events, or one heartbeat where that is longer: no reader is faster."""


@dataclass(frozen=True)
class TaskAndRewards:
    """A group's task and rewards, both computed by the learner itself."""

    task: Task
    rewards: tuple[float, ...]
    """What is trained on: with the penalty of long completions, where the run has one."""


TOLD = 256
"""Samplers for which the time of the last warning is remembered."""

Scored = tuple[Waiting, TaskAndRewards]


class Keeper(Protocol):
    """What puts admitted groups on a disk (peers.learner.trained_groups)."""

    @property
    def refused(self) -> bool:
        """Whether the disk refuses groups now."""

    def is_unkept(self, group: str) -> bool:
        """Whether the disk refused the group with this id, and does not have it yet."""

    async def keep(self, group: Group, rewards: tuple[float, ...]) -> bool:
        """Whether an admitted group is on the disk."""


class Audit(Protocol):
    """What replays some of the admitted groups (peers.audits.auditor)."""

    def draw(self, group: Group, frame: bytes) -> None:
        """Called with each admitted group, and the frame that it came in."""

    def suspended(self, sampler: PeerId) -> Suspension | None:
        """Why a sampler is suspended now, or None."""

    def suspend(self, sampler: PeerId, why: str) -> None:
        """Suspend a sampler for its claims."""

    def room(self, sampler: PeerId) -> Room:
        """Room for groups of a sampler before more of them are replayed."""

    def is_unproven(self, sampler: PeerId) -> bool:
        """Whether a group of this sampler is to be replayed before one is trained on."""

    def is_replayable(self, group: Group) -> bool:
        """Whether a group that names this learner's arithmetic could be replayed here."""


class NoDisk:
    """Groups are in memory alone."""

    refused = False

    def is_unkept(self, group: str) -> bool:
        return False

    async def keep(self, group: Group, rewards: tuple[float, ...]) -> bool:
        return False


class NoAudit:
    """Nothing is replayed."""

    def draw(self, group: Group, frame: bytes) -> None:
        pass

    def suspended(self, sampler: PeerId) -> Suspension | None:
        return None

    def suspend(self, sampler: PeerId, why: str) -> None:
        pass

    def room(self, sampler: PeerId) -> Room:
        return NO_LIMIT

    def is_unproven(self, sampler: PeerId) -> bool:
        return False

    def is_replayable(self, group: Group) -> bool:
        return True


NO_DISK = "the disk of this learner refuses groups, that of another one takes them"


class LearnerInbox:
    """`version()` is this learner's version (-1: no policy yet), `learners()` the number of learners of its
    speed that would share the run's batch."""

    def __init__(
        self,
        host: Host,
        source: TaskSource,
        decoder: Decoder,
        version: Callable[[], int],
        learners: Callable[[], float],
        *,
        keeper: Callable[[], Keeper] = NoDisk,
        audit: Callable[[], Audit] = NoAudit,
        signed: Callable[[Group, bytes], None] = lambda group, frame: None,
    ) -> None:
        """`keeper()` and `audit()` depend on the inbox in turn, so they are looked up when they are called;
        `signed` receives admitted groups, with the frames that they came in."""
        run = host.config.run
        self.host, self.source, self.decoder = host, source, decoder
        self.reward_calls = RewardCalls(host, source)
        limit = wire.group_limit(run.sampling.group_size, run.sampling.max_tokens, run.sampling.heads)
        self.opener = GroupOpener(host, decoder, limit)
        self.admission = Admission(
            Draws(host.who.run, run.batch.groups),
            run.window,
            run.sampling,
            decoder.vocabulary,
            host.releases.known,
            host.releases.released_here,
            self.opener.noise,
        )
        self.batcher = Batcher(
            run.batch, run.window, is_unproven=self._is_unproven, is_replayable=self._is_replayable
        )
        self.sampler_evidence = SamplerEvidence()
        self.tally = Tally()
        self._version, self._learners = version, learners
        self._keeper, self._audit, self._signed = keeper, audit, signed
        self._objective = objectives.objective(run.objective.name, run.objective.options)
        self.left_out: list[float] = []
        """Mean reward of each group that made room for another since the last step."""
        self._tasks: dict[str, TaskAndRewards] = {}
        self._arriving: dict[str, asyncio.Event] = {}
        """Group that is being scored and written -> set once that is done."""
        self._senders: dict[PeerId, float] = {}
        """Sampler -> when its last group came, the oldest first; credit is shared among these."""
        self._warned: OrderedDict[tuple[PeerId, str], float] = OrderedDict()
        """(sampler, kind) -> time of the last warning about its numbers."""
        self._shown: float | None = None
        """When the last Shown event was emitted."""
        self._reported = 0.0
        """When the last Counted event was emitted."""

    async def serve(self) -> None:
        await self.host.ports.mail.serve(Service.GROUPS, self.receive)

    async def receive(self, sender: PeerId, frame: bytes) -> bytes:
        """The `groups` service: one verdict for one group."""
        host, now = self.host, self.host.now()
        try:
            opened, group = await self.opener.opened(frame)
        except wire.WireError as error:
            host.emit(events.Rejected, sender=sender, kind=Service.GROUPS, reason=str(error))
            self.tally.judged(sender if host.known_sender(sender) else OTHERS, Verdict.MALFORMED)
            return self._receipt(sender, None, Verdict.MALFORMED, str(error))
        await self._arrived(group)
        judgement = self._judge(opened, sender, group, now)
        if judgement.release_unknown:
            # The sampler has that release, signed by its publisher; gossip of it may not have come here.
            await host.queries.ask_release(sender, group.version, group.weights, group.times.released)
            await self._arrived(group)
            judgement = self._judge(opened, sender, group, host.now())
        if judgement.verdict not in (Verdict.UNTRUSTED, Verdict.MALFORMED, Verdict.UNVERIFIED):
            self._senders.pop(sender, None)
            self._senders[sender] = now
        kept = leaves = False
        if scored := judgement.verdict is Verdict.ADMIT:
            self._arriving[group.id] = asyncio.Event()
            try:
                judgement = await self._scored(group, judgement)
                if judgement.verdict is Verdict.ADMIT:
                    leaves = self._leaves_out(group)
                    kept = await self._take(sender, group, frame, leaves)
            finally:
                self._arriving.pop(group.id).set()
        if judgement.verdict is not Verdict.ADMIT:
            host.status.refused += 1
            if scored:
                self.admission.free_slot(group)
            if judgement.verdict is not Verdict.OVER_QUOTA and judgement.detail != REPEATED:
                self.tally.ended(group, judgement.verdict)
        if judgement.detail == OVERFLOWED:
            self._warn(sender, events.LOGPROBS, OVERFLOWED)
        self.tally.judged(sender, judgement.verdict)
        host.emit(
            events.Judged,
            group=group.id,
            sampler=group.sampler,
            verdict=judgement.verdict,
            detail=judgement.detail,
            versions=judgement.versions,
            seconds=round(judgement.seconds, 3),
        )
        if leaves:
            self.drop([Waiting(group, host.now())], FLAT)
        return self._receipt(sender, group, judgement.verdict, judgement.detail, kept)

    async def _arrived(self, group: Group) -> None:
        """Wait until no other delivery of the group is under way: "duplicate" ends a delivery, so it is not
        sent before the group is on the disk."""
        if (arriving := self._arriving.get(group.id)) is not None:
            await arriving.wait()

    def credit(self) -> int:
        """Groups that this learner can use. When it rises above 0 a heartbeat is sent at once."""
        return self._credit(self.host.now(), self._learners())

    def _credit(self, now: float, learners: float) -> int:
        status, patience = self.host.status, self.host.config.run.pace.patience
        while self._senders and now - self._senders[(oldest := next(iter(self._senders)))] >= patience:
            del self._senders[oldest]
        most = max(0, self._scored_at_most(SCORING_AT_ONCE // 2))
        credit = min(self.batcher.credit(learners), most) if self._open() and not self._yields() else 0
        if status.credit == 0 and credit > 0:
            self.host.beat_now()
        status.credit, status.inbox = credit, len(self.batcher) + self.batcher.scoring.total()
        status.takers = max(1, self.batcher.takers(self._senders, learners, now))
        return credit

    def share(self) -> int:
        """Groups of a full batch."""
        return self.batcher.share(self._learners())

    def collected(self) -> StageCounts:
        """Groups that wait, of those of a full batch, and the mean reward of all that wait."""
        share, waiting = self.share(), self.batcher.groups()
        rewards = [reward for group in waiting for reward in self._tasks[group.id].rewards]
        return StageCounts(min(len(waiting), share), share, fmean(rewards) if rewards else None)

    def closes(self, now: float) -> float | None:
        """Seconds until a batch closes; None while no batch can close."""
        return self.batcher.due(self._learners(), now)

    def take(self, now: float, ahead: int = 0, fewer: int = 0) -> list[Waiting]:
        """Take a batch from the batcher, to be stepped from a version that is `ahead` of mine, of `fewer`
        groups less than my share. Groups older than the window are counted as expired and dropped."""
        batch, expired = self.batcher.take(self._learners(), self._version() + ahead, now, fewer)
        self.drop(expired, "expired")
        return batch

    def is_late(self, batch: Sequence[Waiting], now: float) -> bool:
        """Some of a batch that was taken is too old by now."""
        window, version = self.host.config.run.window, self._version()
        return any(staleness(item.group, window, version, now) is not None for item in batch)

    def drop(self, groups: Sequence[Waiting], why: str) -> None:
        """Groups that were admitted are not trained here after all."""
        if groups:
            for item in groups:
                self.tally.ended(item.group, why if why in (*COUNTED, FLAT) else DROPPED)
                if why in COUNTED:
                    self.tally.judged(item.group.sampler, why)
            self.consumed(groups)
            self.host.emit(events.Dropped, groups=tuple(item.group.id for item in groups), why=why)

    def put_back(self, back: Sequence[Scored]) -> None:
        """Groups that were admitted come first again: no policy has them."""
        self._tasks |= {item.group.id: task for item, task in back}
        self.batcher.give_back([item for item, _ in back])

    def drop_unbelieved(self, batch: Sequence[Waiting], checks: Sequence[ClaimCheck]) -> list[Waiting]:
        """Return the groups of a batch whose check passes. The others take no part in its gradient: each
        is counted as untrusted, dropped, and named in a Rejected event."""
        believed: list[Waiting] = []
        refused: dict[PeerId, list[tuple[Waiting, ClaimCheck, str]]] = {}
        for item, each in zip(batch, checks, strict=True):
            if (why := objection(each, self.host.config.run.window.drift)) is None:
                believed.append(item)
            else:
                refused.setdefault(item.group.sampler, []).append((item, each, why))
        for sampler, its in refused.items():
            item, _, why = its[0]
            others = f", and {len(its) - 1} more of its groups in this batch" if len(its) > 1 else ""
            what = f"group {item.group.id} of version {item.group.version} teaches nothing: {why}{others}"
            self.host.emit(events.Rejected, sender=sampler, kind=Service.GROUPS, reason=what)
            self.drop([item for item, _, _ in its], Verdict.UNTRUSTED)
            self.host.status.refused += len(its)
            for _, each, _ in its:
                self.add_evidence(sampler, each)
        return believed

    def add_evidence(self, sampler: PeerId, check: ClaimCheck) -> None:
        """Count a group's check as evidence about its sampler. Call it once a group, when the group is
        done."""
        if self.sampler_evidence.add(sampler, check.evidence):
            self._audit().suspend(sampler, UNTRUE)

    def task_and_rewards(self, group: Group) -> TaskAndRewards:
        return self._tasks[group.id]

    def scored(self, batch: Sequence[Waiting]) -> list[Scored]:
        return [(item, self._tasks[item.group.id]) for item in batch]

    def consumed(self, batch: Sequence[Waiting]) -> None:
        """Forget the tasks of groups that were trained on, or never will be."""
        for item in batch:
            self._tasks.pop(item.group.id, None)

    def show(self, group: Group, advantages: Sequence[float], weights: Sequence[float]) -> None:
        """Emit a trained group as a Shown event for people to read, as much of it as an event holds; at most
        one event each SHOWN_EVERY seconds."""
        host, now = self.host, self.host.now()
        if self._shown is not None and now - self._shown < max(SHOWN_EVERY, host.config.run.pace.beat):
            return
        self._shown = now
        scored, texts = self.task_and_rewards(group), self.opener.texts(group)[:SHOWN_COMPLETIONS]
        prompt, answer = cut(scored.task.prompt, SHOWN_PROMPT), cut(scored.task.answer, SHOWN_ANSWER)
        room = (SHOWN_TEXT - len(prompt.encode()) - len(answer.encode())) // len(texts) - 30
        finite = all(map(math.isfinite, (*advantages, *weights)))
        host.emit(
            events.Shown,
            group=group.id,
            sampler=group.sampler,
            version=group.version,
            prompt=prompt,
            answer=answer,
            completions=tuple(cut(text, min(room, SHOWN_COMPLETION_TEXT)) for text in texts),
            rewards=scored.rewards[:SHOWN_COMPLETIONS],
            advantages=tuple(round(value, 4) for value in advantages[:SHOWN_COMPLETIONS]) if finite else (),
            weights=tuple(round(value, 4) for value in weights[:SHOWN_COMPLETIONS]) if finite else (),
        )

    def report(self, after: float = 0.0) -> None:
        """Emit the counts since the last Counted event, unless that was less than `after` seconds ago or
        there are none."""
        now = self.host.now()
        if now - self._reported < after or not (self.tally.samplers or self.tally.versions):
            return
        self._reported = now
        self.host.emit(events.Counted, **self.tally.drain(), samplers=self.tally.drain_samplers())

    def _judge(self, opened: wire.Opened, sender: PeerId, group: Group, now: float) -> Judgement:
        distrust = self.host.distrust(opened, Role.SAMPLER)
        if distrust is None and not sender == opened.sender == group.sampler:
            distrust = "sealed, sent and signed by different peers"
        elif distrust is None and self.host.invited(opened, Role.SAMPLER):
            self.batcher.quotas.invited(sender)
        room, suspension = self._room(group, self._learners(), now), self._audit().suspended(group.sampler)
        return self.admission.judge(
            group,
            version=self._version(),
            full=room.why if room.groups <= 0 else None,
            distrust=distrust,
            suspended=suspension.objection(now) if suspension is not None else None,
            now=now,
        )

    def _leaves_out(self, group: Group) -> bool:
        """Whether an admitted and scored group makes room for another, since it has no signal."""
        rewards = self._tasks[group.id].rewards
        if not (self._objective.is_flat(rewards) and self.batcher.leaves_out(self._learners())):
            return False
        self.left_out.append(sum(rewards) / len(rewards))
        return True

    async def _take(self, sender: PeerId, group: Group, frame: bytes, leaves: bool) -> bool:
        """Give an admitted and scored group to the audits and, unless it `leaves`, to the batcher and the
        disk. Returns whether the disk has it."""
        host, group = self.host, self.admission.by_my_clock(group)
        if not leaves:
            self.batcher.add(group, host.now())
        self._audit().draw(group, frame)  # before any batch may take it
        kept = False
        if not leaves:
            self._signed(group, frame)
            kept = await self._keeper().keep(group, self._tasks[group.id].rewards)
        host.delivered(sender)
        host.status.admitted += 1
        host.move()
        return kept

    async def _scored(self, group: Group, judgement: Judgement) -> Judgement:
        """Compute an admitted group's rewards; return the verdict with them in view. Admission remembers the
        id, so no group is scored twice."""
        if (problem := await self.opener.contradiction(group)) is not None:
            return replace(judgement, verdict=Verdict.UNTRUSTED, detail=problem)
        payer = self.batcher.payer(group)
        self.batcher.scoring[payer] += 1
        try:
            texts = await self.opener.decoded(group)
            task = TaskAndRewards(*await self.reward_calls.task_and_rewards(group.task, texts))
        except RewardError as error:
            detail = f"its rewards could not be recomputed here: {error}"
            return replace(judgement, verdict=Verdict.UNSCORED, detail=detail)
        finally:
            self.batcher.scoring[payer] -= 1
        pairs = [*zip(task.rewards, group.rewards, strict=True)]
        if group.scored and any(abs(mine - claimed) > 1e-6 for mine, claimed in pairs):
            mine, claimed = max(pairs, key=lambda pair: abs(pair[0] - pair[1]))
            why = f"it claims a reward of {claimed:g} where {mine:g} is computed here"
            self._warn(group.sampler, events.REWARDS, why)
            detail = f"claims rewards {list(group.rewards)}, they are {list(task.rewards)}"
            return replace(judgement, verdict=Verdict.UNTRUSTED, detail=detail)
        trained_on = penalized(self.host.config.run, group.lengths, task.rewards)
        self._tasks[group.id] = replace(task, rewards=trained_on)
        return judgement

    def _warn(self, sampler: PeerId, kind: str, reason: str) -> None:
        """Warn about a sampler's numbers, once in REPEAT_AFTER."""
        now = self.host.now()
        if now - self._warned.get((sampler, kind), now - REPEAT_AFTER) >= REPEAT_AFTER:
            remember(self._warned, (sampler, kind), now, TOLD)
            self.host.emit(events.Rejected, sender=sampler, kind=kind, reason=reason)

    def _room(self, group: Group, learners: float, now: float) -> Room:
        """Room for more such groups of its sampler; finding it takes a pass over all recent samplers."""
        if not self._open():
            return Room(0, "this learner takes no groups now: another one may")
        if self._yields():
            return Room(0, NO_DISK)
        most = self._scored_at_most(SCORING_AT_ONCE)
        scored = Room(most, f"{SCORING_AT_ONCE} groups are being scored: send more later")
        payer = self.batcher.payer(group)
        unseen = self._audit().room(payer) if payer == group.sampler else NO_LIMIT
        return min(self.batcher.room(payer, learners, now), unseen, scored)

    def _scored_at_most(self, most: int) -> int:
        """Groups that may still be scored where rewards are slow, with `most` at once; no limit elsewhere."""
        return most - self.batcher.scoring.total() if self.source.slow else sys.maxsize

    def _is_unproven(self, sampler: PeerId) -> bool:
        return self._audit().is_unproven(sampler)

    def _is_replayable(self, group: Group) -> bool:
        return group.noise == self.opener.noise and self._audit().is_replayable(group)

    def _open(self) -> bool:
        host = self.host
        return self._version() >= 0 and not host.stop.is_set() and host.pause_gate.reason is None

    def _yields(self) -> bool:
        """Whether groups go to another learner, since this disk refuses them. Where no other disk takes them,
        a group in memory is better than none."""
        self.host.status.unkept = self._keeper().refused
        roster = self.host.roster
        beats = (roster.beat(peer) for peer in roster.learners() if peer != self.host.ports.me)
        return self.host.status.unkept and any(beat and beat.credit > 0 and not beat.unkept for beat in beats)

    def _is_unkept(self, group: Group | None, verdict: Verdict, kept: bool) -> bool:
        """Whether this learner has the group in memory alone, whenever it came."""
        taken = verdict in (Verdict.ADMIT, Verdict.DUPLICATE) and not kept
        return taken and group is not None and self._keeper().is_unkept(group.id)

    def _receipt(
        self, sampler: PeerId, group: Group | None, verdict: Verdict, detail: str, kept: bool = False
    ) -> bytes:
        now, learners = self.host.now(), self._learners()
        part = share(self._credit(now, learners), self.host.status.takers, self.host.rng)
        room = self._room(group, learners, now).groups if group is not None and part else part
        credit = max(0, min(part, room))
        suspension = self._audit().suspended(sampler) if verdict is Verdict.UNVERIFIED else None
        return wire.encode(
            Receipt(
                verdict=verdict,
                detail=cut(detail),
                version=self._version(),
                credit=credit,
                kept=kept,
                unkept=self._is_unkept(group, verdict, kept),
                until=suspension.until if suspension is not None else 0.0,
            )
        )
