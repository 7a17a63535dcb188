"""The learner: groups in, new policies out, in rounds with whoever else is there.

    stream "groups" -> unseal -> trust -> rewards recomputed -> admission -> batcher         beside the loop
    loop: the round's table commands, one coroutine each runs it, what came of it is the next cause

        gather -> learn -> average -> step -> (publish) -> gather ...        fetch: the swarm is ahead, take its release

Invariants: the released weights are the truth: after every version this learner's digest is the release's, or it snaps to it.
Groups of a batch that was overtaken go back to the batcher: nothing is lost, nothing trained twice. Not handled here: what the
gradient is (swarm.learn), how members find each other (the Averager port).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from peers.host import Host
from peers.twins import Twins
from swarm import events, wire
from swarm.core.admission import Admission, Judgement, staleness
from swarm.core.batcher import Batcher, Waiting
from swarm.core.releases import publishers
from swarm.core.roster import share
from swarm.core.rounds import Cause, Command, Round, State
from swarm.learn.learner import Gradient, Learner
from swarm.learn.weights import digest
from swarm.net.ports import NetError, RoundLost
from swarm.tasks.base import TaskSource
from swarm.types import Digest, Group, PeerId, Receipt, Release, Role, Struct, Task, Verdict

BREAKS = 3
# Averagings of one version that may break before the learner goes on alone: each costs at most the round's deadline.
SETTLE = 2.0
# Seconds a learner waits at its start to hear of a release newer than its own checkpoint.


class Progress(Struct):
    """What a learner's checkpoint holds besides weights and optimizer."""

    seen: tuple[str, ...]
    """Ids of consumed groups."""
    parent: Digest
    trained: int
    """Groups trained on since the run began at this learner."""


@dataclass(frozen=True)
class Speech:
    """What a learner must know of the tokenizer."""

    vocabulary: int
    decode: Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Exercise:
    """A group with what the learner regenerated itself."""

    task: Task
    rewards: tuple[float, ...]


@dataclass
class Tally:
    """Verdicts and ages since the last Counted event."""

    verdicts: Counter[str] = field(default_factory=Counter)
    versions: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    samplers: dict[str, Counter[str]] = field(default_factory=dict)

    def judged(self, sampler: PeerId, verdict: str) -> None:
        self.verdicts[verdict] += 1
        self.samplers.setdefault(sampler, Counter())[verdict] += 1

    def trained(self, versions: int, seconds: float) -> None:
        self.versions[str(versions)] += 1
        self.seconds[str(1 << max(0, int(seconds)).bit_length())] += 1


class LearnerPeer:
    def __init__(self, host: Host, learner: Learner, source: TaskSource, speech: Speech, folder: Path | None) -> None:
        """`folder` is where checkpoints live; None keeps none."""
        run = host.config.run
        self.host, self.learner, self.source, self.speech, self.folder = host, learner, source, speech, folder
        self.learner.version = -1
        self.round = Round()
        self._window = run.window
        self.admission = Admission(run.window, run.sampling, speech.vocabulary)
        self.batcher = Batcher(run.batch, run.window)
        self.twins = Twins(host, learner)
        self.tally = Tally()
        self._exercises: dict[str, Exercise] = {}
        self._batch: list[Waiting] = []
        self._gradient: Gradient | None = None
        self._members: frozenset[PeerId] = frozenset()
        self._breaks = 0
        self._weights = Digest("")
        self._parent = Digest("")
        self._mine: Release | None = None
        """The release of my version as I would publish it."""
        self._due: float | None = None
        """When it is my turn to publish it."""
        self._spent: dict[str, float] = {}
        self._senders: dict[PeerId, float] = {}
        """When each sampler was last heard: credit is shared among them."""
        self._trained = 0

    async def run(self) -> None:
        """Take the swarm's policy, then go round until the host is asked to stop."""
        await self.host.ports.mail.serve("groups", self.receive)
        await self.twins.serve()
        await self._begin()
        command = Command.GATHER
        act: dict[Command, Callable[[], Awaitable[Cause]]] = {
            Command.GATHER: self.gather, Command.LEARN: self.learn, Command.AVERAGE: self.average, Command.STEP: self.step,
            Command.PUBLISH: self.publish, Command.FETCH: self.fetch,
        }  # fmt: skip
        while command is not Command.FLUSH:
            cause = await act[command]()
            command = self.round.advance(cause)
            self.host.vitals.state = self.round.state.value
            if self.round.state is State.LEARNING:
                self.host.beat_now()  # the others close their batches too
            self.host.emit(events.Moved, version=self.learner.version, state=self.round.state.value, cause=cause.value)
        await self._save()
        self._count()

    async def _begin(self) -> None:
        if self.folder is not None and self.folder.exists():
            held = msgspec.convert(self.learner.restore(self.folder), Progress)
            self.admission.restore(held.seen)
            self._parent, self._trained = held.parent, held.trained
            await self._take_stock()
            # A crash may have come between a checkpoint and its release: then it is for me to release it.
            self._due = self.host.now() + self.host.config.run.release.timeout
        wait_until = self.host.now() + SETTLE
        while not self.host.stop.is_set() and (self.host.now() < wait_until or self.learner.version < 0):
            newest = self.host.releases.newest
            if newest is not None and newest.version > self.learner.version:
                return
            await self.host.ask_newest([peer for peer, _ in self.host.roster])
            await self.host.changed(SETTLE / 4)

    # --- groups come in -------------------------------------------------------------------------------------------------

    async def receive(self, sender: PeerId, frame: bytes) -> bytes:
        """The `groups` service: one verdict for one group."""
        host, now = self.host, self.host.now()
        try:
            opened = wire.unseal(frame, host.who.run, host.ports.keyring)
            group = wire.decode(opened.body, Group)
        except wire.WireError as error:
            host.emit(events.Rejected, sender=sender, kind="groups", reason=str(error))
            self.tally.judged(sender, Verdict.MALFORMED)
            return self._receipt(Verdict.MALFORMED, str(error))
        self._senders[sender] = now
        judgement = self._judge(opened, sender, group, now)
        if judgement.verdict is Verdict.ADMIT:
            self.batcher.add(group, now)
            host.move()
        else:
            host.vitals.refused += 1
        self.tally.judged(sender, judgement.verdict)
        host.emit(
            events.Judged, group=group.id, sampler=group.sampler, verdict=judgement.verdict, detail=judgement.detail,
            versions=judgement.versions, seconds=round(judgement.seconds, 3),
        )  # fmt: skip
        return self._receipt(judgement.verdict, judgement.detail)

    def _judge(self, opened: wire.Opened, sender: PeerId, group: Group, now: float) -> Judgement:
        distrust = self.host.distrust(opened, Role.SAMPLER)
        if distrust is None and not sender == opened.sender == group.sampler:
            distrust = "sealed, sent and signed by different peers"
        judgement = self.admission.judge(group, version=self.learner.version, room=self._room(), distrust=distrust, now=now)
        if judgement.verdict is not Verdict.ADMIT:
            return judgement
        exercise = self._regenerate(group)
        if any(abs(mine - claimed) > 1e-6 for mine, claimed in zip(exercise.rewards, group.rewards, strict=True)):
            detail = f"claims rewards {list(group.rewards)}, they are {list(exercise.rewards)}"
            return Judgement(Verdict.UNTRUSTED, detail, judgement.versions, judgement.seconds)
        self._exercises[group.id] = exercise
        return judgement

    def _regenerate(self, group: Group) -> Exercise:
        """The task from its index, the rewards from the tokens: a sampler's word for either is never taken."""
        task = self.source.task(group.task)
        return Exercise(task, tuple(self.source.reward(task, text) for text in self._texts(group)))

    def _texts(self, group: Group) -> list[str]:
        tokens = memoryview(group.tokens.data).cast("i").tolist()
        starts = [sum(group.lengths[:i]) for i in range(len(group.lengths))]
        return [self.speech.decode(tokens[start : start + length]) for start, length in zip(starts, group.lengths, strict=True)]

    def _receipt(self, verdict: Verdict, detail: str) -> bytes:
        credit = share(self._credit(), len(self._senders), self.host.rng)
        return wire.encode(Receipt(verdict=verdict, detail=detail, version=self.learner.version, credit=credit))

    def _open(self) -> bool:
        return self.learner.version >= 0 and not self.host.stop.is_set()

    def _room(self) -> int:
        return self.batcher.room(self._learners()) if self._open() else 0

    def _credit(self) -> int:
        """What I tell samplers that I can use; told at once when it opens again."""
        vitals, now = self.host.vitals, self.host.now()
        self._senders = {peer: last for peer, last in self._senders.items() if now - last < self.host.config.run.pace.patience}
        credit = self.batcher.credit(self._learners()) if self._open() else 0
        if vitals.credit == 0 and credit > 0:
            self.host.beat_now()
        vitals.credit, vitals.takers, vitals.inbox = credit, max(1, len(self._senders)), len(self.batcher)
        return credit

    def _learners(self) -> int:
        return 1 + len(self._others())

    def _others(self) -> list[PeerId]:
        """Learners that can take part in a round now."""
        found = ((peer, self.host.roster.beat(peer)) for peer in self.host.roster.learners() if peer != self.host.ports.me)
        return [peer for peer, beat in found if beat is not None and beat.version >= 0]

    # --- the round ------------------------------------------------------------------------------------------------------

    def _ahead(self) -> bool:
        newest = self.host.releases.newest
        return newest is not None and newest.version > self.learner.version

    def _differs(self) -> bool:
        release = self.host.releases.of(self.learner.version)
        return release is not None and release.weights != self._weights

    def _settled(self) -> bool:
        """My version is released, and mine is the release: only then it is what I say I have, and what I learn on."""
        release = self.host.releases.of(self.learner.version)
        if release is None or release.weights != self._weights:
            return False
        self._due = None
        self.host.vitals.version, self.host.vitals.weights = release.version, release.weights
        return True

    async def gather(self) -> Cause:
        """Wait for a batch, a turn to publish, a release that is ahead or different, or the end."""
        start = self.host.now()
        while True:
            now = self.host.now()
            if self.host.stop.is_set() or self._complete():
                return Cause.STOP
            if self._ahead() or self._differs():
                return Cause.AHEAD_SEEN
            if self._due is not None and now >= self._due:
                return Cause.PUBLISHER_SILENT
            settled = self._settled()
            if settled and self._fill(now):
                self._spent = {"gather": self.host.now() - start}
                return Cause.BATCH_READY
            self._credit()
            await self.host.changed(self._idle_time(settled, now))

    def _idle_time(self, settled: bool, now: float) -> float:
        """Seconds until something is due by the clock alone; what others do wakes me earlier."""
        waits = [self.host.config.run.pace.beat]
        if self._due is not None:
            waits.append(self._due - now)
        if settled and not self._batch and (closes := self.batcher.due(self._learners(), now)):
            waits.append(closes)
        return min(waits)

    def _fill(self, now: float) -> bool:
        """Is there a batch to learn on? A batch whose gradient waits for company is one as soon as company is there."""
        if self._batch and any(staleness(item.group, self._window, self.learner.version, now) for item in self._batch):
            self.batcher.give_back(self._batch)  # its gradient waited for company until it was too old
            self._batch, self._gradient = [], None
        if self._batch:
            return bool(self._others())
        due = self.batcher.due(self._learners(), now)
        if due is None or (due > 0.0 and not self._called()):
            return False
        self._batch, expired = self.batcher.take(self._learners(), self.learner.version, now)
        for item in expired:
            self.tally.judged(item.group.sampler, "expired")
            self._exercises.pop(item.group.id, None)
        return bool(self._batch)

    def _called(self) -> bool:
        """Another learner has closed its batch for my version: a smaller batch in the common round beats a whole one alone."""
        under_way = (State.LEARNING.value, State.MATCHING.value)
        beats = (self.host.roster.beat(peer) for peer in self._others())
        return any(beat is not None and beat.version == self.learner.version and beat.state in under_way for beat in beats)

    def _complete(self) -> bool:
        last = self.host.config.run.stop.versions
        return 0 < last <= self.learner.version

    async def learn(self) -> Cause:
        host, start = self.host, self.host.now()
        if self._gradient is None:
            groups = [item.group for item in self._batch]
            exercises = [self._exercises[group.id] for group in groups]
            with host.vitals.computing(host.now):
                self._gradient = await host.ports.work.run(
                    "learn",
                    self.learner.gradient,
                    groups,
                    [e.task.prompt for e in exercises],
                    [e.rewards for e in exercises],
                    start,
                )
        self._spent["learn"] = host.now() - start
        self._breaks = 0
        return Cause.GRADIENT_READY

    async def average(self) -> Cause:
        """The mean gradient over whoever came, weighted by groups; me alone when I am."""
        host, settings, start = self.host, self.host.config.run.averaging, self.host.now()
        assert self._gradient is not None
        others = self._others()
        if self._ahead() or self._differs():  # a gradient of other weights than the release's is of no use to the others
            return Cause.AHEAD_SEEN
        alone = Cause.ALONE if settings.alone == "step" else Cause.NOBODY_CAME
        self._members = frozenset([host.ports.me])
        if not others or self._breaks > BREAKS:
            self._spent["average"] = 0.0
            return alone
        try:
            outcome = await host.ports.averager.average(
                self.learner.version, [self._gradient.vector], float(self._gradient.groups), others, settings.deadline
            )
        except RoundLost as error:
            self._breaks += 1
            host.emit(events.RoundBroke, version=self.learner.version, reason=str(error))
            return Cause.AHEAD_SEEN if self._ahead() else Cause.ROUND_BROKE
        self._spent["average"] = self._spent.get("average", 0.0) + host.now() - start
        if outcome is None:
            return Cause.AHEAD_SEEN if self._ahead() else alone
        self._members = outcome.members
        host.emit(
            events.Averaged,
            version=self.learner.version,
            members=tuple(sorted(outcome.members)),
            seconds=round(outcome.seconds, 3),
        )
        return Cause.AVERAGED

    async def step(self) -> Cause:
        host, start, gradient = self.host, self.host.now(), self._gradient
        assert gradient is not None
        self._parent = self._weights
        with host.vitals.computing(host.now):
            try:
                metrics = await host.ports.work.run("step", self.learner.step, gradient.vector)
            except ValueError as error:
                host.emit(events.RoundBroke, version=self.learner.version, reason=str(error))
                self._drop_batch()
                return Cause.STEPPED
        groups = len(self._batch) * len(self._members)
        self._account(gradient, metrics, start)
        await self._take_stock(groups)
        order = publishers([(self._incarnation(peer), peer) for peer in self._members])
        turn = order.index(host.ports.me)
        if turn == 0:
            return Cause.STEPPED_AS_PUBLISHER
        self._due = host.now() + turn * host.config.run.release.timeout
        if self.learner.version % host.config.run.release.checkpoint_every == 0:
            await self._save()
        return Cause.STEPPED

    def _incarnation(self, peer: PeerId) -> int:
        beat = self.host.roster.beat(peer)
        return self.host.who.incarnation if peer == self.host.ports.me else (beat.incarnation if beat else 1 << 62)

    def _account(self, gradient: Gradient, metrics: dict[str, float], start: float) -> None:
        """Events and tallies of a step that was taken."""
        host, version = self.host, self.learner.version
        for item in self._batch:
            self.tally.trained(version - 1 - item.group.version, start - item.group.times.released)
        self._show(self._batch[0].group)
        tokens = sum(sum(item.group.lengths) for item in self._batch)
        host.vitals.finished(len(self._batch), tokens, host.now())
        host.vitals.lags(
            versions=gradient.metrics.get("lag_versions", 0.0),
            inbox=sum(start - item.admitted for item in self._batch) / len(self._batch),
        )
        spent = {name: round(self._spent.get(name, 0.0), 4) for name in ("gather", "learn", "average")}
        host.emit(
            events.Trained, version=version, groups=len(self._batch), members=len(self._members),
            metrics={name: round(value, 6) for name, value in (gradient.metrics | metrics).items() if math.isfinite(value)},
            step=round(host.now() - start, 4), **spent,
        )  # fmt: skip
        self._trained += len(self._batch)
        self._drop_batch()
        self._count()

    def _drop_batch(self) -> None:
        for item in self._batch:
            self._exercises.pop(item.group.id, None)
        self._batch, self._gradient = [], None

    def _show(self, group: Group) -> None:
        exercise = self._exercises[group.id]
        self.host.emit(
            events.Shown, group=group.id, sampler=group.sampler, version=group.version, prompt=exercise.task.prompt[:200],
            answer=exercise.task.answer[:200], rewards=exercise.rewards,
            completions=tuple(text[:100] for text in self._texts(group)),
        )  # fmt: skip

    def _count(self) -> None:
        tally, self.tally = self.tally, Tally()
        self.host.emit(
            events.Counted, verdicts=dict(tally.verdicts), versions=dict(tally.versions), seconds=dict(tally.seconds),
            samplers={sampler: dict(counts) for sampler, counts in tally.samplers.items()},
        )  # fmt: skip

    async def _take_stock(self, groups: int = 0) -> None:
        """My weights as bytes: their digest, their chunks for others, the release that I would sign."""
        host, version = self.host, self.learner.version
        data = await host.ports.work.run("pack", self.learner.weights)
        self._weights = digest(data)
        manifest, address = host.blobs.publish(data, version, self._weights)
        host.blobs.keep(host.config.run.release.keep)
        self._mine = Release(
            version=version, weights=self._weights, manifest=address, size=manifest.size, parent=self._parent,
            publisher=host.ports.me, learners=len(self._members), groups=groups, released=host.now(),
        )  # fmt: skip

    async def publish(self) -> Cause:
        host = self.host
        assert self._mine is not None
        self._due = None
        try:
            await host.announce(self._mine)
        except NetError as error:
            host.emit(events.Noted, level="warning", text=f"release {self._mine.version} is not announced yet: {error}")
            self._due = host.now() + host.config.run.release.timeout
            return Cause.TIMEOUT
        if self.learner.version % host.config.run.release.checkpoint_every == 0:
            await self._save()
        return Cause.PUBLISHED

    async def fetch(self) -> Cause:
        """Take the swarm's release: I am behind it, or differ from it."""
        host = self.host
        behind = host.releases.newest if self._ahead() else host.releases.of(self.learner.version)
        assert behind is not None
        mine, had = self._weights, self.learner.version
        try:
            if behind.version != had or not await self.twins.take(behind):
                data = await host.fetch(behind)
                await host.ports.work.run("load", self.learner.load, data, behind.version)
        except (NetError, ValueError) as error:
            host.emit(events.Noted, level="warning", text=f"release {behind.version} could not be taken: {error}")
            await host.ports.clock.sleep(0.5)
            return Cause.FETCH_FAILED
        self._parent = behind.parent
        await self._take_stock()
        self.batcher.give_back(self._batch)
        self._batch, self._gradient, self._due = [], None, None
        if behind.version == had:
            host.emit(events.Snapped, version=had, mine=mine, theirs=behind.weights)
        else:
            host.emit(events.CaughtUp, version=behind.version, behind=behind.version - had)
        host.beat_now()
        return Cause.LOADED

    async def _save(self) -> None:
        """A checkpoint; a disk that is full costs the checkpoint, not the training."""
        if self.folder is None or self.learner.version < 0:
            return
        host, start = self.host, self.host.now()
        progress = Progress(seen=tuple(self.admission.seen()), parent=self._parent, trained=self._trained)
        try:
            await host.ports.work.run("save", self.learner.save, self.folder, msgspec.to_builtins(progress))
        except OSError as error:
            host.emit(events.Faulted, part="disk", detail=f"no checkpoint of version {self.learner.version}: {error.strerror}")
            return
        host.emit(events.Saved, version=self.learner.version, seconds=round(host.now() - start, 3))
