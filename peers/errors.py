"""Errors that end a command, and their exit codes.

    0 done or left cleanly      3 this machine cannot
    1 our bug                   4 no answer
    2 usage or config           5 refused (invite, other run, protocol)
    129 / 130 / 143             after a graceful leave on SIGHUP / SIGINT / SIGTERM

    UserError                    a person can fix it: a sentence, no traceback
      WrongUsage      2            also ConfigError, ScenarioError, TaskError
      CannotHere      3            also IdentityError, NoSandbox, PortTaken, DashboardPortTaken,
                                   PermissionError, a full disk, too many open files or threads, no memory
                                   left, an import of an extra that is not installed
      NoPeerAnswers   4            also Unreachable at the start
      Refusal         5            also InviteError
    Interrupted       128 + n    a signal, after leaving
    anything else     1          our bug: the traceback is written to the state folder and its path is printed

Maps an exception to an exit code and one sentence. The library raises its own errors and knows no exit codes;
this module is the only one that joins them. Not handled here: errors of other peers, which never end a
program.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from dashboard.text import one_line, printable
from swarm import extras

SENTENCE = 4000
"""Most characters of a printed sentence: half a screen. A peer's refusal has at most 500 bytes."""

DONE, BUG, USAGE, CANNOT, UNREACHED, REFUSED = range(6)


class UserError(Exception):
    """Ends the program with `code`; the message says what happened, why, and what to do."""

    code = USAGE


class WrongUsage(UserError):
    code = USAGE


class CannotHere(UserError):
    """This machine cannot: a file, a port, memory, a missing package."""

    code = CANNOT


class NoPeerAnswers(UserError):
    """No peer of the run answers."""

    code = UNREACHED


class Refusal(UserError):
    """The swarm refuses this peer: the invite has expired, or is of another run or protocol."""

    code = REFUSED


class Interrupted(Exception):
    """A signal asked the program to end, and it has left the swarm."""

    def __init__(self, signal: int) -> None:
        super().__init__(f"left on signal {signal}")
        self.signal = signal


_BY_NAME = {
    "swarm.settings.layers.ConfigError": USAGE,
    "swarm.sim.scenario.ScenarioError": USAGE,
    "swarm.tasks.base.TaskError": USAGE,
    "swarm.tasks.base.NotInstalled": CANNOT,
    "swarm.membership.identity.IdentityError": CANNOT,
    "swarm.learn.models.pretrained.ModelError": CANNOT,
    "swarm.learn.learners.microbatch.OutOfMemory": CANNOT,
    "swarm.learn.models.template_limits.Overrun": CANNOT,
    "swarm.tasks.workers.sandbox.NoSandbox": CANNOT,
    "dashboard.serve.server.DashboardPortTaken": CANNOT,
    "dashboard.serve.server.NoAddress": CANNOT,
    "swarm.net.libp2p.listening.PortTaken": CANNOT,
    "swarm.net.ports.Unreachable": UNREACHED,
    "swarm.membership.invite.InviteError": REFUSED,
    "swarm.net.ports.Refused": REFUSED,
}
"""Class name -> exit code; names, so that `swarm --help` does not import the modules of these errors."""

_SYSTEM = {
    errno.ENOSPC: "the disk is full: free some space, or name another folder with --folder",
    errno.EDQUOT: "the disk quota is used up: free some space, or name another folder with --folder",
    errno.EIO: (
        "the disk fails (see the kernel's log, `dmesg`): name another folder with --folder, on another disk"
    ),
    errno.EMFILE: (
        "this program has as many files and connections open as it may ({files}): raise `ulimit -n`, for a"
        " service LimitNOFILE="
    ),
    errno.ENFILE: "this machine has as many files open as it may: end other programs, or raise fs.file-max",
    errno.EAGAIN: (
        "this machine gives no further thread or process: raise `ulimit -u` ({tasks}), a container's limit of"
        " processes (`--pids-limit`), for a service TasksMax= (`swarm doctor` says what is left)"
    ),
    errno.ENOMEM: (
        "no memory is left on this machine or its GPU: end other programs, or use a machine with more (`swarm"
        " fit` says what a model needs)"
    ),
    errno.EROFS: "the file system is read-only: name another folder with --folder",
    errno.ENOTDIR: "a part of its path is a file: name another folder with --folder",
    errno.EEXIST: "a file is in the folder's place: name another folder with --folder",
    errno.EISDIR: "a folder is in the file's place: name another folder with --folder",
    errno.ESPIPE: (
        "a pipe or a device is in the file's place: remove it, or name another folder with --folder"
    ),
    errno.ENAMETOOLONG: "its name is longer than the file system takes: give a shorter one",
    errno.EACCES: "permission denied: check the owner, or name another folder with --folder",
    errno.EPERM: "permission denied: check the owner, or name another folder with --folder",
    errno.EADDRINUSE: (
        "the port is in use: stop the other program, or choose another with --set peer.listen.port=0"
    ),
    errno.EADDRNOTAVAIL: "this machine has no such address: check --set peer.listen.host and peer.page.host",
}


_WORDS = {
    errno.EMFILE: re.compile(re.escape(os.strerror(errno.EMFILE))),
    errno.EAGAIN: re.compile(r"can't start new thread|pthread_create failed|temporarily unavailable"),
    errno.ENOMEM: re.compile(r"(can't|cannot) allocate memory|out of memory", re.IGNORECASE),
}
"""Messages of torch and of the dynamic loader for errors of the operating system."""

_NAMES = (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG)
"""Errors that are those of a name, and not of the disk below it."""


@contextlib.contextmanager
def writing(target: Path | None) -> Iterator[None]:
    """Raise WrongUsage where the body cannot make the file or folder that a person named for its results,
    CannotHere where this machine refuses it."""
    try:
        yield
    except OSError as error:
        if target is None or not isinstance(error.filename, str):
            raise
        from swarm.storage.durable import DRAFT

        # what is written beside its place has that place's name in a sentence
        asked, met = target.absolute(), Path(error.filename.removesuffix(DRAFT)).absolute()
        if met != asked and met not in asked.parents and asked not in met.parents:
            raise
        kind = WrongUsage if error.errno in _NAMES else CannotHere
        raise kind(f"cannot write {target}: {error.strerror}; name another place") from error


def explain(error: BaseException) -> tuple[int, str] | None:
    """(exit code, sentence) of an error that the user can fix; of an ExceptionGroup, that of the first. None
    for a bug of ours, and for a group that contains one."""
    if isinstance(error, BaseExceptionGroup):
        each = [explain(one) for one in error.exceptions]
        return None if None in each else each[0]
    if isinstance(error, UserError):
        return error.code, str(error)
    for kind in type(error).__mro__:
        if (code := _BY_NAME.get(f"{kind.__module__}.{kind.__qualname__}")) is not None:
            return code, (error.strerror if isinstance(error, OSError) else None) or str(error)
    if isinstance(error, ModuleNotFoundError) and (sentence := extras.lack(error)) is not None:
        return CANNOT, sentence
    if (number := _lacks(error)) in _SYSTEM:
        named = error.filename if isinstance(error, OSError) else None
        where = f"cannot use {named}: " if named else ""
        limits = {"files": resource.RLIMIT_NOFILE, "tasks": resource.RLIMIT_NPROC}
        soft = {name: resource.getrlimit(limit)[0] for name, limit in limits.items()}
        told = {name: "unlimited" if most == resource.RLIM_INFINITY else most for name, most in soft.items()}
        return CANNOT, where + _SYSTEM[number].format(**told)
    return None


def _lacks(error: BaseException) -> int | None:
    """The errno behind an error: taken from the exception, or recognised in the message of a library."""
    if isinstance(error, OSError):
        return error.errno
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    if isinstance(error, RuntimeError | ImportError):
        return next((number for number, words in _WORDS.items() if words.search(str(error))), None)
    return None


def raised(code: int, sentence: str) -> UserError:
    """Rebuild an error that `explain` described in another process."""
    kinds = (WrongUsage, CannotHere, NoPeerAnswers, Refusal)
    return next(kind for kind in kinds if kind.code == code)(sentence)


def _innermost(error: BaseException) -> BaseException:
    """The error inside nested exception groups of one error each."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def guarded(program: Callable[[], int]) -> int:
    """Run a command: every exception becomes an exit code and a sentence on stderr. Output contains no
    control sequences of others: see `PrintableStream`."""
    _open_standard_streams()
    whole = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, PrintableStream(stream)) for stream in whole)
    try:
        return _guarded(program)
    finally:
        sys.stdout, sys.stderr = whole


def _guarded(program: Callable[[], int]) -> int:
    try:
        return program()
    except KeyboardInterrupt:
        return 130
    except Interrupted as error:
        return 128 + error.signal
    except BrokenPipeError:
        # The reader of our output has gone (`swarm status | head`): there is nothing to report, and Python's
        # own flush at exit must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except Exception as error:
        if (known := explain(error)) is None:
            say(_report(error))
            return BUG
        code, sentence = known
        say(f"swarm: {sentence}")
        return code


class PrintableStream:
    """A standard stream that prints everything as visible text: paths, names, settings and errors may come
    from other peers, and messages of libraries repeat them. `drawn` is for drawings of our own."""

    def __init__(self, stream: TextIO) -> None:
        self.whole = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)

    def write(self, text: str) -> int:
        # A bar of progress begins with a carriage return: at a line's begin that is no more than the line.
        again = text[:1] == "\r"
        self.whole.write("\r" * again + printable(text[again:]))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)


def drawn(stream: TextIO) -> TextIO:
    """The stream for escape sequences of our own. The caller has cleaned all text from other peers."""
    return stream.whole if isinstance(stream, PrintableStream) else stream


def _open_standard_streams() -> None:
    """Open /dev/null where the shell closed a standard stream (`>&-`): a socket would take its number, be
    written to as the output and be closed with it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # the lowest free number is this one
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (open while the program is)


_receivers: list[Callable[[str], None]] = []
"""Further receivers of each sentence on stderr, such as a peer's log."""


@contextlib.contextmanager
def notifying(receive: Callable[[str], None]) -> Iterator[None]:
    """Pass every sentence to `receive` as well, while the body runs."""
    _receivers.append(receive)
    try:
        yield
    finally:
        _receivers.remove(receive)


def notify(sentence: str) -> None:
    """Pass a sentence, on one line, to all receivers that `notifying` added, without printing it."""
    for receive in _receivers:
        receive(one_line(sentence, SENTENCE))


WARNING = "warning: "
"""Prefix of the sentences that `swarm up` repeats from the seed's output."""


def say(sentence: str, stream: TextIO | None = None) -> None:
    """Print a sentence on stderr or `stream`, on one line, whatever its source. A closed terminal is no
    error; a log on a full disk lacks the line."""
    if stream is None:
        notify(sentence)
    stream = stream or sys.stderr
    with unneeded(stream):
        print(one_line(sentence, SENTENCE), file=stream, flush=True)


@contextlib.contextmanager
def unneeded(stream: TextIO) -> Iterator[None]:
    """Tolerate that `stream` refuses what the body writes: from then on it leads nowhere, unless only its
    disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def _report(error: BaseException) -> str:
    """Write the traceback to a file for a bug report. Returns the sentence that names the file."""
    text = "".join(traceback.format_exception(error))
    named = _innermost(error)
    while isinstance(named, BaseExceptionGroup):  # of several the first one; the file has them all
        named = named.exceptions[0]
    said = f"swarm: this is a bug in swarm ({type(named).__name__}: {named})"
    try:
        path = _crash_folder() / f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{' '.join(sys.argv[:2])}\nPython {sys.version}\n\n{text}")
    except OSError:
        print(printable(text), file=sys.stderr, flush=True)
        return f"{said}; please report it with the lines above"
    return f"{said}; please report it with {path}"


def _crash_folder() -> Path:
    import platformdirs

    return platformdirs.user_state_path("swarm") / "crashes"
