"""Quotas: the share of the batches that one sampler, and all newcomers together, may have.

A sampler without an invite has at most `run.batch.share` of the training data, and such samplers that are new
have together at most `run.batch.newcomers`: keys cost nothing, and many keys of one person count as one
newcomer. Both limits bind only while others deliver, so that no batch waits for groups that do not come:

    one sampler   binds while the others, each within its own limit, deliver the rest of a batch,
                  (1 - share) of it; and of those that are too few to fill a batch by their shares
                  alone (three, with a share of a quarter) not the last
    newcomers     bind while the samplers that are known deliver (1 - newcomers) of a batch

A sampler's deliveries are the decayed count of its admitted groups: each counts 1 and decays with a time
constant of HORIZON x `close_after`; after as long without a group it is 0, and so it is when the sampler has
stopped (GAPS, PAUSES), and at once when it is suspended. With a share of a quarter, three other samplers are
needed to bind one: up to three strangers of any speed are never bound. Of more, only those that deliver more
than the third of all strangers are: were the three fastest bound, a fourth that sends a group a minute would
have to deliver the last quarter of each batch, and the run would go at its pace. A sampler with an invite is
known from its first group and has no limit: the run's owner vouches for it.

A bound sampler may have share / (1 - share) groups for each group of others in the batches, also in a batch
that closes before it is full. An unused share is saved, up to its share of a full batch, since groups arrive
in bursts.

Not handled here: the order in which a batch takes groups, and the room in the buffer
(swarm.core.intake.batcher); many keys that each became known by an hour of work.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from heapq import nlargest

from swarm.limits import remember
from swarm.settings.config import BatchSize
from swarm.types import PeerId

GAPS, PAUSES = 6.0, 2.0
"""In mean gaps between a sampler's groups, and in `close_after`: a sampler that is silent for longer than
both, while the learner waits for groups, has stopped. By chance one of 400 gaps is 6 times the mean."""

HORIZON = 12.0
"""Times `close_after`, a minute by default: where samplers are slow, batches close by time, and many of them
make up a full one."""

ROUNDING = 1e-9
"""Groups: a sum of fractions this close below a whole number counts as that number."""

KNOWN, KNOWN_AFTER = 128, 3600.0
"""Admitted groups, and seconds since the first of them, after which a sampler is no newcomer: a flood of keys
is seen by then."""

REMEMBERED = 1024
"""Samplers whose deliveries are remembered; beyond, those that delivered longest ago are newcomers again."""


@dataclass(slots=True)
class Delivered:
    """The deliveries of one sampler."""

    first: float
    """When its first group was admitted."""
    admitted: int = 0
    recent: float = 0.0
    """Decayed count of admitted groups at the time `at`."""
    at: float = 0.0
    saved: float = math.inf
    """Unused groups of its share."""
    waited: float = 0.0
    """Seconds that the learner had waited for groups at the time `at`."""


@dataclass(frozen=True, slots=True)
class QuotaLimit:
    """The limit of one sampler, or of all newcomers together, in one batch."""

    most: int
    saved: float
    each: float
    """Groups allowed for each group of others in the batch."""

    def beside(self, others: int) -> int:
        """Groups allowed in a batch with `others` groups of others."""
        return min(self.most, math.floor(self.saved + self.each * others + ROUNDING))


class Quota:
    """The limits at one moment, in batches of `groups`; computed on demand, since there are none where all
    samplers have invites."""

    def __init__(self, quotas: Quotas, groups: int, now: float) -> None:
        self._quotas, self.now, self.groups = quotas, now, groups
        self.one, self._few = math.ceil(quotas.share * groups), math.ceil(quotas.newcomers * groups)

    def bound(self, sampler: PeerId) -> QuotaLimit | None:
        """The limit of one sampler; None: no limit."""
        quotas = self._quotas
        if self.one == self.groups or quotas.vouched(sampler):
            return None
        if self._everybody - self._within.get(sampler, 0.0) < (1.0 - quotas.share) * self.groups:
            return None
        if self._recent.get(sampler, 0.0) <= self._third:
            return None
        return QuotaLimit(self.one, min(quotas.saved(sampler), self.one), _each(quotas.share))

    @cached_property
    def newcomers(self) -> QuotaLimit | None:
        """The limit of all newcomers together; None: no limit."""
        quotas = self._quotas
        if self._few == self.groups:
            return None
        known = sum(count for sampler, count in self._recent.items() if sampler not in self._fresh)
        if known < (1.0 - quotas.newcomers) * self.groups:
            return None
        return QuotaLimit(self._few, min(quotas.unused, self._few), _each(quotas.newcomers))

    @cached_property
    def _recent(self) -> dict[PeerId, float]:
        """Groups that each sampler delivers."""
        return self._quotas.recent(self.now)

    @cached_property
    def _fresh(self) -> set[PeerId]:
        return {sampler for sampler in self._recent if self._quotas.newcomer(sampler, self.now)}

    @cached_property
    def _third(self) -> float:
        """Groups that the last of the fastest strangers delivers, as many of them as cannot fill a batch by
        their shares alone; below 0 where fewer deliver."""
        few = max(2, math.ceil(1.0 / self._quotas.share) - 1)
        strangers = self._quotas.strangers(self._recent)
        fastest = nlargest(few, (self._recent[sampler] for sampler in strangers))
        return fastest[-1] if len(fastest) == few else -1.0

    @cached_property
    def _within(self) -> dict[PeerId, float]:
        """Groups that each sampler delivers within its own limit."""
        vouched = self._quotas.vouched
        return {
            sampler: count if vouched(sampler) else min(count, self.one)
            for sampler, count in self._recent.items()
        }

    @cached_property
    def _everybody(self) -> float:
        """Groups that all samplers deliver within all limits."""
        fresh = sum(self._within[sampler] for sampler in self._fresh)
        return (
            sum(self._within.values()) - fresh + (fresh if self.newcomers is None else min(fresh, self._few))
        )


class Quotas:
    """The deliveries of all samplers, and the limits that follow from them."""

    def __init__(self, size: BatchSize) -> None:
        self.share, self.newcomers = size.share, size.newcomers
        self.unused = math.inf
        """Unused groups of the newcomers' share."""
        self._fade, self._pause = HORIZON * size.close_after, PAUSES * size.close_after
        self._waited, self._waits_since = 0.0, math.inf
        """Seconds for which the learner waited for groups, and since when it does."""
        self._records: OrderedDict[PeerId, Delivered] = OrderedDict()
        self._invited: OrderedDict[PeerId, None] = OrderedDict()
        self._last: Quota | None = None
        """The last result of `at`; None once something has changed."""

    def at(self, groups: int, now: float) -> Quota:
        """The limits now, in batches of `groups`; cached for the same `now`."""
        if self._last is None or self._last.groups != groups or self._last.now != now:
            self._last = Quota(self, groups, now)
        return self._last

    def invited(self, sampler: PeerId) -> None:
        """Record that the run's owner vouches for the sampler."""
        if sampler not in self._invited:
            self._last = None
        remember(self._invited, sampler, None, REMEMBERED)

    def admitted(self, sampler: PeerId, now: float) -> None:
        """Record one admitted group of the sampler."""
        record = self._records.get(sampler) or Delivered(now)
        record.recent, record.at = self._faded(record, now) + 1.0, now
        record.waited = self._waited
        record.admitted += 1
        remember(self._records, sampler, record, REMEMBERED)
        self._last = None

    def waits(self, waits: bool, now: float) -> None:
        """The learner looks for a batch: does it wait for groups?"""
        self._waited += max(0.0, now - self._waits_since)
        self._waits_since = now if waits else math.inf

    def forget(self, sampler: PeerId) -> None:
        """Whatever it delivered, it delivers nothing more."""
        self._records.pop(sampler, None)
        self._last = None

    def newcomer(self, sampler: PeerId, now: float) -> bool:
        """Whether a sampler without an invite is still new (KNOWN, KNOWN_AFTER)."""
        if sampler in self._invited:
            return False
        record = self._records.get(sampler)
        return record is None or record.admitted < KNOWN or now - record.first < KNOWN_AFTER

    def strangers(self, samplers: Iterable[PeerId]) -> list[PeerId]:
        """Samplers without a membership: quotas apply to them alone."""
        return [sampler for sampler in samplers if sampler not in self._invited]

    def vouched(self, sampler: PeerId) -> bool:
        """Whether the run's owner vouches for the sampler: it has an invite."""
        return sampler in self._invited

    def recent(self, now: float) -> dict[PeerId, float]:
        """Decayed count of admitted groups by sampler, without samplers whose count is 0."""
        fade = self._fade
        return {
            sampler: self._faded(record, now)
            for sampler, record in self._records.items()
            if now - record.at < fade and not self._has_stopped(record)
        }

    def _has_stopped(self, record: Delivered) -> bool:
        silent = self._waited - record.waited
        return silent > self._pause and silent > GAPS * (self._fade / max(1.0, record.recent))

    def saved(self, sampler: PeerId) -> float:
        """Unused groups of the sampler's share."""
        record = self._records.get(sampler)
        return record.saved if record is not None else math.inf

    def taken(self, groups: int, batch: Counter[PeerId], now: float) -> None:
        """Record that a batch was made of these groups by sampler; a full one has `groups`."""
        one, few = math.ceil(self.share * groups), math.ceil(self.newcomers * groups)
        whole, fresh = (
            batch.total(),
            sum(count for sampler, count in batch.items() if self.newcomer(sampler, now)),
        )
        self.unused = _rest(self.unused, few, _each(self.newcomers) * (whole - fresh) - fresh)
        for sampler, record in self._records.items():
            own = batch[sampler]
            record.saved = _rest(record.saved, one, _each(self.share) * (whole - own) - own)
        self._last = None

    def _faded(self, record: Delivered, now: float) -> float:
        passed = max(0.0, now - record.at)
        return record.recent * math.exp(-passed / self._fade) if passed < self._fade else 0.0


def _each(share: float) -> float:
    """Groups for each group of others that make `share` of the whole; 0 for a share of 1, which binds no
    sampler."""
    return share / (1.0 - share) if share < 1.0 else 0.0


def _rest(saved: float, most: int, more: float) -> float:
    return max(0.0, min(min(saved, most) + more, most))
