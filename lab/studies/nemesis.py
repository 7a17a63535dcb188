"""Trials of the shipping roles against the nemesis: the promises that hold while faults come at random, and
in peace.

    seed -> NemesisPlan (swarm.sim.nemesis) -> World of real roles, with folders -> Trial: broken promises
    a trial that failed -> its shortest script

`swarm sim --nemesis SEED` runs one trial, `swarm bench nemesis -n 1000` many. The invariants are in PROMISES.
Not handled here: faults of processes, which the tests of real peers have.
"""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import msgspec

from peers.commands import sim
from peers.errors import WrongUsage
from peers.intake.group_log import PAUSE
from peers.runtime.host import Host
from swarm import events
from swarm.core.agreement.trained import made_by
from swarm.core.group_accounts import audit
from swarm.learn.learners.learning_rates import with_learning_rate
from swarm.protocol import Role
from swarm.sim import disks, nemesis
from swarm.sim.nemesis import PEACE, STORM, NemesisPlan
from swarm.sim.scenario import Fault
from swarm.sim.world import SimPeer, World
from swarm.types import Digest, Release, Verdict

LATE = 12.0
"""Last seconds of peace, in which everything has to be as if nothing had happened."""

END = STORM + PEACE
"""When the world ends, and with it all live peers."""

SLOWEST = 24.0
"""Last seconds in which there is a version at sites, and in which each learner averages with another one: a
sampler gives a group each 2 s, to one learner. Three learners at sites take two steps each of the rest of
these 3 s after their first one; of five with one sampler two at a time have groups."""

LEAST = 1
"""Versions in these seconds: two learners make a dozen."""

BEHIND = 5
"""Versions by which peers may differ at the end: each fetches when it can."""

LOOK = 2.0
"""Seconds between two looks at the tables of all peers."""

EVERYTHING = "**/*"
"""Pattern of a damage that may hit a learner's records of groups and steps, which no other peer has."""

LATER = PAUSE + 1.0
"""Seconds after which a disk that has room again has all refused records."""

TASKS = 120
"""Coroutines of a peer: its services, some fetches, and each group in delivery has one."""

PROMISES = {
    "ended": "no peer ends by itself, and no exception leaves one",
    "still": f"at least {LEAST} version in the last {LATE:g} s of peace, at sites {SLOWEST:g} s",
    "strength": f"learners average in the last {SLOWEST:g} s, all samplers' groups are taken in {LATE:g} s",
    "split": f"at the end all peers are within {BEHIND} versions, and those at one version have its bytes",
    "chain": f"in the last {LATE:g} s a version has one digest, and each was made from the one before",
    "lost": "each acknowledged group is trained, refused or held, but for one whose only copies were damaged",
    "doubled": "no group is trained twice, but for one of whose step the only records are damaged or gone",
    "growth": "no table grows beyond its bound",
}


@dataclass
class Trial:
    """What became of a plan."""

    plan: NemesisPlan
    failures: dict[str, str] = field(default_factory=dict)
    """Promise -> how it was broken first."""
    versions: int = 0
    next_version: float = float("inf")
    """Seconds from the last repair to the next version."""
    strength: float = float("inf")
    """Seconds from the last repair to the next round of all learners."""

    def fail(self, promise: str, how: str) -> None:
        self.failures.setdefault(promise, how)


def main(seed: int, journal: Path | None = None) -> int:
    """`swarm sim --nemesis SEED`: one trial, and its shortest script where it fails. Returns an exit code."""
    trial = try_plan(nemesis.plan(seed), journal)
    peers = ", ".join(f"{many} {role}" for role, many in trial.plan.peers.items())
    faults = ", ".join(f"{fault.fault} at {fault.at:g}" for fault in trial.plan.faults)
    print(f"seed {seed}: {peers}; {faults or 'no faults'}")
    print(f"{trial.versions} steps; the next version {trial.next_version:.1f} s after the last repair")
    return _tell(trial)


def many(count: int, first: int) -> int:
    """`swarm bench nemesis -n COUNT`: trials of the seeds from `first` on, and a table. Returns an exit
    code. Raises WrongUsage for less than one."""
    if count < 1:
        raise WrongUsage(f"-n {count}: there is nothing to try; give 1 or more")
    began, trials = time.monotonic(), list[Trial]()
    for seed in range(first, first + count):
        trials.append(try_plan(nemesis.plan(seed)))
        if trials[-1].failures:
            _tell(trials[-1])
        if not (seed + 1 - first) % 50:
            print(f"{seed + 1 - first} trials, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    for what, figure in _figures(trials):
        print(f"{what:52} {figure}")
    return int(any(trial.failures for trial in trials))


def _tell(trial: Trial) -> int:
    """Print what failed, and the shortest script that fails so. Returns an exit code."""
    for promise, how in trial.failures.items():
        print(f"BROKEN {promise} ({PROMISES[promise]}): {how}")
    if trial.failures:
        print(f"seed {trial.plan.seed} fails with\n{nemesis.text(shortest(trial))}", flush=True)
    return int(bool(trial.failures))


def _figures(trials: list[Trial]) -> list[tuple[str, str]]:
    broken = Counter(promise for trial in trials for promise in trial.failures)
    seconds = (STORM + PEACE) / 60
    return [
        ("trials, virtual minutes each, faults in all", f"{len(trials)}, {seconds:.1f}, {_faults(trials)}"),
        ("trials with a broken promise", str(sum(bool(trial.failures) for trial in trials))),
        *((f"  {promise}: {PROMISES[promise]}", str(count)) for promise, count in broken.items()),
        ("s from the last repair to a version, median, p99", _spread([one.next_version for one in trials])),
        ("s to a round of all learners, median, p99", _spread([one.strength for one in trials])),
    ]


def _faults(trials: list[Trial]) -> int:
    return sum(len(trial.plan.faults) for trial in trials)


def _spread(seconds: list[float]) -> str:
    """Median and 99th percentile."""
    ordered = sorted(seconds)
    middle, late = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99))
    return f"{middle:.1f}, {late:.1f}"


def try_plan(plan: NemesisPlan, journal: Path | None = None) -> Trial:
    """Simulate a plan and check the promises; all events go to `journal` where one is given."""
    import torch

    torch.set_num_threads(1)
    trial = Trial(plan)
    watch = _Watch(trial)
    with disks.temporary() as folders:
        try:
            World(nemesis.scenario(plan), watch.spawn, sinks=[watch], journal=journal, disks=folders).run()
        except Exception:
            trial.fail("ended", traceback.format_exc())
        else:
            watch.end()
    return trial


def shortest(trial: Trial) -> NemesisPlan:
    """The shortest script that breaks one of the same promises."""
    return nemesis.shrink(
        trial.plan, lambda plan: bool(trial.failures.keys() & try_plan(plan).failures.keys())
    )


@dataclass
class _Life:
    """A peer in one of its lives."""

    host: Host
    program: Any
    number: int


class _Watch:
    """A sink of all events, and all peers that are alive."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._last = SLOWEST if trial.plan.mode == "sites" else LATE
        self._lives: dict[str, _Life] = {}
        self._released: dict[int, dict[Digest, Digest]] = defaultdict(dict)
        """Version -> digest -> parent, of late releases."""
        self._admitted: set[str] = set()
        """Samplers with a group that was admitted late."""
        self._together: set[str] = set()
        """Learners that were in a round with another one, late."""
        self._late = 0
        self._told: list[events.Event] = []
        self._times: list[float] = []
        """When each of these was emitted: the clocks in them may be wrong."""
        self._look_at = 0.0
        self._held: dict[str, Release | None] = {}
        """Peer -> the best release that it held at the last look."""

    # --- peers ----------------------------------------------------------------------------------------------

    async def spawn(self, peer: SimPeer) -> None:
        run = with_learning_rate(peer.config.run, 0)[0]
        peer = replace(peer, config=msgspec.structs.replace(peer.config, run=run))
        try:
            await sim.run_peer(peer, sim.policy_parts(peer.config), self._role(peer))
            self._trial.fail("ended", f"{peer.name} ended by itself, without an exception")
        except Exception:
            self._trial.fail("ended", f"{peer.name}: {traceback.format_exc()}")
        finally:
            life, ended = self._lives.get(peer.name), asyncio.get_running_loop().time() >= END
            if life is not None and life.number == peer.life and not ended:  # else the world ends all
                del self._lives[peer.name]

    def _role(self, peer: SimPeer) -> Any:
        def role(host: Host, parts: sim.PolicyParts) -> Any:
            program = sim.role_of(host, parts, folder=peer.folder)
            self._lives[peer.name] = _Life(host, program, peer.life)
            return program

        return role

    def _alive(self, role: Role) -> list[str]:
        return [name for name, life in self._lives.items() if life.host.who.role is role]

    # --- while it runs --------------------------------------------------------------------------------------

    def __call__(self, event: events.Event) -> None:
        now = asyncio.get_running_loop().time()
        self._told.append(event)
        self._times.append(now)
        if now >= self._look_at:
            self._look_at = now + LOOK
            self._check_growth(now)
            self._held = {name: life.host.releases.held for name, life in self._lives.items()}
        match event:
            case events.Trained():
                self._trained(event, now - STORM)
            case events.Released() if now >= END - LATE:
                self._released[event.release.version][event.release.weights] = event.release.parent
            case events.Judged(verdict=Verdict.ADMIT) if now >= END - LATE:
                self._admitted.add(event.sampler)

    def _trained(self, event: events.Trained, since: float) -> None:
        trial = self._trial
        trial.versions += 1
        if since >= 0:
            trial.next_version = min(trial.next_version, since)
            if event.members == len(self._alive(Role.LEARNER)):
                trial.strength = min(trial.strength, since)
        if since >= PEACE - self._last:
            self._late += 1
        if since >= PEACE - SLOWEST and event.members > 1:
            self._together.add(event.peer)

    def _check_growth(self, now: float) -> None:
        for name, life in self._lives.items():
            for what, many, most in _tables(life):
                if many > most:
                    self._trial.fail("growth", f"{name} at {now:.1f} s: {many} {what}, at most {most}")
        tasks = len(asyncio.all_tasks())
        if tasks > TASKS * len(self._lives) + TASKS:
            self._trial.fail("growth", f"{tasks} coroutines of {len(self._lives)} peers at {now:.1f} s")

    # --- at the end -----------------------------------------------------------------------------------------

    def end(self) -> None:
        if self._alive(Role.LEARNER):  # a script may end them all, two at steps of their publications
            self._check_strength()
        self._check_split()
        self._check_chain()
        self._check_groups()

    def _check_groups(self) -> None:
        found = audit(cast(list[events.AnyEvent], self._told))
        if lost := [group for group in found.lost if not self._had_no_copy(group)]:
            how = f"{len(lost)} of {found.acknowledged} groups, such as {lost[0]}"
            self._trial.fail("lost", how)
        doubled = {
            group: its for group, its in found.doubled.items() if not self._had_no_record(group, its[0])
        }
        if doubled:
            group, versions = next(iter(doubled.items()))
            self._trial.fail("doubled", f"{len(doubled)} groups: {group} in versions {versions}")

    def _had_no_copy(self, group: str) -> bool:
        """Whether a group was on no disk that lasts: those of its learner and of its sampler were full when
        it was acknowledged, or its records were damaged since, or its sampler was gone for good."""
        return any(
            self._damaged(event.peer, at)
            or (
                self._was_full(event.peer, at)
                and (
                    self._was_full(event.sampler, at)
                    or self._damaged(event.sampler, at)
                    or event.sampler not in self._lives
                )
            )
            for at, event in zip(self._times, self._told, strict=True)
            if isinstance(event, events.Judged) and event.verdict is Verdict.ADMIT and event.group == group
        )

    def _had_no_record(self, short: str, first: int) -> bool:
        """Whether the step to version `first`, with a group, was on no disk that lasts: every member of it
        had a full disk, and a seed that had it in memory died since, or the records were damaged; or all are
        gone, and no learner that lives had a policy of that version before."""
        steps = [
            (at, event)
            for at, event in zip(self._times, self._told, strict=True)
            if isinstance(event, events.Stepped)
            and short in (*event.others, *(g[:16] for g in event.groups))
            and event.version == first
            and self._made_a_release(event)
        ]
        here = [(at, event) for at, event in steps if event.peer in self._lives]
        if not here:
            return not self._were_asked({event.peer for _, event in steps}, first)
        return all(
            self._damaged(event.peer, at) or (self._was_full(event.peer, at) and self._seed_died(at))
            for at, event in here
        )

    def _were_asked(self, gone: set[str], version: int) -> bool:
        """Whether a learner that lives loaded a policy of `version`, or a later one, while some of these
        were there: it asks them for the groups in it."""
        last = max(at for at, event in zip(self._times, self._told, strict=True) if event.peer in gone)
        return any(
            event.peer in self._lives
            for at, event in zip(self._times, self._told, strict=True)
            if isinstance(event, events.Moved) and event.version >= version and at <= last
        )

    def _made_a_release(self, step: events.Stepped) -> bool:
        point = step.version, len(step.groups) + len(step.others)
        releases = (event.release for event in self._told if isinstance(event, events.Released))
        return any(
            point == (release.version, release.groups) and made_by(step.members, step.parent, release)
            for release in releases
        )

    def _was_full(self, peer: str, at: float) -> bool:
        full = (fault for fault in self._of(peer) if fault.fault == "full")
        return any(fault.at <= at <= fault.at + fault.seconds + LATER for fault in full)

    def _damaged(self, peer: str, since: float) -> bool:
        faults = (fault for fault in self._of(peer) if fault.fault == "damage" and fault.at > since)
        return any(fault.file == EVERYTHING for fault in faults)

    def _seed_died(self, since: float) -> bool:
        """Or was away then."""
        seeds = (fault for fault in self._trial.plan.faults if fault.peer.startswith(Role.SEED))
        return any(fault.fault in ("bounce", "crash") and fault.at + fault.down > since for fault in seeds)

    def _of(self, peer: str) -> Iterator[Fault]:
        return (fault for fault in self._trial.plan.faults if fault.peer == peer)

    def _check_strength(self) -> None:
        if self._late < LEAST:
            return self._trial.fail("still", f"{self._late} versions in the last {self._last:g} s")
        learners, samplers = self._alive(Role.LEARNER), self._alive(Role.SAMPLER)
        if len(learners) > 1 and (alone := {*learners} - self._together):
            self._trial.fail("strength", f"{', '.join(sorted(alone))} averaged with no other learner")
        if silent := set(samplers) - self._admitted:
            self._trial.fail("strength", f"no group of {', '.join(sorted(silent))} was admitted")

    def _check_split(self) -> None:
        held, skipping = self._held, self._alive(Role.EVALUATOR)
        for name, release in held.items():
            if release is None and name not in skipping:
                self._trial.fail("split", f"{name} has no release")
        have = {name: release for name, release in held.items() if release is not None}
        top = max((release.version for release in have.values()), default=0)
        late = sorted(
            name for name, release in have.items() if release.version < top - BEHIND and name not in skipping
        )
        if late:
            versions = {name: release.version for name, release in have.items()}
            self._trial.fail("split", f"{', '.join(late)} are far behind: {versions}")
        by_version: dict[int, set[Digest]] = defaultdict(set)
        for release in have.values():
            by_version[release.version].add(release.weights)
        for version, digests in by_version.items():
            if len(digests) > 1:
                self._trial.fail("split", f"version {version} has {len(digests)} digests: {have}")

    def _check_chain(self) -> None:
        for version, parents in sorted(self._released.items()):
            before = self._released.get(version - 1)
            if len(parents) > 1:
                self._trial.fail("chain", f"version {version} was released with {len(parents)} digests")
            elif before is not None and not set(parents.values()) <= set(before):
                self._trial.fail("chain", f"version {version} was not made from version {version - 1}")


def _tables(life: _Life) -> list[tuple[str, int, int]]:
    """(what, how many there are, how many there may be)."""
    blobs, keep = life.host.releases.blobs, life.host.config.run.release.keep
    found = [
        ("whole versions", len(blobs._whole), 2 * keep + 2),
        ("versions begun", len(blobs._begun), keep + 2),
        ("fetches that others may join", len(blobs._fetches), 4),
    ]
    if (inbox := getattr(life.program, "inbox", None)) is not None:
        waiting = len(inbox.batcher) + inbox.batcher.scoring.total() + len(life.program._batch)
        groups = life.host.config.run.batch.groups
        found.append(("tasks remembered", len(inbox._tasks), waiting + 2 * groups))
        found.append(("groups waiting", len(inbox.batcher), 8 * groups))
    return found
