"""A learner of a run in `sites` mode: several steps of its own, then a version with the others.

    gather -> learn -> step locally -> gather ...                   as peers.learner.learner, at one version
           -> average: contribute, wait for a list and all its contributions     (peers.learner.site_exchange)
           -> step: the outer step of the list -> the next version, published as ever

It contributes after `local_steps` steps, or as soon as another learner waits and it has one: a slow learner
has done less of the version, and no other waits for it. A late learner finds the list and takes the outer
step from where it is; its own steps are carried over to the new version. One that misses the list as well
loads the resulting release. Not handled here: the contents of a contribution
(swarm.learn.learners.site_learner), which ones count (swarm.core.agreement.site_lists).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from peers.audits.replayer import MakeReplay
from peers.intake.group_opening import Decoder
from peers.intake.inbox import Scored
from peers.learner.checkpoints import Progress
from peers.learner.learner import LearnerPeer
from peers.learner.round_totals import RoundTotals
from peers.learner.site_exchange import SiteExchange, Taken
from peers.runtime.host import Host
from swarm import events
from swarm.core.agreement import site_lists
from swarm.core.agreement.rounds import SITES, Cause, Command, Round
from swarm.core.agreement.state_sync import GOSSIP_SECONDS
from swarm.core.agreement.trained import mark
from swarm.core.intake.batcher import Waiting
from swarm.learn.learners.site_learner import SiteLearner
from swarm.protocol import Kind
from swarm.tasks.base import TaskSource
from swarm.types import Digest

LEAST_PATIENCE = 20.0
"""Fewest seconds that a list is left open, where `run.averaging.deadline` is unset: a heartbeat and a
gradient of a small model."""


@dataclass
class LocalSteps:
    """What I trained since the last version that has something of me."""

    steps: int = 0
    groups: int = 0
    weight: float = 0.0
    sums: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Metric -> groups of the steps that have it, and its sum over them."""
    seconds: dict[str, float] = field(default_factory=dict)
    contributed: bool = False
    """To my version."""
    batches: list[Scored] = field(default_factory=list)
    """Groups of these steps."""

    def add(
        self, groups: int, weight: float, metrics: Mapping[str, float], seconds: Mapping[str, float]
    ) -> None:
        self.steps, self.groups, self.weight = self.steps + 1, self.groups + groups, self.weight + weight
        for name, value in metrics.items():
            count, total = self.sums.get(name, (0, 0.0))
            self.sums[name] = count + groups, total + groups * value
        for name, value in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + value

    def metrics(self) -> dict[str, float]:
        """Means over the groups of the steps that have them."""
        return {name: total / count for name, (count, total) in self.sums.items()}


class SiteLearnerPeer(LearnerPeer):
    learner: SiteLearner

    def __init__(
        self,
        host: Host,
        learner: SiteLearner,
        source: TaskSource,
        decoder: Decoder,
        folder: Path | None,
        replay: MakeReplay | None = None,
    ) -> None:
        super().__init__(host, learner, source, decoder, folder, replay)
        self.round = Round(SITES)
        # Each learner's advantages are those of its own batch.
        self.round_totals = RoundTotals(host, lambda: ())
        self.exchange = SiteExchange(host, learner, self._where)
        self._trained = LocalSteps()
        self._taken: Taken | None = None

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            exchange = tasks.create_task(self.exchange.run())
            await super().run()
            exchange.cancel()

    def _acts(self) -> dict[Command, Callable[[], Awaitable[Cause]]]:
        return super()._acts() | {Command.STEP_LOCALLY: self.step_locally}

    def _where(self) -> tuple[int, Digest]:
        return self.learner.version, self.own_release.weights

    def _under_way(self) -> list[Waiting]:
        trained = [] if self._trained.contributed else self._trained.batches
        return [*super()._under_way(), *(item for item, _ in trained)]

    # --- at a version ---------------------------------------------------------------------------------------

    def _others_wait(self) -> bool:
        """Another learner has contributed to my version."""
        return bool(self.exchange.gathered().named.keys() - {self.host.ports.me})

    def _closes_early(self) -> bool:
        return self._trained.steps == 0 and self._others_wait()

    def _interrupted(self, settled: bool) -> Cause | None:
        cause, trained = super()._interrupted(settled), self._trained
        if cause is None and settled and trained.steps and (trained.contributed or self._others_wait()):
            return Cause.CONTRIBUTION_READY
        return cause

    async def step_locally(self) -> Cause:
        """Step along my own gradient."""
        host, gradient, start = self.host, self._gradient, self.host.now()
        assert gradient is not None
        await self.checkpoints.written()
        metrics = await self._gradients.step(self.learner.step_locally, gradient, self._batch)
        if isinstance(metrics, Cause):
            self._forget_batch()
            return metrics
        self._faults.recovered()
        self._report.count(self._batch, self._checks, gradient, self.learner.version + 1, start)
        seconds = self._report.seconds | {"step": host.now() - start}
        measured = self._report.of_all(gradient) | metrics
        self._trained.add(len(self._batch), gradient.weight, measured, seconds)
        self._trained.batches += self.inbox.scored(self._batch)
        self._drop_batch()
        self.inbox.report()
        done = self._trained.steps >= host.config.run.averaging.local_steps
        return Cause.CONTRIBUTION_READY if done or self._others_wait() else Cause.STEPPED_LOCALLY

    # --- to the next one ------------------------------------------------------------------------------------

    async def average(self) -> Cause:
        """Contribute what I trained, and wait for a list, with all that it names. I close it when it is my
        turn."""
        host, run, start = self.host, self.host.config.run, self.host.now()
        while (taken := await self.exchange.take()) is None:
            settled = self.own_release.is_settled()
            if (cause := super()._interrupted(settled)) is not None:
                return cause
            if settled and not self._trained.contributed:
                if (why := await self._contribute()) is not None:
                    host.emit(events.RoundBroke, version=self.learner.version, reason=why)
                    return Cause.ROUND_BROKE
            elif settled and self.exchange.undecided and self._may_close(start):
                await self.exchange.close()
            else:
                self.exchange.give_up()
                self.inbox.credit()
                await host.changed(run.pace.beat)
        self._trained.seconds["average"] = host.now() - start
        self._taken = taken
        return Cause.AVERAGED

    async def _contribute(self) -> str | None:
        """Name what I trained since my version; why not, where it cannot be named."""
        trained = self._trained
        await self.trained.placed()
        if self.trained.has([item for item, _ in trained.batches]):
            await self._undo_steps()
            return "my version has some of the groups that I trained since: the others are trained again"
        marks = b"".join(mark(item.group.id) for item, _ in trained.batches)
        await self.trained.contributed(trained.batches)
        try:
            await self.exchange.contribute(trained.groups, trained.weight, marks)
        except ValueError as error:
            return str(error)
        trained.contributed = True
        return None

    async def _undo_steps(self) -> None:
        """My version is what I go on from, and the groups that I trained since are back."""
        await self.checkpoints.written()
        await self.host.ports.work.run(Kind.STEP, self.learner.undo_steps)
        self._return_groups()

    def _return_groups(self) -> None:
        """The groups that I trained since my version are back: nothing has their steps."""
        self.trained.undone(self._trained.batches)
        self._trained = LocalSteps()

    def _may_close(self, since: float) -> bool:
        """Whether all expected contributions are here and this learner is the first contributor; or the time
        is up, by a turn for each before it."""
        run, now, gathered = self.host.config.run, self.host.now(), self.exchange.gathered()
        others = self.other_learners.ready()
        me, version = self.host.ports.me, self.learner.version
        incarnations = {peer: self.other_learners.incarnation(peer) for peer in (me, *others)}
        turn = site_lists.turn(gathered, incarnations, me)
        beats = ((peer, self.host.roster.beat(peer)) for peer in others)
        # A learner one version behind is about to get the release.
        expected = [
            peer for peer, beat in beats if beat is not None and version - 1 <= beat.version <= version
        ]
        if turn == 0 and gathered.complete(expected):
            return True
        late = since + self._patience() + turn * run.release.timeout
        return now >= late and not gathered.awaited(now)

    def _patience(self) -> float:
        """Seconds in which the others name their contributions: each does when its gradient is done."""
        learned = self._trained.seconds.get("learn", 0.0) / max(1, self._trained.steps)
        return self.host.config.run.averaging.deadline or max(LEAST_PATIENCE, 2 * learned)

    async def step(self) -> Cause:
        """Take the outer step of the list that I have."""
        assert self._taken is not None
        if not await self._outer_step(self._taken):
            return Cause.ROUND_BROKE
        await self._save_in_turn()
        return Cause.STEPPED

    async def _outer_step(self, taken: Taken) -> bool:
        """False when the list is of no use; nothing has changed then."""
        await self.trained.placed()  # by the version that I step from: the next one is no policy to ask about
        host, start, mine = self.host, self.host.now(), self.exchange.mine(taken)
        version, trained = self.learner.version, self._trained
        await self.trained.stepped(taken.members, trained.batches if mine else (), taken.marks)
        await self.checkpoints.written()
        with host.status.computing(host.now):
            try:
                metrics = await host.ports.work.run(Kind.STEP, self.learner.outer_step, taken.counted, mine)
            except ValueError as error:
                self.exchange.refuse(str(error))
                return False
        self.exchange.used(taken)
        made_of = Progress(
            parent=self.own_release.weights, learners=len(taken.members), groups=taken.groups, stepped=True
        )
        scaled = {peer: float(f"{share:.3g}") for peer, share in sorted(taken.scaled.items())}
        host.emit(
            events.Averaged,
            version=version,
            members=tuple(sorted(taken.members)),
            seconds=round(trained.seconds.get("average", 0.0), 3),
            scaled=scaled,
        )
        self._report.seconds = trained.seconds if mine else {}
        self._report.trained(
            trained.groups if mine else 0,
            trained.metrics() | metrics if mine else metrics,
            version + 1,
            len(taken.members),
            host.now() - start + (trained.seconds.get("step", 0.0) if mine else 0.0),
        )
        self._begin_version(mine)
        snapshot = await host.ports.work.run(Kind.COPY, self.learner.snapshot)
        if host.ports.me in taken.members:
            self.own_release.begin(snapshot, made_of, taken.members)
        else:
            self.own_release.begin(snapshot, made_of)
            await self.own_release.packed()
            self.own_release.wait_turns(len(taken.members))
        return True

    def _begin_version(self, mine: bool) -> None:
        """What I trained is in the version, or goes on from it."""
        if mine:
            self._trained = LocalSteps()
        self._trained.contributed, self._taken = False, None

    # --- behind ---------------------------------------------------------------------------------------------

    async def fetch(self) -> Cause:
        """Take the outer step that the others took, where its list is known; otherwise the release."""
        if (taken := await self._missed()) is not None and await self._outer_step(taken):
            self._give_back_batch()
            await self.own_release.packed()
            self.host.beat_now()
            return Cause.LOADED
        cause = await super().fetch()
        if cause is Cause.LOADED:
            # groups that an unknown list may contain are not sent again
            self._begin_version(mine=self._trained.contributed)
            if self._trained.batches and not self.learner.has_steps:
                self._return_groups()  # memory ended in the middle of the step after them
        return cause

    async def _missed(self) -> Taken | None:
        """The list of my version, where the release that is ahead can have been made of it."""
        host, run, version = self.host, self.host.config.run, self.learner.version
        start = host.steady()
        while not host.stop.is_set():
            release = self.own_release.next.awaited((version + 1,))
            if release is None or (
                release.version == version + 1 and release.parent != self.own_release.weights
            ):
                return None
            if (taken := await self.exchange.take()) is not None:
                return taken
            waits = GOSSIP_SECONDS if self.exchange.undecided else self._patience()
            if host.steady() - start >= waits:
                return None
            await host.changed(min(waits, run.pace.beat))
        return None
