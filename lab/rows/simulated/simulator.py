"""Row `simulator`: the cost of simulated swarms, and an observer's traffic in large ones.

    paper-delay with n samplers, batches as large in proportion -> World -> peer-hours per CPU second, memory
    a seed and n samplers that beat every 2 s                   -> Transferred of the seed -> its gossip

The CPU includes the making of all peers, which a longer run does once. Each size has a process of its own: a
process's peak of memory does not fall. Not handled here: peers of other scenarios, gossip's copies on a real
mesh.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec

from lab.figures.table import Figure, Say, number
from peers.commands import sim
from peers.commands.parsing import shipped
from swarm.events import Event, Transferred
from swarm.processes.allocation import resident
from swarm.protocol import Role
from swarm.sim import scenario
from swarm.sim.scenario import Scenario, role_of
from swarm.sim.world import World

PEERS = (100, 1000)

CROWDS = (200, 500, 1000)
"""Samplers that beat."""

HOURS = 0.25

SMALL = 4
"""Samplers of a swarm that is played first, for what every process imports and keeps."""

SETTLED = 60.0
"""Virtual seconds after which all peers know how large the swarm is, and earlier events are reported."""


def measure(
    say: Say, peers: Sequence[int] = PEERS, crowds: Sequence[int] = CROWDS, hours: float = HOURS
) -> list[Figure]:
    costs, gossip = list[Figure](), list[Figure]()
    for count in peers:
        say(f"{count} samplers for {hours:g} virtual hours")
        costs += _figures(alone(count, hours))
    for count in crowds:
        say(f"{count} samplers that beat")
        gossip.append(_heard(crowd(count)))
    return costs + gossip


def paper(samplers: int, hours: float) -> Scenario:
    """The shipped scenario with so many samplers: batches grow with them, so that each does as much."""
    scene = scenario.load(shipped.scenario(Path("paper-delay")))
    groups = max(1, scene.run.batch.groups * samplers // scene.peers[Role.SAMPLER])
    run = msgspec.structs.replace(scene.run, batch=msgspec.structs.replace(scene.run.batch, groups=groups))
    return msgspec.structs.replace(scene, hours=hours, peers=scene.peers | {Role.SAMPLER: samplers}, run=run)


def crowd(samplers: int) -> Scenario:
    """Samplers that wait for a learner, with a seed that receives their heartbeats, at the pace of a quick
    run."""
    scene = scenario.load(shipped.scenario(Path("quick")))
    return msgspec.structs.replace(
        scene, hours=2 * SETTLED / 3600, peers={Role.SEED: 1, Role.SAMPLER: samplers}
    )


class Cost(NamedTuple):
    """The cost of a simulated swarm."""

    peers: int
    hours: float
    """Virtual."""
    seconds: float
    """Of CPU."""
    memory: float
    """Bytes a peer at the peak, beyond the remains of a swarm of SMALL samplers."""
    calls: int

    @property
    def rate(self) -> float:
        """Peer-hours a CPU second."""
        return self.peers * self.hours / self.seconds


def alone(samplers: int, hours: float) -> Cost:
    """In a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_cost, samplers, hours).result()


def _cost(samplers: int, hours: float) -> Cost:
    import torch

    torch.set_num_threads(1)
    World(paper(SMALL, hours / 10), sim.spawn).run()
    scene, before = paper(samplers, hours), resident()[0]
    peers, began = sum(scene.peers.values()), time.process_time()
    outcome = World(scene, sim.spawn).run()
    seconds = time.process_time() - began
    grown = max(0, resident()[1] - before)
    return Cost(peers, scene.hours, seconds, grown / peers, outcome.calls)


def _figures(cost: Cost) -> list[Figure]:
    what = f"{cost.peers} peers of paper-delay"
    calls = number(cost.calls / cost.peers / cost.hours)
    return [
        Figure(
            row="simulator",
            what=what,
            value=cost.rate,
            unit="peer-hours a CPU second",
            note=f"{calls} callbacks a peer-hour, {number(cost.seconds)} CPU s",
        ),
        Figure(row="simulator", what=f"memory of each of {what}", value=cost.memory / 2**20, unit="MiB"),
    ]


class SettledTotals:
    """A sink that adds up the seed's incoming gossip once the swarm is settled."""

    def __init__(self) -> None:
        self.bytes, self.seconds = 0, 0.0
        self._begin: float | None = None

    def __call__(self, event: Event) -> None:
        self._begin = event.at if self._begin is None else self._begin
        if isinstance(event, Transferred) and role_of(event.peer) is Role.SEED and self._is_settled(event):
            self.bytes += event.received.get("gossip", 0)
            self.seconds += event.seconds

    def _is_settled(self, event: Transferred) -> bool:
        return self._begin is not None and event.at - event.seconds > self._begin + SETTLED


def _heard(scene: Scenario) -> Figure:
    heard = SettledTotals()
    World(scene, sim.spawn, sinks=[heard]).run()
    return Figure(
        row="simulator",
        what=f"gossip that a seed hears of {scene.peers[Role.SAMPLER]} samplers, a heartbeat every 2 s",
        value=heard.bytes / heard.seconds / 1000,
        unit="kB/s",
    )
