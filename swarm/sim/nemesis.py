"""The nemesis: from a seed a small swarm and faults at random, then peace; of a failure the shortest script.

    seed --plan--> NemesisPlan (peers, faults) --scenario--> Scenario: STORM seconds of faults, repair, PEACE
    a NemesisPlan that fails --shrink--> as few faults and peers as still fail --text--> Python for a test

The same seed gives the same plan. Peers that are killed come back with their folder, with a damaged one, or
not at all while a newcomer without a folder comes; the seed keeps its folder, so that releases stay
available. Not handled here: the invariants (lab.studies.nemesis).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import msgspec

from swarm.protocol import Role
from swarm.settings.config import (
    Averaging,
    BatchSize,
    DelayLaw,
    Evaluation,
    Optimizer,
    Pace,
    Releasing,
    Run,
    Sampling,
    TaskSettings,
    Window,
)
from swarm.settings.sections import Section
from swarm.sim.scenario import DAMAGES, STEPS, Fault, Scenario

CALM = 6.0
"""Seconds before the first fault: some versions exist by then."""

STORM = 30.0
"""Second by which all is repaired. Within these seconds every peer is lost and found several times."""

PEACE = 32.0
"""Seconds after the last repair. A release without a holder costs `PATIENCE` and the pause until the next
try, a lost peer `PATIENCE`: a run without progress after as many seconds stands still."""

PATIENCE = 4.0

MOST_FAULTS = 10

HALVES = 0.3
"""Share of the plans in which two parts train on, and other faults are about when they meet again."""

SKEWS = (-3600.0, -70.0, -5.0, 5.0, 70.0, 3600.0)
"""Seconds that a clock is wrong: a bad battery, no time server, a wrong time zone."""

FILES = ("checkpoint/*", "blobs/*", "blobs/patches/*", "releases/*", "**/*")
"""Files of a peer's folder that are damaged."""

ALL = (("*",), ("*",))

SEED, LEARNER, SAMPLER, EVALUATOR = (
    role.value for role in (Role.SEED, Role.LEARNER, Role.SAMPLER, Role.EVALUATOR)
)


class NemesisPlan(Section, frozen=True):
    """The peers, and the faults of each."""

    seed: int
    peers: dict[str, int]
    faults: tuple[Fault, ...] = ()
    mode: str = ""
    """`overlap` or `sites`: how learners average, where that is not the default."""


def plan(seed: int) -> NemesisPlan:
    """The plan of a seed."""
    return _Planner(seed).plan()


def scenario(of: NemesisPlan) -> Scenario:
    """As it is simulated: the faults, their repair, and peace."""
    clocks = sorted({fault.peer for fault in of.faults if fault.fault == "clock"})
    repairs = [Fault(at=STORM, fault=fault, between=ALL) for fault in ("repair", "release")]
    repairs += [Fault(at=STORM, fault="clock", peer=peer) for peer in clocks]
    return Scenario(
        name="nemesis",
        hours=(STORM + PEACE) / 3600,
        peers=of.peers,
        seed=of.seed,
        prices={
            "sample": DelayLaw(law="lognormal", seconds=2.0, shape=0.3),
            "learn": DelayLaw(law="constant", seconds=0.3),
            "pack": DelayLaw(law="constant", seconds=0.1),
            "patch": DelayLaw(law="constant", seconds=0.05),
            "load": DelayLaw(law="constant", seconds=0.05),
        },
        run=Run(
            name="nemesis",
            task=TaskSettings(name="toy"),
            sampling=Sampling(group_size=2, max_tokens=4),
            optimizer=Optimizer(lr=0.1),
            batch=BatchSize(groups=4, close_after=3.0),
            window=Window(seconds=120.0),
            averaging=Averaging(
                mode="sites" if of.mode == "sites" else "butterfly",
                overlap=of.mode == "overlap",
                local_steps=2,
                match=1.0,
                request=0.5,
                deadline=4.0,
                chunk=2.0,
            ),
            release=Releasing(timeout=2.0, checkpoint_every=2),
            evaluation=Evaluation(tasks=4, every=20),
            pace=Pace(beat=1.0, patience=PATIENCE),
        ),
        faults=(*of.faults, *repairs),
    )


class _Planner:
    def __init__(self, seed: int) -> None:
        self._seed, self._rng = seed, Random(f"nemesis/{seed}")
        rng = self._rng
        learners, samplers = rng.choice((1, 2, 2, 3)), rng.randint(1, 3)
        self._peers = {SEED: 1, LEARNER: learners, SAMPLER: samplers}
        if rng.random() < 0.2:
            self._peers[EVALUATOR] = 1
        self._mode = rng.choice(("", "", "", "overlap", "sites"))
        self._names = [f"{role}-{k}" for role, count in self._peers.items() for k in range(count)]
        self._faults: list[Fault] = []
        self._kinds: dict[Callable[[float], None], int] = {
            self._bounce: 4,
            self._die_publishing: 4,
            self._announce_in_vain: 2,
            self._replace: 1,
            self._damage: 3,
            self._all_bounce: 2,
            self._machine: 2,
            self._cut: 3,
            self._oneway: 2,
            self._flap: 2,
            self._hold: 2,
            self._slow: 1,
            self._busy: 1,
            self._full: 2,
            self._clock: 2,
            self._newcomer: 1,
        }

    def plan(self) -> NemesisPlan:
        rng = self._rng
        self._some(rng.randint(1, MOST_FAULTS), CALM, STORM - 5.0)
        if rng.random() < HALVES:
            self._faults.clear()
            whole = self._halves()
            self._some(rng.randint(0, 3), whole - 3.0, min(whole + 3.0, STORM - 5.0))
        faults = tuple(sorted(self._faults, key=lambda fault: fault.at))
        return NemesisPlan(self._seed, self._peers, faults, self._mode)

    def _some(self, many: int, first: float, last: float) -> None:
        """So many faults within these seconds."""
        for _ in range(many):
            (kind,) = self._rng.choices([*self._kinds], [*self._kinds.values()])
            kind(round(self._rng.uniform(first, last), 1))

    def _add(self, at: float, fault: str, **more: object) -> None:
        self._faults.append(msgspec.convert({"at": round(at, 1), "fault": fault, **more}, Fault))

    def _for(self, at: float, longest: float) -> float:
        """Seconds of a fault, which ends before peace."""
        return round(min(self._rng.uniform(0.3, longest), STORM - at), 1)

    def _any(self, role: str = "") -> str:
        return self._rng.choice([name for name in self._names if name.startswith(role)])

    # --- of a peer ------------------------------------------------------------------------------------------

    def _bounce(self, at: float) -> None:
        self._add(at, "bounce", peer=self._any(), down=self._for(at, 15.0))

    def _die_publishing(self, at: float) -> None:
        """Back soon, or a newcomer takes its place: then no other peer has what only it had."""
        peer, step, down = self._any(LEARNER), self._rng.choice(STEPS), self._rng.choice((0.5, 3.0, 8.0))
        if self._rng.random() < 0.6:
            return self._add(at - 5.0, "bounce", peer=peer, down=down, step=step)
        self._add(at - 5.0, "crash", peer=peer, step=step)
        self._host(at, LEARNER)
        return None

    def _announce_in_vain(self, at: float) -> None:
        """A learner that cannot be called ends for good when it has announced a release: all peers learn of
        one without a holder, and a lone learner continues from its own."""
        learners = [name for name in self._names if name.startswith(LEARNER)]
        if len(learners) < 2:
            return
        peer = self._rng.choice(learners)
        self._names.remove(peer)
        others = tuple(sorted(self._names))
        self._add(at - 5.0, "oneway", between=(others, (peer,)))
        self._add(at - 5.0 + self._for(at, 4.0), "crash", peer=peer, step="announced")

    def _replace(self, at: float) -> None:
        old = self._any(self._rng.choice((LEARNER, SAMPLER)))
        self._add(at, "crash", peer=old)
        self._names.remove(old)
        self._host(at + self._for(at, 5.0), old.rsplit("-", 1)[0])

    def _newcomer(self, at: float) -> None:
        self._host(at, self._rng.choice((LEARNER, SAMPLER, EVALUATOR)))

    def _host(self, at: float, role: str) -> None:
        number = self._peers.get(role, 0)
        self._peers[role] = number + 1
        self._names.append(f"{role}-{number}")
        self._add(at, "host", peer=f"{role}-{number}")

    def _damage(self, at: float) -> None:
        peer, down = self._any(), max(1.0, self._for(at, 6.0))
        self._add(at, "bounce", peer=peer, down=down)
        self._add(at + 0.5, "damage", peer=peer, file=self._rng.choice(FILES), how=self._rng.choice(DAMAGES))

    def _all_bounce(self, at: float) -> None:
        for name in self._names:
            self._add(at, "bounce", peer=name, down=self._for(at, 8.0))

    def _machine(self, at: float) -> None:
        """A machine with one disk restarts, with all learners and some others on it. The disk may be full
        before that, and after."""
        here = [name for name in self._names if name.startswith(LEARNER) or self._rng.random() < 0.5]
        down = max(0.5, self._for(at, 6.0))
        if self._rng.random() < 0.6:
            since, full = self._rng.uniform(0.5, 6.0), self._rng.uniform(0.3, 10.0)
            for name in here:
                self._add(at - since, "full", peer=name, seconds=round(min(full, STORM - at + since), 1))
        for name in here:
            self._add(at, "bounce", peer=name, down=down)

    def _busy(self, at: float) -> None:
        self._add(at, "busy", peer=self._any(LEARNER), seconds=self._for(at, 8.0))

    def _full(self, at: float) -> None:
        self._add(at, "full", peer=self._any(), seconds=self._for(at, 15.0))

    def _clock(self, at: float) -> None:
        peer = self._any()
        self._add(at, "clock", peer=peer, seconds=self._rng.choice(SKEWS))
        self._add(at + self._for(at, 20.0), "clock", peer=peer)

    # --- between peers --------------------------------------------------------------------------------------

    def _sides(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """One peer and the others, or two parts."""
        names = self._rng.sample(self._names, len(self._names))
        cut = self._rng.choice((1, self._rng.randint(1, len(names) - 1)))
        return tuple(sorted(names[:cut])), tuple(sorted(names[cut:]))

    def _between(self, at: float, fault: str, end: str, longest: float, **more: object) -> None:
        sides = self._sides()
        self._add(at, fault, between=sides, **more)
        self._add(at + self._for(at, longest), end, between=sides)

    def _cut(self, at: float) -> None:
        self._between(at, "partition", "repair", 15.0)

    def _halves(self) -> float:
        """Two parts that both train on, for some versions. Returns when they meet again."""
        for role in (LEARNER, SAMPLER):
            while self._peers[role] < 2:
                self._names.append(f"{role}-{self._peers[role]}")
                self._peers[role] += 1
        odd = {name for name in self._names if int(name.rsplit("-", 1)[1]) % 2}
        sides = (tuple(sorted(odd)), tuple(sorted({*self._names} - odd)))
        at = self._rng.uniform(CALM, 2 * CALM)
        whole = round(at + self._rng.uniform(8.0, 14.0), 1)
        self._add(at, "partition", between=sides)
        self._add(whole, "repair", between=sides)
        return whole

    def _oneway(self, at: float) -> None:
        self._between(at, "oneway", "repair", 12.0)

    def _hold(self, at: float) -> None:
        self._between(at, "hold", "release", 12.0)

    def _slow(self, at: float) -> None:
        self._between(at, "slow", "repair", 15.0, seconds=round(self._rng.uniform(0.1, 1.5), 1))

    def _flap(self, at: float) -> None:
        sides = self._sides()
        for k in range(4):
            self._add(min(at + 2 * k, STORM), "partition", between=sides)
            self._add(min(at + 2 * k + 1, STORM), "repair", between=sides)


# --- the shortest script ------------------------------------------------------------------------------------


def shrink(of: NemesisPlan, fails: Callable[[NemesisPlan], bool]) -> NemesisPlan:
    """The plan, which fails, with as few faults and peers as still fail: first without halves of the faults,
    then without each, then without peers that nothing happens to."""
    size = max(1, len(of.faults) // 2)
    while True:
        of, less = _without(of, size, fails)
        if size == 1 and not less:
            break
        size = max(1, size // 2)
    for role in (EVALUATOR, SAMPLER, LEARNER):
        while (fewer := _with_fewer(of, role)) is not None and fails(fewer):
            of = fewer
    return of


def _without(of: NemesisPlan, size: int, fails: Callable[[NemesisPlan], bool]) -> tuple[NemesisPlan, bool]:
    """Without each `size` faults in turn; whether any were left out."""
    start, less = 0, False
    while start < len(of.faults):
        shorter = _with_faults(of, (*of.faults[:start], *of.faults[start + size :]))
        if fails(shorter):
            of, less = shorter, True
        else:
            start += size
    return of, less


def _with_faults(of: NemesisPlan, faults: Sequence[Fault]) -> NemesisPlan:
    return msgspec.structs.replace(of, faults=tuple(faults))


def _with_fewer(of: NemesisPlan, role: str) -> NemesisPlan | None:
    """Without the last peer of a role; None where something happens to it by name, or it is needed."""
    count = of.peers.get(role, 0)
    last, least = f"{role}-{count - 1}", 0 if role == EVALUATOR else 1
    named = {name for fault in of.faults for name in (fault.peer, *fault.between[0], *fault.between[1])}
    if count <= least or last in named:
        return None
    return msgspec.structs.replace(of, peers=of.peers | {role: count - 1})


def text(of: NemesisPlan) -> str:
    """As Python, for a test."""
    faults = "".join(f"\n        {_call(fault)}," for fault in of.faults)
    mode = f"    mode={of.mode!r},\n" if of.mode else ""
    return (
        f"NemesisPlan(\n    seed={of.seed},\n    peers={of.peers!r},\n{mode}    faults=({faults}\n    ),\n)"
    )


def _call(fault: Fault) -> str:
    """A Fault without its default values."""
    plain = Fault(at=0.0, fault="")
    values = {name: getattr(fault, name) for name in Fault.__struct_fields__}
    said = [f"{name}={value!r}" for name, value in values.items() if value != getattr(plain, name)]
    return f"Fault({', '.join(said)})"
