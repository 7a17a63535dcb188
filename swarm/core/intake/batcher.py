"""The batcher: packs admitted groups into batches, those of the oldest policy first.

These outgrow the window first, and arrive late where their completions are long: in the order of arrival long
completions would expire behind short ones, and training would drift to short ones.

A batch closes when it has the learner's share of the run's batch, or `close_after` seconds after its first
group came. Groups that outgrew the window while they waited leave with the batch that would have held them
and are never trained on.

A batch first takes at most `run.batch.share` from each sampler, then any waiting group; a sampler that its
quota binds (swarm.core.intake.quotas) gets no more than its share. The room for waiting groups is twice the
buffer, and one sampler may use at most twice the part that is still free: one that sends without end fills
two thirds, two fill two fifths each, and there is room for another (Choudhury and Hahne, Dynamic queue length
thresholds for shared-memory packet switches, 1998: alpha = 2). Groups of samplers that are `unproven` take up
room and are in no batch.
"""

from __future__ import annotations

import math
import sys
from bisect import insort_left, insort_right
from collections import Counter
from collections.abc import Callable, Collection
from typing import NamedTuple

from swarm.core.intake.admission import staleness
from swarm.core.intake.quotas import ROUNDING, Quota, Quotas
from swarm.settings.config import BatchSize, Window
from swarm.types import Group, PeerId

ALPHA = 2
"""Groups that one sampler may have waiting for each free place. With 1 a single sampler has no room beyond
its credit."""


FLAT_AT_MOST = 4
"""Flat groups for each place of a batch that make room for others (`run.batch.refill`): where everything is
flat, batches close at a fifth of the pace, and the run goes on."""


UNREPLAYED = PeerId("")
"""All strangers whose groups cannot be replayed here: keys cost nothing, so they have one sampler's share."""


class Waiting(NamedTuple):
    """An admitted group that waits for its batch."""

    group: Group
    admitted: float
    """Unix seconds."""
    payer: PeerId = UNREPLAYED
    """Whose share it counts in: its sampler's, or that of UNREPLAYED. Set by the batcher."""


def deadline(item: Waiting) -> tuple[int, float]:
    """Sort key: a group that outgrows the window earlier comes first, in versions as in seconds. Groups of
    one policy stay in the order of their arrival."""
    return item.group.version, item.group.times.released


class ClosedBatch(NamedTuple):
    """A batch, and the groups that expired before it closed."""

    groups: list[Waiting]
    """Groups to train on, by their deadline."""
    expired: list[Waiting]
    """Groups that outgrew the window while they waited: dropped, never trained on."""


class Room(NamedTuple):
    """How many more groups of one sampler are accepted, and the reason when none is."""

    groups: int
    why: str


NO_LIMIT = Room(sys.maxsize, "")


class BatchLimits(NamedTuple):
    """How the next batch is filled from the groups that wait."""

    size: int
    """Groups that the batch would have."""
    within_shares: int
    """Those of them that are within their samplers' shares."""
    share: int
    """Groups of one sampler in its share; it has more only where others leave places."""
    bound: dict[PeerId, int]
    """Most groups of each sampler that waits; below the batch's size where a quota binds it."""
    newcomers: int
    """Most groups of all newcomers together."""
    binding: bool
    """A quota binds a sampler whose groups wait."""


class Batcher:
    """The admitted groups of one learner that wait for a batch. Times are in unix seconds."""

    def __init__(
        self,
        size: BatchSize,
        window: Window,
        *,
        is_unproven: Callable[[PeerId], bool] = lambda sampler: False,
        is_replayable: Callable[[Group], bool] = lambda group: True,
    ) -> None:
        """`is_unproven`: whether a group of a sampler is to be replayed before one is trained on
        (peers.audits.auditor); `is_replayable`: whether a group could be replayed here."""
        self._size, self._window = size, window
        self._is_unproven, self._is_replayable = is_unproven, is_replayable
        self._waiting: list[Waiting] = []
        """By their deadline."""
        self._counts: Counter[PeerId] = Counter()
        """Groups that wait, by payer."""
        self._taken = -math.inf
        """Time of the last batch."""
        self._last: tuple[Quota, dict[PeerId, int], BatchLimits] | None = None
        """The last result of `_limits`: a learner asks whether a batch closes, and again how long to wait."""
        self._left_out = 0
        """Flat groups that made room since the last batch."""
        self.quotas = Quotas(size)
        self.scoring: Counter[PeerId] = Counter()
        """Groups that are admitted and being scored, by payer: they count in the room as those that wait."""

    def __len__(self) -> int:
        return len(self._waiting)

    def payer(self, group: Group) -> PeerId:
        """The sampler whose share a group counts in: a member has its own, whatever it sends."""
        own = self.quotas.vouched(group.sampler) or self._is_replayable(group)
        return group.sampler if own else UNREPLAYED

    def add(self, group: Group, now: float) -> None:
        """Take an admitted group whose rewards are known; `now` in unix seconds."""
        payer = self.payer(group)
        insort_right(self._waiting, Waiting(group, now, payer), key=deadline)
        self._counts[payer] += 1
        self.quotas.admitted(payer, now)

    def leaves_out(self, learners: float) -> bool:
        """Whether an admitted group without signal makes room for another, instead of a place in a batch."""
        if self._size.refill == "off" or self._left_out >= FLAT_AT_MOST * self.share(learners):
            return False
        self._left_out += 1
        return True

    def share(self, learners: float) -> int:
        """Groups in this learner's batch when `learners` of its speed share the run's batch."""
        return math.ceil(self._size.groups / max(1.0, learners) - ROUNDING)

    def credit(self, learners: float) -> int:
        """Groups to request from samplers: the room in the buffer."""
        return max(0, self._buffer(learners) - self._held())

    def room(self, sampler: PeerId, learners: float, now: float) -> Room:
        """How many more groups of a payer are taken, and the reason when none is. The limit is above the
        buffer, since several samplers may spend one credit at once, and the heartbeat that announced it may
        be older than the last receipt."""
        quota, buffer = self.quotas.at(self.share(learners), now), self._buffer(learners)
        free, mine = 2 * buffer - self._held(), self._counts[sampler] + self.scoring[sampler]
        part = math.ceil((ALPHA * free - mine) / (1 + ALPHA))
        rooms = [
            Room(free, "no room: ask for credit first"),
            Room(part, f"{mine} of your groups wait: the rest is for others, send more later"),
        ]
        if (limit := quota.bound(sampler)) is not None:
            left = math.ceil(buffer * limit.most / quota.groups) - mine
            why = (
                f"your share is limited to {self._size.share:.0%} of a batch while others deliver, because"
                " your invite is one for strangers"
            )
            rooms.append(Room(left, f"{why} (run.batch.share): send more later"))
        if self.quotas.newcomer(sampler, now) and quota.newcomers is not None:
            theirs = sum(
                count
                for counts in (self._counts, self.scoring)
                for peer, count in counts.items()
                if count and self.quotas.newcomer(peer, now)
            )
            left = math.ceil(buffer * quota.newcomers.most / quota.groups) - theirs
            why = (
                f"newcomers have together at most {self._size.newcomers:.0%} of a batch while others deliver"
            )
            rooms.append(Room(left, f"{why} (run.batch.newcomers): send more later"))
        return min(rooms)

    def takers(self, senders: Collection[PeerId], learners: float, now: float) -> int:
        """Number of samplers that share the credit; newcomers count as one where their quota binds."""
        new = sum(self.quotas.newcomer(sampler, now) for sampler in self.quotas.strangers(senders))
        # The quota costs a pass over all recent samplers, at each receipt.
        if not new or self.quotas.at(self.share(learners), now).newcomers is None:
            return len(senders)
        return len(senders) - new + 1

    def due(self, learners: float, now: float) -> float | None:
        """Seconds until the batch closes: 0 when it is full or its time has come, None while there is no
        group for it."""
        # called at every change of a host, most of the time without effect
        due = self._closes(learners, now) if self._waiting else None
        self.quotas.waits(due != 0.0, now)
        return due

    def _closes(self, learners: float, now: float) -> float | None:
        limits = self._limits(self.share(learners), now)
        if limits.size == 0:
            return None
        if limits.size == self.share(learners):
            return 0.0
        since = min(each.admitted for each in self._waiting if not self._is_unproven(each.payer))
        if limits.binding:
            # Groups that a quota left over are no reason to close the next batch early.
            since = max(since, self._taken)
        return max(0.0, since + self._size.close_after - now)

    def take(self, learners: float, version: int, now: float, fewer: int = 0) -> ClosedBatch:
        """Close a batch: of the groups that are inside the window at this version and time those that would
        leave it first, within their samplers' quotas, at most this learner's share, less `fewer`; a sampler
        gets more than `run.batch.share` of it only where others leave places."""
        expired = self._expire(version, now)
        limits = self._limits(self.share(learners) - fewer, now)
        batch, kept, counts, new = list[Waiting](), list[Waiting](), Counter[PeerId](), 0
        over = limits.size - limits.within_shares  # places for samplers beyond their share
        for item in self._waiting:
            sampler = item.payer
            newcomer, beyond = self.quotas.newcomer(sampler, now), counts[sampler] >= limits.share
            if (
                len(batch) >= limits.size
                or self._is_unproven(sampler)
                or counts[sampler] >= limits.bound[sampler]
                or (newcomer and new >= limits.newcomers)
                or (beyond and over <= 0)
            ):
                kept.append(item)
                continue
            batch.append(item)
            counts[sampler] += 1
            new += newcomer
            over -= beyond
        self._waiting = kept
        self._counts, self.scoring, self._taken = self._counts - counts, +self.scoring, now
        self._left_out = 0
        self.quotas.taken(self.share(learners), counts, now)
        return ClosedBatch(batch, expired)

    def give_back(self, groups: list[Waiting]) -> None:
        """Return groups that were taken but not trained on (their round was overtaken): of their policy's
        they come first again."""
        for item in reversed(groups):
            item = item._replace(payer=self.payer(item.group))
            insort_left(self._waiting, item, key=deadline)
            self._counts[item.payer] += 1

    def groups(self) -> list[Group]:
        """Those that wait, by their deadline."""
        return [item.group for item in self._waiting]

    def remove(self, gone: Callable[[Group], bool]) -> list[Waiting]:
        """Remove and return the groups that are `gone`."""
        found = [item for item in self._waiting if gone(item.group)]
        if found:
            ids = {item.group.id for item in found}
            self._waiting = [item for item in self._waiting if item.group.id not in ids]
            self._counts.subtract(item.payer for item in found)
        return found

    def _expire(self, version: int, now: float) -> list[Waiting]:
        """Remove and return what outgrew the window."""
        return self.remove(lambda group: staleness(group, self._window, version, now) is not None)

    def _limits(self, groups: int, now: float) -> BatchLimits:
        """Limits of a batch of at most `groups`; cached for one quota and the groups that wait."""
        counts = {each: count for each, count in self._counts.items() if not self._is_unproven(each)}
        quota = self.quotas.at(groups, now)
        if self._last is None or self._last[0] is not quota or self._last[1] != counts:
            self._last = quota, counts, self._limits_of(quota, counts)
        return self._last[2]

    def _limits_of(self, quota: Quota, counts: dict[PeerId, int]) -> BatchLimits:
        """Groups of others let a bound sampler have more, so this iterates until nothing changes."""
        groups, now, strangers = quota.groups, quota.now, self.quotas.strangers(counts)
        bound = {sampler: limit for sampler in strangers if (limit := quota.bound(sampler)) is not None}
        fresh = {sampler for sampler in strangers if self.quotas.newcomer(sampler, now)}
        together = quota.newcomers if fresh else None
        most, newcomers, there = dict.fromkeys(counts, groups) | dict.fromkeys(bound, 0), 0, -1
        while True:
            within = {sampler: min(counts[sampler], limit) for sampler, limit in most.items()}
            of_fresh = sum(within[sampler] for sampler in fresh)
            of_known = sum(within.values()) - of_fresh
            newcomers = groups if together is None else together.beside(min(of_known, groups))
            before, there = there, min(groups, of_known + min(of_fresh, newcomers))
            if there == before or not bound:
                break
            most |= {
                sampler: limit.beside(there - min(within[sampler], there)) for sampler, limit in bound.items()
            }
        one = min(quota.one, groups)
        shares = {sampler: min(count, one) for sampler, count in within.items()}
        first = sum(count for sampler, count in shares.items() if sampler not in fresh)
        first += min(sum(shares[sampler] for sampler in fresh), newcomers)
        return BatchLimits(
            there, min(first, there), one, most, newcomers, bool(bound) or together is not None
        )

    def _held(self) -> int:
        return len(self._waiting) + self.scoring.total()

    def _buffer(self, learners: float) -> int:
        return math.ceil(self._size.buffer * self.share(learners))
