"""Starts the rank processes of a sharded learner, sends them orders, and ends all of them when one fails.

    Ranks(devices) --spawn--> python -m swarm.learn.fsdp.worker, one a device
                   --call(order)--> an answer of each, or RankLost

Ranks compute in lockstep: when one dies, fails or hangs, the others wait for it in a collective for ever, and
their shards are useless without its own. So the first failure ends all of them, and `RankLost` says which
rank failed and why. A rank ends by itself when its driver is gone (end of its stdin). Ranks find each other
through an anonymous file and talk over the loopback interface only. Not handled here: the content of orders,
restarting.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Sequence

from swarm.learn.fsdp.messages import (
    ANSWERS,
    Answer,
    Order,
    Settings,
    ShardFailed,
    ShardStarted,
    Slab,
    Start,
    encode,
)
from swarm.processes.process import Child, Ended, environment, wait

START = 600.0
"""Seconds to import torch, read tens of GB of weights one rank after the other, and meet."""

GRACE = 1.0
"""Seconds to wait for other reports after the first failure: a broken collective may be reported before the
death that broke it."""

LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""A machine's host name may resolve to an address that others reach, or to none."""

TAIL = 1500
"""Characters of a dead rank's output that a message quotes: the end of a traceback."""


class RankLost(Exception):
    """A rank died, failed or hung; all are gone now."""

    def __init__(self, message: str, memory: bool) -> None:
        super().__init__(message)
        self.memory = memory
        """It ran out of memory."""


class Ranks:
    """The rank processes, one a device. Not thread-safe: one call at a time."""

    def __init__(self, devices: Sequence[str], settings: Settings, timeout: float) -> None:
        """Returns when all ranks hold their shards. Raises RankLost."""
        self._timeout = timeout
        self.slab = Slab.new()
        store = os.memfd_create("swarm-ranks")
        self._names = [f"rank {rank} of {len(devices)} ({device})" for rank, device in enumerate(devices)]
        self._children: list[Child] = []
        self._end = weakref.finalize(self, _end, os.getpid(), self._children, self.slab)
        try:
            command = [sys.executable, "-m", "swarm.learn.fsdp.worker"]
            for _ in devices:
                self._children.append(
                    Child(command, environment(LOOPBACK), descriptors=(self.slab.descriptor, store))
                )
            starts = [
                Start(
                    settings=settings,
                    rank=rank,
                    ranks=len(devices),
                    device=device,
                    store=store,
                    slab=self.slab.descriptor,
                    timeout=timeout,
                )
                for rank, device in enumerate(devices)
            ]
            started = self.call(starts, START)[0]
        except BaseException:
            self.close()
            raise
        finally:
            os.close(store)
        assert isinstance(started, ShardStarted)
        self.entries = started.entries

    def call(self, orders: Order | Sequence[Order], seconds: float | None = None) -> list[Answer]:
        """Send one order to all ranks, or one to each; return their answers in order of rank. Raises
        RankLost, with all ranks ended, unless all answer within `seconds`."""
        each = [orders] * len(self._children) if isinstance(orders, Order) else orders
        try:
            for child, order in zip(self._children, each, strict=True):
                child.send(encode(order))
            return self._answers(self._timeout if seconds is None else seconds)
        except BaseException:  # also when interrupted: half an exchange cannot be gone on from
            self.close()
            raise

    def close(self) -> None:
        """End the ranks and give their memory back."""
        self._end()

    def _answers(self, seconds: float) -> list[Answer]:
        """An answer of each rank. Raises RankLost at the first that fails or dies, and for those that are
        silent for too long."""
        deadline = time.monotonic() + seconds
        silent = dict(zip(self._children, range(len(self._children)), strict=True))
        answers: dict[int, Answer] = {}
        failed: list[RankLost] = []
        dead: list[RankLost] = []
        while silent and (ready := wait(list(silent), deadline)):
            for child in ready:
                rank = silent.pop(child)
                try:
                    answers[rank] = answer = ANSWERS.decode(child.take())
                except Ended as ended:
                    dead.append(RankLost(f"{self._names[rank]} {_how(ended)}", memory=False))
                else:
                    if not isinstance(answer, ShardFailed):
                        continue
                    failed.append(RankLost(f"{self._names[rank]}: {answer.reason}", answer.memory))
                deadline = min(deadline, time.monotonic() + GRACE)
        for trouble in (*dead, *sorted(failed, key=lambda lost: not lost.memory)):
            raise trouble
        if silent:
            names = " and ".join(self._names[rank] for rank in silent.values())
            raise RankLost(f"{names} did not answer within {seconds:.0f} s", memory=False)
        return [answers[rank] for rank in range(len(answers))]


def _how(ended: Ended) -> str:
    """How a rank died, with the end of its output."""
    words = ended.tail.strip()[-TAIL:]
    return f"{ended.how}{ended.hint}" + (f"; its last output: {words}" if words else "")


def _end(owner: int, children: list[Child], slab: Slab) -> None:
    # a forked child of the driver has a copy of these objects, and no right to end anything
    if os.getpid() != owner:
        return
    for child in children:
        child.end()
    children.clear()
    slab.close()
