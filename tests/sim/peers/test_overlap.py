"""`run.averaging.overlap`: the next gradient is computed while a round waits, for one version more of lag."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
import torch
from broken_rounds import Watched, assert_one_release_of_each
from busy_rounds import busy, flip_bits
from role_swarms import Told, scenario, seconds
from rows import nightly

from peers.learner.agreement import catch_up
from swarm.core.group_accounts import audit
from swarm.events import Averaged, CaughtUp, Counted, Faulted, Snapped, Trained
from swarm.learn.fsdp.driver import RankLost
from swarm.learn.learners.base_learner import Gradient
from swarm.learn.learners.learner import Learner
from swarm.learn.learners.microbatch import OutOfMemory
from swarm.learn.models.tabular import Tabular
from swarm.settings.config import Averaging, BatchSize, ObjectiveSettings, Run, Stop, Window
from swarm.sim.scenario import Fault, Scenario, SimulatedLinks

LEARN = 1.5


def waiting(overlap: bool, *faults: Fault, minutes: float = 1.0, **run: Any) -> Scenario:
    """Two learners with groups enough, whose rounds take about as long as their gradients."""
    averaging = Averaging(match=2.0, deadline=6.0, chunk=3.0, overlap=overlap)
    settings = {"averaging": averaging, "batch": BatchSize(groups=8, close_after=3.0)} | run
    plain = scenario(minutes, (2, 7), *faults, **settings)
    prices = plain.prices | {"learn": seconds(LEARN), "pack": seconds(0.3)}
    return msgspec.structs.replace(plain, prices=prices, links=SimulatedLinks(bandwidth=3000.0))


class Steps:
    """Of each step: the learner's version, and that of the policy that computed its gradient."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.taken: list[tuple[int, int]] = []
        gradient, step = Learner.gradient, Learner.step
        self._computed: dict[int, Gradient] = {}

        def computes(learner: Learner, *batch: Any) -> Gradient:
            made = gradient(learner, *batch)
            self._computed[made.vector.data_ptr()] = made
            return made

        def steps(learner: Learner, vector: torch.Tensor) -> dict[str, float]:
            self.taken.append((learner.version, self._computed[vector.data_ptr()].version))
            return step(learner, vector)

        patch.setattr(Learner, "gradient", computes)
        patch.setattr(Learner, "step", steps)


def lags(told: Told) -> list[float]:
    return [event.metrics["lag_versions"] for event in told.of(Trained, since=25)]


@pytest.mark.nightly
def test_learners_compute_while_their_rounds_wait() -> None:
    apart, beside = (Told(waiting(overlap)) for overlap in (False, True))
    for learner in ("learner-0", "learner-1"):
        assert busy(beside, learner, since=20) > busy(apart, learner, since=20) + 0.15
    assert {event.members for event in beside.of(Trained, since=20)} == {2} and not beside.of(Snapped)
    assert 0.5 < sum(lags(beside)) / len(lags(beside)) - sum(lags(apart)) / len(lags(apart)) < 3.0


def test_a_gradient_is_of_the_version_before_the_one_that_it_is_stepped_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = Steps(monkeypatch)
    told = Told(waiting(True))
    behind = Counter(version - computed for version, computed in steps.taken)
    assert set(behind) <= {0, 1} and behind[1] > 0.8 * behind.total()
    assert len(told.of(Trained)) == len(steps.taken)


@pytest.mark.nightly
def test_the_window_counts_the_version_that_a_gradient_waits() -> None:
    told = Told(waiting(True, window=Window(versions=2)))
    ages = Counter[int]()
    for event in told.of(Counted):
        ages.update({int(lag): count for lag, count in event.versions.items()})
    assert max(ages) == 2 and told.of(Trained, since=50)
    assert max(lags(told)) <= 2


@pytest.mark.parametrize(("learners", "seed"), [*nightly([(2, 3)]), (3, 0)])
def test_of_a_version_whose_rounds_break_comes_one_release_and_no_group_is_lost_or_trained_twice(
    monkeypatch: pytest.MonkeyPatch, learners: int, seed: int
) -> None:
    averaging = Averaging(match=2.0, deadline=6.0, chunk=3.0, overlap=True)
    assert_one_release_of_each(monkeypatch, 1.5, learners, seed, averaging=averaging)


def assert_all_groups_are_somewhere(told: Told) -> None:
    account = audit(told.all)
    assert account.passed and account.once > 0, (account.lost, account.doubled)


def test_the_groups_of_both_gradients_come_back_when_a_release_overtakes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(monkeypatch)
    flip_bits(monkeypatch)
    # one that takes a state again so soon is in step, and no release overtakes it
    monkeypatch.setattr(catch_up, "STATE_PAUSE_AHEAD", catch_up.STATE_PAUSE)
    told = Told(waiting(True))
    overtaken = [*told.of(Snapped), *told.of(CaughtUp, since=25)]  # one that is out of step is late, too
    assert len(overtaken) > 2 and watched.several() == {}
    assert_all_groups_are_somewhere(told)


@pytest.mark.nightly
def test_a_policy_that_is_lost_with_a_gradient_is_fetched_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched, gradient, calls = Watched(monkeypatch), Learner.gradient, Counter[int]()

    def breaks(learner: Learner, *batch: Any) -> Gradient:
        calls[id(learner)] += 1
        if calls[id(learner)] == 12:
            learner.version = -1
            raise RankLost("rank 1 of 2 (cuda:1) was killed by SIGKILL", memory=False)
        return gradient(learner, *batch)

    monkeypatch.setattr(Learner, "gradient", breaks)
    told = Told(waiting(True))
    assert len([event for event in told.of(Faulted) if event.part == "learner"]) == 2
    assert told.of(CaughtUp, since=10) and told.of(Trained, since=60)
    assert watched.several() == {}


@pytest.mark.nightly
def test_a_gradient_that_does_not_fit_in_memory_costs_its_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gradient, calls = Learner.gradient, Counter[int]()

    def ends(learner: Learner, *batch: Any) -> Gradient:
        calls[id(learner)] += 1
        if calls[id(learner)] in (6, 7, 12):
            raise OutOfMemory("not even one group goes through the model")
        return gradient(learner, *batch)

    monkeypatch.setattr(Learner, "gradient", ends)
    told = Told(waiting(True))
    assert len([event for event in told.of(Faulted) if event.part == "memory"]) == 6
    versions = [event.version for event in told.of(Trained, "learner-0")]
    assert versions == sorted(set(versions)) and told.of(Trained, since=60)


def test_a_run_that_ends_computes_nothing_beyond_its_last_version(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch)
    told = Told(waiting(True, stop=Stop(versions=9)))
    assert max(event.version for event in told.of(Trained)) == 9
    assert len(steps._computed) == len(steps.taken) == 18


def test_an_objective_that_needs_the_rounds_whole_batch_is_refused() -> None:
    run = Run(averaging=Averaging(overlap=True), objective=ObjectiveSettings(name="ppo_clip"))
    with pytest.raises(ValueError, match=r"run\.averaging\.overlap.*ppo_clip.*gepo"):
        Learner(Tabular(), run)


def test_who_still_computes_ahead_is_waited_for_by_those_that_have_stepped() -> None:
    """The second learner has its gradients a second later than the first one, and match is shorter."""
    plain = waiting(True, minutes=1.5, averaging=Averaging(match=0.8, request=0.4, chunk=3.0, overlap=True))
    prices = plain.prices | {"learn": seconds(5.0)}
    told = Told(msgspec.structs.replace(plain, prices=prices, slower={"learner-1": 1.2}))
    rounds = Counter(len(event.members) for event in told.of(Averaged, since=20))
    assert rounds[2] >= 18 and set(rounds) == {2} and not told.of(CaughtUp, since=20)
