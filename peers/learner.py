"""The learner: groups in, new policies out, in rounds with whoever else is there.

    peers.intake: stream "groups" -> batches                                                  beside the loop
    loop: the round's table commands, one coroutine each runs it, what came of it is the next cause

        gather -> learn -> average -> step -> (publish) -> gather ...        fetch: the swarm is ahead, take its release

Invariants: the released weights are the truth: after every version this learner's digest is the release's, or it snaps to it.
Groups of a batch that was overtaken go back to the batcher: nothing is lost, nothing trained twice. Not handled here: what the
gradient is (swarm.learn), how members find each other (the Averager port).
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from peers.host import Host
from peers.intake import Intake, Speech
from peers.setbacks import Setbacks
from peers.twins import Twins
from swarm import events
from swarm.core.admission import staleness
from swarm.core.batcher import Waiting
from swarm.core.releases import publishers
from swarm.core.rounds import Cause, Command, Round, State
from swarm.learn.learner import Gradient, Learner
from swarm.learn.memory import OutOfMemory
from swarm.learn.ranks import RankLost
from swarm.learn.sharded import ShardedLearner
from swarm.learn.weights import digest
from swarm.net.ports import NetError, RoundLost
from swarm.tasks.base import TaskSource
from swarm.types import Digest, Manifest, PeerId, Release, Struct

BREAKS = 3
# Averagings of one version that may break before the learner goes on alone: each costs at most the round's deadline.
FETCHES = 8
# Attempts at one release before it is given up: several seconds, in which a holder that restarts is back.
SETTLE = 2.0
# Seconds a learner waits at its start to hear of a release newer than its own checkpoint.


class Progress(Struct):
    """What a learner's checkpoint holds besides weights and optimizer."""

    seen: tuple[str, ...]
    """Ids of consumed groups."""
    parent: Digest


class LearnerPeer:
    def __init__(
        self, host: Host, learner: Learner | ShardedLearner, source: TaskSource, speech: Speech, folder: Path | None
    ) -> None:
        """`folder` is where checkpoints live; None keeps none."""
        run = host.config.run
        self.host, self.learner, self.source, self.speech, self.folder = host, learner, source, speech, folder
        self.learner.version = -1
        self.round = Round()
        self._window = run.window
        self.intake = Intake(host, source, speech, lambda: learner.version, self._learners)
        self.twins = Twins(host, learner)
        self._batch: list[Waiting] = []
        self._gradient: Gradient | None = None
        self._members: frozenset[PeerId] = frozenset()
        self._breaks, self._failures = 0, 0
        self._weights = Digest("")
        self._parent = Digest("")
        self._mine: Release | None = None
        """The release of my version as I would publish it."""
        self._due: float | None = None
        """When it is my turn to publish it."""
        self._spent: dict[str, float] = {}
        self._setbacks = Setbacks(host)

    async def run(self) -> None:
        """Take the swarm's policy, then go round until the host is asked to stop."""
        await self.intake.serve()
        await self.twins.serve()
        await self._begin()
        command = Command.GATHER
        act: dict[Command, Callable[[], Awaitable[Cause]]] = {
            Command.GATHER: self.gather, Command.LEARN: self.learn, Command.AVERAGE: self.average, Command.STEP: self.step,
            Command.PUBLISH: self.publish, Command.FETCH: self.fetch,
        }  # fmt: skip
        while command is not Command.FLUSH:
            try:
                cause = await act[command]()
            except RankLost as error:
                cause = self._without_policy(error)
            command = self.round.advance(cause)
            self.host.vitals.state = self.round.state.value
            if self.round.state is State.LEARNING:
                self.host.beat_now()  # the others close their batches too
            self.host.emit(events.Moved, version=self.learner.version, state=self.round.state.value, cause=cause.value)
        await self._save()
        self.intake.report()

    async def _begin(self) -> None:
        if self.folder is not None and self.folder.exists():
            await self._resume(self.folder)
        wait_until = self.host.now() + SETTLE
        while not self.host.stop.is_set() and (self.host.now() < wait_until or self.learner.version < 0):
            newest = self.host.releases.newest
            if newest is not None and newest.version > self.learner.version:
                return
            await self.host.ask_newest([peer for peer, _ in self.host.roster])
            await self.host.changed(SETTLE / 4)

    async def _resume(self, folder: Path) -> None:
        """Go on from the checkpoint; one that cannot be used costs the optimizer's moments, not the learner."""
        host = self.host
        try:
            held = msgspec.convert(self.learner.restore(folder), Progress)
        except (FileNotFoundError, ValueError, RankLost) as error:
            host.emit(events.Noted, level="warning", text=f"{error}: going on from the newest release with a fresh optimizer")
            return
        self.intake.admission.restore(held.seen)
        self._parent = held.parent
        await self._take_stock()
        # A crash may have come between a checkpoint and its release: then it is for me to release it.
        self._due = host.now() + host.config.run.release.timeout

    # --- the round ------------------------------------------------------------------------------------------------------

    def _learners(self) -> int:
        return 1 + len(self._others())

    def _others(self) -> list[PeerId]:
        """Learners that can take part in a round now."""
        found = ((peer, self.host.roster.beat(peer)) for peer in self.host.roster.learners() if peer != self.host.ports.me)
        return [peer for peer, beat in found if beat is not None and beat.version >= 0]

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
            settled = self._settled()
            if self.host.stop.is_set() or (settled and self._complete()):
                return Cause.STOP
            if self._ahead() or self._differs():
                return Cause.AHEAD_SEEN
            if self._due is not None and now >= self._due:
                return Cause.PUBLISHER_SILENT
            if settled and self._fill(now):
                self._spent = {"gather": self.host.now() - start}
                return Cause.BATCH_READY
            self.intake.credit()
            self.intake.report(after=2 * self.host.config.run.pace.beat)  # who refuses all groups makes no step that would tell
            await self.host.changed(self._idle_time(settled, now))

    def _idle_time(self, settled: bool, now: float) -> float:
        """Seconds until something is due by the clock alone; what others do wakes me earlier."""
        waits = [self.host.config.run.pace.beat]
        if self._due is not None:
            waits.append(self._due - now)
        if settled and not self._batch and (closes := self.intake.closes(now)):
            waits.append(closes)
        return min(waits)

    def _fill(self, now: float) -> bool:
        """Is there a batch to learn on? A batch whose gradient waits for company is one as soon as company is there."""
        if self._batch and any(staleness(item.group, self._window, self.learner.version, now) for item in self._batch):
            self.intake.batcher.give_back(self._batch)  # its gradient waited for company until it was too old
            self._batch, self._gradient = [], None
        if self._batch:
            return bool(self._others())
        closes = self.intake.closes(now)
        if closes is None or (closes > 0.0 and not self._called()):
            return False
        self._batch = self.intake.take(now)
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
            exercises = [self.intake.exercise(group) for group in groups]
            prompts, rewards = [e.task.prompt for e in exercises], [e.rewards for e in exercises]
            room = self._room()
            try:
                with host.vitals.computing(host.now):
                    self._gradient = await host.ports.work.run("learn", self.learner.gradient, groups, prompts, rewards, start)
            except OutOfMemory as error:
                return self._out_of_memory(error)
            if room != (now := self._room()):
                host.emit(events.Noted, level="info", text=f"memory of this learner: {now}; before, {room}")
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
        host.traffic.averaged(outcome.exchanged)
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
            except OutOfMemory as error:
                return self._out_of_memory(error)
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

    def _without_policy(self, error: RankLost) -> Cause:
        """The version is -1 until the newest release is taken again; the batch is given back then."""
        self._setbacks.tell("learner", f"{error}: going on from the newest release with a fresh optimizer")
        return Cause.FETCH_FAILED if self.round.state is State.CATCHING_UP else Cause.AHEAD_SEEN

    def _out_of_memory(self, error: OutOfMemory) -> Cause:
        """The batch is dropped, another one may be smaller. A policy that was lost on the way is fetched again."""
        self._setbacks.tell("memory", f"a batch of {len(self._batch)} groups is dropped: {error}")
        self._drop_batch()
        return Cause.OUT_OF_MEMORY

    def _room(self) -> str:
        """What memory lets through at a time, in words."""
        told = self.learner.statistics()
        kept = "activations recomputed" if told.get("recomputed") else "activations kept"
        return f"at most {told.get('micro', 0):g} groups at a time, {kept}"

    def _incarnation(self, peer: PeerId) -> int:
        beat = self.host.roster.beat(peer)
        return self.host.who.incarnation if peer == self.host.ports.me else (beat.incarnation if beat else 1 << 62)

    def _account(self, gradient: Gradient, metrics: dict[str, float], start: float) -> None:
        """Events and tallies of a step that was taken."""
        host, version = self.host, self.learner.version
        self._setbacks.over()
        for item in self._batch:
            self.intake.tally.trained(version - 1 - item.group.version, start - item.group.times.released)
        self.intake.show(self._batch[0].group, gradient.advantages, gradient.weights)
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
        self._drop_batch()
        self.intake.report()

    def _drop_batch(self) -> None:
        self.intake.consumed(self._batch)
        self._batch, self._gradient = [], None

    async def _take_stock(self, groups: int = 0) -> None:
        """My weights as bytes: their digest, their chunks for others, the release that I would sign."""
        host, version = self.host, self.learner.version
        manifest, address = await host.ports.work.run("pack", self._pack, version)
        self._weights = manifest.weights
        self._mine = Release(
            version=version, weights=self._weights, manifest=address, size=manifest.size, parent=self._parent,
            publisher=host.ports.me, learners=len(self._members), groups=groups, released=host.now(),
        )  # fmt: skip

    def _pack(self, version: int) -> tuple[Manifest, Digest]:
        """Off the loop: a large model's bytes take seconds to hash."""
        data = self.learner.weights()
        return self.host.blobs.publish(data, version, digest(data))

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
        except (NetError, ValueError, RankLost) as error:
            host.emit(events.Noted, level="warning", text=f"release {behind.version} could not be taken: {error}")
            self._failures += 1
            if self._failures >= FETCHES and had >= 0:
                host.releases.forget(behind)  # nobody has its bytes any more: the swarm goes on from the version before
            await host.ports.clock.sleep(min(0.5 * self._failures, host.config.run.pace.beat))
            return Cause.FETCH_FAILED
        self._failures = 0
        self._parent = behind.parent
        await self._take_stock()
        self.intake.batcher.give_back(self._batch)
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
        progress = Progress(seen=tuple(self.intake.admission.seen()), parent=self._parent)
        try:
            await host.ports.work.run("save", self.learner.save, self.folder, msgspec.to_builtins(progress))
        except OSError as error:
            host.emit(events.Faulted, part="disk", detail=f"no checkpoint of version {self.learner.version}: {error.strerror}")
            return
        except RankLost as error:
            host.emit(events.Faulted, part="learner", detail=f"no checkpoint of the last version: {error}")
            return
        host.emit(events.Saved, version=self.learner.version, seconds=round(host.now() - start, 3))
