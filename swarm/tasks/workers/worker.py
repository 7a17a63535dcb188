"""Runs reward functions in a worker process, under a deadline.

    call() -RewardCall-> child: swarm.tasks.workers.worker_process --- Row per function ---> checked numbers
      ^                     | hung: SIGKILL of all it started   | died         | raised, wrong length, NaN
      +--- RewardError <----+-----------------------------------+--------------+

In come prompts, completions and columns as TRL gives them to a function; out comes one row of numbers per
function, or RewardError, which names the function. Invariants: a call ends within its timeout (and a new
process's start); after a failure the next call works; output of a function damages nothing (its last lines
are kept for messages); the process ends with its parent. The answers of a child are checked here: sizes,
types, number and range.

`sandbox`: the process runs in bubblewrap (swarm.tasks.workers.sandbox); otherwise it may do all that its
parent may. Not handled: state that a function leaves behind for its next call, and processes that a function
without a sandbox starts in a session of their own.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from swarm.processes.process import Child, ChildLost, Hung, environment, wait
from swarm.tasks.base import RewardError, checked_rewards
from swarm.tasks.workers import sandbox
from swarm.tasks.workers.worker_process import (
    FunctionCall,
    FunctionFailed,
    FunctionFile,
    FunctionResult,
    FunctionUnusable,
    Reply,
    Request,
    RewardCall,
    RewardValues,
    WorkerReady,
    WorkerSetup,
)

START_SECONDS = 120.0
"""Seconds for Python and the imports of functions: torch takes ten on a busy machine."""

MEMORY = 4 << 30
"""Bytes of address space: a symbolic expression that explodes must not make the machine swap. Functions that
use torch have no limit, since it reserves more."""

CALL_LIMIT = 64 << 20
"""Bytes of one call: enough for a group of long completions and columns with tests."""

ANSWER_LIMIT = 16 << 20
"""Bytes of one frame from the child: numbers, or the exercises of a whole gym."""

SANDBOX = sandbox.ProcessLimits(memory=MEMORY, files=256, size=sandbox.SCRATCH, processes=64)
"""Processes include threads: numpy and a tokenizer start one per core."""

ENVIRON = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "LC_ALL": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "1",
    "TZ": "UTC",
}
"""LC_ALL, PYTHONHASHSEED, TZ: one language, one order of sets and one time zone on all peers;
PYTHONUNBUFFERED: printed lines arrive at once; one thread, since models need the others."""

START_CODE = "from swarm.tasks.workers.worker_process import main; main()"

FOREIGN_START_CODE = f"""
import sys, types
for name, folder in zip(("swarm", "swarm.tasks"), sys.argv[1:]):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
{START_CODE}
"""
"""Start under another interpreter: it imports this package's folders, but none of the packages installed
beside it."""

_replies = msgspec.msgpack.Decoder(Reply)


class Worker:
    """A worker process and its functions. One call at a time: a second thread waits."""

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
        """Whether the process runs."""
        return self._child is not None and self._child.alive

    def check(self) -> None:
        """Start the process unless it runs: every function is imported. Raises ValueError."""
        with self._lock:
            self._running()

    def call(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]
    ) -> list[list[float | None]]:
        """Row i: the values of the i-th function for all completions; None: it does not apply. Raises
        RewardError."""
        arguments = {**columns, "prompts": prompts, "completions": completions}
        rows = self._exchange(RewardCall(arguments, self._timeout), list(self._functions))
        return [
            _checked(name, row, len(completions)) for name, row in zip(self._functions, rows, strict=True)
        ]

    def ask(self, function: str, arguments: Mapping[str, Any], seconds: float | None = None) -> Any:
        """Call one of `functions` with arguments by name; returns plain values. `seconds` replaces the
        timeout. Raises RewardError."""
        frame = FunctionCall(function, dict(arguments), self._timeout if seconds is None else seconds)
        (answer,) = self._exchange(frame, [function])
        if not isinstance(answer, FunctionResult):
            raise RewardError(f"{function} answered with something that is not an answer")
        return answer.value

    def printed(self) -> str:
        """The end of what functions printed since the process began."""
        return self._child.output() if self._child is not None else ""

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

    def _exchange(self, frame: RewardCall | FunctionCall, names: Sequence[str]) -> list[Reply]:
        """One reply of each function. Raises RewardError; then the process is fit for the next call, or
        gone."""
        with self._lock:
            try:
                child = self._running()
            except ValueError as error:
                raise RewardError(str(error)) from error
            answered: list[Reply] = []
            try:
                _exchange(child, frame, len(names), frame.seconds, answered)
            except ChildLost as lost:
                self._end()
                raise RewardError(f"{names[len(answered)]} {lost}") from None
            # by msgspec: a column holds an image, or a number above 64 bits
            except (TypeError, OverflowError) as error:
                raise RewardError(f"{names[0]} cannot be given this task: {error}") from error
            if isinstance(answered[-1], FunctionFailed):
                raise RewardError(answered[-1].why)
            return answered

    def _running(self) -> Child:
        if self._child is not None and self._child.alive:
            return self._child
        if self._closed:
            raise ValueError(f"{', '.join(self._functions)}: the worker is closed")
        self._end()
        inherited = sandbox.environment() if self._sandbox else None
        child = Child(self._command(), environment(ENVIRON, inherited), ANSWER_LIMIT)
        answered: list[Reply] = []
        try:
            _exchange(child, WorkerSetup(self._functions, self._sources), 1, START_SECONDS, answered)
        except ChildLost as lost:
            child.end()
            raise ValueError(f"the process for {', '.join(self._functions)} {lost}") from None
        match answered[0]:
            case WorkerReady():
                self._child = child
                return child
            case FunctionUnusable(why=why):
                child.end()
                raise ValueError(why)
            case _:
                child.end()
                raise ValueError(
                    f"the process for {', '.join(self._functions)} answered with something that is not an"
                    " answer"
                )

    def _command(self) -> list[str]:
        if self._python:
            start = [
                self._python,
                "-P",
                "-c",
                FOREIGN_START_CODE,
                str(sandbox.PACKAGE),
                str(sandbox.PACKAGE / "tasks"),
            ]
        else:
            start = [sys.executable, "-P", "-c", START_CODE]
        if self._sandbox:
            return sandbox.sandboxed(start, SANDBOX)
        return sandbox.limited(start, sandbox.ProcessLimits(memory=self._memory, parent=os.getpid()))


def _exchange(child: Child, frame: Request, replies: int, seconds: float, answered: list[Reply]) -> None:
    """Send `frame` and append its replies to `answered`: `replies` of them, fewer when one is FunctionFailed.
    Raises ChildLost."""
    data = msgspec.msgpack.encode(frame)
    if len(data) > CALL_LIMIT:
        raise RewardError(
            f"a call of {len(data)} bytes is more than the limit of {CALL_LIMIT}: shorter completions or"
            " columns"
        )
    child.send(data)
    deadline = time.monotonic() + seconds
    while len(answered) < replies and not (answered and isinstance(answered[-1], FunctionFailed)):
        if not wait([child], deadline):
            raise Hung(seconds)
        try:
            answered.append(_replies.decode(child.take()))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ChildLost(f"answered with something that is not an answer ({error})") from None


def _place(function: str) -> str:
    place, colon, attribute = function.rpartition(":")
    if not (place and colon and attribute):
        raise ValueError(f"{function!r} names no function: write FILE.py:function or package.module:function")
    return place


def _source(path: Path) -> FunctionFile:
    try:
        return FunctionFile(str(path.absolute()), path.read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it is not UTF-8 ({error.reason})"
        raise ValueError(f"the reward file {path} cannot be read: {why}") from error


def _checked(name: str, row: Reply, length: int) -> list[float | None]:
    if not isinstance(row, RewardValues):
        raise RewardError(f"{name} answered with something that is not an answer")
    if len(row.values) != length:
        raise RewardError(f"{name} returned {len(row.values)} rewards for {length} completions")
    checked_rewards(name, [0.0 if value is None else value for value in row.values])
    return row.values
