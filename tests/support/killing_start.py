"""A `swarm` whose p2pd is killed right before its peer registers the N-th service there, once.

python killing_start.py N join ...
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from typing import Any

from peers import cli
from swarm.net.libp2p.p2pd import Daemon

until = itertools.count(int(sys.argv.pop(1)) - 1, -1)
register = Daemon.on_stream


async def killed_first(daemon: Daemon, *given: Any) -> None:
    if next(until) == 0:
        os.kill(daemon.pid, signal.SIGKILL)
    await register(daemon, *given)


if __name__ == "__main__":
    Daemon.on_stream = killed_first  # type: ignore[method-assign]
    sys.exit(cli.main())
