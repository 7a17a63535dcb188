"""Faults of a real swarm: their targets, effects and durations.

    kill(home, rng) -> ProcessFault;  with struck(home, lines, fault): ... while it lasts

    kill    kill -9 of a peer or of one of the processes below it
    stop    SIGSTOP of one of them, or of all of a peer, then SIGCONT
    part    its line, or its and some others', lies in a network of its own
    fill    its file system is full, then has room again

A kill lasts no time: the swarm's own supervision restarts the peer. Not handled here: the cost of a fault
(lab.swarms.fault_trials).
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from lab.swarms.restarted_swarm import RestartedSwarm
from lab.swarms.shaped_lines import ShapedLines

PARTS = ("peer", "all", "p2pd", "fork")
"""Targets of a stop: a peer's main process, all of them, or those of one kind below it."""

BLOCK = bytes(64 << 10)
"""What fills a disk, written as long as there is room."""


@dataclass
class ProcessFault:
    kind: str
    """`kill`, `stop`, `part` or `fill`."""
    peer: str
    what: str
    """Which part of the peer: `peer` (its main process), `p2pd`, `fork` (DHT, averager), `all`, `line`,
    `disk`."""
    seconds: float = 0.0
    others: tuple[str, ...] = ()
    """Peers that are cut off together with this one."""
    gone: list[psutil.Process] = field(default_factory=list)
    """Processes that must not outlive it."""

    def __str__(self) -> str:
        with_others = f" with {', '.join(self.others)}" if self.others else ""
        return f"{self.kind} {self.what} of {self.peer}{with_others}" + (
            f" for {self.seconds:g} s" if self.seconds else ""
        )


def kill(home: RestartedSwarm, rng: random.Random) -> ProcessFault:
    """kill -9 of a random process of a random peer. A peer that is just being started again is hit as
    well."""
    peer = rng.choice([name for name in home.numbers if home.tree(name)])
    tree = home.tree(peer)
    target = rng.choice(tree)
    fault = ProcessFault("kill", peer, what(target, tree[0]))
    with contextlib.suppress(psutil.NoSuchProcess):
        if target == tree[0]:
            home.killed.add(target.pid)
            home.deaths.setdefault(peer, []).append(time.time())
            fault.gone = tree
        else:
            fault.gone = [target]
        target.kill()
    return fault


@contextlib.contextmanager
def struck(
    home: RestartedSwarm, lines: ShapedLines | None, fault: ProcessFault
) -> Iterator[Callable[[], None]]:
    """A fault that lasts. The function that it yields is called from time to time meanwhile."""
    if fault.kind == "stop":
        with _stopped(home, fault):
            yield nothing
    elif fault.kind == "part":
        assert lines is not None
        with lines.parted([home.numbers[name] for name in (fault.peer, *fault.others)]):
            yield nothing
    else:
        with _FullDisk(home.run_folder(fault.peer) / "ballast") as disk:
            yield disk.fill


def nothing() -> None:
    """A fault that needs no attention while it lasts."""


@contextlib.contextmanager
def _stopped(home: RestartedSwarm, fault: ProcessFault) -> Iterator[None]:
    """SIGSTOP, and SIGCONT to those that still are."""
    tree = home.tree(fault.peer)
    hit = [one for one in tree if fault.what in {"all", what(one, tree[0])}]
    _signal(hit, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(hit, signal.SIGCONT)


class _FullDisk:
    """Use as a context manager."""

    def __init__(self, ballast: Path) -> None:
        self._path = ballast
        self._file = os.open(ballast, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def __enter__(self) -> _FullDisk:
        self.fill()
        return self

    def __exit__(self, *exit: object) -> None:
        os.close(self._file)
        self._path.unlink()

    def fill(self) -> None:
        """Take what room there is."""
        for size in (len(BLOCK), 1):
            with contextlib.suppress(OSError):  # full: that is the purpose
                while os.write(self._file, BLOCK[:size]):
                    pass


def what(process: psutil.Process, peer: psutil.Process) -> str:
    """Which part of a peer a process is."""
    if process == peer:
        return "peer"
    with contextlib.suppress(psutil.NoSuchProcess):
        name = process.name()
        return "fork" if name.startswith("python") else name
    return "gone"


def _signal(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
