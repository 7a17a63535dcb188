"""Real swarms for tests: every peer is a process, started by the command that a person types, watched through
its journal.

    SwarmProcesses(folder) -> seed() -> invite(role) -> join(role) -> Program: pid, journal, log, process tree
    wait_until(predicate, seconds, why): polls, and says with the ends of all logs why it gave up;
        the seconds are those of a quiet machine

Whatever a swarm of processes started is gone at its end, with all that it forked. Not handled here: what a
test wants to see.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
from places import ROOT

from swarm import events
from swarm.journal import Tail, read_journal
from swarm.learn.models import template_limits
from swarm.types import Digest, PeerId

Kind = TypeVar("Kind", bound=events.Event)
T = TypeVar("T")
PDEATHSIG = 1

SETTINGS = """
[run]
name = "e2e"
seed = 1

[run.batch]
groups = 8

[run.pace]
beat = 1.0
patience = 5.0

[run.release]
checkpoint_every = 2

[run.evaluation]
tasks = 32

[peer.listen]
host = "127.0.0.1"

[peer.page]
port = 0
"""
"""Small batches: a round every fraction of a second, so that a fault meets one. The seed is the demo's: one
cached model."""

UP = """
[peer.swarm]
learners = {learners}
samplers = 1
evaluators = {evaluators}

[run.stop]
versions = {versions}
"""
"""Of `swarm up`."""

UNHURRIED = ("peer.delay.upload.law=constant", "peer.delay.upload.seconds=0.3", "peer.engine.tasks=2")
"""Settings of a sampler that leaves the machine's cores to the test: one swarm must not be slowed by another
one's zeal."""


SWARM = (sys.executable, "-m", "peers.cli")

BUSIEST = 3.0
"""Times as long as on a quiet machine: more is a machine on which these tests say nothing."""

LONGEST = 900.0
"""Seconds that the waits of one test may take together on a quiet machine."""

LIMIT = BUSIEST * LONGEST
"""Seconds after which a test hangs outside of its waits."""


def environment(**more: str) -> dict[str, str]:
    own = {name: text for name, text in os.environ.items() if not name.startswith("SWARM__")}
    return {**own, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1", **more}


def _die_with_tests() -> None:
    """In the child, before exec: a test run that is killed leaves nothing behind."""
    ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL)


def command(*words: str) -> list[str]:
    return [*SWARM, *words]


def busy() -> float:
    """How many times longer than on a quiet machine work takes now: programs that want to run, by cores."""
    return min(max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0), BUSIEST)


def swarm(*words: str, timeout: float = 60.0, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, without a terminal."""
    return subprocess.run(
        command(*words),
        cwd=ROOT,
        env=environment(**more),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=timeout * BUSIEST,
        check=False,
    )


@dataclass
class Program:
    """A running command."""

    name: str
    folder: Path
    log: Path
    process: subprocess.Popen[bytes]
    born: float = field(default_factory=time.time)
    _events: list[events.AnyEvent] = field(default_factory=list)
    _tail: Tail | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    def peer_folder(self) -> Path | None:
        """The folder of the run folder that this process took."""
        for pid in self.folder.glob("peers/*/pid"):
            if pid.read_text() == str(self.pid):
                return pid.parent
        return None

    def journal(self) -> list[events.AnyEvent]:
        """Whole events of this life of the peer, so far."""
        if self._tail is None and (peer_folder := self.peer_folder()) is not None:
            self._tail = Tail(peer_folder / "journal.jsonl")
        if self._tail is not None:
            self._events += (event for event in self._tail.news() if event.at >= self.born)
        return self._events

    def saw(self, kind: type[Kind], since: float = 0.0, **fields: object) -> list[Kind]:
        """Events of a kind since a time, whose fields have these values."""
        return _chosen((event for event in self.journal() if event.at >= since), kind, fields)

    @property
    def peer(self) -> PeerId:
        """Known once the peer has started."""
        return self.saw(events.Started)[0].peer

    def tree(self) -> list[psutil.Process]:
        """This process and all below it."""
        me = psutil.Process(self.pid)
        return [me, *me.children(recursive=True)]

    def child(self, what: str) -> psutil.Process:
        """The p2pd, or a forked child of python, by a word of its command line or its name; forks that write
        with a chat template have the command line of their parent, and are none."""
        (found,) = [
            process
            for process in self.tree()[1:]
            if process.name() != template_limits.NAME
            and (what in " ".join(process.cmdline()) or what in process.name())
        ]
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def tail(self, lines: int = 12) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class SwarmProcesses:
    """A run folder and the programs of a test."""

    def __init__(self, folder: Path, settings: str = SETTINGS) -> None:
        self.folder, self.home = folder / "run", folder
        self.config = folder / "config.toml"
        self.config.write_text(settings)
        self.programs: list[Program] = []

    # --- starting -------------------------------------------------------------------------------------------

    def run(
        self,
        name: str,
        *words: str,
        folder: Path | None = None,
        wrap: Sequence[str] = (),
        program: Sequence[str] = SWARM,
    ) -> Program:
        """Start a command as a program with a log; `wrap` comes before it (`ip netns exec ...`), `program`
        in the place of `swarm`."""
        log = self.home / f"{len(self.programs)}-{name}.log"
        with open(log, "wb") as out:
            process = subprocess.Popen(
                [*wrap, *program, *words],
                cwd=ROOT,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=_die_with_tests,  # noqa: PLW1509 (no threads in a test run)
            )
        program = Program(name, folder or self.folder, log, process)
        self.programs.append(program)
        return program

    def seed(self, *sets: str, wrap: Sequence[str] = ()) -> Program:
        """`swarm start`, until it serves."""
        words = ["start", str(self.config), "--folder", str(self.folder), *_sets(sets)]
        before = time.time()
        seed = self.run("seed", *words, wrap=wrap)
        observer = self.folder / "invites" / "observer"
        self.wait_until(
            lambda: observer.exists() and observer.stat().st_mtime >= before - 0.1,
            90,
            "the seed did not begin",
        )
        return seed

    def up(self, *sets: str) -> Program:
        """`swarm up`; returns at once."""
        return self.run("up", "up", str(self.config), "--folder", str(self.folder), *_sets(sets))

    def invite(self, role: str) -> str:
        return (self.folder / "invites" / role).read_text()

    def join(
        self, role: str, *sets: str, folder: Path | None = None, wrap: Sequence[str] = (), config: str = ""
    ) -> Program:
        """`swarm join`, with the peer's own file of settings; returns at once."""
        words = [
            "join",
            self.invite(role),
            "--as",
            role,
            "--folder",
            str(folder or self.folder),
            *(("--config", config) if config else ()),
            *_sets(sets),
        ]
        return self.run(role, *words, folder=folder, wrap=wrap)

    def told(self, peer: str, kind: type[Kind], **fields: object) -> list[Kind]:
        """Events in the journal of a peer that `swarm up` started, in all of its lives."""
        path = self.folder / "peers" / peer / "journal.jsonl"
        return _chosen(read_journal(path) if path.exists() else (), kind, fields)

    # --- waiting --------------------------------------------------------------------------------------------

    def wait_until(self, predicate: Callable[[], T], seconds: float, why: str) -> T:
        """The first true value of `predicate`. Fails with `why` and the ends of the logs after `seconds` of a
        quiet machine."""
        began = time.monotonic()
        while not (found := predicate()):
            if (waited := time.monotonic() - began) > seconds * busy():
                raise AssertionError(f"{why} within {waited:.0f} s\n{self.tails()}")
            time.sleep(0.1)
        return found

    def tails(self) -> str:
        """Of each program, but for those that were killed: a reader of a cut log wants the others."""
        return "\n".join(_told(program) for program in self.programs)

    # --- ending ---------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Nothing is left."""
        for program in self.programs:
            if program.process.poll() is None:
                for process in program.tree():
                    with _gone():
                        process.kill()
                program.process.wait()


def _chosen(told: Iterable[events.AnyEvent], kind: type[Kind], fields: Mapping[str, object]) -> list[Kind]:
    found = (event for event in told if isinstance(event, kind))
    return [event for event in found if all(getattr(event, name) == value for name, value in fields.items())]


@contextmanager
def started_swarm(folder: Path, settings: str = SETTINGS) -> Iterator[SwarmProcesses]:
    it = SwarmProcesses(folder, settings)
    try:
        yield it
    finally:
        it.end()


def get(url: str, path: str) -> Any:
    """What the dashboard at `url` answers, from JSON."""
    with urllib.request.urlopen(f"{url.rstrip('/')}/{path}", timeout=10) as answer:
        return json.load(answer)


# --- what tests ask of journals -----------------------------------------------------------------------------


def version(learner: Program) -> int:
    """The newest version that this learner trained or took."""
    trained = [event.version for event in learner.saw(events.Trained)]
    taken = [event.version for event in learner.saw(events.CaughtUp)]
    return max(trained + taken, default=-1)


def averaged(learner: Program, members: Sequence[Program], since: float = 0.0) -> list[events.Averaged]:
    """Rounds of exactly these learners."""
    return learner.saw(events.Averaged, since, members=tuple(sorted(member.peer for member in members)))


def released(seed: Program) -> Mapping[int, Digest]:
    """Version -> digest of its weights, as the seed heard it last."""
    return {event.release.version: event.release.weights for event in seed.saw(events.Released)}


def differing(seed: Program) -> list[tuple[PeerId, int]]:
    """(peer, version) of heartbeats whose weights are not the release's and that were not snapped to it."""
    truth = released(seed)
    snapped = {(event.peer, event.version) for event in seed.saw(events.Snapped)}
    told = {
        (event.subject, event.beat.version, event.beat.weights)
        for event in seed.saw(events.Heard)
        if event.beat.weights
    }
    wrong = [(peer, number) for peer, number, weights in told if truth.get(number, weights) != weights]
    return [one for one in wrong if one not in snapped]


def admitted(learner: Program, sampler: PeerId, since: float = 0.0) -> int:
    return len(learner.saw(events.Judged, since, sampler=sampler, verdict="admit"))


def alive(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those that still run (a zombie does not)."""
    found = []
    for process in processes:
        with _gone():
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def sockets() -> set[Path]:
    """What p2pd and hivemind leave in /tmp when nobody tidies up."""
    return set(Path("/tmp").glob("hivemind-*"))


@contextmanager
def _gone() -> Iterator[None]:
    try:
        yield
    except psutil.NoSuchProcess:
        pass


def _sets(sets: Sequence[str]) -> list[str]:
    return [word for one in sets for word in ("--set", one)]


def _fate(program: Program) -> str:
    code = program.process.poll()
    if code is None:
        return "running"
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _told(program: Program) -> str:
    head = f"--- {program.name} (process {program.pid}, {_fate(program)})"
    if program.process.poll() == -signal.SIGKILL:
        return head
    return f"{head}\n{program.tail()}\n{_last_events(program)}"


def _last_events(program: Program) -> str:
    lines = (re.sub(r"\s+", " ", repr(event))[:200] for event in program.journal()[-4:])
    return "\n".join(f"    {line}" for line in lines)
