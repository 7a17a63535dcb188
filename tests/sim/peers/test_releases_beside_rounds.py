"""A version is packed and published beside the next gradient: nobody idles for it, nothing is lost by it."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from broken_rounds import Watched
from busy_rounds import busy, flip_bits
from role_swarms import EPOCH, Told, scenario, seconds

from peers.runtime.releases.exchange import ReleaseExchange
from swarm.core.group_accounts import audit
from swarm.events import Averaged, CaughtUp, Left, Moved, Released, Snapped, Trained
from swarm.sim.scenario import Fault, Scenario
from swarm.storage.weights import Weights
from swarm.types import Release

LEARN, PACK, PATCH = 2.0, 0.8, 0.5


def packing(*faults: Fault, minutes: float = 1.0) -> Scenario:
    """Two learners with groups enough. What is made of a version before it is announced takes 1.8 s."""
    plain = scenario(minutes, (2, 8), *faults)
    prices = {"learn": seconds(LEARN), "pack": seconds(PACK), "patch": seconds(PATCH)}
    return msgspec.structs.replace(plain, prices=plain.prices | prices)


@cache
def undisturbed() -> Told:
    return Told(packing())


def test_learners_compute_while_their_version_is_packed_and_published() -> None:
    told = undisturbed()
    assert not told.of(Snapped) and {event.members for event in told.of(Trained)} == {2}
    # 2 s of learning in 4 s where a version is announced before its gradient begins
    assert all(busy(told, learner, since=20) > 0.7 for learner in ("learner-0", "learner-1"))


def test_a_gradient_is_averaged_only_once_its_version_is_released() -> None:
    told = undisturbed()
    released = {event.release.version: event.at for event in told.of(Released)}
    began = {event.version: event.at for event in told.of(Moved, "learner") if event.state == "learning"}
    early = [version for version in released if version in began and began[version] < released[version]]
    assert len(early) > 9
    assert all(event.at > released[event.version] for event in told.of(Averaged))


def test_who_does_not_publish_makes_no_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare, made = ReleaseExchange.prepare, list[tuple[str, int]]()

    async def counted(releases: ReleaseExchange, weights: Weights, **rest: Any) -> Release:
        made.append((releases._kernel.ports.me, weights.version))
        return await prepare(releases, weights, **rest)

    monkeypatch.setattr(ReleaseExchange, "prepare", counted)
    told = Told(packing(Fault(at=30.0, fault="crash", peer="learner-0")))
    announced = [(event.peer, event.release.version) for event in told.of(Released, "learner")]
    assert {peer for peer, _ in announced} == {"learner-0", "learner-1"}
    assert len(made) <= len(announced) + 2, "the last one, and one that its publisher died of"
    assert Counter(version for _, version in made).most_common(2)[1][1] == 1


def test_an_early_gradient_of_a_version_that_is_not_the_release_costs_no_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(monkeypatch)
    flip_bits(monkeypatch)
    told = Told(packing())
    assert len(told.of(Snapped)) > 1 and watched.several() == {}
    thrown = [
        (before, after)
        for before, after in pairwise(told.of(Moved, "learner-1"))
        if after.state == "catching up" and before.state in ("learning", "releasing")
    ]
    assert thrown, "a gradient that was computed early, for nothing"
    account = audit(told.all)
    assert account.passed and account.once > 0, (account.lost, account.doubled)
    assert [event for event in told.of(Trained, since=40) if event.members == 2]


def test_a_learner_that_is_asked_to_stop_releases_what_it_stepped_to(monkeypatch: pytest.MonkeyPatch) -> None:
    pack = ReleaseExchange.pack

    async def stops(releases: ReleaseExchange, packed: Any) -> Weights:
        host = releases._kernel
        if host.ports.me == "learner-0" and host.now() > EPOCH + 20.0:
            host.leave()
        return await pack(releases, packed)

    monkeypatch.setattr(ReleaseExchange, "pack", stops)
    told = Told(packing(minutes=0.6))
    (left,) = told.of(Left, "learner-0")
    last = told.of(Trained, "learner-0")[-1].version
    released = {event.release.version: event for event in told.of(Released, "learner")}
    assert released[last].peer == "learner-0" and left.at >= released[last].at
    assert not told.of(CaughtUp, "learner-1", since=20)
