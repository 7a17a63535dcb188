r"""Which patches lead to a release, from a version that is here.

    version  0 ... 8 ... 16, 17, 18 ... 24     a rung: every RUNG-th version is also a patch from RUNG before
              \_____/ \____/   \_/             a step: every version is a patch from the one before
             0 ................ 64, 128 ...   every KEPT-th version is one from version 0 instead of a rung,
                                              where its publisher can make that version's bytes

Every announced patch is an edge from its base to its release; the way with the fewest bytes is taken, or the
whole release where that is smaller. Not handled: whether a patch is available, and correct.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from swarm.limits import WAY_STEPS
from swarm.types import Digest, Patch, Release

RUNG = 8
"""Versions between rungs. At a learning rate of 1e-6 a rung of 8 has half the bytes of 8 steps."""

KEPT = RUNG * RUNG
"""Versions whose patches are held: over a slow line the whole release takes many versions, and its receiver
then needs a way to the newest."""


class PatchStep(NamedTuple):
    """A patch, and the release that it makes."""

    patch: Patch
    release: Release


def cheapest(
    release: Release,
    known: Mapping[Digest, Sequence[Release]],
    is_here: Callable[[Digest], bool],
    useless: Container[Digest] = (),
) -> tuple[PatchStep, ...]:
    """The steps in order from a version that `is_here`; none where the whole release is to be fetched.

    `known`: weights -> their announced releases. Patches whose files are `useless` are left out.
    """
    order = count()  # of equal ways the first found: steps have no order of their own
    ways: list[tuple[int, int, Digest, tuple[PatchStep, ...]]] = [(0, next(order), release.weights, ())]
    seen: set[Digest] = set()
    while ways:
        size, _, base, way = heapq.heappop(ways)
        if way and is_here(base):
            return way
        if base in seen or len(way) == WAY_STEPS:
            continue
        seen.add(base)
        for made in known.get(base, ()):
            for patch in made.patches:
                if 0 < patch.size < release.size - size and patch.root not in useless:
                    step = PatchStep(patch, made)
                    heapq.heappush(ways, (size + patch.size, next(order), patch.base, (step, *way)))
    return ()
