"""Rounds that break: whatever happens to an averaging, at most one release comes of a version, and no group
is trained twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from broken_rounds import Broken, Watched, assert_one_release_of_each
from role_swarms import EPOCH, Told, scenario, without_rechecks
from rows import nightly

from peers.runtime.heartbeats import Heartbeats
from peers.runtime.releases.exchange import ReleaseExchange
from swarm.core.agreement.rounds import Cause
from swarm.events import NOT_FINITE, Averaged, Lost, Moved, Noted, Rejected, RoundBroke, Trained
from swarm.learn.learners.learner import Learner
from swarm.net.memory.network import MemoryAverager, MemoryGossip
from swarm.net.ports import Average, NotFinite
from swarm.settings.config import Averaging, BatchSize, DelayLaw, Pace, Releasing
from swarm.sim.scenario import Fault
from swarm.storage.weights import Weights
from swarm.types import Beat, Digest, PeerId, Release


def slow_releases(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Announcements travel for so much longer than heartbeats, which tell of the same release."""
    real, under_way = MemoryGossip.publish, set[asyncio.Task[None]]()

    async def publish(port: MemoryGossip, topic: str, data: bytes) -> None:
        async def later() -> None:
            await asyncio.sleep(seconds)
            await real(port, topic, data)

        if not topic.endswith("release"):
            return await real(port, topic, data)
        under_way.add(task := asyncio.create_task(later()))
        task.add_done_callback(under_way.discard)

    patch.setattr(MemoryGossip, "publish", publish)


@pytest.mark.parametrize(("learners", "seed"), [(3, 1), (4, 1021), *nightly([(4, 1), (4, 1031)])])
def test_of_a_version_whose_rounds_break_at_random_comes_one_release(
    monkeypatch: pytest.MonkeyPatch, learners: int, seed: int
) -> None:
    assert_one_release_of_each(monkeypatch, 1.5, learners, seed)


def test_of_learners_whose_rounds_break_now_and_then_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    Broken(monkeypatch, 10, versions=0.1, calls=0.1)
    told = Told(scenario(0.9, (3, 4)))
    steps = told.of(Trained)
    assert {1, 3} <= {event.members for event in steps} and max(event.version for event in steps) > 15
    assert not told.of(Rejected)


@pytest.mark.parametrize("seed", [1, *nightly([2])])
def test_so_it_is_when_heartbeats_overtake_the_release_that_they_tell_of(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """With seed 1 a learner's gradient is done 86 ms after another one stepped alone."""
    slow_releases(monkeypatch, 0.8)
    Broken(monkeypatch, seed, versions=0.3, calls=0.3)
    watched = Watched(monkeypatch)
    told = Told(scenario(1.5, (2, 4)))
    assert watched.several() == {}
    assert max(event.version for event in told.of(Trained)) > 12


@pytest.mark.nightly
def test_a_learner_that_is_left_out_does_not_step_before_a_round_of_most_that_succeeds_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The oldest learner is left out of every third round, and makes up its mind about when the others' round
    ends."""
    slow_releases(monkeypatch, 0.5)
    real = MemoryAverager.average

    async def average(
        port: MemoryAverager,
        version: int,
        tensors: Sequence[torch.Tensor],
        weight: float,
        peers: Collection[PeerId],
        deadline: float,
        *more: Any,
    ) -> Average | None:
        if version % 3:
            return await real(port, version, tensors, weight, peers, deadline, *more)
        if port._me == "learner-0":
            await asyncio.sleep(2.0)
            return None
        others = [peer for peer in peers if peer != "learner-0"]
        outcome = await real(port, version, tensors, weight, others, deadline, *more)
        await asyncio.sleep(random.Random(version).uniform(0.5, 3.4))
        return outcome

    monkeypatch.setattr(MemoryAverager, "average", average)
    watched = Watched(monkeypatch)
    told = Told(scenario(1.5, (3, 4)))
    assert watched.several() == {}
    steps = [event for event in told.of(Trained) if event.version % 3 == 1]
    assert Counter(event.members for event in steps)[2] > 0.9 * len(steps)
    assert "learner-0" not in {event.peer for event in steps if event.members == 1}
    assert max(event.version for event in told.of(Trained)) > 18


def test_the_gradient_of_one_that_died_is_waited_for_until_it_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A gradient takes half a minute, and would be waited for twice as long."""
    without_rechecks(monkeypatch)
    crash = Fault(at=116.0, fault="crash", peer="learner-2")
    run = {"batch": BatchSize(groups=9, close_after=3.0), "averaging": Averaging()}
    played = scenario(3.2, (3, 6), crash, **run)
    slow = {"learn": DelayLaw(law="constant", seconds=10.0)}
    told = Told(msgspec.structs.replace(played, prices=played.prices | slow, each=("learn",)))
    lost = min(event.at for event in told.of(Lost) if event.subject == "learner-2")
    states = {event.peer: event.state for event in told.of(Moved) if event.at < lost}
    assert {peer for peer, state in states.items() if state == "matching"} == {"learner-0", "learner-1"}
    assert min(event.at for event in told.of(Averaged) if event.at > crash.at + EPOCH) < lost + 5.0


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("learners", [2, 3, 4, 5])
def test_so_it_is_in_many_swarms(learners: int) -> None:
    for seed in range(10, 16):
        with pytest.MonkeyPatch.context() as patch:
            assert_one_release_of_each(patch, 4.0, learners, seed)


def test_a_stand_in_that_differs_and_a_publisher_that_is_only_slow_release_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(monkeypatch)
    step, prepare = Learner.step, ReleaseExchange.prepare
    order: dict[int, int] = {}

    def differs(learner: Learner, vector: torch.Tensor) -> dict[str, float]:
        """As learners differ that have not become twins."""
        return step(learner, vector + 1e-2 * order.setdefault(id(learner), len(order)))

    async def slow(releases: ReleaseExchange, weights: Weights, **made: Any) -> Release:
        release = await prepare(releases, weights, **made)
        if releases._kernel.ports.me == "learner-0" and release.version % 2 == 0:
            await releases._kernel.ports.clock.sleep(Releasing().timeout + 2.0)
        return release

    monkeypatch.setattr(Learner, "step", differs)
    monkeypatch.setattr(ReleaseExchange, "prepare", slow)
    told = Told(scenario(0.9, (2, 3)))
    assert watched.several() == {}
    assert len({release.version for release in watched.announced if release.version % 2 == 0}) > 3
    assert max(event.version for event in told.of(Trained)) > 7


@pytest.mark.parametrize("learners", [2, 3])
def test_learners_that_make_other_bytes_go_on_without_the_one_whose_bytes_they_voted_for(
    monkeypatch: pytest.MonkeyPatch, learners: int
) -> None:
    """The oldest one dies before it releases them."""
    without_rechecks(monkeypatch)
    step, prepare = Learner.step, ReleaseExchange.prepare
    order: dict[int, int] = {}

    def differs(learner: Learner, vector: torch.Tensor) -> dict[str, float]:
        return step(learner, vector + 1e-2 * order.setdefault(id(learner), len(order)))

    async def slow(releases: ReleaseExchange, weights: Weights, **made: Any) -> Release:
        release, ports = await prepare(releases, weights, **made), releases._kernel.ports
        if ports.me == "learner-0" and ports.clock.now() > EPOCH + 15.0:
            await ports.clock.sleep(60.0)
        return release

    monkeypatch.setattr(Learner, "step", differs)
    monkeypatch.setattr(ReleaseExchange, "prepare", slow)
    told = Told(scenario(1.0, (learners, 3), Fault(at=20.0, fault="crash", peer="learner-0")))
    assert max(event.version for event in told.of(Trained)) > 15
    assert len(told.of(Trained, "learner-1", since=20.0 + 2 * Pace().patience)) > 2


def test_a_stand_in_does_not_release_what_a_heartbeat_says_is_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow_releases(monkeypatch, 1.0)
    without_rechecks(monkeypatch)
    watched = Watched(monkeypatch)
    step, prepare = Learner.step, ReleaseExchange.prepare
    order: dict[int, int] = {}

    def differs(learner: Learner, vector: torch.Tensor) -> dict[str, float]:
        """As learners differ that have not become twins."""
        return step(learner, vector + 1e-2 * order.setdefault(id(learner), len(order)))

    async def slow(releases: ReleaseExchange, weights: Weights, **made: Any) -> Release:
        release = await prepare(releases, weights, **made)
        if releases._kernel.ports.me == "learner-0":
            await releases._kernel.ports.clock.sleep(Releasing().timeout - 0.5)
        return release

    monkeypatch.setattr(Learner, "step", differs)
    monkeypatch.setattr(ReleaseExchange, "prepare", slow)
    told = Told(scenario(0.9, (2, 3)))
    assert watched.several() == {}
    assert {release.publisher for release in watched.announced if release.version > 0} == {"learner-0"}
    assert max(event.version for event in told.of(Trained)) > 4


def test_a_learner_that_names_releases_which_never_come_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Heartbeats._beat

    def beat(beats: Heartbeats) -> Beat:
        told, liar = real(beats), beats._kernel.ports.me == "learner-1"
        return (
            msgspec.structs.replace(told, version=100 + told.seq, weights=Digest("f" * 64)) if liar else told
        )

    monkeypatch.setattr(Heartbeats, "_beat", beat)
    told = Told(scenario(1.2, (2, 3)))
    # Each version costs the match, a time-out and the listening: 8 seconds.
    assert max(event.version for event in told.of(Trained, "learner-0")) >= 6


def test_a_batch_whose_gradient_is_not_finite_is_dropped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuses(*_: Any) -> None:
        raise NotFinite("my own tensors are not finite")

    monkeypatch.setattr(MemoryAverager, "average", refuses)
    told = Told(scenario(0.3, (2, 3)))
    causes = Counter((event.peer, event.cause) for event in told.of(Moved))
    assert min(causes[f"learner-{number}", Cause.BATCH_REFUSED] for number in (0, 1)) > 1
    assert not any(cause in (Cause.ALONE, Cause.ROUND_BROKE) for _, cause in causes)
    assert all(event.reason.startswith(NOT_FINITE) for event in told.of(RoundBroke))


def test_a_learner_is_told_once_whose_port_for_parts_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    real = MemoryAverager.average

    async def average(port: MemoryAverager, *args: Any) -> Average | None:
        outcome = await real(port, *args)
        return replace(outcome, through=frozenset({max(outcome.members)})) if outcome is not None else None

    monkeypatch.setattr(MemoryAverager, "average", average)
    told = Told(scenario(0.5, (2, 4)))
    versions = Counter(event.peer for event in told.of(Trained))
    said = [event for event in told.of(Noted) if "peer.listen.parts" in event.text]
    assert min(versions.values()) > 3 and len(versions) == 2
    assert Counter(event.peer for event in said) == dict.fromkeys(versions, 1)
