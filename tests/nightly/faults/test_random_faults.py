"""A real swarm under random kills, stops, cuts of its network and full disks: it trains on, everybody comes
back, no process is left, all hold the same bytes, and every acknowledged group counts once.

Peers are started again by the same command, as a service manager does. Who is hit follows from the seed, and
when from the machine too.
"""

from __future__ import annotations

import os
import shutil

import pytest
from endured_faults import endured, only

from swarm.protocol import Role


@pytest.mark.timeout(4 * 3600)
def test_random_kills_of_all_roles_and_their_children_stop_no_swarm(request: pytest.FixtureRequest) -> None:
    kills, seed = (request.config.getoption(name) for name in ("--kills", "--faults-seed"))
    endured(only(kills=kills, seed=seed))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seconds", [5.0, 40.0, 120.0])
def test_peers_that_are_stopped_for_a_while_come_back(request: pytest.FixtureRequest, seconds: float) -> None:
    endured(only(stops=(seconds,) * 4, seed=request.config.getoption("--faults-seed")))


@pytest.mark.timeout(3600)
def test_a_network_that_was_cut_in_two_is_one_swarm_again(request: pytest.FixtureRequest) -> None:
    needs_root("ip", "tc")
    endured(only(parts=(5.0, 40.0), seed=request.config.getoption("--faults-seed")))


@pytest.mark.timeout(3600)
def test_a_disk_that_fills_up_and_gets_room_again_stops_nobody(request: pytest.FixtureRequest) -> None:
    needs_root("mount")
    roles = (Role.SEED, Role.LEARNER, Role.SAMPLER, Role.EVALUATOR)
    endured(only(fills=roles, seed=request.config.getoption("--faults-seed")))


def needs_root(*tools: str) -> None:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"needs root and {', '.join(tools)} (missing: {', '.join(missing) or 'root'})")
