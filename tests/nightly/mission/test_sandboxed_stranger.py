"""A model, a data set and a reward function that a person brings along: trained by real peers, exported,
loaded again."""

from pathlib import Path

import pytest
from served_models import folder, loaded, settings
from swarm_processes import started_swarm, swarm

from swarm import events
from swarm.learn.models import tiny
from swarm.tasks.workers import sandbox

__all__ = ["folder"]


@pytest.mark.skipif(bool(sandbox.missing()), reason=sandbox.missing() or "it works")
def test_a_stranger_scores_with_the_runs_own_reward_code_in_a_sandbox(folder: Path) -> None:
    tiny.make(folder / "model", "qwen3")
    with started_swarm(folder, settings(folder)) as house:
        house.seed()
        learner = house.join("learner")
        sampler = house.join("sampler", folder=folder / "elsewhere")
        house.wait_until(lambda: learner.saw(events.Trained), 120, "nobody trained")
        judged, *_ = learner.saw(events.Judged)
        assert judged.verdict == "admit" and judged.sampler == sampler.peer
        brought = {path.name for path in (folder / "elsewhere" / "task").iterdir()}
        assert brought == {"data.parquet", "rewards-0.py"}
        for peer in (learner, sampler):  # in the owner's folder, too: who joins by an invite trusts no code
            assert any("bwrap" in process.name() for process in peer.tree()), "not scored in a sandbox"
        house.wait_until(lambda: learner.saw(events.Released), 30, "nothing was released")
        out = swarm("export", str(folder / "mine"), "--folder", str(house.folder))
        assert out.returncode == 0, out.stderr
        assert loaded(folder / "mine")
