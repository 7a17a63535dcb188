"""Releases in a row, by the roles that ship, on slow lines and with peers that die: what a version costs, and
that nobody is left behind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from role_swarms import EPOCH, Told, scenario
from rows import nightly

from peers.commands import sim
from swarm.events import Adopted, Judged, Rejected, Released, Trained, Transferred
from swarm.settings.config import Pace, TaskSettings, Window
from swarm.sim.flows import AccessLine
from swarm.sim.scenario import Fault, Scenario
from swarm.sim.world import World
from swarm.types import PeerId, Verdict

TABLE = TaskSettings(name="toy", options={"buckets": 4096})
SIZE = 262_256
"""Bytes of a release of this table."""


class Lined(World):
    """A world in which some peers have lines of their own."""

    def __init__(self, played: Scenario, mine: Mapping[str, AccessLine], **rest: Any) -> None:
        super().__init__(played, sim.spawn, **rest)
        self._mine = mine

    def _lines(self) -> dict[PeerId, AccessLine]:
        return {PeerId(name): line for name, line in self._mine.items()}


class Lines(Told):
    def __init__(self, played: Scenario, mine: Mapping[str, AccessLine]) -> None:
        self.all = []
        self.outcome = Lined(played, mine, sinks=[self.all.append]).run()

    def weights(self, peer: str, since: float = 0.0) -> int:
        """Bytes of weights that a peer received."""
        return sum(event.received.get("weights", 0) for event in self.of(Transferred, peer, since))

    def newest(self, at: float) -> int:
        """The newest version that was trained by this virtual second."""
        return max(event.version for event in self.of(Trained, until=at))

    def goes_on(self, since: float, steps: int = 5) -> bool:
        return len(self.of(Trained, since=since)) >= steps


def down(seconds: float) -> AccessLine:
    """A line over which one release takes so long."""
    return AccessLine(up=math.inf, down=SIZE / seconds)


def played(minutes: float, peers: tuple[int, int], *faults: Fault, **run: Any) -> Scenario:
    return scenario(minutes, peers, *faults, task=TABLE, **run)


def ends_at_one_digest(told: Told, since: float) -> bool:
    """All that anybody loaded of a version from then on are the same bytes, the last release's too."""
    digests: dict[int, set[str]] = {}
    for event in told.of(Adopted, since=since):
        digests.setdefault(event.version, set()).add(event.weights)
    for event in told.of(Released, since=since):
        digests.setdefault(event.release.version, set()).add(event.release.weights)
    return bool(digests) and all(len(found) == 1 for found in digests.values())


def test_a_publisher_that_dies_in_the_middle_of_a_chain_costs_nobody_a_whole_release() -> None:
    told = Lines(played(1.2, (2, 3), Fault(at=27.0, fault="crash", peer="learner-0")), {})
    publishers = {event.release.publisher for event in told.of(Released, since=42)}
    assert publishers == {"learner-1"} and told.goes_on(42)
    for sampler in range(3):
        peer = f"sampler-{sampler}"
        assert told.weights(peer) < 1.2 * SIZE
        versions = [event.version for event in told.of(Adopted, peer)]
        assert versions[-1] >= told.newest(72) - 1
    assert not told.of(Rejected) and ends_at_one_digest(told, 0.0)


def test_of_two_releases_of_a_version_one_is_gone_back_from_and_its_patches_do_no_harm() -> None:
    """Both halves of a split swarm train on; the half that had less goes back."""
    sides = (("learner-0", "sampler-0", "seed-0"), ("learner-1", "sampler-1", "sampler-2"))
    told = Lines(
        played(
            1.6,
            (2, 3),
            Fault(at=20.0, fault="partition", between=sides),
            Fault(at=40.0, fault="repair", between=sides),
        ),
        {},
    )
    split = [event.release for event in told.of(Released, since=20, until=65)]
    twice = {
        version
        for version in {release.version for release in split}
        if len({release.weights for release in split if release.version == version}) > 1
    }
    assert twice, "both halves released"
    assert told.goes_on(65, 10) and ends_at_one_digest(told, 65.0)
    assert not told.of(Rejected)
    for peer in ("sampler-0", "sampler-1", "sampler-2"):
        assert told.of(Adopted, peer, since=65) and told.weights(peer) < 2.5 * SIZE


@pytest.mark.parametrize("seconds", [60.0, *nightly([120.0])])
def test_a_sampler_whose_line_is_slower_than_the_window_gets_in_by_patches(seconds: float) -> None:
    """The whole release takes several windows. What was missed meanwhile comes as patches."""
    told = Lines(played(seconds / 60 + 1.0, (1, 2), window=Window(versions=8)), {"sampler-1": down(seconds)})
    assert told.newest(seconds) > 8
    adopted = told.of(Adopted, "sampler-1")
    after = [event for event in adopted if event.at - EPOCH > 1.15 * seconds]
    assert len(after) > 5
    assert all(told.newest(event.at - EPOCH) - event.version <= 8 for event in after)
    mine = [event.verdict for event in told.of(Judged) if event.sampler == "sampler-1"]
    assert mine.count(Verdict.ADMIT) > 5
    assert told.weights("sampler-1") < 1.5 * SIZE, "no second whole release"


def test_a_sampler_that_never_gets_any_release_stops_nobody() -> None:
    told = Lines(played(1.6, (1, 2)), {"sampler-1": down(3600.0)})
    assert told.goes_on(20, 20) and not told.of(Adopted, "sampler-1")
    assert max(after.at - before.at for before, after in pairwise(told.of(Trained, since=10))) < 10.0


@pytest.mark.parametrize("at", [20.5, 24.0, *nightly([22.0, 26.0])])
def test_a_publisher_that_dies_while_it_sends_a_release_is_gone_on_without(at: float) -> None:
    """A newcomer takes 8 s, whoever gives it the release; another learner comes when the first has died."""
    faults = (
        Fault(at=20.0, fault="host", peer="sampler-2"),
        Fault(at=at, fault="crash", peer="learner-0"),
        Fault(at=at + 5.0, fault="host", peer="learner-1"),
    )
    slow = {name: AccessLine(up=SIZE / 8, down=math.inf) for name in ("learner-0", "seed-0", "sampler-0")}
    told = Lines(played(1.5, (2, 3), *faults), slow)
    on = at + 3 * Pace().patience
    assert told.goes_on(on, 10)
    for peer in ("sampler-0", "sampler-1", "sampler-2"):
        last = told.of(Adopted, peer, since=on)
        assert last and last[-1].version >= told.newest(90.0) - 2
    assert told.weights("sampler-2") < 1.5 * SIZE
    # what was announced last is lost, and another version of that number takes its place
    assert not told.of(Rejected) and ends_at_one_digest(told, at + 1.0)
