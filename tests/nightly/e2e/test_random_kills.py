"""A real swarm under random kills, stops, cuts of its network and full disks: it trains on, everybody comes
back, no process is left, all hold the same bytes, and every acknowledged group counts once."""

from __future__ import annotations

import pytest
from endured_faults import endured, only

from swarm.protocol import Role

SMALL = (Role.LEARNER, Role.LEARNER, Role.SAMPLER)


@pytest.mark.timeout(900)
def test_ten_random_kills_stop_no_swarm_and_leave_no_process() -> None:
    endured(only(kills=10, peers=SMALL))
