"""A model, a data set and a reward function that a person brings along: trained by real peers, exported,
loaded again."""

from pathlib import Path

import pytest
from served_models import folder, loaded, settings
from swarm_processes import started_swarm

from swarm.learn.models import tiny

__all__ = ["folder"]


@pytest.mark.parametrize(("family", "training"), [("llama", "lora"), ("gemma3", "full"), ("qwen3", "qlora")])
def test_every_family_and_kind_of_training_runs_to_its_end(folder: Path, family: str, training: str) -> None:
    tiny.make(folder / "model", family)
    with started_swarm(folder, settings(folder, training, versions=3)) as house:
        up = house.run(
            "up",
            "up",
            str(house.config),
            "--folder",
            str(house.folder),
            "--set",
            "peer.swarm.learners=1",
            "--set",
            "peer.swarm.samplers=1",
        )
        house.wait_until(lambda: up.process.poll() is not None, 200, "the run did not complete")
        assert up.process.returncode == 0, up.log.read_text()
        assert loaded(house.folder / "exported")
        assert (house.folder / "exported" / "adapter").exists() == (training != "full")
