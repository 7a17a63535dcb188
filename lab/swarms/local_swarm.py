"""Runs a small real swarm for benchmark rows: a seed and joining peers as processes, read through their
journals.

    with LocalSwarm(folder) as home:
        home.join(Role.LEARNER)  ...  home.wait(version)  ...  home.events("learner-1")

The settings are the demo's without a stop condition. Peers are started as `swarm up` starts them, but not
restarted: a peer that dies while it is measured ends the row with the last line of its log.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Self

from lab.figures import processor_time
from lab.figures.table import Unmeasured
from lab.swarms.partner import environment
from swarm.events import AnyEvent
from swarm.journal import read_journal
from swarm.protocol import Role
from swarm.settings import loading
from swarm.settings.config import Config

SETTINGS = (
    "run.name=bench",
    "run.pace.beat=1.0",
    "run.pace.patience=5.0",
    "run.optimizer.lr=1e-3",
    "peer.listen.host=127.0.0.1",
)
"""The settings of configs/demo.toml, without a stop condition."""

PATIENCE = 120.0
"""Seconds that a wait may take by default: starting a swarm on a busy machine takes half a minute."""

LEAVE = 20.0
LOOK = 0.1


ENGINE = "peers.build.model.engine_worker"
"""The module that a sampler's engine runs."""

Place = tuple[Sequence[str], Sequence[str]]
"""The arguments before a peer's command, for example those that enter its network namespace, and its own
settings."""


def settings(*more: str, config: str = "") -> Config:
    """SETTINGS, or those of a file, and `more` (KEY=VALUE)."""
    return loading.load(Path(config) if config else None, more if config else (*SETTINGS, *more)).config


class LocalSwarm:
    """Use as a context manager: entering starts the seed."""

    def __init__(
        self,
        *sets: str,
        config: str = "",
        place: Callable[[], Place] = lambda: ((), ()),
        patience: float = PATIENCE,
    ) -> None:
        """`sets` are settings of the run (KEY=VALUE), beside SETTINGS or those of the file `config`;
        `place()` is where the next peer runs, `patience` the seconds that any wait may take."""
        self.config = settings(*sets, config=config)
        self._place, self._patience = place, patience
        self._temporary = tempfile.TemporaryDirectory(prefix="swarm-bench-")
        self.folder = Path(self._temporary.name) / "run"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        """Peer folder (`seed`, `learner-1`, ...) -> its process."""
        self._counts: dict[Role, int] = {}

    def __enter__(self) -> Self:
        from peers.build.model import base_model

        base_model.folder(self.config.run)  # made once for this machine, not part of any figure
        self.folder.mkdir(exist_ok=True)
        (self.folder / "config.toml").write_text(loading.dump(self.config))
        (self.folder / "peer.toml").write_text(loading.dump(self.config, "peer"))
        try:
            self._start(
                Role.SEED,
                ["start", str(self.folder / "config.toml"), "--folder", str(self.folder), "--no-page"],
            )
            self.until("the seed's invites", (self.folder / "invites" / Role.OBSERVER).exists)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *exit: object) -> None:
        self._end()

    def join(self, role: Role) -> str:
        """Start a peer on this run's folder. Returns its peer folder."""
        self._counts[role] = self._counts.get(role, 0) + 1
        peer_folder = f"{role.value}-{self._counts[role]}"
        self._start(peer_folder, self.words(role, self.folder))
        # Peer folders are taken in the order in which peers start: wait for each, so that the names are
        # right.
        self.until(f"{peer_folder} to begin", (self.folder / "peers" / peer_folder / "key").exists)
        return peer_folder

    def words(self, role: Role, folder: Path) -> list[str]:
        word = (self.folder / "invites" / role.value).read_text()
        return [
            "join",
            word,
            "--as",
            role.value,
            "--config",
            str(self.folder / "peer.toml"),
            "--folder",
            str(folder),
        ]

    def events(self, peer_folder: str) -> Iterator[AnyEvent]:
        """All events of a peer's journal so far."""
        path = self.folder / "peers" / peer_folder / "journal.jsonl"
        return read_journal(path) if path.exists() else iter(())

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait for a version. Raises Unmeasured when a peer dies meanwhile, or after `patience` seconds."""
        deadline = time.monotonic() + self._patience
        while not holds():
            self.look()
            if time.monotonic() > deadline:
                raise Unmeasured(f"waited {self._patience:.0f} s for {what} in vain")
            time.sleep(LOOK)

    def sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.look()
            time.sleep(LOOK)

    def look(self) -> None:
        for peer_folder, process in self.processes.items():
            if process.poll() is not None:
                raise Unmeasured(self._end_of(peer_folder, process))

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """Where a process of a peer cannot be looked at (Unmeasured), the peer that died is named."""
        try:
            yield
        except Unmeasured:
            self.look()
            raise

    def cpu(self, without: Collection[str] = ()) -> dict[str, float]:
        """CPU seconds of all peers so far but those in the folders `without`, by what used them: `peer` (its
        Python process), `engine`, `p2pd`, `children` (DHT and averager processes). Raises Unmeasured when one
        has died."""
        spent = dict.fromkeys(("peer", "engine", "p2pd", "children"), 0.0)
        for peer_folder, process in self.processes.items():
            if peer_folder not in without:
                with self.alive():
                    seen = processor_time.of(process.pid)
                for pid, one in seen.items():
                    spent[_part(one.name, pid == process.pid)] += one.all
        return spent

    def _log(self, peer_folder: str) -> Path:
        return self.folder.parent / f"{peer_folder}.log"

    def _last_line(self, peer_folder: str) -> str:
        lines = self._log(peer_folder).read_text(errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "it said nothing")

    def _end_of(self, peer_folder: str, process: subprocess.Popen[bytes]) -> str:
        return f"{peer_folder} ended with code {process.returncode}: {self._last_line(peer_folder)}"

    def _start(self, peer_folder: str, words: list[str]) -> None:
        before, sets = self._place()
        own = [word for one in sets for word in ("--set", one)]
        self._launch(peer_folder, [*words, *own], before)

    def _launch(self, peer_folder: str, words: list[str], before: Sequence[str]) -> None:
        with open(self._log(peer_folder), "ab") as log:
            self.processes[peer_folder] = start(words, log.fileno(), before=before)

    def _end(self) -> None:
        end(list(self.processes.values()))
        self._temporary.cleanup()


def _part(name: str, peer: bool) -> str:
    """A process's name in a figure."""
    if peer:
        return "peer"
    return {"p2pd": "p2pd", ENGINE: "engine"}.get(name, "children")


def start(words: list[str], stderr: int, before: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """A `swarm` command as a process that ends with this one, behind the words `before`."""
    from peers.runtime.signals import PARENT

    return subprocess.Popen(
        [*before, sys.executable, "-m", "peers.cli", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,
        env=environment() | {PARENT: str(os.getpid())},
    )


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Ask processes to leave; kill those that have not ended after LEAVE seconds."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + LEAVE
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
