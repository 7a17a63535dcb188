"""How far a peer is in a long stage of work, and when that ends at its pace.

    role --within(stage, counted)--> LongWork --progress(now)--> StageProgress -> heartbeat, status line

The work is not slowed down: it counts, and only a heartbeat or the status line asks how far it is. Stages
may be nested or overlap; the one that began last is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from swarm.protocol import WorkStage
from swarm.types import StageProgress

LONG = 4.0
"""Seconds from which a stage counts as long: a shorter one is over before its progress can be read."""


class StageCounts(NamedTuple):
    done: int
    total: int
    reward: float | None = None
    """See swarm.types.StageProgress."""


@dataclass(eq=False)
class _Begun:
    stage: WorkStage
    at: float
    before: int
    """Done when the stage began: groups that were left over from the last batch."""
    counted: Callable[[], StageCounts]


class LongWork:
    """One peer's."""

    def __init__(self) -> None:
        self._begun: list[_Begun] = []
        self._pace: dict[WorkStage, float] = {}
        """Seconds that one of what is counted took, in the last stage of its kind."""

    @contextmanager
    def within(
        self,
        stage: WorkStage,
        now: Callable[[], float],
        counted: Callable[[], StageCounts],
        before: int = 0,
    ) -> Iterator[None]:
        """The body does such a stage, of which `before` were done when it began; `counted` is called at any
        time meanwhile, and once after it."""
        self._begun.append(begun := _Begun(stage, now(), before, counted))
        try:
            yield
        finally:
            self._begun.remove(begun)
            counts = counted()
            if counts.done >= counts.total:
                self._measure(begun, counts.done, now())

    def progress(self, now: float) -> StageProgress | None:
        """Of the stage that began last; None where it is not long, or there is none."""
        if not self._begun or now - (begun := self._begun[-1]).at < LONG:
            return None
        done, total, reward = begun.counted()
        self._measure(begun, done, now)
        per, elapsed = self._pace.get(begun.stage), now - begun.at
        left = per * (total - begun.before) - elapsed if per is not None else 0.0
        return StageProgress(
            stage=begun.stage,
            done=done,
            total=total,
            # a stage that takes longer than the last one may end at any time
            left=round(left, 1) if left > 0 else -1.0,
            reward=None if reward is None else round(reward, 4),
        )

    def _measure(self, begun: _Begun, done: int, now: float) -> None:
        if done > begun.before:
            self._pace[begun.stage] = (now - begun.at) / (done - begun.before)
