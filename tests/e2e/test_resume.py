"""Everything is killed at once, as by a power cut; the same commands on the same folder go on where the swarm was."""

from pathlib import Path

import pytest
from swarm_processes import UNHURRIED, averaged, differing, household, released, version

from swarm import events

pytestmark = pytest.mark.timeout(180)


def test_a_killed_swarm_goes_on_from_its_last_release_and_takes_newcomers(tmp_path: Path) -> None:
    with household(tmp_path) as house:
        seed, learners = house.seed(), [house.join("learner"), house.join("learner")]
        house.join("sampler", *UNHURRIED)
        house.wait_until(lambda: averaged(learners[0], learners) if learners[1].saw(events.Started) else None, 60, "no round")
        house.wait_until(lambda: version(learners[0]) >= 8, 60, "no versions came")
        last = max(released(seed))
        names = {learner.corner() for learner in learners}
        house.end()

        seed, learners = house.seed(), [house.join("learner"), house.join("learner")]
        house.join("sampler", *UNHURRIED)
        house.wait_until(lambda: all(learner.saw(events.Trained) for learner in learners), 60, "the learners did not go on")
        assert {learner.corner() for learner in learners} == names
        # The seed's disk may be one release behind what its journal heard when the power went.
        first = [learner.saw(events.Trained)[0].version for learner in learners]
        assert min(first) >= last, f"went on from {min(first)}, the last release was {last}"

        newcomer = house.join("learner", folder=tmp_path / "newcomer")
        house.wait_until(lambda: newcomer.saw(events.Started), 60, "the newcomer did not start")
        everybody = [*learners, newcomer]
        house.wait_until(lambda: all(averaged(one, everybody) for one in everybody), 30, "there was no round with the newcomer")
        assert differing(seed) == []
