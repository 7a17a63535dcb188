"""A worker: reward functions in a process of their own, called under a deadline.

    call() --- Call ---> child: swarm.tasks.worker_process --- Row per function ---> checked numbers
      ^                     | hung: SIGKILL of all it started   | died         | raised, wrong length, NaN
      +--- RewardError <----+-----------------------------------+--------------+

In come prompts, completions and columns as TRL gives them to a function; out comes one row of numbers per
function, or RewardError, which names the function. Invariants: a call ends within its timeout (and a new
process's start); after a failure the next call works; what a function prints damages nothing (its last lines
are kept for messages); the process ends with its parent. A child is believed no more than its frames allow:
sizes, types, number and range of what it answers are checked here.

`sandbox`: the process runs in bubblewrap (swarm.tasks.sandbox); otherwise it may do what its parent may. Not
handled: what a function leaves behind for its next call, and processes that a function without a sandbox
starts in a session of their own.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from swarm.tasks import sandbox, worker_process
from swarm.tasks.base import RewardError
from swarm.tasks.worker_process import Answer, Ask, Call, Failed, Ready, Reply, Row, Setup, Source, Unusable

START = 120.0
"""Seconds for Python and the imports of functions: torch takes ten on a busy machine."""

MEMORY = 4 << 30
"""Bytes of address space: a symbolic expression that explodes, not a machine that swaps. torch reserves more:
none for those."""

QUESTION = 64 << 20
"""Bytes of one call: a group of long completions, and columns with tests."""

ANSWER = 16 << 20
"""Bytes of one frame from the child: numbers, or the exercises of a whole gym."""

TAIL = 8192
"""Characters of standard error that are kept."""

SHOWN = 3
"""Lines of it in a message."""

SANDBOX = sandbox.ProcessLimits(memory=MEMORY, files=256, size=sandbox.SCRATCH, processes=64)
"""Processes include threads: numpy and a tokenizer start one per core."""

CHUNK = 1 << 16
ENVIRON = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "1",
}
"""One order of sets on all peers; what is printed is there at once."""

_replies = msgspec.msgpack.Decoder(Reply)


class Lost(Exception):
    """The child hung, died or answered nonsense; it is to be ended. Continues a sentence that begins with a
    function's name."""


class Child:
    """One process, seen from its parent."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        pipe = subprocess.PIPE
        # A session of its own: a Ctrl-C at the peer is none of its business, and all that it starts is ended
        # with it.
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, env=environ, start_new_session=True
        )
        assert (
            self._process.stdin is not None
            and self._process.stdout is not None
            and self._process.stderr is not None
        )
        self._pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._in, self._out, self._errors = (pipe.fileno() for pipe in self._pipes)
        for end in (self._in, self._out, self._errors):
            os.set_blocking(end, False)
        self._buffer = bytearray()
        self._tail = ""

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def said(self) -> str:
        self._listen()
        return self._tail

    def exchange(
        self, frame: worker_process.Frame, replies: int, seconds: float, answered: list[Reply]
    ) -> None:
        """Send `frame` and append its replies to `answered`: `replies` of them, fewer when one is Failed.
        Raises Lost."""
        data = msgspec.msgpack.encode(frame)
        if len(data) > QUESTION:
            raise RewardError(
                f"a call of {len(data)} bytes is more than the limit of {QUESTION}: shorter completions or"
                " columns"
            )
        unsent = memoryview(len(data).to_bytes(worker_process.HEADER, "big") + data)
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as ready:
            ready.register(self._in, selectors.EVENT_WRITE)
            ready.register(self._out, selectors.EVENT_READ)
            ready.register(self._errors, selectors.EVENT_READ)
            while len(answered) < replies and not (answered and isinstance(answered[-1], Failed)):
                if (left := deadline - time.monotonic()) <= 0:
                    raise Lost(f"did not answer within {seconds:g} s")
                for key, _ in ready.select(left):
                    if key.fd == self._in:
                        unsent = unsent[self._write(unsent) :]
                        if not unsent:
                            ready.unregister(self._in)
                    elif key.fd == self._out:
                        self._read(answered)
                    elif not self._listen():
                        ready.unregister(self._errors)

    def _write(self, data: memoryview) -> int:
        try:
            return os.write(self._in, data[:CHUNK])
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            raise Lost(self._died()) from None

    def _read(self, answered: list[Reply]) -> None:
        data = os.read(self._out, CHUNK)
        if not data:
            raise Lost(self._died())
        self._buffer += data
        while len(self._buffer) >= worker_process.HEADER:
            end = worker_process.HEADER + int.from_bytes(self._buffer[: worker_process.HEADER], "big")
            if end > ANSWER:
                raise Lost(f"answered with {end} bytes, the limit is {ANSWER}")
            if len(self._buffer) < end:
                return
            try:
                answered.append(_replies.decode(self._buffer[worker_process.HEADER : end]))
            except (msgspec.MsgspecError, RecursionError) as error:
                raise Lost(f"answered with something that is no answer ({error})") from None
            del self._buffer[:end]

    def _listen(self) -> bool:
        """Keep the end of what it printed; False when it can print no more."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._errors, CHUNK):
                self._tail = (self._tail + data.decode(errors="replace"))[-TAIL:]
            return False
        return True

    def _died(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)  # its pipe ends a moment before it does
        code = self._process.poll()
        if code is None:
            return "closed its end of the pipe"
        number = -code if code < 0 else code - 128  # bubblewrap says it like a shell
        died = (
            f"signal {signal.Signals(number).name}" if number in set(signal.Signals) else f"exit code {code}"
        )
        lines = [line.strip() for line in self.said().splitlines() if line.strip()][-SHOWN:]
        return f"ended its process with {died}" + (
            f", after printing: {' / '.join(lines)[-worker_process.SAYS :]}" if lines else ""
        )

    def kill(self) -> None:
        """SIGKILL to it and to all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Nothing of it is left afterwards."""
        self.kill()
        self._process.wait()
        for pipe in self._pipes:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class Worker:
    """See the module. One call at a time: a second thread waits."""

    def __init__(
        self,
        functions: Mapping[str, str],
        files: Mapping[str, Path],
        sandbox: bool,
        timeout: float,
        memory: int = MEMORY,
        python: str = "",
    ) -> None:
        """`functions`: name for messages -> `FILE.py:function` or `package.module:function`. `files`: where a
        FILE.py lies.

        `timeout`: seconds for a call. `memory`: bytes of address space of a process without a sandbox, 0 for
        no limit. `python`: another interpreter than this one, which has msgspec. Starts nothing. Raises
        ValueError for a file that is not there, NoSandbox where bubblewrap does not work.
        """
        self._functions, self._timeout, self._sandbox, self._memory = (
            dict(functions),
            timeout,
            sandbox,
            memory,
        )
        self._python = python
        places = (place for place in map(_place, functions.values()) if place.endswith(".py"))
        self._sources = {place: _source(files.get(place, Path(place))) for place in places}
        self._child: Child | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._command()

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.alive

    def check(self) -> None:
        """Start the process unless it runs: every function is imported. Raises ValueError."""
        with self._lock:
            self._running()

    def call(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]
    ) -> list[list[float | None]]:
        """Row i is what the i-th function says of each completion; None: it does not apply. Raises
        RewardError."""
        arguments = {**columns, "prompts": prompts, "completions": completions}
        rows = self._exchange(Call(arguments, self._timeout), list(self._functions))
        return [
            _checked(name, row, len(completions)) for name, row in zip(self._functions, rows, strict=True)
        ]

    def ask(self, function: str, arguments: Mapping[str, Any], seconds: float | None = None) -> Any:
        """One of `functions` with these arguments by name; plain values back. `seconds`: not the timeout.
        Raises RewardError."""
        frame = Ask(function, dict(arguments), self._timeout if seconds is None else seconds)
        (answer,) = self._exchange(frame, [function])
        if not isinstance(answer, Answer):
            raise RewardError(f"{function} answered with something that is no answer")
        return answer.value

    def said(self) -> str:
        """The end of what functions printed since the process began."""
        return self._child.said() if self._child is not None else ""

    def close(self) -> None:
        """Also ends a call that another thread waits for, with RewardError."""
        self._closed = True
        if (child := self._child) is not None:
            child.kill()
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None

    def _exchange(self, frame: Call | Ask, names: Sequence[str]) -> list[Reply]:
        """One reply of each function. Raises RewardError; then the process is fit for the next call, or
        gone."""
        with self._lock:
            try:
                child = self._running()
            except ValueError as error:
                raise RewardError(str(error)) from error
            answered: list[Reply] = []
            try:
                child.exchange(frame, len(names), frame.seconds, answered)
            except Lost as lost:
                self._end()
                raise RewardError(f"{names[len(answered)]} {lost}") from None
            # by msgspec: a column holds an image, or a number above 64 bits
            except (TypeError, OverflowError) as error:
                raise RewardError(f"{names[0]} cannot be given this task: {error}") from error
            if isinstance(answered[-1], Failed):
                raise RewardError(answered[-1].why)
            return answered

    def _running(self) -> Child:
        if self._child is not None and self._child.alive:
            return self._child
        if self._closed:
            raise ValueError(f"{', '.join(self._functions)}: the worker is closed")
        self._end()
        child = Child(
            self._command(), {**(sandbox.environment() if self._sandbox else os.environ), **ENVIRON}
        )
        answered: list[Reply] = []
        try:
            child.exchange(Setup(self._functions, self._sources), 1, START, answered)
        except Lost as lost:
            child.end()
            raise ValueError(f"the process for {', '.join(self._functions)} {lost}") from None
        match answered[0]:
            case Ready():
                self._child = child
                return child
            case Unusable(why=why):
                child.end()
                raise ValueError(why)
            case _:
                child.end()
                raise ValueError(
                    f"the process for {', '.join(self._functions)} answered with something that is no answer"
                )

    def _command(self) -> list[str]:
        if self._python:
            start = [self._python, "-P", worker_process.__file__]
        else:
            start = [sys.executable, "-P", "-c", "from swarm.tasks.worker_process import main; main()"]
        if self._sandbox:
            return sandbox.sandboxed(start, SANDBOX)
        return sandbox.limited(start, sandbox.ProcessLimits(memory=self._memory, parent=os.getpid()))


def _place(function: str) -> str:
    place, colon, attribute = function.rpartition(":")
    if not (place and colon and attribute):
        raise ValueError(f"{function!r} names no function: write FILE.py:function or package.module:function")
    return place


def _source(path: Path) -> Source:
    try:
        return Source(str(path.absolute()), path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it is not UTF-8 ({error.reason})"
        raise ValueError(f"the reward file {path} cannot be read: {why}") from error


def _checked(name: str, row: Reply, length: int) -> list[float | None]:
    if not isinstance(row, Row):
        raise RewardError(f"{name} answered with something that is no answer")
    if len(row.values) != length:
        raise RewardError(f"{name} returned {len(row.values)} rewards for {length} completions")
    for i, value in enumerate(row.values):
        if value is not None and not math.isfinite(value):
            raise RewardError(
                f"{name} returned {value} as reward {i}: a reward is finite, or None where it does not apply"
            )
    return row.values
