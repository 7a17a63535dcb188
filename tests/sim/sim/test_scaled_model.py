"""Small bytes that stand in for a large model's: as long under way, patched by the code that ships."""

from __future__ import annotations

import msgspec
import pytest

from peers.commands import sim
from swarm import events
from swarm.events import Event
from swarm.sim.scaled_model import ScaledModel
from swarm.sim.scenario import Scenario, ScenarioError, parse
from swarm.sim.world import SimulationOutcome, World
from swarm.storage.blocks import BLOCK, block_size

TEXT = b"""
name = "stand-in"
hours = 0.1

[peers]
seed = 1
learner = 1
sampler = 2

[prices]
sample = { law = "constant", seconds = 5.0 }
learn = { law = "constant", seconds = 10.0 }

[links]
latency = { law = "constant", seconds = 0.05 }
bandwidth = 1e9

[lines.learner]
up = { mbit = 20.0 }

[lines.sampler]
up = { mbit = 20.0 }
down = { mbit = 20.0 }

[bytes]
release = 100e6
patch = 0.01
group = 250_000

[run]
name = "stand-in"
batch = { groups = 4 }
pace = { beat = 2.0, patience = 30.0 }
task = { name = "toy", options = { buckets = 4 } }
sampling = { max_tokens = 4 }
optimizer = { lr = 0.05 }
"""


def played(scenario: Scenario) -> tuple[SimulationOutcome, list[Event]]:
    told: list[Event] = []
    return World(scenario, sim.spawn, sinks=[told.append]).run(), told


def scenario(**fields: object) -> Scenario:
    return msgspec.structs.replace(parse(TEXT), **fields)


def test_a_release_is_as_long_under_way_as_a_large_one_and_the_same_seed_gives_the_same_journal() -> None:
    first, told = played(scenario(hours=0.05))
    adopted = [event for event in told if isinstance(event, events.Adopted) and event.version == 0]
    alone = 100e6 * 8 / 20e6
    assert len(adopted) == 2 and all(alone <= event.fetch <= 1.25 * alone for event in adopted)
    assert played(scenario(hours=0.05))[0].sha256 == first.sha256


@pytest.mark.nightly
def test_patches_have_the_share_that_the_scenario_says_and_samplers_take_them() -> None:
    _, told = played(scenario())
    releases = [
        event.release for event in told if isinstance(event, events.Released) and event.release.version
    ]
    steps = [release.patches[0].size / release.size for release in releases]
    assert len(steps) > 8 and all(0.008 <= step <= 0.012 for step in steps)
    rungs = [patch.size for release in releases for patch in release.patches[1:]]
    assert rungs and all(1.5 * releases[0].patches[0].size < rung for rung in rungs)
    later = [event for event in told if isinstance(event, events.Adopted) and event.version > 0]
    one = 1e6 * 8 / 20e6
    assert later and all(one <= event.fetch <= 5 * one for event in later)


def test_a_round_takes_as_long_as_one_over_a_large_models_values() -> None:
    _, told = played(scenario(peers={"seed": 1, "learner": 2, "sampler": 4}, hours=0.1))
    seconds = [event.seconds for event in told if isinstance(event, events.Averaged)]
    # Both send half of the gradient to the other, and the mean of the other half: all of it in float16.
    alone = 100e6 * 8 / 20e6
    assert seconds and all(0.95 * alone <= one <= 1.5 * alone for one in seconds)


def test_groups_weigh_what_the_scenario_says() -> None:
    small = msgspec.structs.replace(parse(TEXT).bytes, group=0)
    means = []
    for weights in (small, parse(TEXT).bytes):
        _, told = played(scenario(bytes=weights, hours=0.03))
        sampled = {event.group: event.at for event in told if isinstance(event, events.Sampled)}
        means.append(
            sum(event.at - sampled[event.group] for event in told if isinstance(event, events.Judged))
            / len(sampled)
        )
    assert means[1] - means[0] > 0.5 * 250_000 * 8 / 20e6


def test_blocks_are_cut_as_always_after_a_simulation() -> None:
    scene = scenario(hours=0.001)
    with ScaledModel(scene).cut():
        assert block_size(200_000) < BLOCK
    played(scene)
    assert block_size(200_000) == BLOCK


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ((b"buckets = 4", b"buckets = 4096"), "fewer rows"),
        ((b'name = "toy", options = { buckets = 4 }', b'name = "echo"'), "task 'toy'"),
        ((b"patch = 0.01", b"patch = 1.5"), "patch"),
        ((b"release = 100e6", b"release = 0"), "release"),
    ],
)
def test_what_cannot_stand_in_is_refused(change: tuple[bytes, bytes], complaint: str) -> None:
    with pytest.raises(ScenarioError, match=complaint):
        World(parse(TEXT.replace(*change)), sim.spawn)
