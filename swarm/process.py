"""A child process that answers: frames both ways, a deadline on every wait, one end for all that it started.

    parent: Child(command)                                 child: Pipe()
      send(frame) ----- stdin: length, bytes ----->  receive() | listen(at_end)
      receive(seconds) <-- stdout: length, bytes --  send(frame)
      Ended's last words <-- stderr ---------------  whatever it and its libraries print

A frame is four bytes of length, big-endian, and that many bytes; what they mean is the business of the two
ends. Nothing here decodes them, so that a child which is not trusted can send no more than bytes.

Invariants: a wait ends at its deadline, also when the child is stopped or its pipe is full; a child that is
gone is noticed also when something that it started still holds its pipes; `end` leaves nothing of its process
group; a child ends with its parent, however that one ends. What a child prints is read while the parent waits
for it: a child that prints more than a pipe holds (64 KiB) while nobody waits for it stops there until
somebody does.

Not handled: a process that the child starts in a session of its own. Only the standard library is imported:
the child's side also runs under an interpreter that has no other package (swarm.tasks.verifier).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

HEADER = 4
"""Bytes of a frame's length."""

LARGEST = (1 << 32) - 1
"""Bytes of a frame that the header can tell."""

CHUNK = 1 << 16
"""Bytes of one read or write: what a pipe holds."""

REST = 16
"""Chunks that a dead child may have left in a pipe: the kernel lets nobody but root make one larger than
1 MiB. More comes from what it started, which may write for ever."""

LOOK = 0.5
"""Seconds between two looks whether a child lives: what it started may hold its end of the pipe."""

REAP = 1.0
"""Seconds between the end of a child's pipe and its own end, before it counts as one that only closed it."""

TAIL = 8192
"""Characters of standard error that are kept."""

SHOWN = 3
"""Lines of it in a message."""

SAYS = 500
"""Characters of them."""

PR_SET_PDEATHSIG = 1
THREADS = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""The processes of a peer share its cores: one thread each, unless the user says otherwise."""


class Lost(Exception):
    """The child is of no more use and is to be ended. Continues a sentence that begins with its name."""


class Hung(Lost):
    """It did not take or answer a frame in time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"did not answer within {seconds:g} s")


class Ended(Lost):
    """It is gone, or closed its end of a pipe."""

    def __init__(self, code: int | None, tail: str) -> None:
        """`code` as subprocess gives it, None while the process runs; `tail`: the end of what it printed."""
        self.code, self.tail = code, tail
        self.lines = [line.strip() for line in tail.splitlines() if line.strip()]
        after = f", after printing: {' / '.join(self.lines[-SHOWN:])[-SAYS:]}" if self.lines else ""
        super().__init__(f"{self.how}{after}")

    @property
    def how(self) -> str:
        if self.code is None:
            return "closed its end of the pipe"
        number = -self.code if self.code < 0 else self.code - 128  # bubblewrap says it like a shell
        if number in set(signal.Signals):
            return f"ended its process with signal {signal.Signals(number).name}"
        return f"ended its process with exit code {self.code}"


# -- the parent's side ---------------------------------------------------------------------------------------


def environment(
    own: Mapping[str, str] | None = None, inherited: Mapping[str, str] | None = None
) -> dict[str, str]:
    """A child's environment: `inherited` (this process's), one thread where it does not say, and `own`."""
    return {**THREADS, **(os.environ if inherited is None else inherited), **(own or {})}


class Child:
    """One process, seen from its parent. One thread at a time uses it; `kill` comes from any."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str] | None = None,
        limit: int = LARGEST,
        descriptors: Sequence[int] = (),
    ) -> None:
        """`environ`: see `environment`. `limit`: bytes of a frame from the child. `descriptors` are inherited
        under their numbers. Raises OSError where `command` cannot be started."""
        environ = environment() if environ is None else environ
        self._process = _in_starter(functools.partial(_started, command, environ, descriptors))
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._pipes = [pipe for pipe in pipes if pipe is not None]
        self._in, self._out, self._errors = (pipe.fileno() for pipe in self._pipes)
        for end in (self._in, self._out, self._errors):
            os.set_blocking(end, False)
        self._limit, self._unsent, self._arrived = limit, bytearray(), bytearray()
        self._tail = ""
        self._open, self._prints = True, True

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
        return not self._open or len(self._arrived) >= size or size > HEADER + self._limit

    def said(self) -> str:
        """The end of what it has printed on standard error (and on standard output)."""
        for _ in range(REST):
            if self._prints:
                self._listen()
        return self._tail

    def ask(self, frame: bytes, seconds: float) -> bytes:
        """One frame there, the next one back. Raises Lost."""
        self.send(frame)
        return self.receive(seconds)

    def send(self, frame: bytes) -> None:
        """What the pipe does not take now goes while somebody waits for the answer. Raises ValueError for a
        frame above LARGEST."""
        if len(frame) > LARGEST:
            raise ValueError(f"a frame of {len(frame)} bytes is more than the limit of {LARGEST}")
        self._unsent += len(frame).to_bytes(HEADER, "big") + frame
        self._write()

    def receive(self, seconds: float) -> bytes:
        """The next frame. Raises Hung, Ended, and Lost for a frame above the limit."""
        if not wait([self], time.monotonic() + seconds):
            raise Hung(seconds)
        return self.take()

    def take(self) -> bytes:
        """The next frame of a child that is `ready`. Raises as `receive`."""
        if (size := self._size()) > HEADER + self._limit:
            raise Lost(f"answered with {size} bytes, the limit is {self._limit}")
        if len(self._arrived) < size:
            raise self._ended()
        frame = bytes(self._arrived[HEADER:size])
        del self._arrived[:size]
        return frame

    def kill(self) -> None:
        """SIGKILL to it and to all that it started, stopped ones too; it is gone afterwards."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def end(self, grace: float = 0.0) -> None:
        """Nothing of it is left afterwards. With `grace` its input ends first, and it has that many seconds
        to end by itself."""
        if grace:
            self._pipes[0].close()
            self._unsent.clear()
            with contextlib.suppress(Lost):
                deadline = time.monotonic() + grace
                while True:
                    self.receive(deadline - time.monotonic())
        self.kill()
        self._open = self._prints = False
        for pipe in self._pipes:
            pipe.close()

    def _size(self) -> int:
        """Bytes of the next frame with its header; those of a header as long as that is not whole."""
        if len(self._arrived) < HEADER:
            return HEADER
        return HEADER + int.from_bytes(self._arrived[:HEADER], "big")

    def _register(self, selector: selectors.BaseSelector) -> None:
        if self._unsent:
            selector.register(self._in, selectors.EVENT_WRITE, self._write)
        selector.register(self._out, selectors.EVENT_READ, self._read)
        if self._prints:
            selector.register(self._errors, selectors.EVENT_READ, self._listen)

    def _write(self) -> None:
        try:
            while self._unsent:
                with memoryview(self._unsent) as unsent:
                    sent = os.write(self._in, unsent[:CHUNK])
                del self._unsent[:sent]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._unsent.clear()
            self._exhaust()

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._out, CHUNK)
            self._arrived += data
            self._open = bool(data)

    def _exhaust(self) -> None:
        """It will say no more than is in the pipe."""
        for _ in range(REST):
            if self._open:
                self._read()
        self._open = False

    def _listen(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._errors, CHUNK)
            self._tail = (self._tail + data.decode(errors="replace"))[-TAIL:]
            self._prints = bool(data)

    def _ended(self) -> Ended:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(REAP)  # its pipe ends a moment before it does
        return Ended(self._process.poll(), self.said())


def wait(children: Sequence[Child], deadline: float) -> list[Child]:
    """Those that are ready, as soon as one is; none at the deadline, in time.monotonic()."""
    while not (ready := [child for child in children if child.ready]):
        if (left := deadline - time.monotonic()) <= 0:
            return []
        with selectors.DefaultSelector() as selector:
            for child in children:
                child._register(selector)
            for key, _ in selector.select(min(left, LOOK)):
                key.data()
        for child in children:
            if not child.alive:
                child._exhaust()
    return ready


Started = tuple[Future["subprocess.Popen[bytes]"], Callable[[], "subprocess.Popen[bytes]"]]
_starters: dict[int, queue.SimpleQueue[Started]] = {}


def _in_starter(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Call `start` on the one thread that starts all children of this process and lives as long as it does:
    the kernel ends a child that asked for it together with the thread that started it. A forked process gets
    a thread of its own."""
    mine: queue.SimpleQueue[Started] = queue.SimpleQueue()
    if (jobs := _starters.setdefault(os.getpid(), mine)) is mine:
        threading.Thread(target=_start_all, args=(jobs,), name="starts-children", daemon=True).start()
    future: Future[subprocess.Popen[bytes]] = Future()
    jobs.put((future, start))
    return future.result()


def _start_all(jobs: queue.SimpleQueue[Started]) -> None:
    while True:
        future, start = jobs.get()
        try:
            future.set_result(start())
        except Exception as error:  # the caller's, whatever it is
            future.set_exception(error)


def _started(
    command: Sequence[str], environ: Mapping[str, str], descriptors: Sequence[int]
) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        list(command),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        bufsize=0,
        pass_fds=tuple(descriptors),
        env=environ,
        # A session of its own: a Ctrl-C at the parent is none of its business, and all that it starts is
        # ended with it.
        start_new_session=True,
    )


# -- the child's side ----------------------------------------------------------------------------------------


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """This process gets the signal when the thread that started it ends. On Linux; elsewhere nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


class Pipe:
    """A child's two ends of its parent's pipes. From here on what is printed goes to standard error, and
    standard input is empty."""

    def __init__(self) -> None:
        self._in, self._out = os.dup(0), os.fdopen(os.dup(1), "wb")
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)
        os.dup2(2, 1)

    def receive(self) -> bytes | None:
        """The parent's next frame; None when the parent is gone."""
        head = self._exactly(HEADER)
        return None if head is None else self._exactly(int.from_bytes(head, "big"))

    def send(self, frame: bytes) -> None:
        self._out.write(len(frame).to_bytes(HEADER, "big") + frame)
        self._out.flush()

    def listen(self, at_end: Callable[[], object] = lambda: None) -> Callable[[], bytes]:
        """Reads always, in a thread of its own, so that the parent's end is noticed while the child computes:
        `at_end` runs then, and the whole process group is killed. Returns what waits for the next frame."""
        frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._forward, args=(frames, at_end), daemon=True).start()
        return frames.get

    def _exactly(self, size: int) -> bytes | None:
        # No Python object with a lock: libraries fork while another thread waits here.
        data = bytearray()
        while len(data) < size:
            if not (part := os.read(self._in, min(size - len(data), CHUNK))):
                return None
            data += part
        return bytes(data)

    def _forward(self, frames: queue.SimpleQueue[bytes], at_end: Callable[[], object]) -> None:
        try:
            while (frame := self.receive()) is not None:
                frames.put(frame)
            at_end()
        finally:
            os.killpg(0, signal.SIGKILL)  # of this process: a child leads a session of its own
