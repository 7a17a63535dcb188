"""Learners on slow lines, as the roles that ship and in virtual time: contributions, lists, and one policy at
all of them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import role_swarms
import torch
from role_swarms import EPOCH
from rows import nightly

from lab.studies.nemesis import try_plan
from peers.learner.site_exchange import SiteExchange
from peers.learner.sites import SiteLearnerPeer
from peers.learner.trained_groups import ASKED, TrainedGroups
from swarm.core.agreement.rounds import Cause
from swarm.core.agreement.trained import mark
from swarm.core.group_accounts import audit
from swarm.events import (
    Averaged,
    CaughtUp,
    Dropped,
    Found,
    Rejected,
    Released,
    Returned,
    Snapped,
    Stepped,
    Trained,
)
from swarm.frames import wire
from swarm.frames.site_types import Contributed, ContributionList, ListEntry
from swarm.learn.learners import contribution
from swarm.learn.learners.optimizers import MasterOptimizer
from swarm.learn.learners.site_learner import SiteLearner
from swarm.limits import RELEASE_LIMIT
from swarm.net.memory.network import MemoryAverager
from swarm.protocol import Topic
from swarm.settings.config import Averaging, BatchSize, DelayLaw, Optimizer, Pace, Run, Sampling, TaskSettings
from swarm.sim import nemesis
from swarm.sim.scenario import Fault, Scenario
from swarm.storage.blocks import Blocks
from swarm.types import PeerId, TrainedStep


def scenario(minutes: float, learners: int, *faults: Fault, lr: float = 0.1, **averaging: Any) -> Scenario:
    """A seed, learners, two samplers for each, and a table that learns in some thirty versions."""
    settings = {"local_steps": 3, "density": 0.25, "match": 2.0, "deadline": 6.0, "chunk": 3.0} | averaging
    return Scenario(
        name="sites",
        hours=minutes / 60,
        peers={"seed": 1, "learner": learners, "sampler": 2 * learners},
        prices={
            "sample": DelayLaw(law="lognormal", seconds=1.0, shape=0.3),
            "learn": DelayLaw(law="constant", seconds=0.3),
        },
        run=Run(
            name="sites",
            task=TaskSettings(name="toy"),
            sampling=Sampling(group_size=4, max_tokens=4),
            optimizer=Optimizer(lr=lr),
            batch=BatchSize(groups=4 * learners, close_after=3.0),
            averaging=Averaging(mode="sites", **settings),
        ),
        faults=faults,
    )


class Told(role_swarms.Told):
    """What the learners of a scenario at sites did."""

    def releases(self, since: float = 0.0) -> dict[int, set[str]]:
        """Version -> the weights that were released as it."""
        found = defaultdict(set)
        for event in self.of(Released, "learner", since=since):
            found[event.release.version].add(event.release.weights)
        return found

    def members(self, since: float = 0.0, until: float = 1e9) -> dict[int, set[tuple[str, ...]]]:
        """Version -> whose contributions counted in it, by all who took the step."""
        found = defaultdict(set)
        for event in self.of(Averaged, since=since, until=until):
            found[event.version].add(event.members)
        return found

    def stepped(self, since: float = 0.0, until: float = 1e9) -> set[str]:
        """Marks of the groups of all steps, in hex."""
        steps = self.of(Stepped, since=since, until=until)
        mine = {mark(group).hex() for event in steps for group in event.groups}
        return mine | {each for event in steps for each in event.others}

    def reward(self) -> float:
        return fmean([event.metrics["reward"] for event in self.of(Trained) if event.groups][-12:])


@cache
def good_day() -> Told:
    return Told(scenario(1.8, 3, lr=0.15))


def test_learners_at_sites_learn() -> None:
    rewards = [event.metrics["reward"] for event in good_day().of(Trained)]
    assert fmean(rewards[-9:]) > 0.7 > 0.3 > fmean(rewards[:6])


def test_all_have_the_same_bytes_after_every_version() -> None:
    told = good_day()
    assert len(told.members()) > 20
    assert all(len(lists) == 1 for lists in told.members().values())
    assert all(len(weights) == 1 for weights in told.releases().values())
    assert not told.of(Snapped) and not told.of(Rejected)
    assert {event.version for event in told.of(CaughtUp)} == {0}  # the seed's release alone was loaded


def test_a_version_is_made_of_several_steps_of_all() -> None:
    told = good_day()
    lists = [next(iter(members)) for members in told.members().values()]
    assert sum(len(one) == 3 for one in lists) > 0.9 * len(lists)
    groups = [event.release.groups for event in told.of(Released, "learner")]
    assert fmean(groups) > 1.5 * 12  # groups of one step of all


def test_no_round_of_gradients_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryAverager, "average", lambda *_: pytest.fail("a gradient was averaged"))
    assert Told(scenario(0.3, 2)).members()


def test_the_same_seed_gives_the_same_journal() -> None:
    assert Told(scenario(0.3, 2)).outcome.sha256 == Told(scenario(0.3, 2)).outcome.sha256


def test_a_learner_alone_makes_versions_of_its_own_contributions() -> None:
    told = Told(scenario(1.8, 1, lr=0.2))
    assert set().union(*told.members().values()) == {("learner-0",)}
    assert told.reward() > 0.4


def closes(told: Told) -> set[str]:
    return {event.release.publisher for event in told.of(Released, "learner")}


def test_the_others_go_on_when_the_leader_of_the_lists_dies() -> None:
    told = Told(scenario(1.1, 3, Fault(at=10.2, fault="crash", peer="learner-0")))
    before, after = told.members(until=10), told.members(since=10.2 + Pace().patience + 10)
    assert any("learner-0" in members for lists in before.values() for members in lists)
    assert len(after) > 5
    assert {members for lists in after.values() for members in lists} == {("learner-1", "learner-2")}
    assert all(len(weights) == 1 for weights in told.releases(since=30).values())


@pytest.mark.nightly
def test_a_leader_that_dies_between_contributions_and_list_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = SiteExchange.close

    async def never(self: SiteExchange) -> None:
        if self._host.ports.me == "learner-0" and self._host.now() > EPOCH + 30:
            await asyncio.sleep(1e6)
        await real(self)

    monkeypatch.setattr(SiteExchange, "close", never)
    told = Told(scenario(1.5, 3))
    stuck = told.members(since=32)
    assert len(stuck) > 2
    # Its contribution is there, and counts: the next one in the order signs the list, a turn later.
    first = min(stuck)
    assert stuck[first] == {("learner-0", "learner-1", "learner-2")}
    assert {event.peer for event in told.of(Averaged, since=32)} == {"learner-1", "learner-2"}


def test_a_contribution_that_is_late_counts_in_a_later_list(monkeypatch: pytest.MonkeyPatch) -> None:
    real = SiteExchange.contribute
    slow = list[int]()

    async def late(self: SiteExchange, groups: int, weight: float, marks: bytes) -> None:
        if self._host.ports.me == "learner-1" and self._learner.version in (3, 7):
            slow.append(self._learner.version)
            await asyncio.sleep(10.0)
        await real(self, groups, weight, marks)

    monkeypatch.setattr(SiteExchange, "contribute", late)
    told = Told(scenario(0.9, 3))
    lists = told.members()
    assert set(slow) == {3, 7}
    assert all(lists[version] == {("learner-0", "learner-2")} for version in (3, 7))
    trained = {event.version: event.groups for event in told.of(Trained, "learner-1")}
    # it took the step of the list, and what it had trained was in the version after
    assert trained[4] == 0 < trained[5] and trained[8] == 0 < trained[9]
    assert all(len(weights) == 1 for weights in told.releases().values())
    assert not told.of(Snapped)


@pytest.mark.nightly
def test_a_learner_that_is_cut_off_follows_and_takes_part_again() -> None:
    sides = (("learner-2", "sampler-4", "sampler-5"), ("learner-0", "learner-1", "seed-0", "sampler-[0-3]"))
    faults = [Fault(at=40, fault="partition", between=sides), Fault(at=55, fault="repair", between=sides)]
    told = Told(scenario(2.0, 3, *faults))
    late = told.members(since=85)
    assert sum(members == {("learner-0", "learner-1", "learner-2")} for members in late.values()) > 4
    assert all(len(weights) == 1 for weights in told.releases(since=90).values())


def test_a_message_that_is_lost_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    real, said = SiteExchange._publish, defaultdict[Any, int](int)

    async def lossy(self: SiteExchange, topic: Topic, sealed: bytes) -> None:
        said[self._host.ports.me, topic] += 1
        if said[self._host.ports.me, topic] % 2:
            await real(self, topic, sealed)

    monkeypatch.setattr(SiteExchange, "_publish", lossy)
    told = Told(scenario(0.7, 3))
    assert len(told.members()) > 5
    assert all(len(weights) == 1 for weights in told.releases().values())


@pytest.mark.nightly
def test_a_learner_that_joins_in_the_middle_has_the_same_bytes_soon() -> None:
    told = Told(scenario(2.0, 3, Fault(at=40, fault="host", peer="learner-2")))
    late = told.members(since=70)
    assert sum(members == {("learner-0", "learner-1", "learner-2")} for members in late.values()) > 6
    # It has the others' anchor and momentum after one transfer, and differs from no release any more.
    assert told.of(Snapped, "learner-2", since=40, until=70) and not told.of(Snapped, since=70)


def test_a_learner_that_comes_back_takes_part_again() -> None:
    told = Told(scenario(0.95, 2, Fault(at=10, fault="bounce", peer="learner-1", down=15)))
    assert told.of(CaughtUp, "learner-1", since=25, until=40)
    assert {("learner-0", "learner-1")} in told.members(since=40).values()


@pytest.mark.nightly
def test_a_contribution_of_absurd_size_counts_for_little_and_its_learner_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = SiteExchange._packed

    def packed(self: SiteExchange, marks: bytes) -> tuple[Blocks, float]:
        blocks, norm = real(self, marks)
        if self._host.ports.me != "learner-3":
            return blocks, norm
        total, density = np.zeros(self._learner.size, np.float32), self._learner.run.averaging.density
        contribution.add(total, self._learner.contribution(), -1000.0, density)
        values = contribution.encode(total, density)
        contributed = Contributed(groups=marks, values=values)
        return Blocks.of(wire.encode(contributed)), self._learner.norm(values)

    monkeypatch.setattr(SiteExchange, "_packed", packed)
    told = Told(scenario(1.5, 4))
    rounds = told.of(Averaged)
    assert sum(event.scaled.keys() == {"learner-3"} for event in rounds) > 0.8 * len(rounds) > 40
    assert all(event.scaled.keys() <= {PeerId("learner-3")} for event in rounds)
    assert told.reward() > 0.4


@pytest.mark.nightly
def test_a_learner_that_lists_itself_alone_with_an_absurd_norm_is_named_and_moves_no_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = SiteExchange.run

    async def lie(self: SiteExchange) -> None:
        at = None
        while True:
            await asyncio.sleep(0.2)
            self.gathered()
            if self._at == at or self._at[0] < 12:
                continue
            at = self._at
            noise = 1000 * torch.randn(self._learner.size, generator=torch.Generator().manual_seed(at[0]))
            values = contribution.encode(noise.numpy(), self._learner.run.averaging.density)
            blocks = Blocks.of(wire.encode(Contributed(groups=b"", values=values)))
            entry = ListEntry(
                learner=self._host.ports.me,
                root=blocks.root,
                size=blocks.size,
                groups=1,
                weight=1.0,
                share=1.0,
            )
            listed = Blocks.of(wire.encode((entry,)))
            for each in (blocks, listed):
                self._blobs.hold(at[0], each)
            closed = ContributionList(
                version=at[0],
                weights=at[1],
                leader=self._host.ports.me,
                root=listed.root,
                size=listed.size,
            )
            await self._publish(Topic.COUNTED, self._host.seal(closed, RELEASE_LIMIT))

    async def run(self: SiteExchange) -> None:
        async with asyncio.TaskGroup() as tasks:
            lies = tasks.create_task(lie(self) if self._host.ports.me == "learner-2" else asyncio.sleep(0))
            try:
                await real(self)
            finally:
                lies.cancel()

    monkeypatch.setattr(SiteExchange, "run", run)
    told = Told(scenario(1.5, 3))
    named = told.of(Rejected, "learner-0")
    assert {event.sender for event in named} == {"learner-2"} and len(named) > 4
    assert all("norm" in event.reason for event in named)
    assert max(event.metrics["grad_norm"] for event in told.of(Trained)) < 10
    assert {("learner-0", "learner-1", "learner-2")} in told.members(since=60).values()


@pytest.mark.nightly
def test_a_contribution_that_is_none_is_left_out_and_its_learner_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = SiteExchange._packed

    def packed(self: SiteExchange, marks: bytes) -> tuple[Blocks, float]:
        blocks, norm = real(self, marks)
        return (
            (Blocks.of(b"nothing" + blocks.whole[7:]), norm)
            if self._host.ports.me == "learner-2"
            else (
                blocks,
                norm,
            )
        )

    monkeypatch.setattr(SiteExchange, "_packed", packed)
    told = Told(scenario(1.0, 3))
    named = [event for event in told.of(Rejected) if event.sender == "learner-2"]
    assert {event.peer for event in named} == {"learner-0", "learner-1"}
    lists = {members for lists in told.members().values() for members in lists}
    assert ("learner-0", "learner-1") in lists


@pytest.mark.parametrize(
    "counts",
    [pytest.param(True, id="counts", marks=pytest.mark.nightly), pytest.param(False, id="does not count")],
)
def test_what_was_contributed_to_a_list_that_never_came_is_trained_once(
    monkeypatch: pytest.MonkeyPatch, counts: bool
) -> None:
    """The learner takes the release of the list, and the others say whose groups that has."""
    real, receive = SiteExchange._publish, SiteExchange._receive_list

    def missed(self: SiteExchange) -> bool:
        return self._host.ports.me == "learner-1" and self._learner.version % 3 == 2

    async def say(self: SiteExchange, topic: Topic, sealed: bytes) -> None:
        if counts or topic is not Topic.CONTRIBUTION or not missed(self):
            await real(self, topic, sealed)

    def hears(self: SiteExchange, sealed: bytes) -> None:
        if not missed(self):
            receive(self, sealed)

    monkeypatch.setattr(SiteExchange, "_publish", say)
    monkeypatch.setattr(SiteExchange, "_receive_list", hears)
    told = Told(scenario(1.0, 3))
    behind = [event.version for event in told.of(CaughtUp, "learner-1") if event.version]
    with_it = [("learner-1" in next(iter(told.members()[version - 1]))) == counts for version in behind]
    assert len(behind) > 2 and all(with_it)
    account = audit(told.all)
    assert account.passed, (account.lost, account.doubled)
    assert account.once > 120 and account.waiting < 60
    assert bool(told.of(Returned, "learner-1")) != counts


def test_what_a_site_left_on_its_disk_is_trained_though_others_tell_late_what_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It follows the others' lists meanwhile."""
    real = TrainedGroups._ask

    async def late(self: TrainedGroups, learner: PeerId, since: int) -> Sequence[TrainedStep] | None:
        await self._host.ports.clock.sleep(0.95 * ASKED)
        return await real(self, learner, since)

    monkeypatch.setattr(TrainedGroups, "_ask", late)
    killed = Fault(at=21, fault="bounce", peer="learner-1", down=1.0)
    told = Told(scenario(0.6, 2, killed, local_steps=2, deadline=2.0), tmp_path)
    (found,) = told.of(Found, "learner-1")
    before, after = told.stepped(until=found.at - EPOCH), told.stepped(since=found.at - EPOCH)
    left = {mark(group).hex() for group in found.groups} - before
    assert left and left <= after
    assert not [event for event in told.of(Dropped) if event.why == "of another line"]


def test_memory_that_ends_in_the_middle_of_a_local_step_gives_back_the_groups_of_those_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    local, real = SiteLearnerPeer.step_locally, MasterOptimizer.step
    left = list[str]()  # the groups whose step is lost
    broken = list[str]()  # those of the step in which memory ended

    def step(self: MasterOptimizer, *args: Any) -> None:
        if left and not broken[1:]:
            broken.append("now")
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        real(self, *args)

    async def steps(self: SiteLearnerPeer) -> Cause:
        if not broken and self.learner.version >= 4 and self._trained.steps == 1:
            left.extend(item.group.id for item, _ in self._trained.batches)
            broken.append("next")
        return await local(self)

    monkeypatch.setattr(MasterOptimizer, "step", step)
    monkeypatch.setattr(SiteLearnerPeer, "step_locally", steps)
    told = Told(scenario(1.0, 1))
    assert broken == ["next", "now"] and left
    (back,) = told.of(Returned)
    assert {*back.groups} == {*left}
    again = [event for event in told.of(Stepped) if {*left} <= {*event.groups}]
    assert len(again) == 1 and again[0].at > back.at
    account = audit(told.all)
    assert account.passed, (account.lost, account.doubled)


@pytest.mark.parametrize("seed", [123, *nightly([132])])
def test_a_site_that_takes_the_state_of_other_bytes_keeps_its_local_steps(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, had = SiteLearner._load_tensors, list[float]()

    def loads(self: SiteLearner, tensors: dict[str, torch.Tensor], steps: int) -> None:
        before, sent = self._anchor - self._optimizer.gather(), self._sent
        load(self, tensors, steps)
        if not sent and before.any():
            had.append(float(before.norm()))
            torch.testing.assert_close(self._anchor - self._optimizer.gather(), before)

    monkeypatch.setattr(SiteLearner, "_load_tensors", loads)
    trial = try_plan(nemesis.plan(seed))
    assert had and not trial.failures


def test_a_learner_that_contributed_steps_no_further_before_there_is_a_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its list was of no use: no contribution would name the groups of another step."""
    local, outer = SiteLearnerPeer.step_locally, SiteLearner.outer_step
    failed = list[int]()

    def outer_step(self: SiteLearner, counted: Any, mine: bool) -> dict[str, float]:
        if self.version == 4 and not failed:
            failed.append(self.version)
            raise ValueError("nothing fits")
        return outer(self, counted, mine)

    async def steps(self: SiteLearnerPeer) -> Cause:
        assert not self._trained.contributed
        return await local(self)

    monkeypatch.setattr(SiteLearner, "outer_step", outer_step)
    monkeypatch.setattr(SiteLearnerPeer, "step_locally", steps)
    told = Told(scenario(1.0, 1))
    assert failed and max(told.members()) > 6


def test_learners_wait_for_nobody_who_is_slow() -> None:
    """Who is slow contributes what it has when another one waits."""
    told = good_day()
    waits = [event.average for event in told.of(Trained)]
    assert fmean(waits) < 1.0
