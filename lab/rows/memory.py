"""Row `memory`: MiB of each role's processes in a training swarm of one learner, one sampler, one evaluator
and the seed: once it trains, and the peak since the start.

A peer is its Python process with p2pd, the DHT child and, at a learner, the averager, at the others the
engine. PSS counts a page that n processes share as 1/n: forked children share most of their parent's. USS is
what a process shares with none. A peak between two looks is not seen.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import psutil  # type: ignore[import-untyped]

from lab.figures.table import Figure, Say, Unmeasured
from lab.swarms.local_swarm import LocalSwarm
from swarm import events
from swarm.protocol import Role

VERSIONS = 10
"""Steps of the learner before it is weighed: buffers have their size by then."""

LOOK = 1.0
"""Seconds between two looks, each of which costs a tenth of a second of CPU."""

MIB = 1 << 20


def measure(say: Say, versions: int = VERSIONS) -> list[Figure]:
    with LocalSwarm() as home:
        scales = Scales(home)
        for role in (Role.LEARNER, Role.SAMPLER, Role.EVALUATOR):
            home.join(role)
        say(f"waiting for version {versions}")
        trained = scales.until(lambda: _reached(home, "learner-1", versions))
        home.until("a learner that trains", trained)
        home.until("an evaluation", scales.until(lambda: _reached(home, "evaluator-1", 0)))
        scales.look()
        return [figure for peer_folder in home.processes for figure in scales.figures(peer_folder)]


class Scales:
    """The memory of a swarm's peers, now and at most."""

    def __init__(self, home: LocalSwarm) -> None:
        self._home, self._looked = home, 0.0
        self._now: dict[str, list[tuple[str, Any]]] = {}
        """Peer folder -> name and psutil's memory_full_info of each of its processes."""
        self._peak: dict[str, float] = {}
        """Peer folder -> bytes of PSS."""

    def look(self) -> None:
        self._looked = time.monotonic()
        for peer_folder, process in self._home.processes.items():
            with self._home.alive():
                self._now[peer_folder] = seen = _weighed(process.pid)
            heavy = sum(info.pss for _, info in seen)
            self._peak[peer_folder] = max(heavy, self._peak.get(peer_folder, 0.0))

    def until(self, holds: Callable[[], bool]) -> Callable[[], bool]:
        """`holds`, with a look every LOOK seconds."""

        def looked() -> bool:
            if time.monotonic() > self._looked + LOOK:
                self.look()
            return holds()

        return looked

    def figures(self, peer_folder: str) -> list[Figure]:
        role, seen = peer_folder.partition("-")[0], self._now[peer_folder]
        parts = ", ".join(
            f"{'p2pd' if 'p2pd' in name else 'python'} {info.pss / MIB:.0f}" for name, info in seen
        )
        note = f"USS {sum(info.uss for _, info in seen) / MIB:.0f} MiB; PSS by process: {parts}"
        weight = sum(info.pss for _, info in seen) / MIB
        peak = self._peak[peer_folder] / MIB
        return [
            Figure(row="memory", what=role, value=weight, unit="MiB PSS", note=note),
            Figure(row="memory", what=f"{role}, at most", value=peak, unit="MiB PSS"),
        ]


def _weighed(pid: int) -> list[tuple[str, Any]]:
    """Raises Unmeasured where the peer's own process has ended."""
    try:
        peer = psutil.Process(pid)
        if not (own := peer.memory_full_info()).rss:  # a zombie has none
            raise psutil.NoSuchProcess(pid)
        found, below = [(peer.name(), own)], peer.children(recursive=True)
    except psutil.NoSuchProcess:
        raise Unmeasured(f"process {pid} ended before it was weighed") from None
    for one in below:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile
            found.append((one.name(), one.memory_full_info()))
    return found


def _reached(home: LocalSwarm, peer_folder: str, version: int) -> bool:
    done = (
        event.version
        for event in home.events(peer_folder)
        if isinstance(event, events.Trained | events.Evaluated)
    )
    return any(reached >= version for reached in done)
