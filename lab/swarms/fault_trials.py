"""One fault after the other at a real swarm, and the cost of each, read from the peers' journals.

    Trials(home, rng, say, lines).run(plan) -> Report: Trial, Trial, ...; counts that must be 0

The next version counts from the begin of a fault, full strength from its end: the first moment by which every
learner was in a round of all, a group of every sampler was admitted, every evaluator and the seed had a
version. Half of the faults begin as soon as there is a version after the last one, so that some meet a swarm
that is still recovering. Not handled here: the faults themselves (lab.swarms.faults).
"""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import psutil  # type: ignore[import-untyped]

from lab.figures.table import Unmeasured
from lab.swarms.faults import ProcessFault, kill, struck
from lab.swarms.restarted_swarm import RestartedSwarm
from lab.swarms.shaped_lines import ShapedLines
from swarm import events
from swarm.core.group_accounts import JournalAudit, audit
from swarm.protocol import Role
from swarm.types import Digest, PeerId

LASTS = 0.5
"""Seconds between two looks at a fault that lasts."""

BREATH = 2.0
"""Longest pause before a fault, in seconds: it may meet any moment of a round."""

PEACE = 5.0
"""Seconds after the last fault, at full strength, in which all peers report the groups that they hold."""


@dataclass
class Trial:
    fault: ProcessFault
    began: float
    over: float
    version: int
    """The newest one when it began."""
    next_version: float | None = None
    """Seconds from the fault's begin; None: none came."""
    full_strength: float | None = None
    """Seconds from the fault's end; None: some peer did not come back."""


@dataclass
class Report:
    trials: list[Trial] = field(default_factory=list)
    stuck: str = ""
    """Why the trials ended early: no version came, or some peer did not come back; with the ends of all
    logs."""
    left: list[str] = field(default_factory=list)
    """Processes that outlived their peer."""
    ended: list[str] = field(default_factory=list)
    """Peers that ended without being killed."""
    differing: dict[int, set[Digest]] = field(default_factory=dict)
    """Versions that peers hold with several digests at the end."""
    groups: JournalAudit = field(default_factory=lambda: audit(()))
    """The fate of groups that a learner acknowledged. A full disk takes no journal: its events about them are
    missing."""
    journal: float = 0.0
    """Bytes of journal per peer and hour."""


@dataclass
class Trials:
    home: RestartedSwarm
    rng: random.Random
    say: Callable[[str], None]
    lines: ShapedLines | None = None

    @property
    def peers(self) -> Sequence[str]:
        return list(self.home.numbers)

    def run(self, kills: int, lasting: Sequence[ProcessFault] = ()) -> Report:
        """Kills at random, then faults that last, then peace."""
        report, began = Report(), time.time()
        try:
            self.wait_for_full_strength(0.0)
            self.say("the swarm is at full strength")
            for fault in itertools.chain([None] * kills, lasting):
                report.trials.append(self._strike(fault))
                self._wait_for_version(report.trials[-1])
            self.wait_for_full_strength(time.time())
            self.home.sleep(PEACE)
        except Unmeasured as stuck:
            report.stuck = f"{stuck}\n{self.home.tails()}"
        for trial in report.trials:
            self._measure(trial)
        report.left = [str(process) for process in self._left(report.trials)]
        report.ended = self.home.ended
        report.differing = self.differing(time.time() - PEACE)
        report.groups = audit(event for name in self.peers for event in self.home.journal(name))
        report.journal = self._journal_bytes() / len(self.peers) / (time.time() - began) * 3600
        return report

    def _strike(self, fault: ProcessFault | None) -> Trial:
        self.home.sleep(self.rng.uniform(0.0, BREATH))
        before, began = self.version(), time.time()
        if fault is None:
            fault = kill(self.home, self.rng)
            self.say(f"{fault}, at version {before}")
        else:
            self.say(f"{fault}, at version {before}")
            self._last(fault)
        return Trial(fault, began, time.time(), before)

    def _last(self, fault: ProcessFault) -> None:
        with struck(self.home, self.lines, fault) as again:
            ends = time.monotonic() + fault.seconds
            while time.monotonic() < ends:
                self.home.sleep(LASTS)
                again()

    def _wait_for_version(self, trial: Trial) -> None:
        self.home.until(f"the next version after: {trial.fault}", lambda: self.version() > trial.version)
        if self.rng.random() < 0.5:
            self.wait_for_full_strength(trial.over)

    def wait_for_full_strength(self, since: float) -> None:
        """Raises Unmeasured when some peer does not come back."""
        try:
            self.home.until("full strength", lambda: not self.missing(since))
        except Unmeasured as late:
            raise Unmeasured(f"{late}: without {', '.join(self.missing(since))}") from None

    def _left(self, trials: Sequence[Trial]) -> list[psutil.Process]:
        """Processes that must be gone and are not, some time after their peer's end."""
        gone = [process for trial in trials for process in trial.fault.gone]
        with contextlib.suppress(Unmeasured):  # the remaining ones are the answer
            self.home.until("the end of those killed", lambda: not alive(gone))
        return alive(gone)

    # --- contents of the journals ---------------------------------------------------------------------------

    def version(self) -> int:
        """The newest one that a learner made."""
        last = (self._last_version(name) for name in self._named(Role.LEARNER))
        return max(last, default=-1)

    def missing(self, since: float) -> list[str]:
        """Peers that were not at work since then."""
        return [name for name in self.peers if self._back(name, since) is None]

    def differing(self, since: float) -> dict[int, set[Digest]]:
        """Versions that peers hold with several digests since then, apart from learners that then took the
        release's, or whose line of versions does not count."""
        told: dict[int, set[Digest]] = {}
        for name in self.peers:
            snapped = {
                (event.version, event.mine)
                for event in self._since(name, since)
                if isinstance(event, events.Snapped)
            }
            apart = [event for event in self._since(name, since) if isinstance(event, events.Forked)]
            for event in self._since(name, since):
                if isinstance(event, events.Heard) and event.subject == event.peer:
                    beat = event.beat
                    if any(fork.since < beat.version <= fork.version for fork in apart):
                        continue
                    if beat.weights and (beat.version, beat.weights) not in snapped:
                        told.setdefault(beat.version, set()).add(beat.weights)
        return {version: digests for version, digests in told.items() if len(digests) > 1}

    def _measure(self, trial: Trial) -> None:
        came = [
            event.at
            for name in self._named(Role.LEARNER)
            for event in self._since(name, trial.began)
            if isinstance(event, events.Trained) and event.version > trial.version
        ]
        trial.next_version = min(came) - trial.began if came else None
        back = [at for name in self.peers if (at := self._back(name, trial.over)) is not None]
        trial.full_strength = max(back) - trial.over if len(back) == len(self.peers) else None

    def _last_version(self, name: str) -> int:
        journal = reversed(self.home.journal(name))
        return next((event.version for event in journal if isinstance(event, events.Trained)), -1)

    def _back(self, name: str, since: float) -> float | None:
        """When a peer was at work first since then; a sampler's groups may be judged after its death."""
        role = Role(name.partition("-")[0])
        if died := max((at for at in self.home.deaths.get(name, ()) if at <= since), default=0.0):
            lives = [event.at for event in self._since(name, died) if self._begins(event, name)]
            if not lives:
                return None
            since = max(since, min(lives))
        told = self._named(Role.LEARNER) if role is Role.SAMPLER else [name]
        works = self._works(role, self._id(name))
        return min(
            (event.at for one in told for event in self._since(one, since) if works(event)), default=None
        )

    def _begins(self, event: events.Event, name: str) -> bool:
        return isinstance(event, events.Started) and event.peer == self._id(name)

    def _works(self, role: Role, me: PeerId | None) -> Callable[[events.Event], bool]:
        """Whether an event shows that a peer of this role does its work."""
        if role is Role.LEARNER:
            all_of_them = len(self._named(Role.LEARNER))
            return lambda event: (
                isinstance(event, events.Trained) and (event.peer, event.members) == (me, all_of_them)
            )
        if role is Role.SAMPLER:
            return lambda event: (
                isinstance(event, events.Judged) and event.sampler == me and event.verdict == "admit"
            )
        return lambda event: isinstance(event, events.Released | events.Adopted) and event.peer == me

    def _since(self, name: str, since: float) -> Iterator[events.AnyEvent]:
        """Newest first."""
        return itertools.takewhile(lambda event: event.at >= since, reversed(self.home.journal(name)))

    def _named(self, role: Role) -> list[str]:
        return [name for name in self.peers if name.startswith(role)]

    def _id(self, name: str) -> PeerId | None:
        """None before its first start."""
        return next((event.peer for event in self.home.journal(name)), None)

    def _journal_bytes(self) -> int:
        return sum(
            path.stat().st_size
            for name in self.peers
            for path in self.home.peer_folder(name).glob("journal*")
            if path.is_file()
        )


def alive(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; a zombie does not."""
    found = []
    for process in processes:
        try:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found
