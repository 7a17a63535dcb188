"""Settings of all tests."""

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
