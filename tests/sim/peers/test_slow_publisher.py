"""The oldest learner publishes, whatever its line carries: one that carries its gradients carries patches in
a part of that time, so that samplers have a version as soon as where another learner is the slow one."""

from __future__ import annotations

from statistics import median

import msgspec
import pytest
from role_swarms import Told, scenario, without_rechecks

from swarm.events import Adopted, Released
from swarm.settings.config import Averaging, DelayLaw
from swarm.sim.flows import AccessLine
from swarm.sim.scenario import Bytes, LineLaw, RateLaw
from swarm.sim.world import World
from swarm.types import PeerId

OLDEST, YOUNGEST = PeerId("learner-0"), PeerId("learner-2")


def ages(monkeypatch: pytest.MonkeyPatch, slow: PeerId) -> tuple[int, list[float]]:
    """Versions, and the seconds from the release of each to each of four samplers that took it; of three
    learners `slow` has a sixteenth of the others' uplink."""
    without_rechecks(monkeypatch)  # one takes as long as the others wait for a publisher
    lines = World._lines

    def one_is_slow(world: World) -> dict[PeerId, AccessLine]:
        found = lines(world)
        return {**found, slow: found[slow]._replace(up=found[slow].up / 16)}

    monkeypatch.setattr(World, "_lines", one_is_slow)
    law = LineLaw(up=RateLaw(mbit=8.0), down=RateLaw(mbit=40.0))
    played = scenario(3.0, (3, 4), averaging=Averaging(match=2.0))
    told = Told(
        msgspec.structs.replace(
            played,
            prices={**played.prices, "learn": DelayLaw(law="constant", seconds=4.0)},
            bytes=Bytes(release=4e5, patch=0.03, begun=True),
            lines=dict.fromkeys(("seed", "learner", "sampler"), law),
        )
    )
    monkeypatch.undo()
    first = {event.release.version: event for event in reversed(told.of(Released)) if event.release.version}
    assert {event.release.publisher for event in first.values()} == {OLDEST}
    return len(first), [event.at - first[event.version].at for event in told.of(Adopted) if event.version]


def test_a_publisher_with_a_slow_line_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    (versions, itself), (as_many, another) = (ages(monkeypatch, slow) for slow in (OLDEST, YOUNGEST))
    assert versions > 0.9 * as_many and len(itself) > 40
    assert median(itself) < 1.1 * median(another) and max(itself) < 1.5 * max(another)
