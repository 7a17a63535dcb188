"""A world: many peers on simulated links under a virtual clock, and the script of faults.

    Scenario + spawn -> peers (one coroutine each) -- events --> one journal -> SimulationOutcome{sha256, ...}

In come a Scenario and `spawn`, which makes a peer's coroutine from its SimPeer (programs inject it: this
package knows no roles). Out come every peer's events, in one order, to a journal file and sinks, and their
digest: the same seed gives the same bytes. A crashed peer's coroutine is cancelled and its events no longer
count, as a dead process writes nothing; so it is with all peers when the time is up. Any exception of a peer
is a bug and ends the world with its traceback.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import IO, TYPE_CHECKING, Any

from swarm.core.delays import draw
from swarm.events import Bus, Event
from swarm.journal import to_line
from swarm.net.memory.network import MemoryNetwork, as_it_is
from swarm.net.ports import Ports
from swarm.protocol import Role
from swarm.settings.config import Config, EngineSettings, Peer
from swarm.sim.clock import VirtualLoop, run
from swarm.sim.crash_points import CrashPoint, with_crash_point
from swarm.sim.disks import SimulatedDisks, damage
from swarm.sim.flows import AccessLine
from swarm.sim.links import SimLinks
from swarm.sim.scenario import OF_PEER, Fault, Scenario, role_of, select
from swarm.types import PeerId

if TYPE_CHECKING:
    from swarm.sim.scaled_model import ScaledModel


@dataclass(frozen=True)
class SimPeer:
    """All that a simulated peer is made from."""

    name: str
    role: Role
    ports: Ports
    seed: int
    """Seed of this peer's life."""
    config: Config
    bus: Bus
    life: int
    """Number of the peer's life: 0 at first, one more after each bounce."""
    scaled_model: ScaledModel | None = None
    """Where small bytes stand in for a large model's."""
    folder: Path | None = None
    """What outlives the peer's lives; None: nothing does."""


Spawn = Callable[[SimPeer], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class SimulationOutcome:
    sha256: str
    """Of the journal's bytes."""
    events: int
    virtual: float
    """Seconds simulated."""
    wall: float
    """Seconds of wall time."""
    calls: int
    """Callbacks that the loop ran: the simulation's cost, alike on any machine."""


class World:
    def __init__(
        self,
        scenario: Scenario,
        spawn: Spawn,
        *,
        sinks: Iterable[Callable[[Event], None]] = (),
        journal: Path | None = None,
        disks: Path | None = None,
    ) -> None:
        """Peers have a folder each in `disks`, where it is given."""
        self._scenario = scenario
        self._spawn = spawn
        self._sinks = list(sinks)
        self._journal, self._disks = journal, disks
        self._file: IO[bytes] | None = None
        self._digest = hashlib.sha256()
        self._events = 0
        self._config = Config(
            run=scenario.run, peer=Peer(engine=EngineSettings(name="toy", tasks=1), delay=scenario.delay)
        )
        self._scaled_model = _scaled_model(scenario)
        self._alive: dict[str, asyncio.Task[None]] = {}
        self._away: dict[str, asyncio.TimerHandle] = {}
        """Peers that come back, and when."""
        self._full: dict[Path, asyncio.TimerHandle] = {}
        """Folders that took no more, and when they take everything again."""
        self._lives: dict[str, int] = {}
        self._mute: set[tuple[str, int]] = set()
        self._crash_points: dict[str, CrashPoint] = {}
        self._storage = SimulatedDisks()

    def run(self) -> SimulationOutcome:
        """Blocks until the scenario's end, or until every peer has ended and none comes back. Raises a peer's
        exception."""
        since = time.perf_counter()
        with (
            _opened(self._journal) if self._journal is not None else nullcontext() as self._file,
            self._scaled_model.cut() if self._scaled_model is not None else nullcontext(),
            self._storage.in_use(),
        ):
            virtual, calls = run(self._live())
        wall = time.perf_counter() - since
        return SimulationOutcome(self._digest.hexdigest(), self._events, virtual, wall, calls)

    async def _live(self) -> tuple[float, int]:
        """-> the seconds simulated, and the callbacks that were run."""
        scenario = self._scenario
        links = scenario.links
        self._links = SimLinks(links.latency, links.bandwidth, self._rng("links"), self._lines())
        settings, scaled_model = scenario.run, self._scaled_model
        async with (
            MemoryNetwork(
                self._rng("gossip"),
                self._links,
                averaging=settings.averaging,
                groups=settings.batch.groups,
                weigh=scaled_model.weigh if scaled_model is not None else as_it_is,
                values=scaled_model.values if scaled_model is not None else 0,
            ) as self._network,
            asyncio.TaskGroup() as self._group,
        ):
            for name in scenario.names():
                self._host(name)
            script = self._group.create_task(self._play(), name="fault script")
            await self._until_the_end(script)
            for name in list(self._alive):
                self._crash(name)
            script.cancel()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return loop.time(), loop.calls

    async def _until_the_end(self, script: asyncio.Task[None]) -> None:
        end = self._scenario.hours * 3600
        loop = asyncio.get_running_loop()
        while loop.time() < end:
            waited = [task for task in (*self._alive.values(), script) if not task.done()]
            if waited:
                await asyncio.wait(waited, timeout=end - loop.time(), return_when=asyncio.FIRST_COMPLETED)
                self._alive = {name: task for name, task in self._alive.items() if not task.done()}
            elif self._away:
                back = [timer.when() for timer in self._away.values()]
                await asyncio.sleep(min(end, *back) - loop.time())
            else:
                return

    def _host(self, name: str) -> None:
        if name in self._alive:
            return
        life = self._lives[name] = self._lives.get(name, -1) + 1
        bus = Bus()
        bus.add(lambda event: self._record((name, life), event))
        peer = SimPeer(
            name=name,
            role=role_of(name),
            ports=with_crash_point(
                self._network.ports(
                    name, self._price(name, life), self._is_one_way(name), self._scenario.each
                ),
                self._crash_point(name),
            ),
            seed=self._rng(f"{name}/{life}").getrandbits(48),
            config=self._config,
            bus=bus,
            life=life,
            scaled_model=self._scaled_model,
            folder=self._folder(name),
        )
        self._alive[name] = self._group.create_task(self._spawn(peer), name=name)

    def _crash(self, name: str) -> None:
        """Also for a peer that is away: it does not come back."""
        if (back := self._away.pop(name, None)) is not None:
            back.cancel()
        if (task := self._alive.pop(name, None)) is None:
            return
        self._mute.add((name, self._lives[name]))
        task.cancel()
        self._network.crash(PeerId(name))

    async def _play(self) -> None:
        """The fault script, in the order of its times."""
        for step in sorted(self._scenario.faults, key=lambda fault: fault.at):
            await asyncio.sleep(step.at - asyncio.get_running_loop().time())
            if step.fault in OF_PEER:
                self._apply_to(step.peer, step)
            else:
                self._apply_between(step)

    def _apply_to(self, peer: str, step: Fault) -> None:
        match step.fault:
            case "host":
                self._host(peer)
            case "crash" | "bounce" if step.step:
                self._crash_point(peer).set(step.step, lambda: self._end(step))
            case "crash" | "bounce":
                self._end(step)
            case "clock":
                self._network.clock_of(PeerId(peer)).offset = step.seconds
            case "busy" if peer in self._alive:
                host = self._network.hosts[PeerId(peer)]
                host.busy_until = asyncio.get_running_loop().time() + step.seconds
            case "full" if (folder := self._folder(peer)) is not None:
                self._fill(folder, asyncio.get_running_loop().time() + step.seconds)
            case "damage" if (folder := self._folder(peer)) is not None:
                damage(folder, step.file, step.how, self._rng(f"damage/{step.at}"))

    def _end(self, step: Fault) -> None:
        """Crash a peer; one that bounces is back later."""
        self._crash(step.peer)
        if step.fault == "bounce":
            loop = asyncio.get_running_loop()
            self._away[step.peer] = loop.call_later(step.down, self._back, step.peer)

    def _back(self, name: str) -> None:
        self._away.pop(name, None)
        self._host(name)

    def _fill(self, folder: Path, until: float) -> None:
        """Full until then, or for as long as it is already."""
        if (earlier := self._full.get(folder)) is not None:
            until = max(until, earlier.when())
            earlier.cancel()
        self._storage.fill(folder, True)
        loop = asyncio.get_running_loop()
        self._full[folder] = loop.call_at(until, self._storage.fill, folder, False)

    def _apply_between(self, step: Fault) -> None:
        names, links = self._scenario.peer_names(), self._links
        some, others = ([PeerId(name) for name in select(side, names)] for side in step.between)
        if step.fault == "slow":
            links.slow(some, others, step.seconds)
        else:
            getattr(links, step.fault)(some, others)

    def _crash_point(self, name: str) -> CrashPoint:
        return self._crash_points.setdefault(name, CrashPoint())

    def _folder(self, name: str) -> Path | None:
        if self._disks is None:
            return None
        folder = self._disks / name
        folder.mkdir(exist_ok=True)
        return folder

    def _lines(self) -> dict[PeerId, AccessLine]:
        """Of each peer one for all its lives."""
        lines = {
            PeerId(name): self._scenario.line(role_of(name), self._rng(f"{name}/line"))
            for name in self._scenario.peer_names()
        }
        return {peer: line for peer, line in lines.items() if line is not None}

    def _is_one_way(self, name: str) -> bool:
        """The same in all its lives."""
        law = self._scenario.lines.get(role_of(name))
        return law is not None and self._rng(f"{name}/dials").random() < law.one_way

    def _price(self, name: str, life: int) -> Callable[[str], float]:
        prices, rng = self._scenario.prices, self._rng(f"{name}/{life}/prices")
        slowness = self._scenario.slowness(name)
        return lambda kind: slowness * draw(prices[kind], rng) if kind in prices else 0.0

    def _record(self, life: tuple[str, int], event: Event) -> None:
        if life in self._mute or event.peer != life[0]:
            return  # an event that an observer repeats is in the journal already
        line = to_line(event)
        self._digest.update(line)
        self._events += 1
        if self._file is not None:
            self._file.write(line)
        for sink in self._sinks:
            sink(event)

    def _rng(self, stream: str) -> Random:
        """Streams are independent: one more peer does not change another one's draws."""
        return Random(f"{self._scenario.seed}/{stream}")


def _opened(journal: Path) -> IO[bytes]:
    """Empty, and written as the buffer fills: content that is lost with this process can be simulated
    again."""
    journal.parent.mkdir(parents=True, exist_ok=True)
    return open(journal, "wb")


def _scaled_model(scenario: Scenario) -> ScaledModel | None:
    if scenario.bytes is None:
        return None
    from swarm.sim.scaled_model import ScaledModel  # with torch, which a world of other roles does not need

    return ScaledModel(scenario)
