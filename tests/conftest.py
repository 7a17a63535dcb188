"""Settings of all tests."""

import faulthandler
import gc
import os
from collections.abc import Generator

import pytest
from hypothesis import settings

# Machines that share their cores stall for longer than any deadline on one example; pytest's timeout ends
# what hangs.
settings.register_profile("swarm", deadline=None)
settings.load_profile("swarm")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Of the tests marked `faults` (`make test-faults`)."""
    parser.addoption("--kills", type=int, default=200, help="how many processes of a swarm are killed")
    parser.addoption("--faults-seed", type=int, default=1, help="which ones: the same seed, the same choices")


HANGS = 60.0
"""Seconds after a test's timeout, which is an exception that is raised once: a callback of a loop drops it,
and a fixture may hang afterwards."""

STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STDERR] = os.dup(2)  # what tests write there is captured


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """All modules of all tests are no garbage: the collector looks at them neither here nor in any test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


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
