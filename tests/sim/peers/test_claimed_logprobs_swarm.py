"""What a learner believes of a sampler's word, in the simulator with the roles that ship."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from typing import Any

import msgspec
import pytest
from role_swarms import EPOCH, Told, scenario

from peers.sampler.sampler import Sampler
from swarm.core.intake import claimed_logprobs
from swarm.core.intake.admission import group_id
from swarm.events import CaughtUp, Counted, Judged, Moved, Noted, Rejected, Snapped, Trained
from swarm.settings.config import Delay, DelayLaw, ObjectiveSettings, Optimizer, Window
from swarm.sim.scenario import Fault
from swarm.types import Array, Digest, Group

TOMORROW = 86_400.0
FAST = Optimizer(lr=0.3)


def constant(seconds: float) -> DelayLaw:
    return DelayLaw(law="constant", seconds=seconds, longest=seconds)


def told_with_a_liar(
    monkeypatch: pytest.MonkeyPatch,
    lie: Any,
    minutes: float = 1.0,
    peers: tuple[int, int] = (1, 3),
    **run: Any,
) -> tuple[Counter[str], Told]:
    """The verdicts on sampler-0, which says `lie(group)` for each of its groups."""

    class Liar(Sampler):
        async def _deliver(self, group: Group) -> None:
            await super()._deliver(lie(group) if self.host.ports.me == "sampler-0" else group)

    monkeypatch.setattr("peers.sampler.sampler.Sampler", Liar)
    told = Told(scenario(minutes, peers, **run))
    return Counter(event.verdict.value for event in told.of(Judged) if event.sampler == "sampler-0"), told


def test_a_sampler_cannot_make_its_groups_younger_by_its_word(monkeypatch: pytest.MonkeyPatch) -> None:
    def younger(group: Group) -> Group:
        return msgspec.structs.replace(
            group, times=msgspec.structs.replace(group.times, released=EPOCH + TOMORROW)
        )

    slow = Delay(upload=constant(20.0))
    verdicts, _ = told_with_a_liar(monkeypatch, younger, delay=slow, window=Window(versions=64, seconds=15.0))
    assert verdicts["untrusted"] == verdicts.total() > 5


def test_a_group_of_weights_that_nobody_released_is_refused_and_the_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verdicts, told = told_with_a_liar(
        monkeypatch, lambda group: msgspec.structs.replace(group, weights=Digest("0" * 64))
    )
    assert verdicts["untrusted"] == verdicts.total() > 5
    assert told.verdicts()["untrusted"] == verdicts["untrusted"] and told.verdicts()["admit"] > 50


def test_a_learner_that_starts_anew_asks_samplers_for_the_releases_it_missed() -> None:
    late = Delay(upload=DelayLaw(law="lognormal", seconds=8.0, shape=0.6, longest=30.0))
    told = Told(scenario(1.3, (2, 4), Fault(at=30, fault="bounce", peer="learner-1", down=10), delay=late))
    back, *_ = told.of(CaughtUp, "learner-1", since=35)
    lags = [
        event.versions
        for event in told.of(Judged, "learner-1", since=back.at - EPOCH)
        if event.verdict.value == "admit"
    ]
    assert max(lags) > 3 and told.verdicts()["untrusted"] == 0
    assert [event for event in told.of(Trained, "learner-1", since=50) if event.members == 2]


def lower(by: float | None) -> Any:
    """A lie: each log-probability is `by` nats less than it was, or -20 at once where it is None."""

    def lie(group: Group) -> Group:
        true = array("f", group.logprobs.data)
        data = array("f", [-20.0 if by is None else value - by for value in true]).tobytes()
        logprobs = Array(dtype="float32", shape=group.logprobs.shape, data=data)
        name = group_id(group.sampler, group.version, group.task, group.seed, group.tokens.data, data)
        return msgspec.structs.replace(group, logprobs=logprobs, id=name)

    return lie


def final_reward(told: Told) -> float:
    rewards = [event.metrics["reward"] for event in told.of(Trained) if event.groups]
    return sum(rewards[-8:]) / 8


@pytest.mark.parametrize("by", [None, 1.5])
def test_one_of_three_samplers_that_lies_about_its_log_probabilities_ends_no_training(
    monkeypatch: pytest.MonkeyPatch, by: float | None
) -> None:
    verdicts, told = told_with_a_liar(monkeypatch, lower(by), 2.0, optimizer=FAST)
    assert final_reward(told) > 0.5
    named = [event for event in told.of(Rejected, "learner") if event.kind == "groups"]
    assert named and {event.sender for event in named} == {"sampler-0"}
    assert any("nats a token higher" in event.reason for event in named)
    assert sum("suspended for another 60 min" in event.reason for event in named) == 1
    assert verdicts["admit"] < 0.3 * verdicts.total(), "once it was found out, nothing of it is taken"
    counted: Counter[str] = sum(
        (Counter(event.samplers.get("sampler-1", {})) for event in told.of(Counted)), Counter()
    )
    assert not counted["untrusted"]


def told_by_liars_alone(monkeypatch: pytest.MonkeyPatch, **run: Any) -> Told:
    class Liar(Sampler):
        async def _deliver(self, group: Group) -> None:
            await super()._deliver(lower(None)(group))

    monkeypatch.setattr("peers.sampler.sampler.Sampler", Liar)
    return Told(scenario(1.0, (1, 2), **run))


def test_a_learner_all_of_whose_samplers_lie_makes_no_step_and_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    every_group_teaches = ObjectiveSettings(options={"kl": 0.005})
    told = told_by_liars_alone(monkeypatch, objective=every_group_teaches)
    assert not told.of(Trained) and [event for event in told.of(Moved) if event.cause == "batch refused"]
    assert any("none of its groups is believed" in event.text for event in told.of(Noted))


def test_liars_whose_groups_have_no_gradient_move_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = told_by_liars_alone(monkeypatch).of(Trained)
    assert steps and not any(step.metrics["grad_norm"] for step in steps)


def test_two_learners_agree_on_steps_of_which_each_refused_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    # nobody is shut out: every batch has something to refuse
    monkeypatch.setattr(claimed_logprobs, "SAMPLER_EVIDENCE_LIMIT", math.inf)
    verdicts, told = told_with_a_liar(monkeypatch, lower(3.0), 1.5, (2, 3), optimizer=FAST)
    together = [event for event in told.of(Trained) if event.members == 2]
    # Whose whole batch is refused has no part in a round: the other's step alone is then taken over.
    assert verdicts["admit"] > 30 and len(told.of(Snapped)) <= 0.05 * len(together)
    assert final_reward(told) > 0.5


def test_groups_of_the_side_of_a_split_that_was_outranked_are_judged_by_their_release() -> None:
    sides = (("learner-0", "sampler-0"), ("learner-1", "sampler-1", "sampler-2", "seed-0"))
    faults = [Fault(at=20, fault="partition", between=sides), Fault(at=45, fault="repair", between=sides)]
    told = Told(scenario(1.1, (2, 3), *faults, delay=Delay(upload=constant(5.0))))
    assert told.verdicts()["untrusted"] == 0
    assert {event.sampler for event in told.of(Judged, since=45, until=55)} == {
        "sampler-0",
        "sampler-1",
        "sampler-2",
    }
