"""A guest's manners with real processes: a swarm whose peers are paused, go on, and keep to their limits."""

from __future__ import annotations

import re
import time
from pathlib import Path

from swarm_processes import UNHURRIED, SwarmProcesses, started_swarm, swarm

from swarm import events
from swarm.protocol import Phase


def phases(it: SwarmProcesses, since: float) -> dict[str, set[Phase]]:
    """Role -> phases that the seed heard since then."""
    found: dict[str, set[Phase]] = {}
    for heard in it.programs[0].saw(events.Heard, since):
        found.setdefault(heard.beat.role.value, set()).add(heard.beat.phase)
    return found


def test_a_swarm_that_is_paused_computes_nothing_until_it_is_resumed_and_a_guest_keeps_to_its_limits(
    tmp_path: Path,
) -> None:
    with started_swarm(tmp_path) as it:
        seed = it.seed()
        small = swarm("join", it.invite("sampler"), "--memory", "0.01", "--folder", str(tmp_path / "small"))
        assert small.returncode == 3 and "peer.limits.memory" in small.stderr
        learner = it.join("learner")
        sampler = it.join("sampler", *UNHURRIED, "peer.limits.cpu=0.01", "peer.limits.nice=5")
        it.wait_until(lambda: len(learner.saw(events.Trained)) > 2, 120, "nothing was trained")
        for process in sampler.tree():
            assert len(process.cpu_affinity()) == 1 and process.nice() >= 5

        folder = ("--folder", str(it.folder))
        assert swarm("pause", *folder).returncode == 0

        def rest() -> bool:
            heard = phases(it, time.time() - 2.0)
            return heard.get("learner") == heard.get("sampler") == {Phase.PAUSED}

        it.wait_until(rest, 60, "they did not rest")
        steps, groups = len(learner.saw(events.Trained)), len(sampler.saw(events.Sampled))
        assert re.search(r"are paused until `swarm resume`", swarm("status", *folder).stderr)
        time.sleep(3.0)
        assert (steps, groups) == (len(learner.saw(events.Trained)), len(sampler.saw(events.Sampled)))

        assert swarm("resume", *folder).returncode == 0
        it.wait_until(lambda: len(learner.saw(events.Trained)) > steps + 2, 60, "it did not go on")
        it.wait_until(lambda: len(sampler.saw(events.Sampled)) > groups, 60, "nothing was sampled")
        assert swarm("leave", *folder).returncode == 0
        for program in (seed, learner, sampler):
            program.process.wait(60)
