"""Groups that wait for their replay, and the samplers that wait with them.

    append(drawn) -> full? one is dropped                take(loaded) -> the next one
    QueuesInTurn: one queue for each learner whose groups an auditor replays
    unproven: samplers with a drawn group and no honest one yet, until no other group of them waits here

Groups of unproven samplers are in no batch (swarm.core.intake.batcher), so theirs come first: a key that is
given up after its first groups has trained nothing. Those of suspects come next. Each second replay is of an
accused group where one waits, since an accused sampler may be trained meanwhile and the supply of new keys is
endless. When the queue is full the oldest group of a sampler with another one here is dropped, so that a busy
sampler displaces neither another's only group nor an accused one; where there is none, the oldest of all,
whose sampler stays unproven, so that flooding an auditor gets nothing past it. A sampler whose groups cannot
be replayed was never unproven. Not handled here: which groups are drawn, and the verdict of a replay
(peers.audits.auditor).
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from peers.audits.shown_groups import AccusedGroup
from swarm.storage.weights import Weights
from swarm.types import Digest, Group, PeerId

WAITING = 64
"""Groups that wait for their replay."""

UNPROVEN = 4096
"""Samplers that are unproven at a time; beyond, the first of them are no longer."""


@dataclass(frozen=True)
class QueuedReplay:
    """A group that is to be replayed: I drew it, or another peer accuses its sampler."""

    group: Group
    frame: bytes
    """As its sampler signed it."""
    prompt: str
    weights: Weights
    shown: AccusedGroup | None = None
    """Set where it is accused."""


class ReplayQueue:
    def __init__(
        self, proven: Callable[[PeerId], bool], suspect: Callable[[PeerId], bool] = lambda sampler: False
    ) -> None:
        """`proven(sampler)`: its last replays were honest; `suspect(sampler)`: its claims are unlikely, or
        its groups are not used before one is replayed."""
        self._proven, self._suspect = proven, suspect
        self._waiting = deque[QueuedReplay]()
        self.unproven = dict[PeerId, None]()
        self._accused_next = True

    def __len__(self) -> int:
        return len(self._waiting)

    def append(self, drawn: QueuedReplay) -> QueuedReplay | None:
        """Returns the group that is let go for it."""
        self._waiting.append(drawn)
        if drawn.shown is None and not self._proven(drawn.group.sampler):
            self.unproven[drawn.group.sampler] = None
            if len(self.unproven) > UNPROVEN:
                del self.unproven[next(iter(self.unproven))]
        return self._let_go() if len(self._waiting) > WAITING else None

    def _let_go(self) -> QueuedReplay:
        drawn = [one for one in self._waiting if one.shown is None]
        gone = _oldest_of_many(drawn) or _oldest_of_many(self._waiting) or self._waiting[0]
        self._waiting.remove(gone)
        return gone

    def take(self, loaded: Digest | None) -> QueuedReplay:
        """The oldest group: an accused one, if there is one and the last was none; of an unproven sampler, if
        there is one; of a suspect, if there is one; of the weights that are loaded, if there is one."""
        drawn = min(
            self._waiting,
            key=lambda one: (
                not (self._accused_next and one.shown is not None),
                one.group.sampler not in self.unproven,
                not self._suspect(one.group.sampler),
                one.group.weights != loaded,
            ),
        )
        self._waiting.remove(drawn)
        self._accused_next = drawn.shown is None
        return drawn

    def settle(self, sampler: PeerId) -> None:
        """A group of it was taken, and replayed if that could be."""
        if self._proven(sampler) or not self.waits(sampler):
            self.unproven.pop(sampler, None)

    def samplers(self) -> set[PeerId]:
        """Samplers of waiting groups that this peer drew."""
        return {one.group.sampler for one in self._waiting if one.shown is None}

    def waits(self, sampler: PeerId) -> bool:
        """Whether a group that I drew of it waits."""
        return any(map(self._is_drawn(sampler), self._waiting))

    def drop(self, sampler: PeerId) -> None:
        """Drop its groups, except those that other peers accuse."""
        gone = self._is_drawn(sampler)
        self._waiting = deque(one for one in self._waiting if not gone(one))

    @staticmethod
    def _is_drawn(sampler: PeerId) -> Callable[[QueuedReplay], bool]:
        return lambda one: one.shown is None and one.group.sampler == sampler


def _oldest_of_many(waiting: Collection[QueuedReplay]) -> QueuedReplay | None:
    """The oldest group of a sampler that has another one among these."""
    many = Counter(one.group.sampler for one in waiting)
    return next((one for one in waiting if many[one.group.sampler] > 1), None)


class QueuesInTurn:
    """An auditor's queues: one for each learner; they take turns, so that each waits for at most one group of
    every other learner."""

    def __init__(self, proven: Callable[[PeerId], bool]) -> None:
        """As ReplayQueue."""
        self._proven = proven
        self._queues: OrderedDict[PeerId, ReplayQueue] = OrderedDict()
        """By learner with a waiting group, in the order of their turns."""

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def waiting(self, learner: PeerId) -> int:
        """How many groups of this learner wait."""
        return len(self._queues.get(learner, ()))

    def append(self, learner: PeerId, drawn: QueuedReplay) -> None:
        self._queues.setdefault(learner, ReplayQueue(self._proven)).append(drawn)

    def take(self, loaded: Digest | None) -> QueuedReplay:
        """The next group, of the learner whose turn it is."""
        learner, queue = self._queues.popitem(last=False)
        drawn = queue.take(loaded)
        if queue:
            self._queues[learner] = queue
        return drawn

    def settle(self, sampler: PeerId) -> None:
        """As ReplayQueue."""
        for queue in self._queues.values():
            queue.settle(sampler)

    def drop(self, sampler: PeerId) -> None:
        """As ReplayQueue."""
        for queue in self._queues.values():
            queue.drop(sampler)
        self._queues = OrderedDict((learner, queue) for learner, queue in self._queues.items() if queue)
