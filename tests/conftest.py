"""Settings of all tests, and their tiers: the folder of a test is its mark.

    unit      one part: no swarm, no process of its own
    sim       swarms of the roles that ship, in memory and virtual time
    real      processes, nodes, engines, models, a browser
    nightly   all of these for longer, and what a release needs

A test of another tier that takes long beside its short siblings bears `@pytest.mark.nightly` itself.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Before torch is imported. Several processes share the cores: with a thread for each core, a swarm in virtual
# time takes three times as long.

import faulthandler
import gc
from collections.abc import Generator
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from swarm_processes import LIMIT

# Machines that share their cores stall for longer than any deadline on one example; pytest's timeout ends
# what hangs.
settings.register_profile("swarm", deadline=None)
settings.load_profile("swarm")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Of nightly/faults (`make test-faults`)."""
    parser.addoption("--kills", type=int, default=200, help="how many processes of a swarm are killed")
    parser.addoption("--faults-seed", type=int, default=1, help="which ones: the same seed, the same choices")


HANGS = 60.0
"""Seconds after a test's timeout, which is an exception that is raised once: a callback of a loop drops it,
and a fixture may hang afterwards."""

TIERS = Path(__file__).parent

WHOLE_PEERS = {"e2e", "mission"}
"""Rooms of tests that start peers as users do."""

STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STDERR] = os.dup(2)  # what tests write there is captured


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks each test with its tier. One of whole peers fails by its own waits, which know how busy the
    machine is and print the ends of the logs (`SwarmProcesses.wait_until`): the limit ends one that hangs."""
    for item in items:
        tier, room, *_ = item.path.relative_to(TIERS).parts
        item.add_marker(tier)
        if room in WHOLE_PEERS and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT))
    items[:] = woven(items)


def woven(items: list[pytest.Item]) -> list[pytest.Item]:
    """Whole files, those of `real` spread evenly among the others: they wait while the others compute."""
    real, others = dict[Path, list[pytest.Item]](), dict[Path, list[pytest.Item]]()
    for item in items:
        tier = item.path.relative_to(TIERS).parts[0]
        (real if tier == "real" else others).setdefault(item.path, []).append(item)
    placed = [
        (number / len(files), file) for files in (real, others) for number, file in enumerate(files.values())
    ]
    return [item for _, file in sorted(placed, key=lambda each: each[0]) for item in file]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """All modules of all tests are no garbage: the collector looks at them neither here nor in any test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _threads() -> Generator[None]:
    """A test that leaves torch with more threads makes those after it slower: twenty times, where four
    processes share two cores and a model is small."""
    before = torch.get_num_threads()
    yield
    after = torch.get_num_threads()
    torch.set_num_threads(before)
    assert after == before, f"the test leaves torch with {after} threads, not with {before}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test that goes on after its timeout ends its process, and shows where all threads are."""
    mark = item.get_closest_marker("timeout")
    seconds = float(mark.args[0] if mark is not None else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(seconds + HANGS, exit=True, file=item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
