"""The contributions that count in a version, decided once by one learner for all.

    named    contributions to this version: announced, then here (or of no use)     Gathered
    close    the oldest learner that announced one, when all expected ones are here or the time is up;
             the next one in its place, a turn later
    entries  a weight and a share for each, from the norms of those here    -> the list

The order is that of the publishers of a release (swarm.core.agreement.releases), so that the leader of a list
publishes the resulting version. Weights and shares are those of an averaging round
(swarm.core.gradient_checks.norm_screening). Not handled here: how contributions travel, two lists of one
version (their releases are settled by rank).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from swarm.core.agreement.releases import publishers
from swarm.core.gradient_checks.norm_screening import FAR, AnnouncedNorm, once, screened_weights, usual_norm
from swarm.frames.site_types import Contribution, ListEntry
from swarm.types import Digest, PeerId

PATIENCE = 10.0
"""Seconds that the smallest contribution may take from where it was named to here."""

BYTES_PER_SECOND = 125e3
"""Rate below which a contribution is not waited for: 1 Mbit/s, at which 0.6B parameters at a density of a
64th take two minutes."""

MOST_WEIGHT = 1e9
"""Groups that one contribution can have been trained on."""

REACH = 10.0
"""Times FAR usual norms that a list may let one contribution count for. An honest list lets one count for 1
by its signer's usual norm, which differs from this learner's in the lists behind it: in 160 plans of the
nemesis at sites 2.4 by a learner that took one list before, 1.0 after two lists, 0.9 after eight.
Contributions of one step are smaller than those of many, so a swarm may change by more."""

ROUNDING = 1 + 1e-6
"""Of a weight that another learner bounded with the same numbers."""


@dataclass
class Gathered:
    """The contributions to one version that a learner knows."""

    weights: Digest
    """Of the version that they start from."""
    named: dict[PeerId, Contribution] = field(default_factory=dict)
    received: dict[PeerId, float] = field(default_factory=dict)
    """When each was named here first."""
    norms: dict[PeerId, float] = field(default_factory=dict)
    """Of those that are here and can be added up."""
    marks: dict[PeerId, bytes] = field(default_factory=dict)
    """Of the groups that those were trained on."""
    useless: set[PeerId] = field(default_factory=set)
    """Learners whose bytes are no contribution."""
    displaced: dict[PeerId, Contribution | None] = field(default_factory=dict)
    """Contributions announced here by learners of which a list has another one; None: none yet."""

    def name(self, one: Contribution, now: float) -> str:
        """Remember a contribution; why it does not count, or nothing."""
        if one.weights != self.weights:
            return f"it starts from other weights of version {one.version}"
        if not (0 < one.weight <= MOST_WEIGHT and one.groups > 0):
            return f"weight {one.weight:g} and {one.groups} groups"
        said = self.displaced if one.learner in self.displaced else self.named
        known = said[one.learner] = said.get(one.learner) or one
        self.received.setdefault(one.learner, now)
        return "" if known == one else f"a second one to version {one.version}: the first counts"

    def must_have(self, listed: Collection[ListEntry], version: int, now: float) -> bool:
        """A list names these: they are what counts, whatever was named here. True when that is news."""
        roots = {peer: one.root for peer, one in self.named.items()}
        news = [one for one in listed if roots.get(one.learner) != one.root]
        for one in news:
            self.displaced.setdefault(one.learner, self.named.get(one.learner))
            self.named[one.learner] = Contribution(
                version=version,
                weights=self.weights,
                learner=one.learner,
                root=one.root,
                size=one.size,
                groups=one.groups,
                weight=one.weight,
            )
            self.received[one.learner] = now
            self.norms.pop(one.learner, None)
            self.useless.discard(one.learner)
        return bool(news)

    def list_gone(self) -> None:
        """The list is of no use: the contributions announced here count again."""
        for peer, one in self.displaced.items():
            for known in (self.named, self.norms, self.marks):
                known.pop(peer, None)
            self.useless.discard(peer)
            if one is None:
                del self.received[peer]
            else:
                self.named[peer] = one
        self.displaced.clear()

    def missing(self) -> list[Contribution]:
        """Contributions that are named and neither here nor useless."""
        return [one for peer, one in self.named.items() if peer not in {*self.norms, *self.useless}]

    def awaited(self, now: float) -> bool:
        """Whether an announced contribution is on its way and not late."""
        return any(
            now < self.received[one.learner] + PATIENCE + one.size / BYTES_PER_SECOND
            for one in self.missing()
        )

    def complete(self, expected: Collection[PeerId]) -> bool:
        """Whether all that can be expected is here."""
        return not self.missing() and self.named.keys() >= {*expected}


def turn(gathered: Gathered, incarnations: Mapping[PeerId, int], me: PeerId) -> int:
    """How many learners that are there and named a contribution would close the list before me."""
    order = publishers([(incarnations[peer], peer) for peer in gathered.named if peer in incarnations])
    return order.index(me)


def entries(gathered: Gathered, usual: float, groups: int) -> tuple[ListEntry, ...]:
    """The list of the contributions here, in the order of the learners' ids; of two with the same group the
    first one alone: the other learner trains its other groups again. `usual`: median norm of the lists
    before; `groups`: those of a version over all learners."""
    every = sorted(gathered.norms)
    claims = once(
        [AnnouncedNorm(gathered.named[peer].weight, gathered.norms[peer], usual) for peer in every],
        [gathered.marks.get(peer, b"") for peer in every],
    )
    here = {peer: claim for peer, claim in zip(every, claims, strict=True) if claim.weight > 0}
    return tuple(
        ListEntry(
            learner=peer,
            root=gathered.named[peer].root,
            size=gathered.named[peer].size,
            groups=gathered.named[peer].groups,
            weight=judged.weight,
            share=judged.share,
        )
        for peer, judged in zip(here, screened_weights([*here.values()], groups), strict=True)
    )


def factors(listed: Sequence[ListEntry]) -> list[float]:
    """The factor of each contribution of a list: the weighted mean."""
    total = math.fsum(one.weight for one in listed)
    return [one.weight * one.share / total for one in listed]


def objection(listed: Sequence[ListEntry], largest: int) -> str:
    """Why a list is of no use, or nothing. `largest`: bytes of a contribution at most."""
    if not listed:
        return "it is empty"
    if len({one.learner for one in listed}) < len(listed):
        return "a learner is there twice"
    for one in listed:
        if not (0 < one.weight <= MOST_WEIGHT and 0 <= one.share <= 1 and one.groups >= 0):
            return f"weight {one.weight:g}, share {one.share:g} or {one.groups} groups of {one.learner}"
        if not 0 < one.size <= largest:
            return f"{one.size} bytes of {one.learner}, where {largest} are the most"
    return ""


def overreach(listed: Sequence[ListEntry], norms: Sequence[float], usual: float, groups: int) -> str:
    """Why a list is impossible, given these norms of its contributions, or nothing. `usual`: median norm of
    this learner's lists before, 0 where they are too few; `groups`: those of a version over all learners."""
    claims = [AnnouncedNorm(one.weight, norm, usual) for one, norm in zip(listed, norms, strict=True)]
    most = REACH * FAR * usual_norm(claims) if usual > 0 else math.inf
    for one, norm, mine in zip(listed, norms, screened_weights(claims, groups), strict=True):
        if one.weight > ROUNDING * mine.weight:
            return f"weight {one.weight:g} of {one.learner}, where the run's batch leaves {mine.weight:g}"
        if one.share * norm > most:
            return f"norm {norm:g} of {one.learner} with share {one.share:g}, where {most:g} is the most"
    return ""
