"""kill -9 of the publisher right after its announcement: who lives goes on, all with the same bytes."""

from __future__ import annotations

from pathlib import Path

from swarm_processes import UNHURRIED, Program, averaged, differing, released, started_swarm, version

from swarm import events


def adopted(sampler: Program) -> int:
    return max((event.version for event in sampler.saw(events.Adopted)), default=-1)


def test_a_publisher_that_is_killed_after_its_announcement_leaves_one_digest_everywhere(
    tmp_path: Path,
) -> None:
    with started_swarm(tmp_path) as house:
        seed, learners = house.seed(), [house.join("learner"), house.join("learner")]
        samplers = [house.join("sampler", *UNHURRIED), house.join("sampler", *UNHURRIED)]
        house.wait_until(lambda: all(one.saw(events.Started) for one in learners), 60, "no learners")
        house.wait_until(lambda: all(averaged(one, learners) for one in learners), 90, "no round of both")
        house.wait_until(lambda: min(map(adopted, samplers)) >= 1, 60, "the samplers adopted nothing")

        def announced() -> list[events.Released]:
            heard = (event for event in seed.journal() if isinstance(event, events.Released))
            return [event for event in heard if event.release.version > known]

        known = max(released(seed))
        (last, *_) = house.wait_until(announced, 60, "no release came")
        by_peer = {learner.peer: learner for learner in learners}
        publisher = by_peer.pop(last.release.publisher)
        publisher.kill()
        (survivor,) = by_peer.values()

        goal = last.release.version + 5
        house.wait_until(lambda: version(survivor) >= goal, 60, "the learner that lives did not go on")
        house.wait_until(
            lambda: min(map(adopted, samplers)) >= goal, 60, "the samplers did not take its releases"
        )
        truth = released(seed)
        for sampler in samplers:
            for event in sampler.saw(events.Adopted):
                if event.version >= last.release.version:
                    assert truth[event.version] == event.weights
        assert differing(seed) == []
        assert not [one for peer in (seed, survivor, *samplers) for one in peer.saw(events.Rejected)]
