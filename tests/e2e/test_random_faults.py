"""A real swarm under random kills, stops, cuts of its network and full disks: it trains on, everybody comes
back, no process is left, all hold the same bytes, and every acknowledged group counts once.

Peers are started again by the same command, as a service manager does. Who is hit follows from the seed, and
when from the machine too.
"""

from __future__ import annotations

import os
import shutil

import pytest

from lab.rows import faults
from lab.rows.faults import Plan
from swarm.protocol import Role

SMALL = (Role.LEARNER, Role.LEARNER, Role.SAMPLER)


def endured(plan: Plan) -> None:
    """Fails with what went wrong, and the ends of all logs."""
    report = faults.trials(print, plan)
    struck = "\n".join(str(trial.fault) for trial in report.trials)
    assert not report.stuck, f"{report.stuck}\nafter (seed {plan.seed})\n{struck}"
    assert report.trials
    assert [trial for trial in report.trials if None in (trial.next_version, trial.full_strength)] == []
    assert (report.left, report.ended, report.differing) == ([], [], {})
    assert report.groups.once > 0
    assert plan.fills or report.groups.passed, (report.groups.lost, report.groups.doubled)


def only(kills: int = 0, **more: object) -> Plan:
    """A plan without what it does not name."""
    return Plan(**({"kills": kills, "stops": (), "parts": (), "fills": ()} | more))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_random_kills_stop_no_swarm_and_leave_no_process() -> None:
    endured(only(kills=10, peers=SMALL))


@pytest.mark.faults
@pytest.mark.timeout(4 * 3600)
def test_random_kills_of_all_roles_and_their_children_stop_no_swarm(request: pytest.FixtureRequest) -> None:
    kills, seed = (request.config.getoption(name) for name in ("--kills", "--faults-seed"))
    endured(only(kills=kills, seed=seed))


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seconds", [5.0, 40.0, 120.0])
def test_peers_that_are_stopped_for_a_while_come_back(request: pytest.FixtureRequest, seconds: float) -> None:
    endured(only(stops=(seconds,) * 4, seed=request.config.getoption("--faults-seed")))


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_a_network_that_was_cut_in_two_is_one_swarm_again(request: pytest.FixtureRequest) -> None:
    needs_root("ip", "tc")
    endured(only(parts=(5.0, 40.0), seed=request.config.getoption("--faults-seed")))


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_a_disk_that_fills_up_and_gets_room_again_stops_nobody(request: pytest.FixtureRequest) -> None:
    needs_root("mount")
    roles = (Role.SEED, Role.LEARNER, Role.SAMPLER, Role.EVALUATOR)
    endured(only(fills=roles, seed=request.config.getoption("--faults-seed")))


def needs_root(*tools: str) -> None:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"needs root and {', '.join(tools)} (missing: {', '.join(missing) or 'root'})")
