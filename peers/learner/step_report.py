"""Reports a learner's step in events: counts and lags of its groups, one group to read, metrics, seconds.

The round adds the seconds of each phase; `emit` sends them with the step's event.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from peers.intake.inbox import LearnerInbox
from peers.runtime.host import Host
from swarm import events
from swarm.core.intake.batcher import Waiting
from swarm.core.intake.claimed_logprobs import ClaimCheck
from swarm.learn.learners.base_learner import Gradient


class StepReport:
    def __init__(self, host: Host, inbox: LearnerInbox) -> None:
        self._host, self._inbox = host, inbox
        self.seconds: dict[str, float] = {}
        """Phase of the round (gather, learn, average) -> seconds."""

    def add(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def emit(
        self,
        batch: Sequence[Waiting],
        checks: Mapping[str, ClaimCheck],
        gradient: Gradient,
        metrics: Mapping[str, float],
        version: int,
        members: int,
        start: float,
    ) -> None:
        """Emit the events of the step to `version`, which began at `start`. `checks`: group id -> check."""
        # versions that were made while the gradient waited for its round
        lag = gradient.metrics["lag_versions"] + version - 1 - gradient.version
        gradient = replace(gradient, metrics={**self.of_all(gradient), "lag_versions": lag})
        self.count(batch, checks, gradient, version, start)
        self.trained(len(batch), {**gradient.metrics, **metrics}, version, members, self._host.now() - start)

    def of_all(self, gradient: Gradient) -> dict[str, float]:
        """Metrics of a step's gradient, in which the reward and the share of flat groups are of all groups
        that came since the last step: also of those that made room for others (`run.batch.refill`)."""
        left_out, self._inbox.left_out = self._inbox.left_out, []
        metrics, of = gradient.metrics, gradient.groups + len(left_out)
        if not left_out:
            return metrics
        reward, flat = (gradient.groups * metrics[name] for name in ("reward", "flat"))
        return metrics | {"reward": (reward + sum(left_out)) / of, "flat": (flat + len(left_out)) / of}

    def count(
        self,
        batch: Sequence[Waiting],
        checks: Mapping[str, ClaimCheck],
        gradient: Gradient,
        version: int,
        start: float,
    ) -> None:
        """Count the groups of a step, towards `version`, that began at `start`, and show one."""
        host, inbox = self._host, self._inbox
        for item in batch:
            age = start - item.group.times.released
            inbox.tally.trained(item.group, version - 1 - item.group.version, age)
            inbox.add_evidence(item.group.sampler, checks[item.group.id])
        inbox.show(batch[0].group, gradient.advantages, gradient.weights)
        host.status.finished(len(batch), sum(sum(item.group.lengths) for item in batch), host.now())
        host.status.lags(
            versions=gradient.metrics.get("lag_versions", 0.0),
            inbox=sum(start - item.admitted for item in batch) / len(batch),
        )

    def trained(
        self, groups: int, metrics: Mapping[str, float], version: int, members: int, step: float
    ) -> None:
        """Emit that `version` is complete; its last step took `step` seconds."""
        seconds = {name: round(self.seconds.get(name, 0.0), 4) for name in ("gather", "learn", "average")}
        self._host.emit(
            events.Trained,
            version=version,
            groups=groups,
            members=members,
            metrics={name: round(value, 6) for name, value in metrics.items() if math.isfinite(value)},
            step=round(step, 4),
            **seconds,
        )
