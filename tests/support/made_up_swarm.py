"""A small swarm whose events a test bends: two learners, three samplers, an evaluator, and the seed whose
window it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from dashboard_story import EVALUATOR, LEARNERS, SAMPLERS, SEED, digest

from dashboard.diagnosis import diagnose, follow
from dashboard.fold.state import SwarmState
from dashboard.views import Problem
from swarm import events as happened
from swarm.membership.identity import human_name
from swarm.protocol import PHASES, ROLES, Phase, Role, Topic
from swarm.settings.config import Pace, Run
from swarm.types import Beat, Fetching, Lag, PeerId, Release

START = 1_750_000_000.0
METRICS = {
    "reward": 0.5,
    "kl": 0.01,
    "ess": 0.9,
    "zero": 0.05,
    "flat": 0.3,
    "grad_norm": 0.4,
    "lag_versions": 3.0,
}
DOING = {
    Role.LEARNER: Phase.LEARNING,
    Role.SAMPLER: Phase.SAMPLING,
    Role.EVALUATOR: Phase.NO_RELEASE,
    Role.AUDITOR: Phase.AUDITING,
    Role.SEED: Phase.SERVING,
}
DOING[Role.OBSERVER] = Phase.STARTING


class Swarm:
    """`run` makes a version each `every` seconds and a heartbeat of every peer at the run's pace; the fields
    are what is bent."""

    def __init__(self, pace: Pace | None = None, every: float = 0.5) -> None:
        self.state = SwarmState(Run(pace=pace or Pace(beat=1.0, patience=5.0)))
        self.beat, self.every, self.now, self.version = self.state.run.pace.beat, every, START, 0
        self.roles = dict.fromkeys(LEARNERS, Role.LEARNER) | dict.fromkeys(SAMPLERS, Role.SAMPLER)
        self.roles |= {EVALUATOR: Role.EVALUATOR, SEED: Role.SEED}
        self.dead: set[PeerId] = set()
        self.behind: dict[PeerId, int] = {}
        self.phases: dict[PeerId, Phase] = {}
        self.judged = 0.3, 256
        """The evaluator's last accuracy, and the number of its tasks."""
        self.skews: dict[PeerId, float] = {}
        self.verdict: dict[PeerId, str] = {}
        self.lag: dict[PeerId, Lag] = {}
        self.fetching: dict[PeerId, Fetching] = {}
        self.idle: set[PeerId] = set()
        """Those that have done nothing yet."""
        self.metrics = dict(METRICS)
        self.busy, self.gather = 0.7, 0.2
        """Share of their time in which peers compute, and seconds in which a learner waits for a batch."""
        self.training, self.apart, self.snapping, self.breaking, self.listening = (
            True,
            False,
            False,
            False,
            True,
        )
        self.off = 0.0
        """Seconds that its publisher adds to the time of each release."""
        self.far: set[PeerId] = set()
        """Learners whose gradients are scaled down."""
        self.share = 0.001
        """What is left of them."""
        self.lives: Counter[PeerId] = Counter()
        """How often each was started again."""
        self.strangers: set[PeerId] = set()
        """Samplers that nobody invited and of which no group was admitted."""
        self.window = SEED
        """Whose journal is looked at."""
        self._seq, self._done, self._next_version, self._next_beat = 0, 0, START + every, START
        self._stuck: dict[PeerId, int] = {}
        self._frozen: dict[PeerId, int] = {}
        self.slower: dict[PeerId, float] = {}
        """How many times as long as the run's pace these say they wait between heartbeats."""
        self.held: int | None = None
        """The version at which all samplers stay."""
        self._release(0)

    def emit(self, what: type[happened.Event], peer: PeerId, **fields: object) -> None:
        follow(self.state, what(at=self.now, peer=peer, **fields))  # type: ignore[arg-type]

    def problems(self) -> dict[str, Problem]:
        return {problem.key: problem for problem in diagnose(self.state, self.now)}

    def run(self, seconds: float, look: Callable[[dict[str, Problem]], bool] | None = None) -> float | None:
        """Go on for so long, or until `look` is content with the problems: then the seconds that it took."""
        start = self.now
        while self.now < start + seconds:
            self.now += min(self.every, self.beat) / 2
            while self.now >= self._next_version:
                self._next_version += self.every
                if self.training:
                    self._step()
            while self.now >= self._next_beat:
                self._next_beat += self.beat
                if self.listening:
                    self._beats()
            if look is not None and look(self.problems()):
                return self.now - start
        return None

    def _beats(self) -> None:
        self._seq += 1
        for peer, role in self.roles.items():
            if peer in self.dead or not self._is_heard(peer, role):
                continue
            phase, learner = self.phases.get(peer, DOING[role]), role is Role.LEARNER
            self._done += phase is not Phase.NO_CREDIT
            done = self._stuck.setdefault(peer, self._done) if peer in self.phases else self._done
            if peer not in self.phases:
                self._stuck.pop(peer, None)
            beat = Beat(
                name=human_name(peer),
                role=role,
                incarnation=1 + self.lives[peer],
                seq=self._seq,
                state=PHASES[phase],
                phase=phase,
                credit=16 if learner else 0,
                version=self._version_of(peer),
                weights=digest(self.version),
                takers=3,
                inbox=0,
                done=0 if peer in self.idle else done,
                refused=0,
                rate=4.0,
                tokens=900.0,
                busy=self.busy,
                lag=self.lag.get(peer, Lag(generation=0.4, download=0.1)),
                addresses=(),
                hardware="2 cores",
                at=self.now + self.skews.get(peer, 0.0),
                fetching=self.fetching.get(peer),
                slower=self.slower.get(peer, 1.0),
                accuracy=self.judged[0] if role is Role.EVALUATOR else -1.0,
                judged=self.judged[1] if role is Role.EVALUATOR else 0,
            )
            invited = peer not in self.strangers
            self.emit(happened.Heard, self.window, subject=peer, beat=beat, invited=invited)

    def _is_heard(self, peer: PeerId, role: Role) -> bool:
        row = ROLES[self.roles.get(self.window, Role.SEED)]
        return row.observes or peer == self.window or ROLES[role].heartbeat is Topic.BEAT

    def _version_of(self, peer: PeerId) -> int:
        if peer in self.phases and peer != SEED:
            return self._frozen.setdefault(peer, self.version)
        self._frozen.pop(peer, None)
        if self.held is not None and peer in SAMPLERS:
            return self.held
        return max(self.version - self.behind.get(peer, 0), 0)

    def leave(self, peer: PeerId) -> None:
        self.emit(happened.Left, peer, name=human_name(peer), reason="asked to stop")
        self.dead.add(peer)

    def _step(self) -> None:
        here = [learner for learner in LEARNERS if learner not in self.dead and learner not in self.phases]
        if not here:
            return
        for learner in here:
            members = (learner,) if self.apart else tuple(here)
            if len(members) > 1 and not self.breaking:
                self.emit(
                    happened.Averaged,
                    learner,
                    version=self.version,
                    members=members,
                    seconds=0.1,
                    scaled=dict.fromkeys(self.far, self.share),
                )
            if self.breaking:
                self.emit(
                    happened.RoundBroke,
                    learner,
                    version=self.version,
                    reason="a member sent no part within 5 s",
                )
            if self.snapping:
                self.emit(happened.Snapped, learner, version=self.version, mine=digest(1), theirs=digest(2))
            counts = {
                str(sampler): {self.verdict.get(sampler, "admit"): 4}
                for sampler in SAMPLERS
                if sampler not in self.dead
            }
            self.emit(
                happened.Counted,
                learner,
                verdicts={"admit": 12},
                versions={"3": 12},
                seconds={"2": 12},
                samplers=counts,
            )
            self.emit(
                happened.Trained,
                learner,
                version=self.version + 1,
                groups=12,
                members=len(members),
                metrics=self.metrics,
                gather=self.gather,
                learn=0.1,
                average=0.1,
                step=0.1,
            )
        self._release(self.version + 1)

    def _release(self, version: int) -> None:
        self.version = version
        release = Release(
            version=version,
            weights=digest(version),
            size=200_000,
            parent=digest(version - 1),
            publisher=LEARNERS[0] if version else SEED,
            learners=2,
            groups=24,
            released=self.now + self.off,
        )
        self.emit(happened.Released, SEED, release=release)
        for sampler in SAMPLERS if version and self.held is None else ():
            if not any(sampler in bent for bent in (self.dead, self.behind, self.phases)):
                self.emit(
                    happened.Adopted,
                    sampler,
                    version=version,
                    weights=release.weights,
                    fetch=0.1,
                    load=0.1,
                    age=0.2,
                )
