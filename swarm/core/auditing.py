"""Audits of samplers: whose groups are replayed, what a replay tells, and what follows from it.

    a group that was admitted --drawn by the auditor's own randomness--> replayed (swarm.learn.replay)
        --Audits--> Finding: honest, undecided, unlikely, off, forged
                    more audits, or its sampler is set aside: an hour, a day, for good

A token is off when the replay would have drawn another one by more than the tolerance, or gives it another
log-probability than the sampler claims. Two tokens of a group that are off are a forgery; one alone may be
bad luck, and after it all groups of its sampler are replayed until SURE were honest: if one of them has a
token that is off, too, it is a forgery. What is no single token's fault adds up over a sampler's groups in
CUSUMs, which never fall below 0: another temperature, precision or version in the sum of margins; tokens that
the sampler chose within the tolerance in the sizes of those margins that are not 0. Rounding makes many small
ones, so that what is tolerated follows from the sampler's own precision: one that computes as the replay does
has none, and may have no large ones either. Beyond a limit the sampler is set aside for an hour, which is no
strike. Groups that decide nothing count for nobody.

Rates follow a simulation of samplers that are honest until they are trusted: with SURE = 20 the share of what
such a sampler poisons is at most 2.2 %; with the rule of BOINC, 10 and then one in the number of those that
were verified, it is 49 % (docs/trust.md). Where replays fall behind, so does what is taken of a sampler
(`most_after`). Where the run has other learners a third strike is for good once a
second one found the same (swarm.core.accusations); until then it is for a day. Not handled here: replays,
evidence.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

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
"""Tokens of a group that must decide something: a policy that is certain of all others says nothing about
its sampler."""

DRIFT_LIMIT = 4.0
"""Nats, summed over a sampler's groups."""

LARGE, FAR = 3.0, 8.0
"""Times the usual size of margins that are not 0 (swarm.replays.Replayed.usual): what a sampler's own have on
average at most, and what each may have. Rounding errors 1.7 times as large as those that are measured exceed
neither."""

SIZES_LIMIT = 20.0
"""Usual sizes, summed over a sampler's groups. Of 1,600 honest ones whose sampler and learner round to
bfloat16 the sums were 5 at most, and 15 where the usual size was taken to be two thirds of what it is."""

SELDOM = 1 / 2500
"""Usual sizes that are forgotten with each token."""

HARD, MEAN = 3.0, 0.02
"""Nats: bounds of tolerances."""

SET_ASIDE = (3600.0, 86_400.0)
"""Seconds that follow the first and the second forgery; the third is for good."""

FINAL = len(SET_ASIDE) + 1
"""The strike that is for good."""

APART = 60.0
"""Seconds by which learners that found the same let a sampler back one after another: who cheats the first
again is struck by the second, too."""

FOREVER = 1e12
"""Unix seconds: after all runs, and a number that every encoding has."""

REMEMBERED = 4096
"""Samplers whose audits are remembered, and as many that were set aside: keys cost nothing, so that neither
kind takes the other's room. Of those that were set aside who has the least of it left is forgotten first."""


class Finding(StrEnum):
    """What a replay says of a group."""

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
    log-probabilities, in nats. The bounds hold whatever text says how far they are apart: with HARD two
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


class Consequence(NamedTuple):
    """A sampler is set aside."""

    until: float
    """Unix seconds; FOREVER: for good."""
    strikes: int
    """Forgeries so far."""
    why: str
    since: float = 0.0
    """Unix seconds; 0: of an earlier version of this program."""


@dataclass(slots=True)
class Audited:
    """What the audits of one sampler say so far."""

    verified: int = 0
    """Groups that were honest since the last one that was not."""
    words: dict[PeerId, int] = field(default_factory=dict)
    """Verifier -> how many of these are honest by its word alone."""
    taken: int = 0
    """Groups that could be replayed and were taken since then, whether they were drawn or not."""
    seen: int = 0
    """Those of them that were replayed, or are honest by a verifier's word."""
    unlucky: bool = False
    """One of its last groups had a token that is off."""
    drift: float = 0.0
    large: float = 0.0
    far: float = 0.0
    """Sums over its groups."""
    strikes: int = 0
    aside: Consequence | None = None

    def forget(self) -> None:
        """None of its groups counts as verified any more."""
        self.verified = self.taken = self.seen = 0
        self.words.clear()

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
    """The groups of a sampler that are taken while so many of them were replayed, whatever the load: what is
    trained of it unseen is bounded by what was seen."""
    first, rising = min(seen, SURE), min(max(seen, SURE), SURE / FLOOR)
    drawn_of = first + (rising**2 - SURE**2) / (2 * SURE) + max(0.0, seen - SURE / FLOOR) / FLOOR
    return AHEAD + math.floor(LAG * drawn_of)


class Audits:
    """The audits of all samplers by one auditor."""

    def __init__(self) -> None:
        self._plain: OrderedDict[PeerId, Audited] = OrderedDict()
        """Samplers that were never set aside; whose audit is the longest ago comes first."""
        self._aside: dict[PeerId, Audited] = {}
        """Samplers that were."""

    def rate(self, sampler: PeerId) -> float:
        """The share of the sampler's groups that is replayed now."""
        record = self._of(sampler)
        return rate_after(record.verified if record is not None else 0)

    def proven(self, sampler: PeerId) -> bool:
        """Whether the last replays of the sampler's groups were honest."""
        record = self._of(sampler)
        return record is not None and record.verified > 0

    def room(self, sampler: PeerId) -> int:
        """Groups of the sampler that may still be taken before one more of them is replayed."""
        record = self._of(sampler) or Audited()
        return most_after(record.seen) - record.taken

    def taken(self, sampler: PeerId) -> None:
        """A group of the sampler that could be replayed was taken."""
        self._record(sampler).taken += 1

    def drawn(self, sampler: PeerId, rng: random.Random) -> bool:
        """Whether this group is replayed. `rng` is the auditor's own: nobody else knows what it draws."""
        return rng.random() < self.rate(sampler)

    def take(
        self, sampler: PeerId, group: Weighed, now: float, alone: bool = True
    ) -> tuple[Finding, Consequence | None]:
        """Take the replay of one group, with what follows from it. `alone`: the run has no other learner."""
        record = self._record(sampler)
        if group.off >= COUNT or (group.off and record.unlucky):
            # groups that came before their sampler was set aside are no further strike
            struck = None if self.aside(sampler, now) else self._strike(sampler, _forgery(group), now, alone)
            return Finding.FORGED, struck
        if group.off:
            record.forget()
            record.unlucky = True
            return Finding.UNLIKELY, None
        if record.add(group) or group.claimed > 0:
            why = _drift(group, record)
            record.forget()
            record.begin_sums()
            found = None if self.aside(sampler, now) else self._drifted(sampler, why, now)
            return Finding.DRIFTED, found
        record.seen += 1
        if group.deciding < DECIDING:
            return Finding.UNDECIDED, None
        record.verified += 1
        record.unlucky = record.unlucky and record.verified < SURE
        return Finding.HONEST, None

    def accused(self, sampler: PeerId, group: Weighed, released: float, now: float) -> Consequence | None:
        """Another learner's accusation holds by this learner's own replay of a group of a version that was
        released at `released`. None: the sampler is set aside, or was for what it did then."""
        record = self._record(sampler)
        if record.aside is not None and (released < record.aside.since or now < record.aside.until - APART):
            return None
        if group.off >= COUNT:
            return self._strike(sampler, _forgery(group), now, alone=True)  # that makes two of us
        return self._drifted(sampler, _drift(group, record), now)

    def second(self, sampler: PeerId, strikes: int, now: float) -> Consequence | None:
        """Another learner found the sampler's `strikes`th forgery too. What follows, if anything does."""
        record, aside = self._of(sampler), self.aside(sampler, now)
        if record is None or aside is None or strikes < FINAL or strikes != record.strikes:
            return None
        if aside.until >= FOREVER:
            return None
        record.aside = aside._replace(until=FOREVER)
        return record.aside

    def doubt(self, sampler: PeerId) -> None:
        """Replay the sampler's groups as a newcomer's."""
        if (record := self._of(sampler)) is not None:
            record.forget()

    def word(self, sampler: PeerId, verifier: PeerId) -> None:
        """A group that was drawn here is honest by the word of a verifier (swarm.core.verifiers)."""
        record = self._record(sampler)
        record.verified += 1
        record.seen += 1
        record.words[verifier] = record.words.get(verifier, 0) + 1

    def reopen(self, verifier: PeerId) -> int:
        """What this verifier called honest counts no more. Returns how many groups that are."""
        gone = 0
        for record in (*self._plain.values(), *self._aside.values()):
            count = record.words.pop(verifier, 0)
            record.verified, record.seen = record.verified - count, max(0, record.seen - count)
            gone += count
        return gone

    def strikes(self, sampler: PeerId) -> int:
        record = self._of(sampler)
        return record.strikes if record is not None else 0

    def aside(self, sampler: PeerId, now: float) -> Consequence | None:
        """Why the sampler is set aside now, or None."""
        record = self._of(sampler)
        return record.aside if record is not None and record.aside and now < record.aside.until else None

    def pardon(self, sampler: PeerId) -> None:
        """Forget all that was said of a sampler."""
        self._plain.pop(sampler, None)
        self._aside.pop(sampler, None)

    def all_aside(self) -> dict[PeerId, Consequence]:
        """Samplers that have been set aside, with the last consequence of each."""
        return {peer: each.aside for peer, each in self._aside.items() if each.aside is not None}

    def restore(self, aside: Mapping[PeerId, Consequence]) -> None:
        """Take up what an earlier life said."""
        for peer, each in aside.items():
            self._plain.pop(peer, None)
            self._aside[peer] = Audited(strikes=each.strikes, aside=each)

    def _strike(self, sampler: PeerId, why: str, now: float, alone: bool) -> Consequence:
        record = self._record(sampler)
        record.forget()
        record.begin_sums()
        record.unlucky = False
        record.strikes += 1
        final = record.strikes >= FINAL
        until = FOREVER if final and alone else now + SET_ASIDE[min(record.strikes, len(SET_ASIDE)) - 1]
        return self._set_aside(sampler, record, Consequence(until, record.strikes, why, now))

    def _drifted(self, sampler: PeerId, why: str, now: float) -> Consequence:
        record = self._record(sampler)
        record.forget()
        record.begin_sums()
        return self._set_aside(sampler, record, Consequence(now + SET_ASIDE[0], record.strikes, why, now))

    def _set_aside(self, sampler: PeerId, record: Audited, aside: Consequence) -> Consequence:
        """Where room is short, in the place of another one."""
        record.aside = aside
        self._plain.pop(sampler, None)
        self._aside[sampler] = record
        if len(self._aside) > REMEMBERED:
            left = {peer: each.until for peer, each in self.all_aside().items() if peer != sampler}
            for gone in sorted(left, key=lambda peer: left[peer])[: len(self._aside) - REMEMBERED]:
                del self._aside[gone]
        return aside

    def _of(self, sampler: PeerId) -> Audited | None:
        return self._aside.get(sampler) or self._plain.get(sampler)

    def _record(self, sampler: PeerId) -> Audited:
        if (record := self._aside.get(sampler)) is not None:
            return record
        record = self._plain.get(sampler) or Audited()
        remember(self._plain, sampler, record, REMEMBERED)
        return record


NOTHING_REPLAYED = "its samplers may use fewer bits (run.sampling.quantized), so that no group is replayed"
"""Why a run has no work for an auditor, where that is so."""


def objection(aside: Consequence, now: float) -> str:
    """Why groups of a sampler that is set aside are refused."""
    left = aside.until - now
    minutes = f"{left / 60:.0f} min" if left >= 90 else f"{left:.0f} s"
    return f"set aside {'for good' if aside.until >= FOREVER else f'for another {minutes}'}: {aside.why}"


def reason_of(objection: str) -> str:
    """Why the sampler is set aside, without for how long."""
    return objection.partition(": ")[2] or objection


def _forgery(group: Weighed) -> str:
    are = "is" if group.off == 1 else "are"
    return (
        f"{group.off} of {group.tokens} tokens of a group {are} not what its seed and version draw, or not as"
        f" probable as it claims: one is {group.largest:.4g} nats off"
        + ("" if group.off >= COUNT else "; so was one of a group shortly before")
    )


def _drift(group: Weighed, record: Audited) -> str:
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
