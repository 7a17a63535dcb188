"""A round of the shipping roles steps by the gradient that one learner would make of all its members'
batches."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

import msgspec
import pytest
from nouns import beat, group
from role_swarms import without_rechecks
from rows import nightly
from still_host import still_host
from torch import Tensor

from peers.commands import sim
from peers.learner.round_totals import RoundTotals, closed_of
from peers.runtime.host import Host
from swarm.events import Event, Noted, Trained
from swarm.learn.learners.base_learner import Gradient
from swarm.learn.learners.learner import Learner
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role
from swarm.settings.config import (
    Averaging,
    BatchSize,
    Config,
    DelayLaw,
    ObjectiveSettings,
    Optimizer,
    Run,
    Sampling,
    TaskSettings,
)
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.sim.scenario import Fault, Scenario
from swarm.sim.world import World
from swarm.types import BatchRewards, Beat, Moments, PeerId


class Watched:
    """Two learners and three samplers; what each round of both learners stepped by, beside the gradient on
    the union."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        method: str,
        *faults: Fault,
    ) -> None:
        self.errors: list[float] = []
        """Of the vector that was stepped by, over the norm of the union's gradient."""
        self.shares: list[tuple[int, int]] = []
        """Groups of the two members."""
        self.calls: list[tuple[int, int, int]] = []
        """Of each gradient: the version, the learner, how many batches of others it took in."""
        self._batches: dict[int, dict[int, tuple[Any, ...]]] = defaultdict(dict)
        watched = self

        class Shown(Learner):
            def gradient(self, *batch: Any) -> Gradient:
                return watched._gradient(self, *batch)

            def step(self, vector: Tensor) -> dict[str, float]:
                return watched._step(self, vector)

        monkeypatch.setattr(sim, "of_mode", lambda run: Shown)
        without_rechecks(monkeypatch)
        run = Run(
            name="union",
            task=TaskSettings(name="toy"),
            sampling=Sampling(group_size=4, max_tokens=4),
            optimizer=Optimizer(lr=0.1),
            batch=BatchSize(groups=12, close_after=3.0),
            averaging=Averaging(match=2.0, deadline=6.0, chunk=3.0),
            objective=ObjectiveSettings(name=method),
        )
        prices = {
            "sample": DelayLaw(law="lognormal", seconds=1.0, shape=0.3),
            "learn": DelayLaw(law="constant", seconds=0.3),
        }
        played = Scenario(
            name="union",
            hours=0.6 / 60,
            peers={"seed": 1, "learner": 2, "sampler": 3},
            seed=1,
            prices=prices,
            run=run,
            faults=faults,
        )
        self.told: list[Event] = []
        World(played, sim.spawn, sinks=[self.told.append]).run()

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.told if isinstance(event, kind)]

    def _gradient(
        self, learner: Learner, groups: Any, prompts: Any, rewards: Any, now: float, others: Any
    ) -> Gradient:
        self.calls.append((learner.version, id(learner), len(others)))
        self._batches[learner.version][id(learner)] = (groups, prompts, rewards)
        return Learner.gradient(learner, groups, prompts, rewards, now, others)

    def _step(self, learner: Learner, vector: Tensor) -> dict[str, float]:
        batches = list(self._batches[learner.version].values())
        if len(batches) == 2:
            union = [[*one, *other] for one, other in zip(*batches, strict=True)]
            true = Learner.gradient(learner, union[0], union[1], union[2], 0.0).vector
            self.errors.append(float((vector - true).norm() / true.norm()))
            self.shares.append((len(batches[0][0]), len(batches[1][0])))
        return Learner.step(learner, vector)


@pytest.mark.parametrize("method", ["dapo", "ppo_clip", *nightly(["gpg", "bnpo_beta"])])
def test_two_unequal_learners_step_as_one_learner_on_the_union(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    watched = Watched(monkeypatch, method)
    assert len([event for event in watched.of(Trained) if event.members == 2]) > 10
    assert any(one != other for one, other in watched.shares)
    assert max(watched.errors) < 1e-5
    assert not [event for event in watched.of(Noted) if "advantages" in event.text]


def test_a_learner_that_tells_nothing_holds_nobody_up_and_the_journal_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    announce = RoundTotals.announce

    def mute(totals: RoundTotals, *batch: Any) -> None:
        if totals.host.ports.me == "learner-1":
            return
        announce(totals, *batch)

    monkeypatch.setattr(RoundTotals, "announce", mute)
    watched = Watched(monkeypatch, "ppo_clip")
    assert len([event for event in watched.of(Trained) if event.members == 2]) > 10
    noted = [event for event in watched.of(Noted) if "averaged over 2 learners" in event.text]
    assert noted and {event.peer for event in noted} == {"learner-0"}
    assert all("by the batches of 1: a heartbeat was late" in event.text for event in noted)


IMPOSSIBLE: list[dict[str, Any]] = [
    {"groups": 13, "completions": 52},
    {"groups": 0, "completions": 0},
    {"groups": 0, "completions": 0, "live": 0},
    {"completions": 9},
    {"live": 13},
    {"live": -1},
    {"mean": -1e200},
    {"square": -1.0},
    {"square": 1e300},
    {"version": 6},
]


POSSIBLE: list[dict[str, Any]] = [
    {"groups": 1, "completions": 4},
    {"groups": 12, "completions": 48},
    {"live": 0},
    {"live": 12},
]


@pytest.mark.parametrize("change", IMPOSSIBLE)
def test_a_batch_that_cannot_be_is_not_taken_in(change: dict[str, Any]) -> None:
    settings = Run(batch=BatchSize(groups=12), sampling=Sampling(group_size=4))

    def said(
        groups: int = 3,
        completions: int = 12,
        mean: float = 0.5,
        square: float = 1.0,
        live: int = 4,
        version: int = 7,
    ) -> Beat:
        of = [Moments(count=count, mean=mean, square=square) for count in (completions, groups)]
        return beat(version=version, closed=BatchRewards(live=live, completions=of[0], groups=of[1]))

    for possible in ({}, *POSSIBLE):
        assert closed_of(said(**possible), 7, settings) is not None
    assert closed_of(said(**change), 7, settings) is None
    assert closed_of(beat(version=7), 7, settings) is None


@pytest.mark.parametrize("field", ["groups", "completions"])
def test_a_batch_of_which_one_mean_cannot_be_is_not_taken_in(field: str) -> None:
    settings = Run(batch=BatchSize(groups=12), sampling=Sampling(group_size=4))
    absurd = msgspec.structs.replace(getattr(closed(3), field), mean=1e200)
    of = msgspec.structs.replace(closed(3), **{field: absurd})
    assert closed_of(beat(version=7, closed=closed(3)), 7, settings) is not None
    assert closed_of(beat(version=7, closed=of), 7, settings) is None


A, B, C, D = map(PeerId, ("learner-1", "learner-2", "learner-3", "learner-4"))


def closed(groups: int) -> BatchRewards:
    of = [Moments(count=count, mean=0.5, square=1.0) for count in (4 * groups, groups)]
    return BatchRewards(live=4, completions=of[0], groups=of[1])


def totals_of(host: Host, *others: PeerId) -> RoundTotals:
    """Of a learner that does not run; `others` can take part in its round."""
    return RoundTotals(host, lambda: others)


def still(network: MemoryNetwork, method: str = "ppo_clip") -> Host:
    run_ = Run(
        objective=ObjectiveSettings(name=method),
        batch=BatchSize(groups=12),
        sampling=Sampling(group_size=4),
        averaging=Averaging(match=5.0),
    )
    return still_host(network, "learner-0", Role.LEARNER, Config(run=run_))


@pytest.mark.parametrize("comes", [True, False])
def test_who_is_about_to_have_my_version_is_waited_for_as_long_as_a_round_is(comes: bool) -> None:
    async def main() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            host = still(network)
            totals, begun = totals_of(host, A, B, C, D, PeerId("unheard")), host.steady()

            def say(peer: PeerId, version: int, groups: int = 0, seq: int = 1) -> None:
                said = beat(name=peer, version=version, seq=seq, closed=closed(groups) if groups else None)
                assert host.roster.receive(peer, said, host.now())
                host.move()

            async def later() -> None:
                await host.ports.clock.sleep(2.0)
                say(B, 7, 2, seq=2)

            late = (B, 6, 5) if comes else (B, 7, 0)
            for peer, version, groups in ((A, 7, 3), late, (C, 5, 0), (D, 8, 6)):
                say(peer, version, groups)
            if comes:
                network.tasks.create_task(later())
            assert await totals.collect(7)
            assert host.steady() - begun == pytest.approx(2.0 if comes else 5.0, abs=0.1)
            found = {A: closed(3)} | ({B: closed(2)} if comes else {})
            assert totals.collected == found
            if comes:
                assert not await totals.collect(7), "nothing has changed"
                say(B, 7, 4, seq=3)
                assert await totals.collect(7) and totals.collected[B] == closed(4)
                assert host.steady() - begun == pytest.approx(2.0, abs=0.1)
                say(B, 7, 0, seq=4)
                host.stop.set()
                assert await totals.collect(7) and totals.collected == {A: closed(3)}
                assert host.steady() - begun == pytest.approx(2.0, abs=0.1), "who leaves waits for nobody"

    run(main())


def test_members_whose_totals_a_gradient_did_not_use_are_told_and_totals_go_with_their_batch() -> None:
    async def main() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            host = still(network)
            totals, told, me = totals_of(host), list[Event](), host.ports.me
            host.bus.add(told.append)
            totals.announce([group(1), group(2)], [(1.0, 0.0), (0.5, 0.5)])
            said = host.status.closed
            assert said is not None and (said.groups.count, said.completions.count, said.live) == (2, 4, 2)
            totals.collected = {A: closed(3), B: closed(2)}
            totals.report_mismatch(7, {me, A, B})
            assert not told
            totals.report_mismatch(7, {me, A})
            (noted,) = told
            assert isinstance(noted, Noted) and noted.text.startswith(
                "version 7 was averaged over 2 learners, and its advantages were scaled by the batches of 3:"
            )
            totals.clear()
            assert not totals.collected and host.status.closed is None

    run(main())


def test_an_objective_of_each_group_alone_asks_nobody() -> None:
    async def main() -> None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            host = still(network, "gepo")
            totals, told = totals_of(host, A), list[Event]()
            host.bus.add(told.append)
            host.roster.receive(A, beat(name=A, version=7), host.now())
            totals.announce([group(1)], [(1.0, 0.0)])
            begun = host.steady()
            assert not await totals.collect(7) and host.steady() == begun
            totals.report_mismatch(7, {A})
            assert host.status.closed is None and not told

    run(main())
