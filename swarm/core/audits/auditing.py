"""Audits of samplers: whose groups are replayed, the finding of a replay, and the consequences.

    a group that was admitted --drawn by the auditor's own randomness--> replayed (swarm.learn.replay)
        --Audits--> Finding: honest, undecided, unlikely, off, forged
                    more audits, or its sampler is suspended (swarm.core.suspensions)

A token is off when the replay would have drawn another one by more than the tolerance, or gives it another
log-probability than the sampler claims. Two tokens of a group that are off are a forgery; one alone may be
bad luck, and after it all groups of its sampler are replayed until SURE were honest: if one of them has a
token that is off, too, it is a forgery. Deviations of no single token add up over a sampler's groups in
CUSUMs, which never fall below 0: another temperature, precision or version in the sum of margins; tokens that
the sampler chose within the tolerance in the sizes of those margins that are not 0. Rounding makes many small
ones, so the tolerance follows from the sampler's own precision: one that computes as the replay does has
none, and may have no large ones either. Beyond a limit the sampler is suspended, which is no strike. Groups
that decide nothing count for no sampler.

Rates follow a simulation of samplers that are honest until they are trusted: with SURE = 20 such a sampler
poisons at most 2.2 % of its groups; with the rule of BOINC, 10 and then one in the number of those that were
verified, it is 49 % (docs/trust.md). Where replays fall behind, fewer groups of a sampler are accepted
(`most_after`). Not handled here: replays, evidence.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from swarm.core.suspensions import HOUR, Suspension, Suspensions
from swarm.limits import remember
from swarm.types import PeerId

SURE = 20
"""Groups of a sampler that are all replayed; with n verified ones, SURE in n."""

FLOOR = 0.01
"""Smallest share of a sampler's groups that is replayed."""

AHEAD = 64
"""Groups of a sampler that are taken before as many replays as follow from its rate: two batches, since
replays wait for gradients."""

LAG = 2.0
"""Times as many groups as follow from its rate, beyond AHEAD: chance draws fewer now and then, and the last
replays wait for time."""

COUNT = 2
"""Tokens of one group that are off in a forgery."""

DECIDING = 8
"""Tokens of a group that must decide something: where the policy is certain of all others they say nothing
about its sampler."""

DRIFT_LIMIT = 4.0
"""Nats, summed over a sampler's groups."""

LARGE, FAR = 3.0, 8.0
"""In usual sizes of margins that are not 0 (swarm.draws.replays.Replayed.usual): the most for a sampler's own
on average, and for each. Rounding errors 1.7 times as large as the measured ones exceed neither."""

SIZES_LIMIT = 20.0
"""Usual sizes, summed over a sampler's groups. Of 1,600 honest ones whose sampler and learner round to
bfloat16 the sums were 5 at most, and 15 where the usual size was underestimated by a third."""

SELDOM = 1 / 2500
"""Usual sizes that are forgotten with each token."""

HARD, MEAN = 3.0, 0.02
"""Nats: bounds of tolerances."""

REMEMBERED = 4096
"""Samplers whose audits are remembered. Suspensions have room of their own: keys cost nothing."""


class Finding(StrEnum):
    """The result of a group's replay."""

    HONEST = "honest"
    UNDECIDED = "undecided"
    UNLIKELY = "unlikely"
    """One token is off."""
    DRIFTED = "drifted"
    """No token, but the sampler's groups together."""
    FORGED = "forged"


class Tolerance(NamedTuple):
    """How far honest replays are apart, for one kind of engine: measured, see docs/trust.md."""

    hard: float
    """Nats: a token whose margin is larger is off."""
    mean: float
    """Nats a token: mean margins below it add nothing to a sampler's drift."""
    claimed: float = 0.1
    """Nats: mean difference of claimed and replayed log-probabilities beyond which an engine computes
    something else."""


def tolerance(largest: float, mean: float, claimed: float) -> Tolerance:
    """Where honest replays have this largest and this mean margin, and this mean difference of
    log-probabilities, in nats. The bounds hold however large a text makes the differences: with HARD two
    thirds of all tokens that the policy did not draw are off."""
    return Tolerance(
        min(max(0.5, 5 * largest), HARD), min(max(1e-3, 4 * mean), MEAN), min(max(0.1, 4 * claimed), HARD)
    )


LEAST = tolerance(0.0, 0.0, 0.0)
"""What every learner allows."""


class Weighed(NamedTuple):
    """A replay in a few figures."""

    tokens: int
    deciding: int
    off: int
    largest: float
    """Nats."""
    drift: float
    """Nats that the group adds to its sampler's drift; negative where margins are below the tolerance."""
    claimed: float
    """Nats: mean difference of claimed and replayed log-probabilities, as far as it is beyond the
    tolerance."""
    large: float = 0.0
    """Usual sizes by which the margins that are not 0 exceed LARGE each, summed; negative where they are
    smaller."""
    far: float = 0.0
    """The same of those alone that exceed FAR."""


@dataclass(slots=True)
class SamplerRecord:
    """The results of one sampler's audits so far."""

    verified: int = 0
    """Honest groups since the last one that was not."""
    taken: int = 0
    """Groups that could be replayed and were taken since then, whether they were drawn or not."""
    seen: int = 0
    """Those of them that were replayed."""
    unlucky: bool = False
    """One of its last groups had a token that is off."""
    drift: float = 0.0
    large: float = 0.0
    far: float = 0.0
    """Sums over its groups."""

    def forget(self) -> None:
        """None of its groups counts as verified any more."""
        self.verified = self.taken = self.seen = 0

    def add(self, group: Weighed) -> bool:
        """Add a group to the sums. Returns whether one is beyond its limit."""
        self.drift = max(0.0, self.drift + group.drift)
        self.large = max(0.0, self.large + group.large)
        self.far = max(0.0, self.far + group.far)
        return self.drift > DRIFT_LIMIT or self.chooses

    @property
    def chooses(self) -> bool:
        return max(self.large, self.far) > SIZES_LIMIT

    def begin_sums(self) -> None:
        self.drift = self.large = self.far = 0.0


def rate_after(verified: int) -> float:
    """The share of a sampler's groups that is replayed after so many were honest."""
    return max(FLOOR, min(1.0, SURE / max(1, verified)))


def most_after(seen: int) -> int:
    """The most groups accepted from a sampler while `seen` of them were replayed, whatever the load: the
    unseen part of the training data is bounded by the seen part."""
    first, rising = min(seen, SURE), min(max(seen, SURE), SURE / FLOOR)
    drawn_of = first + (rising**2 - SURE**2) / (2 * SURE) + max(0.0, seen - SURE / FLOOR) / FLOOR
    return AHEAD + math.floor(LAG * drawn_of)


class Audits:
    """The audits of all samplers by one auditor."""

    def __init__(self) -> None:
        self.suspensions = Suspensions(HOUR)
        self._records: OrderedDict[PeerId, SamplerRecord] = OrderedDict()
        """The sampler with the oldest last audit comes first."""

    def rate(self, sampler: PeerId) -> float:
        """The share of the sampler's groups that is replayed now."""
        record = self._records.get(sampler)
        return rate_after(record.verified if record is not None else 0)

    def proven(self, sampler: PeerId) -> bool:
        """Whether the last replays of the sampler's groups were honest."""
        record = self._records.get(sampler)
        return record is not None and record.verified > 0

    def room(self, sampler: PeerId) -> int:
        """Groups of the sampler that may still be taken before one more of them is replayed."""
        record = self._records.get(sampler) or SamplerRecord()
        return most_after(record.seen) - record.taken

    def taken(self, sampler: PeerId) -> None:
        """A group of the sampler that could be replayed was taken."""
        self._record(sampler).taken += 1

    def drawn(self, sampler: PeerId, rng: random.Random) -> bool:
        """Whether this group is replayed. `rng` is the auditor's own: no other peer knows its draws."""
        return rng.random() < self.rate(sampler)

    def take(self, sampler: PeerId, group: Weighed, now: float) -> tuple[Finding, Suspension | None]:
        """Take the replay of one group, with what follows from it."""
        record = self._record(sampler)
        if group.off >= COUNT or (group.off and record.unlucky):
            return Finding.FORGED, self.suspend(sampler, _forgery(group), now)
        if group.off:
            record.forget()
            record.unlucky = True
            return Finding.UNLIKELY, None
        if record.add(group) or group.claimed > 0:
            return Finding.DRIFTED, self.suspend(sampler, _drift(group, record), now, is_strike=False)
        record.seen += 1
        if group.deciding < DECIDING:
            return Finding.UNDECIDED, None
        record.verified += 1
        record.unlucky = record.unlucky and record.verified < SURE
        return Finding.HONEST, None

    def accused(self, sampler: PeerId, group: Weighed, released: float, now: float) -> Suspension | None:
        """Another learner's accusation is confirmed by this learner's own replay of a group of a version that
        was released at `released`. None: the sampler is suspended already, or was for what it did then."""
        last = self.suspensions.last(sampler)
        if last is not None and released < last.since:
            return None
        if group.off >= COUNT:
            return self.suspend(sampler, _forgery(group), now)
        return self.suspend(sampler, _drift(group, self._record(sampler)), now, is_strike=False)

    def doubt(self, sampler: PeerId) -> None:
        """Replay the sampler's groups as a newcomer's."""
        if (record := self._records.get(sampler)) is not None:
            record.forget()

    def pardon(self, sampler: PeerId) -> None:
        """Forget all results about a sampler."""
        self._records.pop(sampler, None)
        self.suspensions.lift(sampler)

    def suspend(self, sampler: PeerId, why: str, now: float, is_strike: bool = True) -> Suspension | None:
        """Suspend a sampler. None while it is suspended: groups that came before are no further strike."""
        record = self._record(sampler)
        record.forget()
        record.begin_sums()
        record.unlucky = record.unlucky and not is_strike
        if self.suspensions.of(sampler, now) is not None:
            return None
        return self.suspensions.suspend(sampler, why, now, is_strike)

    def _record(self, sampler: PeerId) -> SamplerRecord:
        record = self._records.get(sampler) or SamplerRecord()
        remember(self._records, sampler, record, REMEMBERED)
        return record


NOTHING_REPLAYED = "its samplers may use fewer bits (run.sampling.quantized), so that no group is replayed"
"""Why a run has no work for an auditor, where that is so."""


def _forgery(group: Weighed) -> str:
    are = "is" if group.off == 1 else "are"
    return (
        f"{group.off} of {group.tokens} tokens of a group {are} not what its seed and version draw, or not as"
        f" probable as it claims: one is {group.largest:.4g} nats off"
        + ("" if group.off >= COUNT else "; so was one of a group shortly before")
    )


def _drift(group: Weighed, record: SamplerRecord) -> str:
    if group.claimed > 0:
        return (
            f"the log-probabilities that it claims are {group.claimed:.3g} nats a token off: does its engine"
            " use another temperature, precision or model?"
        )
    if record.drift <= DRIFT_LIMIT and record.chooses:
        return (
            "tokens of its groups, each within what is allowed, are farther from what their seeds draw than"
            f" rounding makes them, {group.largest:.3g} nats in the last group: does it choose them, or does"
            " its engine use another temperature, precision or version?"
        )
    return (
        f"its groups lie together {record.drift:.3g} nats beside what their seeds draw: does its engine use"
        " another temperature, precision or version?"
    )
