"""Which groups a sampler draws: the sampler and the judges of its groups compute the same.

    (run, weights, sampler, number) --order--> slot       (run, weights, slot) --> task, seed

All groups that may be drawn under a release are its slots, each with a task and a seed that are unknown
before the release's bytes are made. A sampler's `number`-th draw is a slot that it does not choose: a sampler
has its own order of the slots, and none twice. A second identity has another order of the same slots: it
draws nothing new, and no group can be drawn anew under another seed. Two samplers that draw the same slot
make the same group, and one of them in vain; slots are so many that this is rare. Of a small data set several
slots have the same exercise, with different seeds. Task sources reduce an index to their own range.

Numbers may be left out. Not handled here: whether the text is the seed's draw (swarm.learn.replay).
"""

from __future__ import annotations

import hashlib
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from swarm.limits import remember
from swarm.types import Digest, PeerId

INDEX_BITS = 48
"""Bits of an index and of a seed: they fit the integers of msgpack, of JSON in a browser and of numpy, and
the first repetition by chance is expected after some 16 million tasks."""

SLOTS = 128
"""Slots of a release for each group of a batch, rounded up to a power of two. When samplers draw as many
groups of a release as a batch has, they waste about 1 in 2 x SLOTS; fewer slots leave fewer groups to an
attacker that tries identities for one that it likes."""

RELEASES = 64
"""Releases whose counts are kept: a sampler that goes back to one continues its count."""


TRIES = 3
"""Calls of one draw that fail before it is left out: others may still be sampled."""


class Draw(NamedTuple):
    """One group to sample."""

    number: int
    """How many the sampler drew of this release before."""
    task: int
    """Task index."""
    seed: int
    """Seed of the group's sampling."""


class Draws:
    """All draws of one run."""

    def __init__(self, run: Digest, batch: int) -> None:
        """`batch`: groups of a step over all learners."""
        self._run, self._slots = run, 1 << (SLOTS * batch - 1).bit_length()

    def of(self, weights: Digest, sampler: PeerId, number: int) -> Draw:
        """The `number`-th draw of a sampler under a release with these weights. Once it has drawn all slots
        it goes on with as many others."""
        order = _hashed(f"order/{self._run}/{weights}/{sampler}", 16)
        start, stride = order >> 64, 2 * order + 1  # an odd stride meets each of a power of two once
        slot = number - number % self._slots + (start + number * stride) % self._slots
        drawn = _hashed(f"slot/{self._run}/{weights}/{slot}", INDEX_BITS // 4)
        return Draw(number, drawn >> INDEX_BITS, drawn & (1 << INDEX_BITS) - 1)


def _hashed(name: str, size: int) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=size).digest(), "big")


class Curriculum:
    """The draws of one sampler."""

    def __init__(self, draws: Draws, sampler: PeerId) -> None:
        self._draws, self._sampler = draws, sampler
        self._counts: OrderedDict[Digest, int] = OrderedDict()
        self.at_once = sys.maxsize
        """Most draws of the next call: fewer after a failure."""
        self._failed = 0
        """Calls of the next draw alone that failed."""

    def go_on(self, counts: Mapping[Digest, int]) -> None:
        """Take up the counts of an earlier life, oldest release first."""
        self._counts |= counts

    def following(self, weights: Digest, count: int) -> list[Draw]:
        """The draws that come next under the release with these weights; none of them counts as drawn."""
        number = self._counts.get(weights, 0)
        return [self._draws.of(weights, self._sampler, number + i) for i in range(count)]

    def next(self, weights: Digest) -> Draw:
        """The next draw under the release with these weights."""
        number = self._counts.get(weights, 0)
        remember(self._counts, weights, number + 1, RELEASES)
        return self._draws.of(weights, self._sampler, number)

    def sampled(self) -> None:
        """The last draws were sampled."""
        self.at_once, self._failed = min(2 * self.at_once, sys.maxsize), 0

    def stopped(self, weights: Digest, draws: Sequence[Draw]) -> None:
        """The last draws under a release were not sampled: they come next again."""
        self._counts[weights] = draws[0].number

    def failed(self, weights: Digest, draws: Sequence[Draw], again: bool = True) -> None:
        """The call for the last draws failed: they come again, half as many at once, so that a draw that
        always fails keeps no other from being sampled. Alone it is left out after TRIES, and at once where it
        would fail `again`."""
        self.stopped(weights, draws)
        self.at_once = max(1, len(draws) // 2)
        self._failed = self._failed + 1 if len(draws) == 1 else 0
        if self._failed == TRIES or (len(draws) == 1 and not again):
            self._counts[weights] += 1
            self._failed = 0
