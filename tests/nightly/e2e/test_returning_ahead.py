"""kill -9 of a learner that learns ahead: what it computes while a state comes is in its first round."""

from __future__ import annotations

from pathlib import Path

from swarm_processes import SETTINGS, UNHURRIED, averaged, differing, started_swarm, version

from swarm import events

AHEAD = """
[run.averaging]
overlap = true

[run.window]
versions = 1000
"""
"""Groups on its disk are young enough however many versions the other learner makes alone."""


def test_who_comes_back_is_in_its_first_round_with_a_gradient(tmp_path: Path) -> None:
    with started_swarm(tmp_path, SETTINGS + AHEAD) as house:
        seed, folder = house.seed(), house.home / "back"
        stays, goes = house.join("learner"), house.join("learner", folder=folder)
        samplers = [house.join("sampler", *UNHURRIED), house.join("sampler", *UNHURRIED)]
        house.wait_until(lambda: all(one.saw(events.Started) for one in (stays, goes)), 60, "no learners")
        house.wait_until(lambda: averaged(stays, [stays, goes]), 90, "no round of both")
        house.wait_until(lambda: version(goes) >= 6, 60, "no versions")
        goes.kill()

        alone = version(stays)
        house.wait_until(lambda: version(stays) >= alone + 4, 60, "the learner that lives did not go on")
        back = house.join("learner", folder=folder)
        house.wait_until(lambda: back.saw(events.Moved, cause="synced"), 60, "no state was taken over")
        (synced, *_) = back.saw(events.Moved, cause="synced")
        house.wait_until(lambda: version(back) >= synced.version + 4, 60, "it made no versions")
        first, *_ = back.saw(events.Trained, since=synced.at)
        assert first.members == 2 and first.groups > 0
        assert differing(seed) == [] and all(one.process.poll() is None for one in samplers)
