"""A test of real processes fails by its own waits, which know how busy the machine is and print the ends of
the logs (`SwarmProcesses.wait_until`). The limit that is set here ends a test that hangs beside them."""

from pathlib import Path

import pytest
from swarm_processes import LIMIT


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The hook sees the items of all folders."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT))
