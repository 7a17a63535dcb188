"""One of four learners of a run of processes lies: the others find it, train on without it, and the page says
so."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from places import SUPPORT
from swarm_processes import UNHURRIED, averaged, get, started_swarm, version

from swarm import events
from swarm.membership.identity import human_name

PEER = SUPPORT / "lying_learner.py"


def test_the_others_leave_out_a_learner_whose_gradient_is_turned_around(tmp_path: Path) -> None:
    with started_swarm(tmp_path) as house:
        seed = house.seed()
        (url, *_) = house.wait_until(
            lambda: re.findall(r"http://\S+", seed.log.read_text()), 30, "the seed served no dashboard"
        )
        honest = [house.join("learner", folder=tmp_path / name) for name in ("ada", "bob", "eve")]
        for name in ("one", "two"):
            house.join("sampler", *UNHURRIED, folder=tmp_path / name)
        house.wait_until(
            lambda: all(one.saw(events.Started) for one in honest) and averaged(honest[0], honest),
            120,
            "the learners did not average",
        )
        folder = tmp_path / "liar"
        words = ["join", house.invite("learner"), "--as", "learner", "--folder", str(folder)]
        liar = house.run("liar", *words, folder=folder, program=(sys.executable, str(PEER)))
        house.wait_until(lambda: liar.saw(events.Started), 60, "it did not start")
        house.wait_until(
            lambda: all(one.saw(events.LeftOut, learner=liar.peer) for one in honest), 120, "not all found it"
        )
        left_out = [one for each in honest for one in each.saw(events.LeftOut)]
        assert {one.learner for one in left_out} == {liar.peer}
        assert all("it sent a gradient that its groups do not give" in one.why for one in left_out), left_out
        said = f"The gradients of learner {human_name(liar.peer)} are not what its groups give, as 3 of 3"
        house.wait_until(lambda: said in str(get(url, "api/problems")), 30, "the page does not say so")
        then = version(honest[0])
        house.wait_until(lambda: version(honest[0]) > then + 10, 60, "the others did not go on")
        trained = honest[0].saw(events.Stepped)[-1]
        assert not {group[:16] for one in liar.saw(events.Stepped)[-3:] for group in one.groups} & {
            *trained.others
        }
