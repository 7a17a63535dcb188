"""Two labs, one run: configs/private-lab.toml with one public seed and two sites behind NATs
(tests/support/home_networks.py), of which one loses its uplink for a while."""

import time
from dataclasses import dataclass
from pathlib import Path

from home_networks import Internet, Place, internet
from swarm_processes import (
    ROOT,
    UNHURRIED,
    Program,
    SwarmProcesses,
    admitted,
    averaged,
    started_swarm,
    swarm,
)

from swarm import events

SETTINGS = f"""
extends = "{ROOT}/configs/private-lab.toml"

[run]
seed = 1

[run.batch]
groups = 8

[run.pace]
beat = 1.0
patience = 5.0

[peer.page]
port = 0
"""
"""Those of the labs; a cut is noticed after seconds, so that a short one is enough."""

OWN = f"{ROOT}/configs/private-lab-site.toml"
WITHOUT_THE_OTHER = 6
"""Versions that each site makes alone."""


@dataclass
class Site:
    """Machines behind one router, with a run folder of their own."""

    place: Place
    learner: Program
    samplers: list[Program]

    @property
    def everybody(self) -> list[Program]:
        return [self.learner, *self.samplers]


def site(house: SwarmProcesses, net: Internet, folder: Path) -> Site:
    place = net.home()

    def join(role: str, *sets: str) -> Program:
        return house.join(role, *sets, folder=folder, wrap=place.inside, config=OWN)

    return Site(place, join("learner"), [join("sampler", *UNHURRIED) for _ in range(2)])


def test_a_site_whose_uplink_was_cut_trains_on_and_comes_back_and_no_group_is_lost(tmp_path: Path) -> None:
    with internet() as net, started_swarm(tmp_path, SETTINGS) as house:
        seed = house.seed(wrap=net.machine().inside)
        here, there = (site(house, net, tmp_path / name) for name in ("here", "there"))
        everybody = [*here.everybody, *there.everybody]
        learners = [here.learner, there.learner]
        house.wait_until(lambda: all(one.saw(events.Started) for one in everybody), 180, "not all started")
        house.wait_until(lambda: averaged(here.learner, learners), 120, "the sites did not average")
        with net.cut(there.place):
            cut = time.time()
            house.wait_until(
                lambda: all(
                    len(one.saw(events.Stepped, cut, members=(one.peer,))) >= WITHOUT_THE_OTHER
                    for one in learners
                ),
                120,
                "a site without the other one did not train",
            )
        back = time.time()
        house.wait_until(
            lambda: averaged(there.learner, learners, back), 180, "the sites did not average again"
        )
        house.wait_until(
            lambda: all(admitted(here.learner, one.peer, back) for one in there.samplers),
            120,
            "groups of the site that was cut off do not come to the other one",
        )
        assert seed.process.poll() is None
        for one in [*everybody, seed]:
            one.process.terminate()
        house.wait_until(
            lambda: all(one.process.poll() is not None for one in [*everybody, seed]), 60, "they do not leave"
        )
    found = swarm("replay", "--audit", *(str(tmp_path / name) for name in ("run", "here", "there")))
    assert found.returncode == 0, found.stdout
