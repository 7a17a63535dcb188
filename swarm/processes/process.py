"""A child process that answers: frames both ways, a deadline on every wait, one end for all its descendants.

    parent: Child(command or function)                     child: Pipe()
      send(frame) ----- stdin: length, bytes ----->  receive() | listen(at_end)
      receive(seconds) <-- stdout: length, bytes --  send(frame)
      Ended's last words <-- stderr ---------------  all output of the child and its libraries

A thread waits with `receive`, for one of several children with `wait`, a coroutine with `awaited`. How a
child starts is in process_start.py.

A frame is four bytes of length, big-endian, and that many bytes; their meaning is the business of the two
ends. Nothing here decodes them, so that a child which is not trusted can send no more than bytes.

Invariants: a wait ends at its deadline, also when the child is stopped or its pipe is full; where this
process was suspended itself the child has the rest of its time after it. A child that is gone is noticed also
when one of its descendants still holds its pipes; `end` leaves nothing of its process group; a child ends
with its parent, however that one ends. A child's output is read while the parent waits for it: a child that
prints more than a pipe holds (64 KiB) at other times blocks until the next wait.

Not handled: a process that the child starts in a session of its own. Only the standard library is imported:
the child's side also runs under an interpreter that has no other package (swarm.tasks.workers.verifier).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from swarm.processes import start
from swarm.processes.start import REAPING

HEADER = 4
"""Bytes of a frame's length."""

LARGEST = (1 << 32) - 1
"""Most bytes of a frame, by the header's size."""

CHUNK = 1 << 16
"""Bytes of one read or write: a pipe's capacity."""

REST = 16
"""Chunks that a dead child may have left in a pipe: the kernel lets only root make one larger than 1 MiB.
More comes from its descendants, which may write for ever."""

LOOK = 0.5
"""Seconds between two looks whether a child lives: a descendant may hold its end of the pipe."""

STOOD_STILL = 5.0
"""Seconds by which a look is late where this process stood still: it was stopped, or its machine slept."""

REAP = 1.0
"""Seconds between the end of a child's pipe and its own end, before it counts as one that only closed it."""

STARTS = 3
"""Times that a child is started which is killed before it is of use: one that is killed each time needs more
of something, for example memory, than this machine has."""

TAIL = 8192
"""Characters of standard error that are kept."""

SHOWN = 3
"""Lines of it in a message."""

SAYS = 500
"""Characters of them."""

THREADS = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""The processes of a peer share its cores: one thread each, unless the user says otherwise."""


class ChildLost(Exception):
    """The child is of no more use and is to be ended. Continues a sentence that begins with its name."""


class Hung(ChildLost):
    """It did not take or answer a frame in time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"did not answer within {seconds:g} s")


class Ended(ChildLost):
    """It is gone, or closed its end of a pipe."""

    def __init__(self, code: int | None, tail: str) -> None:
        """`code` as subprocess gives it, None while the process runs; `tail`: the end of its output."""
        self.code, self.tail = code, tail
        self.lines = [line.strip() for line in tail.splitlines() if line.strip()]
        self.after = f", after printing: {' / '.join(self.lines[-SHOWN:])[-SAYS:]}" if self.lines else ""
        super().__init__(f"{self.how}{self.after}")

    @property
    def how(self) -> str:
        if self.code is None:
            return "closed its end of the pipe"
        if self.by_signal is not None:
            return f"ended its process with signal {self.by_signal.name}"
        return f"ended its process with exit code {self.code}"

    @property
    def by_signal(self) -> signal.Signals | None:
        """The signal that ended it, if one did."""
        if self.code is None:
            return None
        number = -self.code if self.code < 0 else self.code - 128  # bubblewrap reports it like a shell
        return signal.Signals(number) if number in set(signal.Signals) else None

    @property
    def hint(self) -> str:
        """A possible cause, to follow `how`; empty where none is known."""
        if self.code != -signal.SIGKILL:
            return ""
        return " (the kernel does that when the machine's memory runs out: see dmesg)"


# -- the parent's side ---------------------------------------------------------------------------------------


def environment(
    own: Mapping[str, str] | None = None, inherited: Mapping[str, str] | None = None
) -> dict[str, str]:
    """A child's environment: `inherited` (this process's), one thread where it is not set, and `own`."""
    return {**THREADS, **(os.environ if inherited is None else inherited), **(own or {})}


class Child:
    """One process, seen from its parent. One thread at a time waits for it and ends it; until it is ended,
    `send`, `kill` and `nudge` come from any."""

    def __init__(
        self,
        command: Sequence[str] | Callable[[], object],
        environ: Mapping[str, str] | None = None,
        limit: int = LARGEST,
        descriptors: Sequence[int] = (),
        echo: bool = False,
    ) -> None:
        """`command`: a program and its arguments, or a function, which a fork of this process calls.
        `environ` (see `environment`) and `descriptors`, which are inherited under their numbers, are a
        program's. `limit`: bytes of a frame from the child. `echo`: its output also goes to this process's
        standard error. Raises OSError where `command` cannot be started."""
        environ = environment() if environ is None else environ
        self._process = start.start(command, environ, descriptors)
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._pipes = [pipe for pipe in pipes if pipe is not None]
        self._in, self._out, self._errors = (pipe.fileno() for pipe in self._pipes)
        for end in (self._in, self._out, self._errors):
            os.set_blocking(end, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._out, selectors.EVENT_READ, self._read)
        self._selector.register(self._errors, selectors.EVENT_READ, self._listen)
        self._limit, self._unsent, self._arrived = limit, bytearray(), bytearray()
        self._echo, self._tail = echo, ""
        self._piping = threading.Lock()
        """Of `send`, and of the thread that waits."""
        self._open, self._prints, self._until = True, True, 0.0

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def ready(self) -> bool:
        """`take` does not have to wait."""
        size = self._size()
        if len(self._arrived) >= size or size > HEADER + self._limit:
            return True
        return not self._open and (not self.alive or time.monotonic() > self._until)

    @property
    def look(self) -> float:
        """Seconds until the next `serve` at the latest, during a wait."""
        return LOOK if self._open else REAPING

    def fileno(self) -> int:
        """A descriptor that is readable when `serve` has something to do: for a selector or a loop."""
        return self._selector.fileno()

    def serve(self) -> None:
        """Read from and write to its pipes without blocking, and see whether it lives."""
        with self._piping:
            for key, _ in self._selector.select(0):
                key.data()
            if not self.alive:
                self._exhaust()

    def output(self) -> str:
        """The end of its output on standard error (and on standard output)."""
        for _ in range(REST):
            if self._prints:
                self._listen()
        return self._tail

    def ask(self, frame: bytes, seconds: float) -> bytes:
        """One frame there, the next one back. Raises ChildLost."""
        self.send(frame)
        return self.receive(seconds)

    def send(self, frame: bytes) -> None:
        """Bytes that the pipe does not take now are written during the wait for the answer. Raises ValueError
        for a frame above LARGEST."""
        if len(frame) > LARGEST:
            raise ValueError(f"a frame of {len(frame)} bytes is more than the limit of {LARGEST}")
        with self._piping:
            self._unsent += len(frame).to_bytes(HEADER, "big") + frame
            self._write()

    def receive(self, seconds: float) -> bytes:
        """The next frame. Raises Hung, Ended, and ChildLost for a frame above the limit."""
        if not wait([self], time.monotonic() + seconds):
            raise Hung(seconds)
        return self.take()

    async def awaited(self) -> bytes:
        """The next frame, in an asyncio loop, whenever it comes. Raises as `receive`. A call that is
        cancelled takes none."""
        loop = asyncio.get_running_loop()
        while not self.ready:
            moved = asyncio.Event()
            loop.add_reader(self.fileno(), moved.set)
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.look):
                        await moved.wait()
            finally:
                loop.remove_reader(self.fileno())
            self.serve()
        return self.take()

    def take(self) -> bytes:
        """The next frame of a child that is `ready`. Raises as `receive`."""
        if (size := self._size()) > HEADER + self._limit:
            raise ChildLost(f"answered with {size} bytes, the limit is {self._limit}")
        if len(self._arrived) < size:
            raise Ended(self._process.poll(), self.output())
        frame = bytes(self._arrived[HEADER:size])
        del self._arrived[:size]
        return frame

    def kill(self) -> None:
        """SIGKILL to it and to all that it started, stopped ones too; it is gone afterwards."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def nudge(self) -> None:
        """SIGUSR1 to it alone, from any thread; nothing where it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGUSR1)

    def end(self, grace: float = 0.0) -> None:
        """Nothing of it is left afterwards. With `grace` its input ends first, and it has that many seconds
        to end by itself."""
        if grace:
            self._unsent.clear()
            self._await_room()
            self._pipes[0].close()
            with contextlib.suppress(ChildLost):
                deadline = time.monotonic() + grace
                while True:
                    self.receive(deadline - time.monotonic())
        self.kill()
        self._open = self._prints = False
        self._selector.close()
        for pipe in self._pipes:
            pipe.close()

    def _size(self) -> int:
        """Bytes of the next frame with its header; those of a header as long as that is not whole."""
        if len(self._arrived) < HEADER:
            return HEADER
        return HEADER + int.from_bytes(self._arrived[:HEADER], "big")

    def _write(self) -> None:
        try:
            while self._unsent:
                with memoryview(self._unsent) as unsent:
                    sent = os.write(self._in, unsent[:CHUNK])
                del self._unsent[:sent]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._unsent.clear()
            self._exhaust()
        self._await_room()

    def _await_room(self) -> None:
        """`serve` writes when its input has room, as long as something is unsent."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._in)
        if self._unsent:
            self._selector.register(self._in, selectors.EVENT_WRITE, self._write)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._out, CHUNK)
            self._arrived += data
            if not data:
                self._shut()

    def _exhaust(self) -> None:
        """It will send no more than is in the pipe."""
        for _ in range(REST):
            if self._open:
                self._read()
        self._shut()

    def _shut(self) -> None:
        if self._open:
            self._open, self._until = False, time.monotonic() + REAP
            self._selector.unregister(self._out)

    def _listen(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._errors, CHUNK)
            self._tail = (self._tail + data.decode(errors="replace"))[-TAIL:]
            if self._echo:
                with contextlib.suppress(OSError):  # a terminal that was closed
                    print(data.decode(errors="replace"), end="", file=sys.stderr, flush=True)
            if not data:
                self._prints = False
                self._selector.unregister(self._errors)


def wait(children: Sequence[Child], deadline: float) -> list[Child]:
    """Those that are ready, as soon as one is; none at the deadline, in time.monotonic(), which is extended
    by suspensions of this process meanwhile."""
    while not (ready := [child for child in children if child.ready]):
        if (left := deadline - (began := time.monotonic())) <= 0:
            return []
        seconds = min(left, *(child.look for child in children))
        with selectors.PollSelector() as selector:  # takes no descriptor: there may be none left
            for child in children:
                selector.register(child, selectors.EVENT_READ)
            selector.select(seconds)
        if (late := time.monotonic() - began - seconds) > STOOD_STILL:
            deadline += late
        for child in children:
            child.serve()
    return ready


# -- the child's side ----------------------------------------------------------------------------------------


class Pipe:
    """A child's two ends of its parent's pipes. From here on print goes to standard error, and standard input
    is empty."""

    def __init__(self) -> None:
        self._in, self._out = os.dup(0), os.fdopen(os.dup(1), "wb")
        self._sending = threading.Lock()
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)
        os.dup2(2, 1)

    def receive(self) -> bytes | None:
        """The parent's next frame; None when the parent is gone."""
        head = self._exactly(HEADER)
        return None if head is None else self._exactly(int.from_bytes(head, "big"))

    def send(self, frame: bytes) -> None:
        """From any thread."""
        with self._sending:
            self._out.write(len(frame).to_bytes(HEADER, "big") + frame)
            self._out.flush()

    def listen(
        self, at_end: Callable[[], object] = lambda: None, takes: Callable[[bytes], bool] = lambda _: False
    ) -> Callable[[], bytes]:
        """Reads always, in a thread of its own, so that the parent's end is noticed while the child computes:
        `at_end` runs then, and the whole process group is killed. Returns what waits for the next frame that
        `takes`, which runs in that thread, leaves to it."""
        frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._forward, args=(frames, at_end, takes), daemon=True).start()
        return frames.get

    def _exactly(self, size: int) -> bytes | None:
        # No Python object with a lock: libraries fork while another thread waits here.
        data = bytearray()
        while len(data) < size:
            if not (part := os.read(self._in, min(size - len(data), CHUNK))):
                return None
            data += part
        return bytes(data)

    def _forward(
        self,
        frames: queue.SimpleQueue[bytes],
        at_end: Callable[[], object],
        takes: Callable[[bytes], bool],
    ) -> None:
        try:
            while (frame := self.receive()) is not None:
                if not takes(frame):
                    frames.put(frame)
            at_end()
        finally:
            os.killpg(0, signal.SIGKILL)  # of this process: a child leads a session of its own
