"""A learner whose machine's clock is an hour ahead."""

import sys
from pathlib import Path

from places import SUPPORT
from swarm_processes import UNHURRIED, admitted, started_swarm, version

from swarm import events


def test_a_clock_that_is_set_wrong_in_mid_run_costs_nothing_and_one_that_is_wrong_at_the_start_is_named(
    tmp_path: Path,
) -> None:
    switch, other = tmp_path / "wrong", tmp_path / "wrong from the start"
    wrong, late_wrong = (
        [sys.executable, str(SUPPORT / "wrong_clock.py"), str(file), "3600"] for file in (switch, other)
    )
    with started_swarm(tmp_path) as house:
        house.seed()
        learner, sampler = house.join("learner", wrap=wrong), house.join("sampler", *UNHURRIED)
        house.wait_until(lambda: version(learner) >= 3, 90, "nothing was trained")

        switch.touch()
        at, before = version(learner), admitted(learner, sampler.peer)
        house.wait_until(lambda: version(learner) >= at + 5, 60, "training stopped")
        assert admitted(learner, sampler.peer) > before
        assert not learner.saw(events.Judged, verdict="stale")

        switch.unlink()  # the others' clocks are right, as those of most
        other.touch()
        late = house.join("learner", folder=tmp_path / "late", wrap=late_wrong)
        house.wait_until(lambda: late.process.poll() is not None, 60, "a wrong clock did not end the join")
        assert late.process.returncode == 3
        assert "this machine's clock is off" in late.log.read_text()
