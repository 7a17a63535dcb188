"""Script that sets resource limits on its own process and then executes a command in it.

    python -I -S limits.py '{"memory": 4294967296}' COMMAND...

Limits are JSON, 0 or absent being none: `parent` (die with this process), `user` (change to this user and
group: only root can), `memory` (bytes of address space), `files` (open at once), `size` (bytes of one written
file), `processes` (of this user, in this user namespace). COMMAND runs with hard limits, which it cannot
raise again, and without core dumps; the kernel's out-of-memory killer ends it before the peer that started
it.

A script and not a function, because code between fork and exec must not touch the locks of the peer's
threads. Only the standard library, so that it starts in a hundredth of a second. Not handled: limits over all
processes together (cgroups need rights that a peer seldom has); the number of processes bounds them.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys

PDEATHSIG = 1


def main() -> None:
    limits, command = json.loads(sys.argv[1]), sys.argv[2:]
    with open("/proc/self/oom_score_adj", "w") as score:  # before the change of user, who may not
        score.write("1000")
    if user := limits.get("user"):
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name, kind in (
        ("memory", resource.RLIMIT_AS),
        ("files", resource.RLIMIT_NOFILE),
        ("size", resource.RLIMIT_FSIZE),
        ("processes", resource.RLIMIT_NPROC),
    ):
        if value := limits.get(name):
            _, most = resource.getrlimit(kind)
            value = value if most == resource.RLIM_INFINITY else min(value, most)
            resource.setrlimit(kind, (value, value))
    if parent := limits.get("parent"):  # after the change of user, which clears it; exec keeps it
        ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os.kill(os.getpid(), signal.SIGKILL)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
