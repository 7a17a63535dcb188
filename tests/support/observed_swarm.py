"""A swarm of `swarm up` for all tests of whole peers that change nothing in it. Its engine stands still but
where a test has it train: it would take all cores of the machine, however late its groups are sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from swarm_processes import SETTINGS, UNHURRIED, UP, SwarmProcesses, started_swarm

from swarm import events


@pytest.fixture(scope="session")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwarmProcesses]:
    """A seed, a learner and a sampler that have trained some versions."""
    settings = SETTINGS + UP.format(learners=1, evaluators=0, versions=0)
    with started_swarm(tmp_path_factory.mktemp("observed"), settings) as it:
        it.up(*UNHURRIED)
        it.wait_until(lambda: newest(it) >= 4, 120, "nothing was learned")
        with training(it):
            pass
        yield it


@contextmanager
def training(house: SwarmProcesses) -> Iterator[None]:
    """Its engine goes on meanwhile. Peers, which hear nothing of it for a while, stay as they are."""
    engine = house.programs[0].child("engine_worker")
    engine.resume()
    try:
        yield
    finally:
        if engine.is_running():
            engine.suspend()


def newest(house: SwarmProcesses) -> int:
    """The newest version that the seed heard of."""
    return max((event.release.version for event in house.told("seed", events.Released)), default=-1)
