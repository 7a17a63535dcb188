"""What `swarm doctor` finds: a row of its table.

Not handled: the checks (peers.commands.doctor.machine_checks, peers.commands.doctor.run_checks).
"""

from __future__ import annotations

from typing import NamedTuple


class CheckResult(NamedTuple):
    check: str
    level: str
    """`ok`, `warn` or `fail`."""
    found: str
    todo: str = ""
