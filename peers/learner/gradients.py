"""Computes a batch's gradient on the work port and steps along it, and reports the memory that it took.

A batch that does not fit is dropped; another one may be smaller. Not handled here: the gradient itself
(swarm.learn), its use (peers.learner.learner).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from statistics import fmean
from typing import TYPE_CHECKING

from peers.errors import CannotHere
from peers.intake.inbox import LearnerInbox
from peers.runtime.faults import FaultReports
from peers.runtime.host import Host
from peers.runtime.watching.long_work import StageCounts
from swarm import events
from swarm.core.agreement.rounds import Cause
from swarm.core.intake.batcher import Waiting
from swarm.learn.learners.base_learner import BaseLearner, Gradient
from swarm.learn.learners.microbatch import OutOfMemory
from swarm.protocol import Kind, Part, WorkStage
from swarm.types import BatchRewards

if TYPE_CHECKING:
    from torch import Tensor


MOST = 16
"""Gradients in a row that are not finite, after which a learner ends."""


class Gradients:
    def __init__(self, host: Host, learner: BaseLearner, inbox: LearnerInbox, faults: FaultReports) -> None:
        self._host, self._learner, self._inbox, self._faults = host, learner, inbox, faults
        self._not_finite = 0
        """Gradients in a row."""

    async def compute(self, batch: Sequence[Waiting], others: Iterable[BatchRewards] = ()) -> Gradient | None:
        """The gradient of a batch in whose round `others` close theirs. None where it does not fit in memory:
        the batch is dropped."""
        host, groups = self._host, [item.group for item in batch]
        scored = [self._inbox.task_and_rewards(group) for group in groups]
        prompts, rewards = [one.task.prompt for one in scored], [one.rewards for one in scored]
        before, start = self._memory_use(), host.now()
        self._learner.passed, reward = 0, fmean(chain.from_iterable(rewards))
        try:
            with (
                host.status.computing(host.now),
                host.status.work.within(
                    WorkStage.GRADIENT,
                    host.now,
                    lambda: StageCounts(self._learner.passed, self._learner.to_pass, reward),
                ),
            ):
                gradient = await host.ports.work.run(
                    Kind.LEARN, self._learner.gradient, groups, prompts, rewards, host.now(), tuple(others)
                )
        except OutOfMemory as error:
            self._out_of_memory(batch, error)
            return None
        if len(groups) >= self._inbox.share():
            # one that closed early costs more a group, and would make the next one smaller yet
            host.status.learnt(len(groups), host.now() - start)
        if before != (now := self._memory_use()):
            host.emit(events.Noted, level="info", text=f"memory of this learner: {now}; before, {before}")
        return gradient

    async def step(
        self, step: Callable[[Tensor], dict[str, float]], gradient: Gradient, batch: Sequence[Waiting]
    ) -> dict[str, float] | Cause:
        """Take a step of the learner along a batch's gradient -> its metrics, or why there was none: then the
        batch is dropped."""
        host = self._host
        with host.status.computing(host.now):
            try:
                metrics = await host.ports.work.run(Kind.STEP, step, gradient.vector)
                self._not_finite = 0
                return metrics
            except ValueError as error:
                self.refused(batch, str(error))
                return Cause.ROUND_BROKE
            except OutOfMemory as error:
                self._out_of_memory(batch, error)
                return Cause.OUT_OF_MEMORY

    def refused(self, batch: Sequence[Waiting], why: str) -> None:
        """Drop a batch whose gradient is not averaged, or not stepped along. Raises CannotHere for the last
        of MOST gradients in a row that are not finite: no other batch mends the weights."""
        self._host.emit(events.RoundBroke, version=self._learner.version, reason=why)
        self._inbox.drop(batch, "refused")
        self._not_finite = self._not_finite + 1 if why.startswith(events.NOT_FINITE) else 0
        if self._not_finite >= MOST:
            raise CannotHere(
                f"{MOST} batches in a row have no gradient at version {self._learner.version}: {why}; begin"
                " again from a version before it"
            )

    def _out_of_memory(self, batch: Sequence[Waiting], error: OutOfMemory) -> None:
        """Drop a batch. A policy that was lost with it is fetched again."""
        self._faults.failed(Part.MEMORY, f"a batch of {len(batch)} groups is dropped: {error}")
        self._inbox.drop(batch, "out of memory")

    def _memory_use(self) -> str:
        """The size of a microbatch and of its activations in memory, as text."""
        statistics = self._learner.statistics()
        kept = "activations recomputed" if statistics.get("recomputed") else "activations kept"
        copies = (
            f", each completion with a copy of its prompt: {why}" if (why := self._learner.padded) else ""
        )
        tokens = statistics.get("tokens", math.inf)
        of = f" of {tokens:,.0f} tokens" if tokens < math.inf else ""
        return f"at most {statistics.get('micro', 0):g} groups{of} at a time, {kept}{copies}"
