"""How a child process starts: a program, or a function in a fork of this process.

    start(command or function) -> Process: its pid, three pipes, its end

A program begins with nothing of its parent's but its environment. A fork begins with all of it, in no time:
its parent's imports, and memory that both have mapped. Invariants: children end with their parent process and
not with the thread that started them; each leads a process group; a fork closes its parent's sockets,
finalizes none of its objects and never returns to its parent's code.

Not handled: pipes to children that its parent started before. A fork holds copies, so that such a child does
not see its input end before the fork has ended too.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import itertools
import os
import queue
import signal
import stat
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import IO, NoReturn, Protocol

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
REAPING = 0.01
"""Seconds between two looks whether a process has ended."""


class Process(Protocol):
    """What subprocess.Popen and ForkedProcess have in common."""

    pid: int
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...


def start(
    command: Sequence[str] | Callable[[], object], environ: Mapping[str, str], descriptors: Sequence[int]
) -> Process:
    """`environ` and `descriptors` (inherited under their numbers) are a program's. Raises OSError."""
    if callable(command):
        # A collection writes to each object that it looks at, and its page is shared no more: later ones look
        # at none of these. Present garbage is still this process's to finalize: here, and not on the thread
        # that starts children.
        gc.collect()
        gc.freeze()
        return _in_starter(functools.partial(ForkedProcess, command))
    return _in_starter(functools.partial(_program, command, environ, descriptors))


def _program(
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


class ForkedProcess:
    """A fork of this process that calls `main` and ends: exit code 1 and a traceback when that raises."""

    def __init__(self, main: Callable[[], object]) -> None:
        pipes = [os.pipe() for _ in range(3)]
        (to_read, to_send), (received, to_write), (heard, to_print) = pipes
        parent = os.getpid()
        try:
            self.pid = os.fork()
        except OSError:
            for end in itertools.chain(*pipes):
                os.close(end)
            raise
        if self.pid == 0:
            _live(main, parent, (to_read, to_write, to_print), (to_send, received, heard))
        with contextlib.suppress(OSError):  # it was faster
            os.setpgid(self.pid, self.pid)
        for end in (to_read, to_write, to_print):
            os.close(end)
        self.stdin: IO[bytes] | None = os.fdopen(to_send, "wb", buffering=0)
        self.stdout: IO[bytes] | None = os.fdopen(received, "rb", buffering=0)
        self.stderr: IO[bytes] | None = os.fdopen(heard, "rb", buffering=0)
        self._code: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with self._lock:  # its number may be another process's once it was waited for
            if self._code is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self._code = os.waitstatus_to_exitcode(status)
            return self._code

    def wait(self) -> int:
        while (code := self.poll()) is None:
            time.sleep(REAPING)
        return code


def _live(
    main: Callable[[], object], parent: int, mine: tuple[int, ...], others: tuple[int, ...]
) -> NoReturn:
    """All of a fork's life. `mine` become its standard input, output and error; `others` are its parent's
    ends of the pipes."""
    code = 1
    try:
        gc.freeze()  # its parent's objects are not its own to finalize
        forget_parent(parent)
        # On both sides: the group exists whenever it is to be ended, however early.
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        for number, end in enumerate(mine):
            os.dup2(end, number)
        for end in (*mine, *others):
            os.close(end)
        _close_sockets()
        # The parent's streams may be locked by a thread that is not here.
        sys.stdout = sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
        main()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def forget_parent(parent: int) -> None:
    """In a forked child, first of all: it ends with its parent, and has none of its signal wiring."""
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    # The parent's loop is woken through a socket that this child shares: a SIGTERM here would look like one
    # there.
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGHUP):
        # A terminal sends these to all of its programs; this one ends with its parent.
        signal.signal(number, signal.SIG_IGN)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """This process gets the signal when the thread that started it ends. On Linux; elsewhere nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def set_name(name: str) -> None:
    """How `ps` and `top` call this process, in at most 15 characters. On Linux; elsewhere nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())


def hide_argument(text: str) -> None:
    """Overwrite this argument, also after `--option=`, where `ps` shows it of this process and of its forks:
    every user of a machine may read command lines. Nothing where there is no /proc to read them in."""
    hidden = "*" * len(os.fsencode(text))
    sys.argv = [arg.removesuffix(text) + hidden if _is_argument(arg, text) else arg for arg in sys.argv]
    if not os.path.exists("/proc/self/stat"):
        return
    with open("/proc/self/stat", "rb") as file:  # proc(5): its name in brackets, then the third field and on
        fields = file.read().rpartition(b")")[2].split()
    at, end = int(fields[45]), int(fields[46])
    for argument in ctypes.string_at(at, end - at).split(b"\0"):
        if _is_argument(os.fsdecode(argument), text):
            ctypes.memset(at + len(argument) - len(hidden), ord("*"), len(hidden))
        at += len(argument) + 1


def _is_argument(argument: str, text: str) -> bool:
    return bool(text) and (argument == text or (argument.startswith("--") and argument.endswith(f"={text}")))


def _close_sockets() -> None:
    """As long as a fork holds a copy of a connection, the other side never learns that its parent closed
    it."""
    for end in map(int, os.listdir("/dev/fd")):
        with contextlib.suppress(OSError):
            if end > 2 and stat.S_ISSOCK(os.fstat(end).st_mode):
                os.close(end)


Job = tuple[Future[Process], Callable[[], Process]]
_starters: dict[int, queue.SimpleQueue[Job]] = {}


def _in_starter(begin: Callable[[], Process]) -> Process:
    """Call `begin` on the one thread that starts all children of this process and lives as long as it does:
    the kernel ends a child that asked for it together with the thread that started it. A forked process gets
    a thread of its own."""
    mine: queue.SimpleQueue[Job] = queue.SimpleQueue()
    if (jobs := _starters.setdefault(os.getpid(), mine)) is mine:
        threading.Thread(target=_start_all, args=(jobs,), name="starts-children", daemon=True).start()
    future: Future[Process] = Future()
    jobs.put((future, begin))
    return future.result()


def _start_all(jobs: queue.SimpleQueue[Job]) -> None:
    while True:
        future, begin = jobs.get()
        try:
            future.set_result(begin())
        except Exception as error:  # the caller's, whatever it is
            future.set_exception(error)
