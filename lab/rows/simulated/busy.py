"""Row `busy`: how much of their time learners compute, and how many of the sampled groups are trained.

    four learners, undisturbed or while each 30 s a peer is killed or comes back
        -> World, once as gradients and rounds take turns, once with run.averaging.overlap
        -> seconds of gradients and steps / seconds alive, groups trained / groups sampled

The roles that ship, in virtual time, with folders that survive restarts; the toy task's table. Prices are
made up: a group takes 2 s to learn on, a version 0.7 s to step, copy and pack, and about a second to average.
Not handled here: learners of different speed.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from lab.figures.table import Figure, Say
from peers.commands import sim
from swarm.core.agreement.rounds import State
from swarm.events import Event, Moved, Sampled, Stepped
from swarm.net.ports import Work
from swarm.protocol import Kind, Role
from swarm.settings.config import Averaging, BatchSize, DelayLaw, Optimizer, Run, Sampling, TaskSettings
from swarm.sim.scenario import Fault, Scenario, SimulatedLinks
from swarm.sim.world import SimPeer, World

T = TypeVar("T")

LEARNERS, SAMPLERS = 4, 16

EVERY = 30.0
"""Seconds from a kill to the same peer's return, and from there to the next kill."""

BUCKETS, LINE = 832, 184_000.0
"""Of the table, whose release has 53 kB then, and bytes a second of a line: a state takes 3 s, ten times as
long as a release, and heartbeats a fiftieth of the line."""

MINUTES, BEGINNING, END = 10.0, 60.0, 75.0
"""Of virtual time, and seconds at its begin and end that do not count: groups of the last ones are not
trained yet."""


class Timed:
    """A Work port that adds up a learner's computing time."""

    def __init__(
        self, work: Work, now: Callable[[], float], computed: Callable[[float, float], None]
    ) -> None:
        self._work, self._now, self._computed = work, now, computed

    async def run(self, kind: Kind, function: Callable[..., T], *args: Any) -> T:
        begin = self._now()
        try:
            return await self._work.run(kind, function, *args)
        finally:
            if kind in (Kind.LEARN, Kind.STEP):
                self._computed(begin, self._now())


@dataclass
class Played:
    """What became of one scene."""

    minutes: float
    computed: float = 0.0
    alive: float = 0.0
    """Seconds of all learners."""
    states: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """State of a learner's round -> seconds."""
    sampled: set[str] = field(default_factory=set)
    trained: set[str] = field(default_factory=set)
    """Groups."""
    _at: dict[str, tuple[float, str]] = field(default_factory=dict)
    _start: float = 0.0

    @property
    def busy(self) -> float:
        return 100 * self.computed / self.alive

    @property
    def kept(self) -> float:
        """Percent of the sampled groups that are trained."""
        return 100 * len(self.sampled & self.trained) / len(self.sampled)

    def note(self) -> str:
        seconds = sum(self.states.values())
        most = sorted(self.states.items(), key=lambda one: one[1], reverse=True)[:5]
        shares = (f"{state} {100 * its / seconds:.0f}" for state, its in most)
        return f"trained of sampled: {self.kept:.1f} %; % of the round: {', '.join(shares)}"

    def spawn(self, peer: SimPeer) -> Coroutine[Any, Any, None]:
        if peer.role is not Role.LEARNER:
            return sim.spawn(peer)
        loop = asyncio.get_running_loop()
        work = Timed(peer.ports.work, loop.time, self._compute)
        return self._live(sim.spawn(replace(peer, ports=replace(peer.ports, work=work))), loop.time)

    async def _live(self, program: Coroutine[Any, Any, None], now: Callable[[], float]) -> None:
        begin = now()
        try:
            await program
        finally:
            self.alive += self._counted(begin, now())

    def _compute(self, begin: float, end: float) -> None:
        self.computed += self._counted(begin, end)

    def _counted(self, begin: float, end: float) -> float:
        return max(0.0, min(end, 60 * self.minutes - END) - max(begin, BEGINNING))

    def take(self, event: Event) -> None:
        self._start = self._start or event.at
        now = event.at - self._start
        match event:
            case Sampled() if BEGINNING < now < 60 * self.minutes - END:
                self.sampled.add(event.group)
            case Stepped():
                self.trained.update(event.groups)
            case Moved():
                since, state = self._at.get(event.peer, (now, State.GATHERING.value))
                self.states[state] += self._counted(since, now)
                self._at[event.peer] = now, event.state


def measure(say: Say, minutes: float = MINUTES, traces: Sequence[bool] = (False, True)) -> list[Figure]:
    found = list[Figure]()
    for churn in traces:
        say(f"{LEARNERS} learners" + (", a kill or a return each 30 s" if churn else ""))
        apart, beside = (played(overlap, churn, minutes) for overlap in (False, True))
        found.append(
            Figure(
                row="busy",
                what=f"learners compute{', a kill or a return each 30 s' if churn else ''}",
                value=beside.busy,
                unit="% of their time",
                against="without overlap",
                other=apart.busy,
                note=f"with overlap; {beside.note()}; without overlap: {apart.note()}",
            )
        )
    return found


def trace(minutes: float, seed: int = 1) -> tuple[Fault, ...]:
    """Kills of learners and samplers in turn, each back after EVERY seconds."""
    rng, times = Random(seed), range(int(BEGINNING), int(60 * minutes - END), int(2 * EVERY))
    return tuple(
        Fault(at=at, fault="bounce", down=EVERY, peer=f"{role}-{rng.randrange(many)}")
        for at, (role, many) in zip(
            times, [(Role.LEARNER, LEARNERS), (Role.SAMPLER, SAMPLERS)] * len(times), strict=False
        )
    )


def scene(overlap: bool, churn: bool, minutes: float, seed: int = 1) -> Scenario:
    return Scenario(
        name="busy",
        hours=minutes / 60,
        peers={Role.SEED.value: 1, Role.LEARNER.value: LEARNERS, Role.SAMPLER.value: SAMPLERS},
        prices={
            Kind.SAMPLE.value: DelayLaw(law="lognormal", seconds=4.0, shape=0.4, longest=60.0),
            Kind.LEARN.value: DelayLaw(law="lognormal", seconds=2.0, shape=0.05, longest=40.0),
            Kind.LOAD.value: DelayLaw(law="constant", seconds=0.5),
            Kind.STEP.value: DelayLaw(law="constant", seconds=0.2),
            Kind.PACK.value: DelayLaw(law="constant", seconds=0.5),
        },
        each=(Kind.LEARN.value,),
        links=SimulatedLinks(bandwidth=LINE),
        run=Run(
            name="busy",
            batch=BatchSize(groups=16),
            task=TaskSettings(name="toy", options={"buckets": BUCKETS}),
            sampling=Sampling(max_tokens=4),
            optimizer=Optimizer(lr=0.05),
            averaging=Averaging(overlap=overlap),
        ),
        faults=trace(minutes, seed) if churn else (),
    )


def played(overlap: bool, churn: bool, minutes: float, seed: int = 1) -> Played:
    """`seed`: which trace of kills."""
    found = Played(minutes)
    with tempfile.TemporaryDirectory(prefix="busy-") as disks:
        World(scene(overlap, churn, minutes, seed), found.spawn, sinks=[found.take], disks=Path(disks)).run()
    return found
