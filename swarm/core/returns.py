"""Which share of its draws a sampler returns: who sends only what he likes leaves gaps in his numbers.

    judged groups, whatever the verdict -> draws that came, by release and sampler
    a release leaves the window -> what other learners saw of it -> settled: draws that were due, missing ones
    due and missing of a sampler's last releases -> objection

A draw is due when a later draw of the same release came LEFT seconds or more before the release left the
window: it was made earlier, and had so long to come. A draw that came counts, whatever became of it: one that
was stale, refused for want of room, or sent twice is no gap, nor is one that came to another learner. A crash
or a cut line costs a sampler at once what it had under way: of its last releases the FORGIVEN worst do not
count, and fewer than JUDGED draws say nothing. What samplers say of their losses is not asked.

Not handled here: what other learners saw (peers.roles.draw_returns), who says that all it dislikes came too
late, by sending it late.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta

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
"""Samplers whose releases are remembered."""


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


class Settled(NamedTuple):
    """A sampler's draws under one release."""

    due: int
    missing: int


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


class Returns:
    """The draws that came to one learner, and what follows for their samplers."""

    def __init__(self) -> None:
        self.open: OrderedDict[Digest, OpenRelease] = OrderedDict()
        """By weights."""
        self._count = 0
        self._settled: OrderedDict[PeerId, deque[Settled]] = OrderedDict()

    def came(self, group: Group, released: float, began: float, now: float) -> bool:
        """A group came that is its sampler's draw. False when a release had to be forgotten for it."""
        its = self.open.setdefault(group.weights, OpenRelease(group.version, released, began, {}))
        if its.version < group.version:
            self.open[group.weights] = its._replace(version=group.version, released=released)
        seen = its.samplers.setdefault(group.sampler, {})
        if group.draw not in seen:
            seen[group.draw] = now
            self._count += 1
        whole = self._count <= DRAWS
        while self._count > DRAWS and len(self.open) > 1:
            self.forget(next(iter(self.open)))
        return whole

    def forget(self, weights: Digest) -> None:
        """Forget a release: nobody asks for it any more."""
        if (gone := self.open.pop(weights, None)) is not None:
            self._count -= sum(map(len, gone.samplers.values()))

    def came_of(self, weights: Digest, until: float) -> list[SamplerDraws]:
        """What came of a release, by sampler; `until`: when a draw had to be there for earlier ones to be
        due."""
        its = self.open.get(weights)
        return [
            SamplerDraws(
                sampler=sampler,
                due=max((number for number, at in seen.items() if at <= until), default=0),
                draws=packed(seen),
            )
            for sampler, seen in (its.samplers if its is not None else {}).items()
        ]

    def settle(self, came: Iterable[SamplerDraws]) -> list[PeerId]:
        """Count what is missing of a release, of which all learners together saw this. Returns the samplers
        that there is an objection to since now."""
        due, draws = Counter[PeerId](), dict[PeerId, set[int]]()
        for one in came:
            due[one.sampler] = max(due[one.sampler], one.due)
            draws.setdefault(one.sampler, set()).update(_numbers(one.draws))
        fine = [sampler for sampler in sorted(due) if self.objection(sampler) is None]
        for sampler, count in due.items():
            missing = count - sum(number < count for number in draws[sampler])
            self._add(sampler, Settled(count, missing))
        return [sampler for sampler in fine if self.objection(sampler) is not None]

    def _add(self, sampler: PeerId, settled: Settled) -> None:
        if settled.due == 0:
            return
        last = self._settled.pop(sampler, deque())
        last.append(settled)
        while sum(one.due for one in _judged(list(last)[1:])) >= LAST:
            last.popleft()
        self._settled[sampler] = last
        if len(self._settled) > SAMPLERS:
            self._settled.popitem(last=False)

    def objection(self, sampler: PeerId) -> str | None:
        """Why a sampler's groups teach nothing now, or None."""
        judged = _judged(self._settled.get(sampler, ()))
        due, missing = sum(one.due for one in judged), sum(one.missing for one in judged)
        if due < JUDGED or due - missing >= RETURNED * due:
            return None
        return (
            f"it returned {1 - missing / due:.0%} of its last {due} draws, all of which are due:"
            f" below {RETURNED:.0%} its groups teach nothing"
        )


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
