"""Row `faults`: a swarm of real processes under kills, stops, cuts of the network and full disks; the time
from each to the next version, and to full strength.

Peers are started again by the same command. As root each lies behind a line of its own and has a small file
system; otherwise the network is not cut and no disk is filled. Not handled here: faults of a simulated swarm.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import quantiles

from lab.figures.table import TOO_MANY, Figure, Say
from lab.swarms.fault_trials import Report, Trial, Trials
from lab.swarms.faults import PARTS, ProcessFault
from lab.swarms.local_swarm import Place
from lab.swarms.restarted_swarm import RestartedSwarm
from lab.swarms.shaped_lines import ShapedLines
from swarm.core.group_accounts import JournalAudit
from swarm.protocol import Role

SETTINGS = ("run.batch.groups=8", "run.release.checkpoint_every=2")
"""Small batches: a version every fraction of a second, so that a fault meets a round."""

PEERS = (Role.LEARNER, Role.LEARNER, Role.SAMPLER, Role.SAMPLER, Role.EVALUATOR)

RATE = 1000.0
"""Mbit/s of every line: faults are measured here, and not lines."""

ROOM = 96
"""MiB of a peer's file system: a run folder takes a few, so that one can be filled in no time."""


NAMED = 3
"""Groups in a note."""


@dataclass(frozen=True)
class Plan:
    kills: int = 40
    stops: Sequence[float] = (5.0, 40.0, 120.0)
    """Seconds: a random peer or process is stopped for each."""
    parts: Sequence[float] = (5.0, 40.0)
    """Seconds: one peer is cut off, then a learner with a sampler."""
    fills: Sequence[Role] = (Role.SEED, Role.LEARNER, Role.SAMPLER)
    full: float = 20.0
    """Seconds that a disk is full."""
    seed: int = 1
    peers: Sequence[Role] = PEERS
    patience: float = 300.0
    """Seconds after which a swarm counts as stuck: several times a start on a busy machine."""


def measure(say: Say, plan: Plan = Plan()) -> list[Figure]:
    report = trials(say, plan)
    return list(_figures(report, plan))


def trials(say: Say, plan: Plan) -> Report:
    """Raises Unmeasured: the swarm did not begin."""
    say(f"{plan.kills} kills, seed {plan.seed}")
    rng = random.Random(plan.seed)
    with ExitStack() as stack:
        lines, place = None, _anywhere
        if plan.parts and os.geteuid() == 0:
            lines = stack.enter_context(ShapedLines(RATE, RATE))

            def place() -> Place:
                assert lines is not None
                words, address = lines.line()
                return words, (f"peer.listen.host={address}",)

        room = ROOM if plan.fills and os.geteuid() == 0 else None
        home = stack.enter_context(RestartedSwarm(*SETTINGS, place=place, patience=plan.patience, room=room))
        for role in plan.peers:
            home.join(role)
        lasting = list(_lasting(plan, rng, list(home.numbers), lines is not None, room is not None))
        return Trials(home, rng, say, lines).run(plan.kills, lasting)


def _anywhere() -> Place:
    return (), ()


def _lasting(
    plan: Plan, rng: random.Random, peers: Sequence[str], lines: bool, disks: bool
) -> Iterator[ProcessFault]:
    for seconds in plan.stops:
        yield ProcessFault("stop", rng.choice(peers), rng.choice(PARTS), seconds)
    for seconds in plan.parts if lines else ():
        yield ProcessFault("part", rng.choice(peers), "line", seconds)
        yield ProcessFault("part", "learner-1", "line", seconds, ("sampler-1",))
    for role in plan.fills if disks else ():
        yield ProcessFault("fill", role if role is Role.SEED else f"{role}-1", "disk", plan.full)


# --- figures ------------------------------------------------------------------------------------------------


def _figures(report: Report, plan: Plan) -> Iterator[Figure]:
    note = f"seed {plan.seed}; {report.stuck.splitlines()[0]}" if report.stuck else f"seed {plan.seed}"
    yield Figure(row="faults", what="faults", value=len(report.trials), unit="faults", note=note)
    yield Figure(row="faults", what="swarms stuck", value=1.0 if report.stuck else 0.0, unit=TOO_MANY)
    for name, counted in (
        ("processes left", report.left),
        ("peers that ended by themselves", report.ended),
        ("versions with two digests at the end", report.differing),
    ):
        told = "; ".join(str(one) for one in counted)
        yield Figure(row="faults", what=name, value=len(counted), unit=TOO_MANY, note=told)
    yield from _groups(report.groups, "full disks took no journal" if plan.fills else "")
    yield Figure(row="faults", what="journal", value=report.journal / 1e6, unit="MB per peer and hour")
    for kind in sorted({_kind(trial) for trial in report.trials}):
        yield from _costs(kind, [trial for trial in report.trials if _kind(trial) == kind])


def _groups(found: JournalAudit, note: str) -> Iterator[Figure]:
    """As `swarm replay --audit` has them."""
    others = [f"{found.waiting} wait", *(f"{count} {why}" for why, count in sorted(found.refused.items()))]
    yield Figure(
        row="faults",
        what="groups trained once",
        value=found.once,
        unit="groups",
        against="acknowledged",
        other=found.acknowledged,
        note=", ".join(others),
    )
    for what, its in (("lost", list(found.lost)), ("trained twice", list(found.doubled))):
        told = "; ".join([*its[:NAMED], *([note] if its and note else [])])
        yield Figure(row="faults", what=f"groups {what}", value=len(its), unit=TOO_MANY, note=told)


def _costs(kind: str, found: Sequence[Trial]) -> Iterator[Figure]:
    for what, values in (
        ("to the next version", [trial.next_version for trial in found]),
        ("to full strength", [trial.full_strength for trial in found]),
    ):
        known = [value for value in values if value is not None]
        if known:
            note = f"p99 {_p99(known):.1f} s, {len(known)} of {len(values)}"
            yield Figure.of_turns(known, row="faults", what=f"{kind}: {what}", unit="s", note=note)


def _p99(values: Sequence[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[98] if len(values) > 1 else values[0]


def _kind(trial: Trial) -> str:
    """Faults that cost alike: by role where a whole peer is hit, else by process."""
    fault = trial.fault
    role = fault.peer.partition("-")[0]
    if fault.kind == "kill":
        return f"kill -9 of a {role}" if fault.what == "peer" else f"kill -9 of a {fault.what}"
    if fault.kind == "part":
        return f"{'two peers' if fault.others else 'one peer'} cut off for {fault.seconds:g} s"
    return f"stop for {fault.seconds:g} s" if fault.kind == "stop" else f"full disk of a {role}"
