"""Learners on slow lines, each a process: versions are made of contributions, with the same bytes at all of
them."""

from pathlib import Path

from swarm_processes import SETTINGS, UNHURRIED, averaged, differing, released, started_swarm

from swarm import events

SITES = """
[run.averaging]
mode = "sites"
local_steps = 2
density = 0.0625
outer_momentum = 0.5
"""


def test_learners_that_send_contributions_train_one_policy_and_take_in_a_third(tmp_path: Path) -> None:
    with started_swarm(tmp_path, SETTINGS + SITES) as house:
        seed, learners = house.seed(), [house.join("learner"), house.join("learner")]
        house.join("sampler", *UNHURRIED)
        house.join("sampler", *UNHURRIED)
        house.wait_until(lambda: all(one.saw(events.Started) for one in learners), 90, "no learners")
        house.wait_until(lambda: averaged(learners[0], learners), 90, "no list had both")
        house.wait_until(lambda: len(released(seed)) > 4, 60, "no versions came")
        assert differing(seed) == []
        assert not [event for one in learners for event in one.saw(events.Snapped)]

        learners.append(house.join("learner", folder=tmp_path / "third"))
        house.wait_until(lambda: learners[-1].saw(events.Started), 60, "the third did not start")
        house.wait_until(
            lambda: all(averaged(one, learners) for one in learners), 90, "no list had all three"
        )
        oldest = learners.pop(0)
        oldest.kill()
        before = max(released(seed))
        house.wait_until(
            lambda: max(released(seed)) > before + 3, 60, "no versions came after the leader was killed"
        )
        sent = [event.sent for one in learners for event in one.saw(events.Transferred)]
        assert sum(purposes.get("gradients", 0) for purposes in sent) > 0
        assert not [event for one in learners for event in one.saw(events.Rejected)]
