"""`swarm up`: runs a whole swarm as processes on this machine, and restarts those that die, until the run is
complete.

    swarm start --> seed --> invites --> swarm join (learners, samplers, evaluators)
    seed's journal --> SwarmState --> live view, and at the end the summary

Children are ordinary peers with an ordinary invite. A child that dies is restarted with its folder, identity
and checkpoint. One that cannot run at all (exit codes 2, 3, 5) ends the swarm with its message; so do one
that crashes twice alike as it starts, or later for a minute while no version is made, and a folder that is
moved or removed. Ctrl-C asks all to leave, a second one kills them. Not handled here: peers of other
machines, which join and leave on their own.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from rich.live import Live

from dashboard.diagnosis import diagnose
from dashboard.diagnosis.presence import returning
from dashboard.fold.state import SwarmState, starts
from dashboard.serve.terminal import forecast, headline, new_problem, render, summary
from dashboard.views import Problem
from peers.build.model import smollm2
from peers.build.run_folder import SPEC, close, make_folder, read
from peers.commands.journals import journals
from peers.commands.runs.leaving import Leaving
from peers.console import drawable, optional_console
from peers.errors import BUG, WARNING, CannotHere, Interrupted, Refusal, UserError, WrongUsage
from peers.runtime.peer_folder import PeerFolder, Place, peer_of
from peers.runtime.signals import ENDED, FINISHING, LEAVE_PATIENCE, PARENT, leave_signals
from swarm.core.completion import ends
from swarm.frames.grammar import some
from swarm.journal import Tail
from swarm.processes.process import Ended
from swarm.protocol import Role
from swarm.settings import loading
from swarm.settings.config import Config
from swarm.settings.loading import LoadedConfig
from swarm.storage.durable import write_durably

LOOK = 0.25
"""Seconds between two checks of the children and the journal."""

LINE_EVERY = 10.0
"""Seconds between two lines of output without a terminal, at least: there is one where something changed."""

FORECAST_EVERY = 600.0
"""Seconds between two lines that say when the run ends and which settings change that, at least."""

SEED_PATIENCE = 300.0
"""Seconds for the seed to make the model and print its invites; a large model is copied by then."""

WAIT_TOLD = 20.0
"""Seconds between two lines about a seed that has not begun: longer than a start takes."""

ROOM = 1 << 20
"""Bytes: a disk with less is called full. Invites are a kilobyte; a seed's other files are larger."""

TOLD = 1 << 20
"""Bytes of a child's log that are searched for its messages."""

BACKOFF = 1.0
BACKOFF_LONGEST = 15.0
"""Seconds before a dead child is restarted, doubled with each death until it has run for STABLE_AFTER."""

STABLE_AFTER = 60.0
"""Seconds within which a child that cannot run has ended, on a busy machine too."""

ALIKE = 3
"""Times that a child that has run ends by its own fault in the same way, over STABLE_AFTER seconds and
without a version in between: a passing cause, such as a taken port, has passed by then."""

TOO_LATE = 20.0
"""Seconds in which peers leave a complete run by themselves: one that is still loading missed the
announcement."""

FATAL = {error.code: error for error in (WrongUsage, CannotHere, Refusal)}
"""Exit code -> error that a restart cannot fix, unless the child has run before."""

CRASHES = (
    BUG,
    *(-one for one in (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGBUS, signal.SIGFPE)),
)
"""Exit codes of a program that ended by its own fault; SIGKILL and SIGTERM come from outside and may stop."""

NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")
"""Varying parts of the messages of two equal crashes: addresses, times, process ids."""


class SameCrash(UserError):
    """A child crashes in the same way again and again."""

    code = BUG


def up(loaded: LoadedConfig, folder: Path) -> int:
    """Run a swarm. Returns an exit code, 0 when the run is complete. Raises Interrupted after a signal,
    UserError when a child cannot run."""
    if loaded.config.run.private:
        close(folder)
    folder = make_folder(folder.resolve())
    with PeerFolder(folder / "peers" / "up"):
        write_durably(folder / "config.toml", loading.dump(loaded.config).encode())
        write_durably(folder / "peer.toml", loading.dump(loaded.config, "peer").encode())
        if loaded.config.run.model.name == smollm2.NAME and not (folder / SPEC).exists():
            smollm2.folder()  # here, where its maker shows how far it is
        children = Children(folder, loaded.config)
        try:
            children.run()
        finally:
            children.end()
        return children.summarize()


@dataclass
class PeerProcess:
    name: str
    arguments: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    begins: int = 0
    """Bytes of the log that are of earlier processes."""
    deaths: int = 0
    restart_at: float = 0.0
    """When the process is (re)started."""
    done: bool = False
    stable: bool = False
    """One of its processes ran for STABLE_AFTER seconds: a later end may have a passing cause, such as a full
    disk."""
    crash: tuple[str, int] | None = None
    """How it ended by its own fault the last time, without numbers, and the run's version; 0 until it is
    stable. None: it did not."""
    crashes: int = 0
    """How often it ended so, in a row."""
    crashes_since: float = 0.0

    def start(self) -> None:
        with _opened(self.log) as log:
            self.begins = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "peers.cli", *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=_environment(),
            )
        self.started_at = time.monotonic()

    def ended(self) -> int | None:
        """The exit code of a process that has just ended, once; None otherwise."""
        if self.process is None or (code := self.process.poll()) is None:
            return None
        self.process = None
        lived = time.monotonic() - self.started_at
        self.stable = self.stable or lived >= STABLE_AFTER
        self.deaths = self.deaths + 1 if lived < STABLE_AFTER else 1
        self.restart_at = time.monotonic() + min(BACKOFF * 2 ** (self.deaths - 1), BACKOFF_LONGEST)
        return code

    def crashed(self, how: str, version: int) -> bool:
        """Record an end by its own fault, at a version of the run; returns whether every start ends so."""
        now, crash = time.monotonic(), (NUMBERS.sub("", how), version if self.stable else 0)
        if crash != self.crash:
            self.crash, self.crashes, self.crashes_since = crash, 0, now
        self.crashes += 1
        if not self.stable:
            return self.crashes > 1
        return self.crashes >= ALIKE and now - self.crashes_since >= STABLE_AFTER

    def age(self) -> float:
        """Seconds since the process began; 0 where none runs."""
        return time.monotonic() - self.started_at if self.process is not None else 0.0

    def warnings(self) -> list[str]:
        """Its warnings since its last start."""
        try:
            log = self._log_tail(self.begins)
        except OSError:
            return []  # the disk fails: its log says the same once it can be read
        return [line for line in log.splitlines() if line.startswith(WARNING)]

    def _log_tail(self, since: int) -> str:
        """At most the last TOLD bytes of its log since that position."""
        with open(self.log, "rb") as log:
            log.seek(max(since, log.seek(0, os.SEEK_END) - TOLD))
            return log.read().decode(errors="replace")

    def last_line(self) -> str:
        try:
            lines = [line for line in self._log_tail(0).splitlines() if line.strip()]
        except OSError as error:
            return f"{self.log} cannot be read: {error.strerror}"
        return lines[-1].removeprefix("swarm: ") if lines else "(no output yet)"


def _opened(log: Path) -> IO[bytes]:
    try:
        return open(log, "ab")
    except OSError:  # the disk fails: a child without a log is better than no child
        return open(os.devnull, "ab")


def _environment() -> Mapping[str, str]:
    # Settings from the environment are in config.toml already.
    own = {name: text for name, text in os.environ.items() if not name.startswith("SWARM__")}
    return own | {
        PARENT: str(os.getpid()),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }


@dataclass
class Children:
    folder: Path
    config: Config
    children: dict[str, PeerProcess] = field(default_factory=dict)
    signalled: int | None = None
    signals: int = 0
    complete: bool = False

    def __post_init__(self) -> None:
        self.state = SwarmState(self.config.run)
        self.state.starts = starts(self.config.peer.swarm)
        self.journal = Tail(self.folder / "peers" / Role.SEED / "journal.jsonl", journals.print_first)
        (self.folder / "logs").mkdir(exist_ok=True)
        self._place = Place(self.folder)
        self.console = optional_console("stderr")
        self._line_due, self._forecast_due = 0.0, 0.0
        self._printed = ""
        """What the last line said, without times."""
        self._problem = ""
        """Key of the problem that the last line found."""
        self._unreadable = False

    def run(self) -> None:
        """Start all peers and restart those that die, until the run is complete or a signal comes."""
        for which in leave_signals():
            signal.signal(which, self._on_signal)
        before = self._invites_id()
        self._add(Role.SEED, ["start", str(self.folder / "config.toml"), "--folder", str(self.folder)])
        self._wait_for_invites(before)
        if self.signalled is not None:
            return
        if self.config.run.optimizer.lr == 0.0 and (run := read(self.folder)) is not None:
            lr = run.settings.optimizer.lr
            said = (
                f"learning rate {lr:g}, what is known for this model and task; run.optimizer.lr sets another"
            )
            self.console.print(said, style="dim", highlight=False, soft_wrap=True)
        if end := ends(self.config.run):
            self.console.print(f"complete {end}", style="dim", highlight=False, soft_wrap=True)
        for line in self.children[Role.SEED].warnings():
            self._print(line)
        if (page := self.folder / "page").exists():  # the seed writes it before its invites
            self._print(f"dashboard: {page.read_text()}", style="")
        for role, count in starts(self.config.peer.swarm).items():
            for number in range(count):
                invite = ["--own", "--word-file", str(self.folder / "invites" / role)]
                own = ["--config", str(self.folder / "peer.toml"), "--folder", str(self.folder)]
                self._add(f"{role}-{number + 1}", ["join", *invite, "--as", role, *own])
        with self._screen() as show:
            while self.signalled is None and not self.complete:
                time.sleep(LOOK)
                self._look()
                show()

    def end(self) -> None:
        """Ask all children to leave, the seed last, after TOO_LATE where the run is complete; kill those that
        have not left LEAVE_PATIENCE after this began, or at a second signal."""
        running = {name: one.process for name, one in self.children.items() if one.process is not None}
        leaving = Leaving(running, time.monotonic())
        if not self._place.is_here():  # what they would write before they leave begins another folder
            _kill(running.values())
        if self.signalled is not None and running:
            peers = some(len(running), "peer")
            self._print(
                f"asked {peers} to leave: {FINISHING}; {ENDED} Ctrl-C again ends them now", style="dim"
            )
        while left := {name: process for name, process in running.items() if process.poll() is None}:
            now = time.monotonic()
            if leaving.waited(now) > TOO_LATE or self.signalled is not None or not self.complete:
                for name in leaving.asked(left, now):
                    left[name].terminate()
                if said := leaving.news(left, now):
                    self._print(said, style="dim")
            time.sleep(LOOK / 5)
            if self.signals > 1 or leaving.waited(time.monotonic()) > LEAVE_PATIENCE:
                _kill(running.values())
        self._read()

    def summarize(self) -> int:
        """Export the model and print the summary. Returns the exit code."""
        if self.signalled is not None:
            ended = f"was stopped by {signal.Signals(self.signalled).name}, and goes on with the same command"
            self.console.print(summary(self.state, self.now(), None, self.journal.path, ended))
            if self.state.version:
                made = f"writes the model of version {self.state.version}"
                self._print(f"`swarm export DIR --folder {self.folder}` {made}", style="")
            raise Interrupted(self.signalled)
        model = self.folder / "exported"
        command = ["export", str(model), "--force", "--folder", str(self.folder)]
        exported = subprocess.run(
            [sys.executable, "-m", "peers.cli", *command], check=False, capture_output=True
        )
        code = exported.returncode if exported.returncode >= 0 else CannotHere.code
        if exported.stdout:  # the model's folder, once it is whole: a signal that came then changed nothing
            code = 0
        if code:
            self._print(exported.stderr.decode().rstrip(), style="")
            why = _cause_of_death(exported.returncode)
            again = f"`swarm export DIR --folder {self.folder}` writes it"
            self._print(f"the model was not exported ({why}): {again}")
        # In a file or a pipe a path must not be wrapped: readers copy it, or search for it.
        screen = optional_console("stdout", width=None if sys.stdout.isatty() else 240)
        screen.print(summary(self.state, self.now(), model if code == 0 else None, self.journal.path))
        if code and self.signalled is not None:
            raise Interrupted(self.signalled)
        return code

    def _print(self, sentence: str, style: str = "yellow") -> None:
        """Print a sentence as it is: paths in it are neither broken nor read as markup."""
        self.console.print(sentence, style=style, markup=False, highlight=False, soft_wrap=True)

    # --- watching -------------------------------------------------------------------------------------------

    def _on_signal(self, number: int, _: Any) -> None:
        self.signalled = number
        self.signals += 1

    def _add(self, name: str, arguments: list[str]) -> None:
        child = self.children[name] = PeerProcess(name, arguments, self.folder / "logs" / f"{name}.log")
        child.start()

    def _invites_id(self) -> tuple[int, int] | None:
        """Identifies the invites in the folder: each start of the seed writes new ones. File identity, not
        time, since the machine's clock may be set meanwhile."""
        try:
            stat = (self.folder / "invites" / Role.OBSERVER).stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns

    def _wait_for_invites(self, before: tuple[int, int] | None) -> None:
        """Wait for others than those of `before`."""
        deadline = time.monotonic() + SEED_PATIENCE
        self.console.print("starting the seed: it makes or loads the model (seconds to minutes)", style="dim")
        printed = time.monotonic()
        while self._invites_id() in (None, before):
            time.sleep(LOOK)
            self._look()
            if self.signalled is not None:
                return
            if time.monotonic() > deadline:
                raise CannotHere(f"within {SEED_PATIENCE:.0f} s there were no invites: {self.waits_for()}")
            if time.monotonic() > printed + WAIT_TOLD:
                printed = time.monotonic()
                self._print(self.waits_for())

    def waits_for(self) -> str:
        """What the start waits for, and why it may wait in vain."""
        seed = self.children[Role.SEED]
        return (
            f"the seed has not written its invites to {self.folder / 'invites'} yet, with which the others"
            " join"
            + ("; the disk is full: make room" if self._is_full() else "")
            + f"; it said last: {seed.last_line()} (all of it is in {seed.log})"
        )

    def _is_full(self) -> bool:
        return shutil.disk_usage(self.folder).free < ROOM

    def _look(self) -> None:
        self._place.check("swarm", "all its peers were")
        self._read()
        for child in self.children.values():
            code = child.ended()
            if code == 0:
                child.done = True
                self.complete = self.complete or child.name == Role.SEED
            elif code in FATAL and not child.stable:
                raise FATAL[code](f"{child.name} cannot run: {child.last_line()} (its log: {child.log})")
            elif code is not None:
                self._died(child, code)
            if child.process is None and not child.done and time.monotonic() >= child.restart_at:
                child.start()

    def _died(self, child: PeerProcess, code: int) -> None:
        """Report a child that is restarted. Raises SameCrash, or the error of its exit code, where a restart
        cannot help."""
        why = f": {child.last_line()}" if code > 0 else ""  # killed, it said nothing about it
        cause = f"{_cause_of_death(code)}{why}"
        if code not in CRASHES and code not in FATAL:
            child.crash = None
        elif child.crashed(cause, self.state.version) and not self._is_full():
            how = (
                f"{child.crashes} times in the same way, and no version was made meanwhile"
                if child.stable
                else "twice in the same way as it started"
            )
            raise FATAL.get(code, SameCrash)(
                f"{child.name} crashed {how} ({cause}): it is not started again (its log: {child.log})"
            )
        self._print(f"{child.name} died ({cause}) and is started again{Ended(code, '').hint}")

    def now(self) -> float:
        """Unix seconds by the clock of the seed, whose journal is shown."""
        return journals.now([self.journal.path], self.state.last, time.time())

    def _read(self) -> None:
        try:
            for event in self.journal.news():
                self.state = journals.followed(self.state, event)
        except OSError as error:  # the view is not updated, and the swarm goes on
            if not self._unreadable:
                self._print(f"{self.journal.path} cannot be read: {error.strerror}")
            self._unreadable = True

    def _screen(self) -> AbstractContextManager[Callable[[], None]]:
        return self._drawn() if drawable(self.console) else nullcontext(self._print_line)

    def _print_line(self) -> None:
        """For logs: a line where something changed, and a forecast now and then."""
        if (clock := time.monotonic()) < self._line_due:
            return
        self._line_due, now = clock + LINE_EVERY, self.now()
        problem, self._problem = new_problem(self._problems(now), self._problem)
        before, self._printed = self._printed, headline(self.state, now, timed=False)
        if problem or self._printed != before:
            self._print("; ".join(filter(None, (headline(self.state, now), problem))), style="")
        if clock >= self._forecast_due and (ends := forecast(self.state, now)):
            self._forecast_due = clock + FORECAST_EVERY
            self._print(ends, style="dim")

    @contextmanager
    def _drawn(self) -> Iterator[Callable[[], None]]:
        """The live view of a terminal."""

        def show() -> None:
            now = self.now()
            live.update(render(self.state, now, self.console.width, self._problems(now)))

        with Live(console=self.console, refresh_per_second=4, transient=True) as live:
            yield show

    def _problems(self, now: float) -> list[Problem]:
        """Current problems, without advice to restart the peers that `up` itself restarts."""
        found = diagnose(self.state, now)
        back = self._returning(now) if found else set[str]()
        return [returning(one, back) for one in found]

    def _returning(self, now: float) -> set[str]:
        """Ids of own peers whose role has a process that ended or began since their last heartbeat: which
        process of a role uses which folder is unknown."""
        young: dict[str, float] = {}
        for name, child in self.children.items():
            if not child.done:
                role = name.split("-")[0]
                young[role] = min(child.age(), young.get(role, math.inf))
        found = (peer_of(self.folder / "peers" / name) for name in self.children)
        rows = [self.state.peers[one] for one in found if one in self.state.peers]
        return {row.id for row in rows if young.get(row.role, math.inf) < now - row.heard}


def _kill(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """With all below them."""
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def _cause_of_death(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
