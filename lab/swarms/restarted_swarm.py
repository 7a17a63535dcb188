"""A real swarm under faults: each peer has a run folder of its own, and one that ends is started again by the
same command, as a service manager does.

    with RestartedSwarm(...) as home:
        home.join(Role.LEARNER)  ...  home.tree("learner-1")[0].kill()  ...  home.until(...)

Peers are checked during waits (`until`, `sleep`). A peer that ends and was not killed from here is recorded
with its last output. Not handled here: the faults, and their cost (lab.swarms.faults,
lab.swarms.fault_trials).
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from lab.figures.table import Unmeasured
from lab.swarms.local_swarm import LocalSwarm, Place, end
from swarm import events
from swarm.journal import Tail
from swarm.protocol import Role

AGAIN = 1.0
"""Seconds before a peer that ended is started again."""

UNREAD = (events.Moved, events.Transferred, events.Counted, events.Shown, events.Sampled)
"""Kinds of events that no question here is about: most of a journal."""


class RestartedSwarm(LocalSwarm):
    """Use as a context manager: entering starts the seed."""

    def __init__(
        self,
        *sets: str,
        place: Callable[[], Place] = lambda: ((), ()),
        patience: float,
        room: int | None = None,
    ) -> None:
        """`room`: MiB of a small file system for each peer (needs root); None: they share the machine's.

        Raises Unmeasured: file systems cannot be mounted here.
        """
        super().__init__(*sets, place=place, patience=patience)
        self.ended: list[str] = []
        """Ends of peers that were not killed from here."""
        self.killed: set[int] = set()
        """Pids of peers that were killed from here."""
        self.deaths: dict[str, list[float]] = {}
        """Peer -> unix times at which it was killed, or was found ended."""
        self.numbers: dict[str, int] = {}
        """Peer -> its place in the order of their first starts, from 1."""
        self._commands: dict[str, tuple[list[str], Sequence[str]]] = {}
        self._due: dict[str, float] = {}
        """Peer -> when it is started again."""
        self._journals: dict[str, tuple[Tail, list[events.AnyEvent]]] = {}
        self._room, self._mounted = room, list[Path]()
        self.folder.mkdir()
        if room is not None:
            self._mount(self.folder)

    # --- peers ----------------------------------------------------------------------------------------------

    def join(self, role: Role) -> str:
        """Start a peer in a run folder of its own. Returns its name."""
        self._counts[role] = self._counts.get(role, 0) + 1
        name = f"{role.value}-{self._counts[role]}"
        folder = self.run_folder(name)
        folder.mkdir()
        if self._room is not None:
            self._mount(folder)
        self._start(name, self.words(role, folder))
        return name

    def run_folder(self, name: str) -> Path:
        return self.folder if name == Role.SEED else self.folder.parent / name

    def peer_folder(self, name: str) -> Path:
        role = name.partition("-")[0]
        return self.run_folder(name) / "peers" / (role if role == Role.SEED else f"{role}-1")

    def journal(self, name: str) -> list[events.AnyEvent]:
        """Events of all lives of a peer so far, without those of UNREAD."""
        if name not in self._journals:
            self._journals[name] = (Tail(self.peer_folder(name) / "journal.jsonl"), [])
        tail, found = self._journals[name]
        found += (event for event in tail.news() if not isinstance(event, UNREAD))
        return found

    def tree(self, name: str) -> list[psutil.Process]:
        """A peer's process and all below it; empty while it is not there."""
        try:
            me = psutil.Process(self.processes[name].pid)
            return [me, *me.children(recursive=True)]
        except (KeyError, psutil.NoSuchProcess):
            return []

    def look(self) -> None:
        """Restart peers that have ended."""
        for name, process in list(self.processes.items()):
            if process.poll() is not None:
                del self.processes[name]
                self._due[name] = time.monotonic() + AGAIN
                if process.pid not in self.killed:
                    self.deaths.setdefault(name, []).append(time.time())
                    self.ended.append(self._end_of(name, process))
        for name in [name for name, due in self._due.items() if time.monotonic() >= due]:
            del self._due[name]
            self._launch(name, *self._commands[name])

    def _launch(self, peer_folder: str, words: list[str], before: Sequence[str]) -> None:
        self.numbers.setdefault(peer_folder, len(self.numbers) + 1)
        self._commands[peer_folder] = words, before
        super()._launch(peer_folder, words, before)

    def tails(self) -> str:
        """The ends of all logs."""
        return "\n".join(f"--- {name}: {self._last_line(name)}" for name in self.numbers)

    # --- disks ----------------------------------------------------------------------------------------------

    def _mount(self, folder: Path) -> None:
        words = ["mount", "-t", "tmpfs", "-o", f"size={self._room}m", "swarm-bench", str(folder)]
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        if done.returncode:
            raise Unmeasured(f"no small file systems here: {done.stderr.strip()}")
        self._mounted.append(folder)

    def _end(self) -> None:
        end(list(self.processes.values()))
        for folder in self._mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=False, capture_output=True)
        self._temporary.cleanup()
