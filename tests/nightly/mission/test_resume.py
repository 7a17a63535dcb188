"""Everything is killed at once, as by a power cut; the same commands on the same folder go on where the swarm
was."""

from pathlib import Path

from swarm_processes import UNHURRIED, Program, averaged, differing, started_swarm

from swarm import events


def on_disk(seed: Program) -> int:
    """What the seed says it has is on its disk; its journal may have heard of a release more when the power
    goes."""
    return max((heard.beat.version for heard in seed.saw(events.Heard, subject=seed.peer)), default=-1)


def test_a_killed_swarm_goes_on_from_its_last_release_and_takes_newcomers(tmp_path: Path) -> None:
    with started_swarm(tmp_path) as house:
        seed, learners = house.seed(), [house.join("learner"), house.join("learner")]
        house.join("sampler", *UNHURRIED)
        house.wait_until(
            lambda: all(learner.saw(events.Started) for learner in learners), 60, "the learners did not start"
        )
        house.wait_until(lambda: averaged(learners[0], learners), 60, "no round")
        house.wait_until(lambda: on_disk(seed) >= 8, 60, "no versions came")
        last = on_disk(seed)
        names = {learner.peer_folder() for learner in learners}
        house.end()

        seed, learners = house.seed(), [house.join("learner"), house.join("learner")]
        house.join("sampler", *UNHURRIED)
        house.wait_until(
            lambda: all(learner.saw(events.Trained) for learner in learners), 60, "the learners did not go on"
        )
        assert {learner.peer_folder() for learner in learners} == names
        first = [learner.saw(events.Trained)[0].version for learner in learners]
        assert min(first) > last, f"went on from {min(first)}, the last release was {last}"

        newcomer = house.join("learner", folder=tmp_path / "newcomer")
        house.wait_until(lambda: newcomer.saw(events.Started), 60, "the newcomer did not start")
        everybody = [*learners, newcomer]
        house.wait_until(
            lambda: all(averaged(one, everybody) for one in everybody),
            30,
            "there was no round with the newcomer",
        )
        assert differing(seed) == []
