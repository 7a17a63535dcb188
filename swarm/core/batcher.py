"""The batcher: admitted groups in, closed batches out, oldest first.

A batch closes when it has the learner's share of the run's batch, or `close_after` seconds after its first group came. Groups
that outgrew the window while they waited leave with the batch that would have held them and are never trained on.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from swarm.config import BatchSize, Window
from swarm.core.admission import staleness
from swarm.types import Group


class Waiting(NamedTuple):
    group: Group
    admitted: float


class Batch(NamedTuple):
    groups: list[Waiting]
    expired: list[Waiting]


class Batcher:
    def __init__(self, size: BatchSize, window: Window) -> None:
        self._size, self._window = size, window
        self._waiting: deque[Waiting] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, group: Group, now: float) -> None:
        self._waiting.append(Waiting(group, now))

    def share(self, learners: int) -> int:
        """Groups in this learner's part of a batch that `learners` make together."""
        return math.ceil(self._size.groups / max(1, learners))

    def credit(self, learners: int) -> int:
        """Groups to ask for: what the buffer lacks."""
        return max(0, self._buffer(learners) - len(self._waiting))

    def room(self, learners: int) -> int:
        """Groups that are still taken: credit that several senders spend at once may overshoot the buffer, at most twofold."""
        return max(0, 2 * self._buffer(learners) - len(self._waiting))

    def _buffer(self, learners: int) -> int:
        return math.ceil(self._size.buffer * self.share(learners))

    def due(self, learners: int, now: float) -> float | None:
        """Seconds until the batch closes: 0 when it is full or its time has come, None while it is empty."""
        if not self._waiting:
            return None
        if len(self._waiting) >= self.share(learners):
            return 0.0
        return max(0.0, self._waiting[0].admitted + self._size.close_after - now)

    def take(self, learners: int, version: int, now: float) -> Batch:
        """The oldest groups, at most a share of them, that are inside the window at this version and time."""
        batch: list[Waiting] = []
        expired: list[Waiting] = []
        while self._waiting and len(batch) < self.share(learners):
            item = self._waiting.popleft()
            inside = staleness(item.group, self._window, version, now) is None
            (batch if inside else expired).append(item)
        return Batch(batch, expired)

    def give_back(self, groups: list[Waiting]) -> None:
        """Return groups that were taken but not trained on (their round was overtaken): they come first again."""
        self._waiting.extendleft(reversed(groups))
