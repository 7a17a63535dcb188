"""Why a peer is idle, from its own state and the heartbeats that it receives: one table of causes.

    phase, peers present, downloads --cause--> words of the status line, a sentence, what to do

The status line of a running peer has the short words, `swarm why` the rest. Not handled here: problems that
last longer than they should (dashboard.diagnosis), which `swarm why` asks first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from dashboard.text import duration, volume
from peers.errors import CANNOT, DONE, UNREACHED
from peers.runtime.host import Host
from swarm.protocol import RESTING, Phase, Role


class IdleSigns(NamedTuple):
    """The facts from which the cause follows."""

    phase: Phase
    learners: int
    """Learners whose heartbeats it receives."""
    seeds: int
    fetched: str = ""
    """The current download, as `fetching` words it."""
    wait: float = math.inf
    """Seconds until learners that took no group are asked again."""
    rests: str = ""
    """Why its owner lets it rest."""
    fault: str = ""
    """The engine's message when it failed."""
    silence: float = 0.0
    """Seconds without a sign of life by its engine, where it is missed."""


class IdleCause(NamedTuple):
    short: str
    """After the phase, in the status line."""
    long: str
    todo: str
    code: int = DONE
    """Exit code of `swarm why`."""


WAIT = "wait: it is not long"

NO_ANSWER = IdleCause(
    "no learner or seed answers",
    "no learner or seed of the run answers",
    "check that their machines are up and that this one reaches them (`swarm doctor`); a new invite has"
    " their current addresses",
    UNREACHED,
)
NO_LEARNER = IdleCause(
    "no learner answers",
    "no learner answers, so no groups are wanted",
    "wait for a learner, or start one: `swarm join INVITE` with an invite for learners",
    UNREACHED,
)
AWAY = IdleCause("it is being restarted", "its engine is away", "it is restarted automatically", CANNOT)

CAUSES: Mapping[Phase, IdleCause] = {
    Phase.NO_POLICY: IdleCause("no peer has given a policy yet", "no peer has given it a policy yet", WAIT),
    Phase.NO_CREDIT: IdleCause(
        "the learners have all the groups that they can use",
        "the learners have all the groups that they can use",
        "nothing is broken: more learners would use more",
    ),
    Phase.NO_TASKS: IdleCause(
        "the task source gives none",
        "the task source gives none",
        "see what it gives: `swarm task try` with the run's settings",
    ),
    Phase.NO_ENGINE: AWAY,
    Phase.GATHERING: IdleCause("not enough groups yet", "the groups of a batch are not there yet", WAIT),
    Phase.CATCHING_UP: IdleCause("the swarm has a newer policy", "the swarm has a newer policy", WAIT),
    Phase.SYNCING: IdleCause(
        "it syncs from another learner",
        "it syncs: it copies another learner's full state, and the others wait for it",
        WAIT,
    ),
    Phase.NO_RELEASE: IdleCause("nothing new is released", "nothing new is released to evaluate", WAIT),
    Phase.PAUSED: IdleCause("it is paused", "its owner paused it", "`swarm resume` ends the pause"),
    Phase.LIMITED: IdleCause(
        "it works at other times", "its owner lets it work at other times", "`[peer.limits]` says when"
    ),
}
"""Where nothing more is known than the phase."""


def cause(known: IdleSigns) -> IdleCause | None:
    """None where the peer works."""
    phase, plain = known.phase, CAUSES.get(known.phase)
    if known.silence:
        silent = f"its engine has not responded for {known.silence:.0f} s"
        return IdleCause(silent, silent, "it is restarted automatically if that lasts", CANNOT)
    if phase in RESTING and plain is not None and known.rests:
        return plain._replace(short=known.rests, long=known.rests)
    if phase in (Phase.NO_POLICY, Phase.CATCHING_UP, Phase.STARTING) and known.fetched:
        return IdleCause(known.fetched, f"it is {known.fetched}", WAIT)
    if phase is Phase.NO_POLICY and not known.learners and not known.seeds:
        return NO_ANSWER
    if phase is Phase.NO_CREDIT and not known.learners:
        return NO_LEARNER
    if phase is Phase.NO_CREDIT and math.isfinite(known.wait):
        refused = f"the learners took no group, and are asked again in {known.wait:.0f} s"
        return IdleCause(refused, refused, "the learners' reasons are in its log")
    if phase is Phase.NO_ENGINE and known.fault:
        return AWAY._replace(long=f"{AWAY.long}: {known.fault}")
    return plain


def of(host: Host, rate: float = 0.0) -> IdleCause | None:
    """Why the peer of this host is idle. `rate`: bytes per second of its download."""
    fetched = host.releases.coming()
    here = [beat.role for _, beat in host.roster]
    return cause(
        IdleSigns(
            host.status.phase,
            here.count(Role.LEARNER),
            here.count(Role.SEED),
            fetching(fetched.version, fetched.held, fetched.size, rate) if fetched is not None else "",
            host.roster.wait(host.steady()),
            host.pause_gate.reason.text if host.pause_gate.reason is not None else "",
            silence=host.status.silence,
        )
    )


def fetching(version: int, held: int, size: int, rate: float = 0.0) -> str:
    """`fetching version 41, 12 MB of 140 MB, 3.1 MB/s, about 41 s left`."""
    speed = f", {volume(rate)}/s, about {duration((size - held) / rate)} left" if rate else ""
    return f"fetching version {version}, {volume(held)} of {volume(size)}{speed}"
