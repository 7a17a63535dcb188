"""A group's age is the sum of its causes, and an injected delay shows in the cause that it is."""

from __future__ import annotations

from statistics import mean

import pytest
from rows import nightly

from peers.commands import sim
from swarm.events import Event, Heard, Trained
from swarm.protocol import Role
from swarm.settings.config import BatchSize, Delay, DelayLaw, Optimizer, Pace, Run, Sampling, TaskSettings
from swarm.sim.scenario import Scenario
from swarm.sim.world import World
from swarm.types import Lag


def constant(seconds: float) -> DelayLaw:
    return DelayLaw(law="constant", seconds=seconds)


def told_with(delay: Delay) -> tuple[Lag, float]:
    """The last mean of the samplers' causes, and the mean age of the groups trained meanwhile."""
    settings = Run(
        name="causes",
        task=TaskSettings(name="toy"),
        sampling=Sampling(group_size=4, max_tokens=4),
        optimizer=Optimizer(lr=0.01),
        batch=BatchSize(groups=8, close_after=3.0),
        pace=Pace(beat=1.0, patience=5.0),
    )
    prices = {"sample": constant(2.0), "learn": constant(0.5), "load": constant(0.1)}
    told: list[Event] = []
    world = Scenario(
        name="causes",
        seed=1,
        hours=2.5 / 60,
        peers={"seed": 1, "learner": 1, "sampler": 3},
        run=settings,
        prices=prices,
        delay=delay,
    )
    World(world, sim.spawn, sinks=[told.append]).run()
    late = [event for event in told if event.at > told[-1].at - 40]
    lags = [event.beat.lag for event in late if isinstance(event, Heard) and event.beat.role is Role.SAMPLER]
    causes = {name: mean(getattr(lag, name) for lag in lags) for name in Lag.__struct_fields__}
    return Lag(**causes), mean(event.metrics["lag_seconds"] for event in late if isinstance(event, Trained))


@pytest.mark.parametrize(
    "delay", [Delay(policy=constant(7.0)), *nightly([Delay(), Delay(upload=constant(7.0))])]
)
def test_the_five_causes_add_up_to_the_age_at_training(delay: Delay) -> None:
    lag, age = told_with(delay)
    assert min(lag.download, lag.queue, lag.generation, lag.upload, lag.inbox) > 0
    assert lag.download + lag.queue + lag.generation + lag.upload + lag.inbox == pytest.approx(
        age, rel=0.25, abs=1.0
    )
    assert (lag.download >= 7.0) == (delay.policy.seconds > 0)
    assert (lag.upload >= 7.0) == (delay.upload.seconds > 0)
    assert lag.generation == pytest.approx(2.0, abs=0.1)
