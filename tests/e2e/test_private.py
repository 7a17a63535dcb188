"""A private run: the invited train as in a public one; who only knows the run and an address is turned
away."""

import time
from pathlib import Path

import pytest
from swarm_processes import UNHURRIED, admitted, started_swarm, swarm

from swarm import events, invite
from swarm.protocol import Role

pytestmark = pytest.mark.timeout(180)


@pytest.mark.slow
def test_the_invited_train_and_a_word_without_the_owners_signature_opens_nothing(tmp_path: Path) -> None:
    with started_swarm(tmp_path) as house:
        seed = house.seed("run.private=true")
        learner, sampler = (
            house.join("learner"),
            house.join("sampler", *UNHURRIED, folder=tmp_path / "elsewhere"),
        )
        house.wait_until(
            lambda: learner.saw(events.Started) and sampler.saw(events.Started),
            60,
            "the invited did not start",
        )
        house.wait_until(
            lambda: admitted(learner, sampler.peer) >= 8, 40, "the sampler's groups were not admitted"
        )
        house.wait_until(
            lambda: any(e.release.version >= 2 for e in seed.saw(events.Released)), 30, "nothing was learned"
        )

        said = invite.read(house.invite("sampler"), time.time())
        unsigned = invite.make(said.run, said.addresses, Role.SAMPLER)
        ran = swarm("join", unsigned, "--folder", str(tmp_path / "stranger"))
        assert ran.returncode == 5, ran.stderr
        assert "this invite does not admit a sampler" in ran.stderr
        assert "swarm invite --role sampler" in ran.stderr
