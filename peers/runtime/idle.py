"""Why a peer is idle, from what it knows itself: the short reason in its status line.

The diagnosis of the page (dashboard.diagnosis), which `swarm why` reads, says it at length, with what to do.
"""

from __future__ import annotations

import math

from dashboard.text import volume
from peers.runtime.host import Host
from swarm.protocol import PHASES, RESTING, Phase, Role
from swarm.types import Fetching


def why(host: Host, rate: float = 0.0) -> str:
    """The reason, or nothing where the peer works. `rate`: bytes per second of what it fetches."""
    phase, roster = host.status.phase, host.roster
    if phase in RESTING and host.rest.reason is not None:
        return host.rest.reason.text
    fetched = host.releases.coming()
    if phase in (Phase.NO_POLICY, Phase.CATCHING_UP, Phase.STARTING) and fetched is not None:
        return fetching(fetched, rate)
    if phase is Phase.NO_POLICY and not any(beat.role in (Role.LEARNER, Role.SEED) for _, beat in roster):
        return "no learner and no seed is heard"
    if phase is Phase.NO_CREDIT and not roster.learners():
        return "no learner is heard"
    if phase is Phase.NO_CREDIT and math.isfinite(wait := roster.wait(host.now())):
        return f"the learners took no group, and are asked again in {wait:.0f} s"
    if phase is Phase.NO_CREDIT:
        return "the learners have all the groups that they can use"
    return PHASES[phase].why


def fetching(fetched: Fetching, rate: float) -> str:
    """`fetching version 41, 12 MB of 140 MB, 3.1 MB/s`."""
    speed = f", {volume(rate)}/s" if rate else ""
    return f"fetching version {fetched.version}, {volume(fetched.held)} of {volume(fetched.size)}{speed}"
