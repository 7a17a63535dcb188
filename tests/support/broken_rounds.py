"""Averagers whose rounds break, or are recorded, and the check that each version has one release."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import pytest
import torch
from role_swarms import Told, scenario

from peers.runtime.releases.exchange import ReleaseExchange
from swarm.core.group_accounts import audit
from swarm.events import Trained
from swarm.net.memory.network import MemoryAverager
from swarm.net.ports import Average, RoundLost
from swarm.types import PeerId, Release


class Broken:
    """Averagings of which some break: for everybody at a version, or for single members in one of three
    ways."""

    def __init__(self, patch: pytest.MonkeyPatch, seed: int, versions: float, calls: float) -> None:
        """`versions` and `calls`: parts of them that are spoiled."""
        self._seed, self._versions, self._calls = seed, versions, calls
        self._count = Counter[tuple[PeerId, int]]()
        real, broken = MemoryAverager.average, self

        async def average(
            port: MemoryAverager,
            version: int,
            tensors: Sequence[torch.Tensor],
            weight: float,
            peers: Collection[PeerId],
            deadline: float,
            *more: Any,
        ) -> Average | None:
            how, seconds = broken._draw(port._me, version)
            if how == "lost before":
                await asyncio.sleep(seconds)
                raise RoundLost("the averager ended; nothing was averaged")
            if how == "nobody":
                await asyncio.sleep(2.0)
                return None
            held = [tensor.clone() for tensor in tensors]
            outcome = await real(port, version, tensors, weight, peers, deadline, *more)
            if how == "lost after" and outcome is not None:
                for tensor, before in zip(tensors, held, strict=True):
                    tensor.copy_(before)
                await asyncio.sleep(seconds)
                raise RoundLost("the last part did not come; nothing was averaged")
            return outcome

        patch.setattr(MemoryAverager, "average", average)

    def _draw(self, me: PeerId, version: int) -> tuple[str, float]:
        self._count[me, version] += 1
        both = random.Random(f"{self._seed}/{version}")
        mine = random.Random(f"{self._seed}/{me}/{version}/{self._count[me, version]}")
        if both.random() < self._versions:
            return mine.choice(["lost before", "lost before", "nobody"]), mine.uniform(0.0, 3.0)
        if mine.random() < self._calls:
            return mine.choice(["lost before", "lost after", "nobody"]), mine.uniform(0.0, 3.0)
        return "whole", 0.0


class Watched:
    """What the learners announced."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.announced: list[Release] = []
        announce = ReleaseExchange.announce

        async def announces(releases: ReleaseExchange, release: Release) -> None:
            self.announced.append(release)
            await announce(releases, release)

        patch.setattr(ReleaseExchange, "announce", announces)

    def several(self) -> dict[int, int]:
        """Versions of which more than one release was announced, with their number."""
        by_version: dict[int, set[str]] = {}
        for release in self.announced:
            by_version.setdefault(release.version, set()).add(release.weights)
        return {version: len(digests) for version, digests in by_version.items() if len(digests) > 1}


def assert_one_release_of_each(
    patch: pytest.MonkeyPatch, minutes: float, learners: int, seed: int, **run: Any
) -> None:
    Broken(patch, seed, versions=0.3, calls=0.3)
    watched = Watched(patch)
    told = Told(scenario(minutes, (learners, 4), seed=seed, **run))
    assert watched.several() == {}
    steps = told.of(Trained)
    alone = {event.version for event in steps if event.members == 1}
    assert len(alone) > 3 * minutes and len({event.version for event in steps} - alone) > minutes
    # On a good day there are 25 versions a minute; each break costs seconds, and four learners make 11 to 20.
    assert max(event.version for event in steps) > 10 * minutes
    account = audit(told.all)
    assert account.passed and account.once > 0, (account.lost, account.doubled)
