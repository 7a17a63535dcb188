"""Which share of its draws a sampler returns: who sends only what he likes leaves gaps in his numbers.

    judged groups, whatever the verdict -> draws that came, by release and sampler
    a release leaves the window -> what other learners saw of it -> settled: draws that were due, missing ones
    due and missing of a sampler's last releases -> objection

A draw is due when a later draw of the same release came LEFT seconds or more before the release left the
window: it was made earlier, and had so long to come. A draw that came counts, whatever became of it: one that
was stale, refused for want of room, or sent twice is no gap, nor is one that came to another learner. A crash
or a cut line costs a sampler at once what it had under way: of its last releases the FORGIVEN worst do not
count, and fewer than JUDGED draws say nothing. What samplers say of their losses is not asked. A draw that
nobody can sample, such as one whose prompt is too long for the model, is not due.
What is due is what this learner saw itself, and what one other learner may have taken and hidden is no gap.
That counts all releases: those alone of which something is missing are those of which who hides it has more
than its share, by chance. Samplers leave little to chance (swarm.core.roster).

Not handled here: what other learners saw (peers.roles.draw_returns), who says that all it dislikes came too
late, by sending it late.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, NamedTuple

from msgspec import Meta

from swarm.limits import remember
from swarm.types import Count, Digest, Finite, Group, PeerId, Struct

JUDGED, LAST = 50, 200
"""Draws that were due: without so many nothing is said, and of more than the last ones nothing is
remembered."""

RETURNED = 0.9
"""Share of the due draws that has to come. In simulated swarms under faults at random honest samplers return
all but what was under way at a kill."""

FORGIVEN = 2
"""Releases of those that a sampler is judged by: a kill or a cut shows in one, or in two."""

DRAWS = 1 << 18
"""Draws that are remembered at most, some 20 MB; beyond, the oldest release is forgotten."""

SAMPLERS = 4096
"""Samplers that are remembered, and those of one release."""

OF_ONE = 1 << 16
"""Draws of one sampler under a release that are remembered, and fit an answer."""

TOOK, STILL = 1.25, 1.0
"""Times an equal share of a sampler's draws, and times what any other learner had of them, that one learner
may have taken and not told: before a sampler is named, and once it is, so that chance frees none."""


class DrawsQuery(Struct, frozen=True, tag="draws-query"):
    """Asks a learner which draws of a release came to it."""

    weights: Digest
    before: Finite
    """Seconds ago: what came earlier makes the draws below it due."""


class SamplerDraws(Struct, frozen=True):
    """A sampler's draws under a release that came to a learner."""

    sampler: PeerId
    due: Count
    """Draws below this number are due."""
    draws: Annotated[bytes, Meta(max_length=1 << 19)]
    """Their numbers, 8 bytes each."""


class DrawsCame(Struct, frozen=True, tag="draws-came"):
    """What came of a release, where the learner was there for all of it."""

    since: Finite
    """When the learner began to count."""
    samplers: Annotated[tuple[SamplerDraws, ...], Meta(max_length=4096)]
    more: bool = False
    """Draws of further samplers came: of whom is not known any more."""


class Settled(NamedTuple):
    """A sampler's draws under one release."""

    due: int
    missing: int
    learners: tuple[PeerId, ...]
    took: tuple[int, ...]
    """How many of those that were due each of them says that it has."""


EMPTY: Mapping[PeerId, DrawsCame] = MappingProxyType({})

NONE: Mapping[PeerId, set[int]] = MappingProxyType({})

NOBODY = PeerId("")
"""Stands for this learner among those that draws came to, and for samplers that are not remembered."""

Seen = dict[int, float]
"""Number of a draw -> when it came first."""


class OpenRelease(NamedTuple):
    """What came of a release's draws. Versions have the same weights where no step changed anything; a
    sampler numbers its draws through them, so that they are one release here."""

    version: int
    """The newest of them that draws came of."""
    released: float
    """When that was, by this peer's clock."""
    began: float
    """When the oldest of them was that is known."""
    samplers: dict[PeerId, Seen]
    beyond: set[PeerId]
    """Samplers of whom more came than is remembered, with NOBODY for all that came beyond SAMPLERS."""


class Returns:
    """The draws that came to one learner, and what follows for their samplers."""

    def __init__(self) -> None:
        self.open: OrderedDict[Digest, OpenRelease] = OrderedDict()
        """By weights."""
        self._count = 0
        self._settled: OrderedDict[PeerId, deque[Settled]] = OrderedDict()
        self._named = set[PeerId]()

    def came(self, group: Group, released: float, began: float, now: float) -> bool:
        """A group came that is its sampler's draw. False when a release had to be forgotten for it."""
        its = self.open.setdefault(group.weights, OpenRelease(group.version, released, began, {}, set()))
        if its.version < group.version:
            self.open[group.weights] = its._replace(version=group.version, released=released)
        if group.sampler not in its.samplers and len(its.samplers) >= SAMPLERS:
            its.beyond.add(NOBODY)
        elif group.sampler not in its.beyond:
            self._count_draw(its, group, now)
        whole = True
        while self._count > DRAWS and len(self.open) > 1:
            self.forget(next(iter(self.open)))
            whole = False
        while self._count > DRAWS:
            (one,) = self.open.values()
            self._drop(one, max(one.samplers, key=lambda sampler: len(one.samplers[sampler])))
        return whole

    def _count_draw(self, its: OpenRelease, group: Group, now: float) -> None:
        seen = its.samplers.setdefault(group.sampler, {})
        if group.draw not in seen:
            seen[group.draw] = now
            self._count += 1
        if len(seen) > OF_ONE:
            self._drop(its, group.sampler)

    def _drop(self, its: OpenRelease, sampler: PeerId) -> None:
        """More came of a sampler than is remembered: nobody judges it by this release."""
        self._count -= len(its.samplers[sampler])
        its.samplers[sampler].clear()
        its.beyond.add(sampler)

    def forget(self, weights: Digest) -> None:
        """Forget a release: nobody asks for it any more."""
        if (gone := self.open.pop(weights, None)) is not None:
            self._count -= sum(map(len, gone.samplers.values()))

    def came_of(self, weights: Digest, until: float) -> list[SamplerDraws]:
        """What came of a release, by sampler; `until`: when a draw had to be there for earlier ones to be
        due."""
        if (its := self.open.get(weights)) is None:
            return []
        return [
            SamplerDraws(
                sampler=sampler,
                due=max((number for number, at in seen.items() if at <= until), default=0),
                draws=packed(seen),
            )
            for sampler, seen in its.samplers.items()
            if sampler not in its.beyond
        ]

    def is_beyond(self, weights: Digest) -> bool:
        """Whether draws of a release came that `came_of` does not tell."""
        its = self.open.get(weights)
        return its is not None and bool(its.beyond)

    def settle(
        self,
        mine: Iterable[SamplerDraws],
        others: Mapping[PeerId, DrawsCame] = EMPTY,
        unsampled: Mapping[PeerId, set[int]] = NONE,
    ) -> list[PeerId]:
        """Count what is missing of a release, of which this learner saw `mine`, and each of the others what
        it says. What is due follows from `mine` alone: another one's word only excuses. `unsampled`: of those
        that are `missing`, what nobody can sample. Returns the samplers that there is an objection to since
        now."""
        due, took = _due_and_took(mine, others)
        learners = (NOBODY, *others)
        for sampler, by in took.items():
            excused = len(unsampled.get(sampler, ()))
            settled = _settled(due[sampler], by, learners)
            self._add(sampler, settled._replace(due=settled.due - excused, missing=settled.missing - excused))
        named = {sampler for sampler in took if self.objection(sampler) is not None}
        new, self._named = named - self._named, (self._named - took.keys() | named) & self._settled.keys()
        return sorted(new)

    def _add(self, sampler: PeerId, settled: Settled) -> None:
        if settled.due == 0:
            return
        last = self._settled.get(sampler, deque())
        last.append(settled)
        while sum(one.due for one in _judged(list(last)[1:])) >= LAST:
            last.popleft()
        remember(self._settled, sampler, last, SAMPLERS)

    def objection(self, sampler: PeerId) -> str | None:
        """Why a sampler's groups teach nothing now, or None."""
        judged = _judged(self._settled.get(sampler, ()))
        due, missing = sum(one.due for one in judged), sum(one.missing for one in judged)
        if due < JUDGED or due - missing >= RETURNED * due:
            return None  # each group is asked about, and of most samplers hardly any draw is missing
        untold = _untold(judged, STILL if sampler in self._named else TOOK)
        if due - (missing - min(missing, untold)) >= RETURNED * due:
            return None
        return (
            f"it returned {1 - missing / due:.0%} of its last {due} draws, all of which are due:"
            f" below {RETURNED:.0%} its groups teach nothing"
        )


def missing(mine: Iterable[SamplerDraws], others: Mapping[PeerId, DrawsCame]) -> dict[PeerId, list[int]]:
    """The draws of a release that were due and came to nobody, the first ones first."""
    due, took = _due_and_took(mine, others)
    came = {sampler: set[int]().union(*by.values()) for sampler, by in took.items()}
    return {sampler: [n for n in range(due[sampler]) if n not in its] for sampler, its in came.items()}


def _due_and_took(
    mine: Iterable[SamplerDraws], others: Mapping[PeerId, DrawsCame]
) -> tuple[Counter[PeerId], dict[PeerId, dict[PeerId, set[int]]]]:
    """By sampler: below which number draws are due, and which came to each learner."""
    due, took = Counter[PeerId](), dict[PeerId, dict[PeerId, set[int]]]()
    for one in mine:
        due[one.sampler] = max(due[one.sampler], one.due)
        took.setdefault(one.sampler, {}).setdefault(NOBODY, set()).update(_numbers(one.draws))
    for learner, its in others.items():
        told = {one.sampler: one for one in its.samplers}
        for sampler in list(took):
            if sampler in told:
                took[sampler][learner] = set(_numbers(told[sampler].draws))
            elif its.more:
                del took[sampler]
            else:
                took[sampler][learner] = set()
    return due, took


def _settled(due: int, took: Mapping[PeerId, set[int]], learners: tuple[PeerId, ...]) -> Settled:
    """What is missing of the draws that were due, of which each learner has these."""
    came = [{number for number in took[learner] if number < due} for learner in learners]
    return Settled(due, due - len(set[int]().union(*came)), learners, tuple(map(len, came)))


def _untold(judged: Sequence[Settled], times: float) -> int:
    """How many of a sampler's draws one learner can have taken that does not tell of them, at most: it took
    `times` as many as any other one, and an equal share."""
    took, equal = Counter[PeerId](), defaultdict[PeerId, float](float)
    for one in judged:
        for learner, count in zip(one.learners, one.took, strict=True):
            took[learner] += count
            equal[learner] += one.due / len(one.learners)
    most = 0
    for learner, told in took.items():
        rest = max((count for other, count in took.items() if other != learner), default=0)
        if learner != NOBODY:
            most = max(most, int(times * min(rest, equal[learner]) - told))
    return most


def packed(numbers: Iterable[int]) -> bytes:
    """Numbers of draws as they travel."""
    return b"".join(number.to_bytes(8, "little") for number in numbers)


def _numbers(draws: bytes) -> Iterator[int]:
    """The numbers that `packed` made this of; bytes that are no whole number are left out."""
    return (int.from_bytes(draws[at : at + 8], "little") for at in range(0, len(draws) - 7, 8))


def _judged(settled: Sequence[Settled]) -> list[Settled]:
    """Those that count: all but the worst."""
    worst = sorted(settled, key=lambda one: one.missing)
    return worst[: max(0, len(worst) - FORGIVEN)]
