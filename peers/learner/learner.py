"""The learner: trains on groups and releases new policies, in rounds with the other learners.

    peers.intake.inbox: stream "groups" -> batches                                           beside the loop
    peers.learner.agreement.next_release: a release better than its own -> its bytes, here   beside the loop
    peers.learner.agreement.own_release: a step's snapshot -> packed, published, compared    beside the loop
    peers.learner.next_gradient: with run.averaging.overlap, one gradient ahead              beside the loop
    peers.learner.checkpoints: the state after a step -> the disk, before the next           beside the loop
    loop: the round's table gives a command, a coroutine carries it out and returns the next cause

        gather -> learn -> (await its release) -> average -> step -> gather ...
        fetch: the swarm is ahead, take its release

Invariants: the released weights are the truth: before a gradient is averaged, the digest of its version is
the release's, or this learner loads the release ("snaps"). When a release overtakes a batch, its groups go
back to the batcher: no group is lost, and none is trained twice. Not handled here: the gradient
(swarm.learn), how members find each other (the Averager port).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from peers.audits.auditor import Auditor
from peers.audits.evidence import FOLDER
from peers.audits.replayer import MakeReplay
from peers.intake.frame_shelf import FrameShelf
from peers.intake.group_opening import Decoder
from peers.intake.inbox import LearnerInbox
from peers.learner.agreement.catch_up import CatchUp
from peers.learner.agreement.common_round import CommonRound
from peers.learner.agreement.other_learners import OtherLearners
from peers.learner.agreement.own_release import OwnRelease
from peers.learner.agreement.rechecks import FRAMES_BYTES, BatchRechecks
from peers.learner.agreement.state_transfer import StateTransfer
from peers.learner.checkpoints import Checkpoints, Progress
from peers.learner.gradients import Gradients
from peers.learner.next_gradient import NextGradient
from peers.learner.recorder import Recorder
from peers.learner.round_totals import RoundTotals
from peers.learner.step_report import StepReport
from peers.learner.trained_groups import TrainedGroups
from peers.runtime.faults import FaultReports
from peers.runtime.host import Host
from swarm import events
from swarm.core.agreement.lineage import Point
from swarm.core.agreement.rounds import AHEAD, Cause, Command, Round, State
from swarm.core.intake.batcher import Waiting
from swarm.core.intake.claimed_logprobs import ClaimCheck
from swarm.learn.fsdp.driver import RankLost
from swarm.learn.learners.base_learner import BaseLearner, Gradient, overflow
from swarm.net.ports import NotFinite
from swarm.protocol import Kind, WorkStage
from swarm.tasks.base import TaskSource
from swarm.types import Digest


class LearnerPeer:
    def __init__(
        self,
        host: Host,
        learner: BaseLearner,
        source: TaskSource,
        decoder: Decoder,
        folder: Path | None,
        replay: MakeReplay | None = None,
    ) -> None:
        """Checkpoints are written to `folder`; None writes none. `replay` makes what audits replay with."""
        self.host, self.learner = host, learner
        self.learner.version = -1
        self.round = Round()
        self.other_learners = OtherLearners(host, lambda: learner.version)
        frames = FrameShelf(FRAMES_BYTES)
        self.inbox = LearnerInbox(
            host,
            source,
            decoder,
            lambda: learner.version,
            self.other_learners.as_fast,
            keeper=lambda: self.trained,
            audit=lambda: self.auditor,
            signed=lambda group, frame: frames.put(group.id, frame),
        )
        self.auditor = Auditor(host, self.inbox, replay, folder and folder.with_name(FOLDER))
        self.trained = TrainedGroups(
            host, self.inbox, lambda: (learner.version, self.own_release.weights), self._under_way, folder
        )
        self.checkpoints = Checkpoints(host, learner, folder, self._saved)
        self._batch: list[Waiting] = []
        self._gradient: Gradient | None = None
        self._learnt_ahead = 0.0
        """Seconds that it took beside an earlier round."""
        self._checks: dict[str, ClaimCheck] = {}
        """Group id -> check, for the groups of the batch."""
        self.round_totals = RoundTotals(host, self.other_learners.ready)
        self.own_release = OwnRelease(
            host, learner, self.other_learners, lambda: self.round.state is State.GATHERING
        )
        self._agree(host, learner, frames, folder)

    def _agree(self, host: Host, learner: BaseLearner, frames: FrameShelf, folder: Path | None) -> None:
        """Build the parts of a round: the average, its checks and records, the gradient beside it, and the
        way to a version of others."""
        self.transfer = StateTransfer(host, learner, self.own_release.at_rest, self.other_learners)
        self._report = StepReport(host, self.inbox)
        self.rechecks = BatchRechecks(host, learner, self.inbox, frames, of_round=self.round_totals.of_round)
        self._common_round = CommonRound(
            host,
            self.other_learners,
            self.own_release,
            self._report,
            self.rechecks,
            self.transfer,
            lambda: learner.version,
        )
        self.recorder = Recorder(host, learner, self.rechecks, self.own_release, folder)
        self._faults = FaultReports(host)
        self._gradients = Gradients(host, learner, self.inbox, self._faults)
        self.next_gradient = NextGradient(
            host,
            self.inbox,
            self.other_learners,
            may_begin=self._may_learn_ahead,
            may_take=self._may_take,
            compute=self._gradients.compute,
        )
        self._catch_up = CatchUp(
            host,
            learner,
            self.own_release,
            self.other_learners,
            transfer=self.transfer,
            next_gradient=self.next_gradient,
            hold=self._hold_loaded,
            unused=self._unused,
        )

    async def run(self) -> None:
        """Take the swarm's policy, then run rounds until the host is asked to stop."""
        await self.trained.open()
        await self.inbox.serve()
        await self.transfer.serve()
        await self.rechecks.serve()
        async with asyncio.TaskGroup() as tasks:
            own = self.own_release
            runs = (own.next.run, own.run, self.next_gradient.run, self.trained.run, self._catch_up.run)
            checks = (
                self.trained.keep_refused,
                self.auditor.run,
                self.recorder.run,
                self.checkpoints.run,
            )
            beside = [tasks.create_task(run()) for run in (*runs, *checks)]
            await self._begin()
            await self._run_rounds()
            await self.recorder.finish()
            await self.checkpoints.save(self.own_release.made_of)
            await self.checkpoints.written()
            for task in beside:
                task.cancel()
        self.inbox.report()

    def _under_way(self) -> list[Waiting]:
        return [*self._batch, *self.next_gradient.batch]

    async def _run_rounds(self) -> None:
        command, act = Command.GATHER, self._acts()
        while command is not Command.FLUSH:
            try:
                cause = await act[command]()
            except RankLost as error:
                self._faults.policy_lost(str(error))
                lost_again = self.round.state is State.CATCHING_UP
                cause = Cause.FETCH_FAILED if lost_again else Cause.AHEAD_SEEN
            command = self.round.advance(cause)
            self.other_learners.set_state(self.round.state)
            self.next_gradient.look()
            self.host.emit(
                events.Moved, version=self.learner.version, state=self.round.state.value, cause=cause.value
            )

    def _acts(self) -> dict[Command, Callable[[], Awaitable[Cause]]]:
        return {
            Command.GATHER: self.gather,
            Command.LEARN: self.learn,
            Command.AVERAGE: self.average,
            Command.JOIN: self.join,
            Command.STEP: self.step,
            Command.AWAIT: self.wait,
            Command.FETCH: self.fetch,
        }

    async def _begin(self) -> None:
        if (made_of := self.checkpoints.resume()) is not None:
            await self._hold_loaded(made_of, (-1, Digest("")))
            # A crash between a checkpoint and its release leaves the release to me.
            self.own_release.wait_turns()
        await self._catch_up.await_news()

    # --- the round ------------------------------------------------------------------------------------------

    async def gather(self) -> Cause:
        """Wait for a batch, a release that is ahead or different, or the end."""
        collected = self.inbox.collected
        with self.host.status.work.within(WorkStage.BATCH, self.host.now, collected, collected().done):
            return await self._gathered()

    async def _gathered(self) -> Cause:
        start = self.host.now()
        while True:
            now, settled = self.host.now(), self.own_release.is_settled()
            if (cause := self._interrupted(settled)) is not None:
                return cause
            may_learn = not await self.host.pause_gate.waited(settled) and (settled or self._learns_early())
            if may_learn and self._fill(now):
                self._report.seconds = {"gather": self.host.now() - start, "learn": self._learnt_ahead}
                return Cause.BATCH_READY
            self.inbox.credit()
            # a step reports, too, but a learner that refuses all groups takes no step
            self.inbox.report(after=2 * self.host.config.run.pace.beat)
            await self.host.changed(self._idle_time(may_learn, now))

    async def wait(self) -> Cause:
        """Wait until the version of the computed gradient is released, by this learner or another member."""
        while not self.own_release.is_settled():
            if (cause := self._interrupted(settled=False)) is not None:
                return cause
            self.inbox.credit()
            await self.host.changed(self.host.config.run.pace.beat)
        return Cause.PUBLISHED

    def _interrupted(self, settled: bool) -> Cause | None:
        """The cause that ends any wait, if there is one now. A version that was stepped to is released before
        the end."""
        if self.host.stop.is_set():
            return None if self.own_release.is_publishing() else Cause.STOP
        if settled and self._complete():
            return Cause.STOP
        return Cause.AHEAD_SEEN if self.own_release.is_overtaken() else None

    def _learns_early(self) -> bool:
        """Learn before my version is released? A gradient that takes in the others' batches waits for their
        heartbeats of this version."""
        return (
            not (self.host.stop.is_set() or self._complete() or self.round_totals.of_round)
            and self.own_release.is_expected()
            and self.other_learners.all_early()
        )

    def _idle_time(self, may_learn: bool, now: float) -> float:
        """Seconds until something is due by the clock alone; changes in the host end the wait earlier."""
        waits = [self.host.config.run.pace.beat]
        if self._batch:
            waits.append(self.host.config.run.release.timeout)
        elif may_learn and (closes := self.inbox.closes(now)):
            waits.append(closes)
        return min(waits)

    def _fill(self, now: float) -> bool:
        """Whether there is a batch to learn on, or a kept one with its gradient."""
        if self._take_ahead(now):
            return True
        closes = self.inbox.closes(now) if self._may_take() else None
        if closes is None or (closes > 0.0 and not self._closes_early()):
            return False
        self._batch, self._gradient = self.inbox.take(now), None
        self.inbox.credit()  # the next batch is sampled while this one is learnt on
        return bool(self._batch)

    def _take_ahead(self, now: float) -> bool:
        """Whether there is a batch with a gradient: a kept one, or one that was computed ahead."""
        if not self._batch and (ready := self.next_gradient.take()) is not None:
            self._batch, self._gradient, self._learnt_ahead = ready
            self._drop_unbelieved()
        if self._batch and (self.trained.has(self._batch) or self.inbox.is_late(self._batch, now)):
            self._give_back_batch()  # while its gradient was kept
        return bool(self._batch)

    def _closes_early(self) -> bool:
        return self.other_learners.batch_closed_elsewhere()

    def _may_take(self) -> bool:
        """Whether a gradient may begin: not before a copy of the state that another learner waits for, nor on
        groups that others may have trained."""
        return not (self.trained.placing or self.transfer.comes_first)

    def _complete(self, ahead: int = 0) -> bool:
        return 0 < self.host.config.run.stop.versions <= self.learner.version + ahead

    def _may_learn_ahead(self) -> bool:
        """Compute a gradient of this version that is stepped from the next one? While the round waits, or the
        state of this version or the next one comes."""
        if self.host.stop.is_set() or self._complete(1):
            return False
        if self._catch_up.meanwhile.may_learn:
            return True
        in_step = self.host.status.early and self.other_learners.all_early()
        waits = in_step and self.round.state in AHEAD
        return waits and (self.own_release.is_settled() or self._learns_early())

    async def learn(self) -> Cause:
        host, began, groups = self.host, self.host.now(), [item.group for item in self._batch]
        self.round_totals.announce(groups, [self.inbox.task_and_rewards(group).rewards for group in groups])
        others_changed = await self.round_totals.collect(self.learner.version)
        start = host.now()
        self._report.add("gather", start - began)
        if self._gradient is None or others_changed:
            self._gradient = await self._gradients.compute(self._batch, self.round_totals.collected.values())
            if self._gradient is None:
                self.auditor.make_room()
                self._forget_batch()
                return Cause.OUT_OF_MEMORY
            self.rechecks.computed(self._batch)
            if not self._drop_unbelieved():
                return Cause.BATCH_REFUSED
        await self.trained.placed()
        if self.trained.has(self._batch):
            self._give_back_batch()
            return Cause.BATCH_REFUSED
        self._report.add("learn", host.now() - start)
        self._common_round.begin(self._learnt_ahead)
        return Cause.GRADIENT_READY if self.own_release.is_settled() else Cause.GRADIENT_EARLY

    def _drop_unbelieved(self) -> bool:
        """Remove groups that are not believed from the batch and its gradient. False when none is left."""
        assert self._gradient is not None
        self._checks = {
            item.group.id: check for item, check in zip(self._batch, self._gradient.checks, strict=True)
        }
        self._batch = self.inbox.drop_unbelieved(self._batch, self._gradient.checks)
        if not self._batch:
            self.host.emit(
                events.Noted, level="warning", text="a batch is dropped: none of its groups is believed"
            )
            self._drop_batch()
        return bool(self._batch)

    async def average(self) -> Cause:
        assert self._gradient is not None
        try:
            return await self._common_round.average(self._gradient, self._batch)
        except NotFinite:
            return self._not_finite()

    def _not_finite(self) -> Cause:
        """My gradient is not finite: my batch is dropped, and the others do not wait for my step."""
        self._gradients.refused(self._batch, overflow(self.learner.run.optimizer.lr))
        self._forget_batch()
        return Cause.BATCH_REFUSED

    async def join(self) -> Cause:
        """Be in the round that the others waited for me with, and learn ahead beside it: with a gradient
        that was computed while the state came, or with none."""
        if self.next_gradient.batch:
            await self.trained.placed()
        if not self._take_ahead(self.host.now()):
            self._gradient = self.learner.nothing()
        assert self._gradient is not None
        self._report.seconds = {"learn": self._learnt_ahead}
        try:
            cause = await self._common_round.join(self._gradient, self._batch)
        except NotFinite:
            cause = self._not_finite()
        await self.trained.placed()
        return cause

    async def step(self) -> Cause:
        host, gradient, members = self.host, self._gradient, self._common_round.members
        assert gradient is not None
        mine = self.inbox.scored(self._batch) if self._common_round.counts else ()
        await self.trained.stepped(members, mine, self._common_round.marks)
        await self._unused()
        # a second release of one version would be useless
        if self.own_release.is_ahead() and not self.own_release.is_next_of(members):
            return Cause.AHEAD_SEEN
        start = host.now()
        metrics = await self._gradients.step(self.learner.step, gradient, self._batch)
        if isinstance(metrics, Cause):
            self._forget_batch()
            return metrics
        made_of = self._common_round.makes(self._batch)
        self._record_step(gradient, metrics, start)
        snapshot = await host.ports.work.run(Kind.COPY, self.learner.snapshot, host.releases.draft)
        self.own_release.begin(snapshot, made_of, members)
        await self.recorder.stepped(made_of.parent, len(members) == 1, self._common_round.recipe)
        await self._save_in_turn()
        return Cause.STEPPED

    def _record_step(self, gradient: Gradient, metrics: dict[str, float], start: float) -> None:
        """Emit the events of a step, count its groups, and drop its batch; groups that did not count come
        back, except those that another member has."""
        version, members = self.learner.version, self._common_round.members
        self._faults.recovered()
        self.round_totals.report_mismatch(version, members)
        if self._common_round.counts:
            self._report.emit(self._batch, self._checks, gradient, metrics, version, len(members), start)
            self._drop_batch()
        else:
            self._report.trained(0, metrics, version, len(members), self.host.now() - start)
            self._give_back_batch()
        self.inbox.report()

    def _drop_batch(self) -> None:
        self.inbox.consumed(self._batch)
        self._forget_batch()

    def _give_back_batch(self) -> None:
        self.trained.give_back(self._batch)
        self._forget_batch()

    def _forget_batch(self) -> None:
        self._batch, self._gradient, self._learnt_ahead = [], None, 0.0
        self.round_totals.clear()

    async def _save_in_turn(self) -> None:
        """Write a checkpoint at every `release.checkpoint_every`-th version."""
        if self.learner.version % self.host.config.run.release.checkpoint_every == 0:
            await self.checkpoints.save(self.own_release.made_of)

    async def _saved(self, version: int) -> None:
        await self.recorder.saved(version)
        await self.trained.saved(version)

    async def fetch(self) -> Cause:
        """Load the swarm's release, which is ahead of this learner or differs from it."""
        await self._unused()
        self.next_gradient.give_back()
        self._give_back_batch()
        return await self._catch_up.fetch()

    async def _unused(self) -> None:
        """Wait while a gradient or a checkpoint is made of the policy as it is. Raises RankLost."""
        await self.next_gradient.idle()
        await self.checkpoints.written()

    async def _hold_loaded(self, made_of: Progress, had: Point) -> None:
        """Hold and compare the version that I loaded; before I had `had`."""
        draft = self.host.releases.draft
        snapshot = await self.host.ports.work.run(Kind.COPY, self.learner.snapshot, draft)
        self.own_release.begin(snapshot, made_of)
        await self.own_release.packed()
        self.trained.loaded(made_of, *had)
        if self.recorder.works:  # a record continues from this learner's state
            await self.checkpoints.save(made_of)
