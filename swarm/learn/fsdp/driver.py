"""The processes of a sharded learner, as its driver sees them: started together, asked together, lost
together.

    Ranks(devices) --spawn--> python -m swarm.learn.fsdp.worker, one a device
                   --call(order)--> an answer of each, or RankLost

Ranks compute in lockstep: when one dies, fails or hangs, the others wait for it in a collective for ever, and
their shards are of no use without its own. So the first trouble ends all of them, and `RankLost` says which
rank it was and why. A rank ends by itself when its driver is gone (the end of its stdin). They find each
other through a file without a name and talk over the loopback interface alone. Not handled here: what is
asked, starting again.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence

from swarm.learn.fsdp.messages import (
    ANSWERS,
    PREFIX,
    Answer,
    Failed,
    Order,
    Settings,
    Slab,
    Start,
    Started,
    frame,
)

START = 600.0
"""Seconds to import torch, read tens of GB of weights one rank after the other, and meet."""

GRACE = 1.0
"""Seconds between the first trouble and the verdict: a collective that broke may be heard of before the death
that broke it."""

TAIL = 1500
"""Bytes of a dead rank's last words: the end of a traceback."""

READ = 1 << 16
"""What a pipe holds."""


class RankLost(Exception):
    """A rank died, failed or hung; all are gone now."""

    def __init__(self, message: str, memory: bool) -> None:
        super().__init__(message)
        self.memory = memory
        """It ran out of memory."""


class Ranks:
    """Not thread-safe: one call at a time."""

    def __init__(self, devices: Sequence[str], settings: Settings, timeout: float) -> None:
        """Returns when all ranks hold their shards. Raises RankLost."""
        self._timeout = timeout
        self.slab = Slab.new()
        store = os.memfd_create("swarm-ranks")
        self._lines: list[_Line] = []
        self._end = weakref.finalize(self, _end, os.getpid(), self._lines, self.slab)
        try:
            for rank, device in enumerate(devices):
                self._lines.append(
                    _Line(f"rank {rank} of {len(devices)} ({device})", (self.slab.descriptor, store))
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
        assert isinstance(started, Started)
        self.entries = started.entries

    def call(self, orders: Order | Sequence[Order], seconds: float | None = None) -> list[Answer]:
        """One order for all, or one for each. Raises RankLost, with all ranks ended, unless all answer within
        `seconds`."""
        each = [orders] * len(self._lines) if isinstance(orders, Order) else orders
        try:
            for line, order in zip(self._lines, each, strict=True):
                line.ask(order)
            return _answers(self._lines, self._timeout if seconds is None else seconds)
        except BaseException:  # also when interrupted: half an exchange cannot be gone on from
            self.close()
            raise

    def close(self) -> None:
        """End the ranks and give their memory back."""
        self._end()


class _Line:
    """One rank's process and the two ends of its pipes."""

    def __init__(self, name: str, descriptors: tuple[int, ...]) -> None:
        self.name = name
        self._log = os.memfd_create("swarm-rank-log")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "swarm.learn.fsdp.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            pass_fds=descriptors,
            env=_environment(),
            bufsize=0,
            # Ctrl-C is for the driver: it still needs the shards for its last checkpoint
            start_new_session=True,
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        # a stopped rank must not hold the driver beyond its deadline
        os.set_blocking(self.stdin.fileno(), False)
        self._outbox = memoryview(b"")
        self._inbox = bytearray()

    def ask(self, order: Order) -> None:
        self._outbox, self._inbox = memoryview(frame(order)), bytearray()

    def send(self) -> bool:
        """As much of the order as the pipe takes now. True when nothing is left to send."""
        try:
            self._outbox = self._outbox[os.write(self.stdin.fileno(), self._outbox[:READ]) :]
        except BlockingIOError:
            return False
        except BrokenPipeError:
            return True  # the end of its stdout tells more
        return not self._outbox

    def receive(self) -> Answer | None:
        """What has arrived; the answer when it is whole. Raises EOFError when the rank is dead."""
        some = os.read(self.stdout.fileno(), READ)
        if not some:
            raise EOFError
        self._inbox += some
        length = PREFIX + int.from_bytes(self._inbox[:PREFIX], "big")
        return ANSWERS.decode(self._inbox[PREFIX:]) if len(self._inbox) >= max(PREFIX, length) else None

    def exit_reason(self) -> str:
        """How it died, with its last words."""
        try:
            code = self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            return f"{self.name} closed its pipe without an answer"
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        hint = (
            " (the kernel does that when the machine's memory runs out: see dmesg)"
            if code == -signal.SIGKILL
            else ""
        )
        size = os.fstat(self._log).st_size
        words = os.pread(self._log, TAIL, max(0, size - TAIL)).decode(errors="replace").strip()
        return f"{self.name} {how}{hint}" + (f"; its last words: {words}" if words else "")

    def end(self) -> None:
        self.process.kill()
        self.stdin.close()
        self.stdout.close()
        os.close(self._log)
        self.process.wait()


def _answers(lines: Sequence[_Line], seconds: float) -> list[Answer]:
    """An answer of each line. Raises RankLost at the first that fails or dies, and for those that are silent
    for too long."""
    deadline = time.monotonic() + seconds
    answers: dict[int, Answer] = {}
    failed: dict[int, RankLost] = {}
    dead: dict[int, RankLost] = {}
    with selectors.DefaultSelector() as selector:
        for i, line in enumerate(lines):
            selector.register(line.stdin, selectors.EVENT_WRITE, i)
            selector.register(line.stdout, selectors.EVENT_READ, i)
        while (
            len(answers) + len(failed) + len(dead) < len(lines) and (left := deadline - time.monotonic()) > 0
        ):
            for key, events in selector.select(left):
                line = lines[key.data]
                if events & selectors.EVENT_WRITE:
                    if line.send():
                        selector.unregister(key.fileobj)
                    continue
                try:
                    answer = line.receive()
                except EOFError:
                    dead[key.data] = RankLost(line.exit_reason(), memory=False)
                    selector.unregister(key.fileobj)
                    deadline = min(deadline, time.monotonic() + GRACE)
                    continue
                if isinstance(answer, Failed):
                    failed[key.data] = RankLost(f"{line.name}: {answer.reason}", answer.memory)
                    deadline = min(deadline, time.monotonic() + GRACE)
                elif answer is not None:
                    answers[key.data] = answer
    for trouble in (*dead.values(), *sorted(failed.values(), key=lambda lost: not lost.memory)):
        raise trouble
    if silent := [line.name for i, line in enumerate(lines) if i not in answers]:
        raise RankLost(f"{' and '.join(silent)} did not answer within {seconds:.0f} s", memory=False)
    return [answers[i] for i in range(len(lines))]


def _environment() -> dict[str, str]:
    # A machine's host name may resolve to an address that others reach, or to none.
    loopback = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    return {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **os.environ, **loopback}


def _end(owner: int, lines: list[_Line], slab: Slab) -> None:
    # a forked child of the driver has a copy of these objects, and no right to end anything
    if os.getpid() != owner:
        return
    for line in lines:
        line.process.kill()
    for line in lines:
        line.end()
    lines.clear()
    slab.close()
