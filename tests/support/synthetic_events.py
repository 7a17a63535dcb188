"""Generates the events of a synthetic swarm of any size, as a seed's bus sees them,
for tests of the dashboard.

    swarm_events(peers, seconds, start)
        -> Started, Heard, Moved, Averaged, Trained, Counted, Shown, Released, Adopted, Evaluated, ...

A schedule of actions simulates a few learners, one evaluator, one seed, and samplers with different speed,
distance and hardware; nothing is computed. Events are consistent as in a real run: a sampler uses the newest
release that has had time to reach it, its groups' lag and verdicts follow from that, and a round passes
through its phases before it releases. The same arguments give the same events, ordered by time, so that a run
can be folded at once or played live. A Fault breaks the swarm in a known way from a known moment on. Not
handled here: clock errors and network messages.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import Literal, NamedTuple

import synthetic_swarm
from synthetic_swarm import HOSTILE, ROUND, SIZE, Member

from swarm import events as happened
from swarm.core.agreement.rounds import Cause
from swarm.protocol import Phase, Role
from swarm.types import Link, PeerId, Verdict

BEAT = 2.0
PATIENCE = 10.0
"""Heartbeats and silence as in the run's defaults (swarm.settings.config.Pace)."""

WINDOW = 64
"""Admission window in versions, the run's default."""

LEDGER = 5 * BEAT
"""Seconds between two Transferred of a peer (peers.runtime.traffic)."""

BEHIND = 200
"""Versions that the fault `stale` holds a sampler back."""

STRANGERS = 20
GROUP = 2_500
"""Bytes of a sealed group in the demo."""

Events = Iterator[happened.AnyEvent]
Action = Callable[[float], Events]


class Fault(NamedTuple):
    kind: Literal["learner", "stale", "hostile"]
    """The last learner falls silent; the first sampler uses a version 200 behind; strangers with hostile
    names come."""
    at: float
    """Unix seconds."""
    until: float = math.inf


def swarm_events(
    peers: int, seconds: float, start: float, seed: int = 0, fault: Fault | None = None
) -> Events:
    """The events of `seconds` (they may be infinite) from `start` on, in the order of their time."""
    return _Play(peers, start, seed, fault).run(start + seconds)


class _Play:
    def __init__(self, peers: int, start: float, seed: int, fault: Fault | None) -> None:
        self.rng, self.fault = random.Random(seed), fault
        self.version, self.released = 0, {0: start}
        self._queue: list[tuple[float, int, Action]] = []
        self._order = count()
        learners = max(1, min(4, peers // 4))
        self.seed, self.evaluator = (
            synthetic_swarm.enlist(self.rng, role, start) for role in (Role.SEED, Role.EVALUATOR)
        )
        self.learners = [synthetic_swarm.enlist(self.rng, Role.LEARNER, start) for _ in range(learners)]
        self.samplers = {
            (one := synthetic_swarm.enlist(self.rng, Role.SAMPLER, start)).id: one
            for _ in range(max(1, peers - 2 - learners))
        }
        self.victims = {"learner": self.learners[-1], "stale": next(iter(self.samplers.values()))}
        self.batch = max(4, min(32, int(1.5 * len(self.samplers))))
        for member in (self.seed, self.evaluator, *self.learners, *self.samplers.values()):
            self._enter(member, start + self.rng.random() * min(BEAT, 0.01 * peers))
        self.at(start + 1.0, self._release_first)
        self.at(start + 40.0, self._churn)
        if fault is not None and fault.kind == "hostile":
            self.at(fault.at, self._strangers)
        if fault is not None and fault.kind == "learner":
            self.at(fault.at + PATIENCE, self._lost)

    def run(self, end: float) -> Events:
        while self._queue and self._queue[0][0] < end:
            at, _, action = heapq.heappop(self._queue)
            yield from action(at)

    def at(self, when: float, action: Action) -> None:
        heapq.heappush(self._queue, (when, next(self._order), action))

    def say(self, when: float, make: Callable[[float], happened.AnyEvent]) -> None:
        """One event at a later moment."""
        self.at(when, lambda at: iter((make(at),)))

    # --- who is there ---------------------------------------------------------------------------------------

    def _enter(self, member: Member, at: float) -> None:
        self.at(at, lambda at: self._started(member, at))
        self.at(at + self.rng.random() * BEAT, lambda at: self._beat(member, at))
        self.at(at + self.rng.random() * LEDGER + 1.0, lambda at: self._account(member, at))
        if member.role is Role.SAMPLER:
            self.at(at + 1.0 + member.pause * self.rng.random(), lambda at: self._sample(member, at))

    def _started(self, member: Member, at: float) -> Events:
        yield happened.Started(
            at=at,
            peer=member.id,
            name=member.name,
            role=member.role,
            version=member.version,
            hardware=member.hardware,
        )

    def _suffers(self, member: Member, kind: str, at: float) -> bool:
        fault = self.fault
        return (
            fault is not None
            and fault.kind == kind
            and fault.at <= at < fault.until
            and member is self.victims[kind]
        )

    def _working(self, at: float) -> list[Member]:
        return [learner for learner in self.learners if not self._suffers(learner, "learner", at)]

    def _uses(self, member: Member, at: float) -> int:
        return max(self.version - BEHIND, 0) if self._suffers(member, "stale", at) else member.version

    def _churn(self, at: float) -> Events:
        """Now and then a sampler leaves and another one comes."""
        self.at(at + self.rng.uniform(30.0, 90.0), self._churn)
        if len(self.samplers) > 3:
            gone = self.samplers.pop(self.rng.choice(list(self.samplers)[1:]))
            gone.here = False
            yield happened.Left(at=at, peer=gone.id, name=gone.name, reason="a signal")
            newcomer = synthetic_swarm.enlist(self.rng, Role.SAMPLER, at)
            newcomer.version = self.version
            self.samplers[newcomer.id] = newcomer
            self._enter(newcomer, at + 4.0)
        if (learners := self._working(at)) and self.rng.random() < 0.2:
            mine, theirs = synthetic_swarm.digest(self.version + 1), synthetic_swarm.digest(self.version)
            victim = self.rng.choice(learners)
            yield happened.Snapped(at=at, peer=victim.id, version=self.version, mine=mine, theirs=theirs)

    def _strangers(self, at: float) -> Events:
        for number in range(STRANGERS):
            stranger = synthetic_swarm.enlist(self.rng, Role.SAMPLER, at, HOSTILE[number % len(HOSTILE)])
            self.samplers[stranger.id] = stranger
            self._enter(stranger, at + 0.1 * number)
        return iter(())

    def _lost(self, at: float) -> Events:
        yield happened.Lost(at=at, peer=self.seed.id, subject=self.victims["learner"].id, silent=PATIENCE)

    # --- heartbeats and bytes -------------------------------------------------------------------------------

    def _beat(self, member: Member, at: float) -> Events:
        if not member.here:
            return
        self.at(at + BEAT * self.rng.uniform(1.0, 1.25), lambda at: self._beat(member, at))
        if not self._suffers(member, "learner", at):
            member.seq += 1
            beat = synthetic_swarm.beat(self.rng, member, self._uses(member, at), self.version, at)
            yield happened.Heard(at=at, peer=self.seed.id, subject=member.id, beat=beat)

    def _account(self, member: Member, at: float) -> Events:
        """What it received since the last time, and from whom."""
        if not member.here:
            return
        self.at(at + LEDGER, lambda at: self._account(member, at))
        if self._suffers(member, "learner", at):
            return
        links = self._links(member, at)
        received = sum(
            (Counter(link.received) for link in links.values()), Counter(gossip=700 * len(self.samplers))
        )
        sent = {"gossip": 9_000, "rollouts": GROUP * member.groups}
        yield happened.Transferred(
            at=at, peer=member.id, seconds=LEDGER, sent=sent, received=dict(received), links=links
        )

    def _links(self, member: Member, at: float) -> dict[PeerId, Link]:
        links: dict[PeerId, Link] = {}
        mates = [one for one in self._working(at) if one is not member]
        if member.role is Role.LEARNER:
            for sampler, groups in member.taken.most_common(12):
                source = self.samplers.get(sampler, member)  # type: ignore[call-overload]
                rollouts = {"rollouts": groups * GROUP}
                links[PeerId(sampler)] = Link(
                    received=rollouts, rtt=source.distance / 2, relayed=source.relayed
                )
            for mate in mates:
                links[mate.id] = Link(
                    received={"gradients": int(LEDGER / ROUND) * SIZE, "weights": SIZE}, rtt=0.012
                )
            member.taken.clear()
        elif member.role is not Role.SEED:
            source = self.rng.choice([*mates, self.seed])
            received = {"weights": max(1, int(LEDGER / max(member.pause, ROUND))) * SIZE}
            links[source.id] = Link(received=received, rtt=member.distance / 2, relayed=member.relayed)
        return links

    # --- rounds ---------------------------------------------------------------------------------------------

    def _release_first(self, at: float) -> Events:
        self.released[0] = at
        yield happened.Released(
            at=at, peer=self.seed.id, release=synthetic_swarm.release(0, self.learners[0].id, 0, 0, at)
        )
        yield happened.Evaluated(
            at=at, peer=self.evaluator.id, version=0, accuracy=synthetic_swarm.learnt(0), tasks=256
        )
        self.at(at + 0.5, self._round)

    def _round(self, at: float) -> Events:
        """Plan one round: phases, average, step, release; the next one begins when it is over."""
        learners, version = self._working(at), self.version + 1
        length = ROUND * self.rng.uniform(0.85, 1.3)
        self.at(at + length, self._round)
        if not learners:
            return iter(())
        for learner in learners:
            begin = at + 0.03 * self.rng.random()
            for share, phase, cause in (
                (0.0, Phase.GATHERING, Cause.STEPPED),
                (0.4, Phase.LEARNING, Cause.BATCH_READY),
                (0.65, Phase.MATCHING, Cause.GRADIENT_READY),
                (0.85, Phase.STEPPING, Cause.AVERAGED),
            ):
                self._move(learner, begin + share * length, version - 1, phase, cause)
        if self.rng.random() < 0.004:
            reason = "a member sent no part within 5 s"
            broke = self.rng.choice(learners).id
            self.say(
                at + 0.7 * length,
                lambda at: happened.RoundBroke(at=at, peer=broke, version=version, reason=reason),
            )
        self._move(learners[0], at + 0.9 * length, version, Phase.RELEASING, Cause.GRADIENT_EARLY)
        self.at(at + 0.92 * length, lambda at: self._step(at, version, learners))
        return iter(())

    def _move(self, learner: Member, when: float, version: int, phase: Phase, cause: Cause) -> None:
        def move(at: float) -> Events:
            if not self._suffers(learner, "learner", at):
                learner.phase = phase
                yield happened.Moved(
                    at=at, peer=learner.id, version=version, state=phase.value, cause=cause.value
                )

        self.at(when, move)

    def _step(self, at: float, version: int, learners: list[Member]) -> Events:
        self.version, self.released[version] = version, at
        self.released.pop(version - 4 * BEHIND, None)
        members = tuple(sorted(learner.id for learner in learners))
        seconds, groups = 0.2 * ROUND * self.rng.uniform(0.8, 1.2), 0
        for learner in learners:
            yield happened.Averaged(at=at, peer=learner.id, version=version, members=members, seconds=seconds)
            counted, lag = self._count(learner, at, max(1, self.batch // len(learners)))
            trained = counted.verdicts.get(Verdict.ADMIT, 0)
            groups, learner.version, learner.done = groups + trained, version, learner.done + trained
            yield counted
            yield happened.Trained(
                at=at,
                peer=learner.id,
                version=version,
                groups=trained,
                members=len(learners),
                metrics=synthetic_swarm.metrics(self.rng, version, lag),
                gather=0.4 * ROUND,
                learn=0.25 * ROUND,
                average=seconds,
                step=0.06,
            )
        yield happened.Released(
            at=at,
            peer=self.seed.id,
            release=synthetic_swarm.release(version, learners[0].id, len(learners), groups, at),
        )
        if version % 10 == 0:
            accuracy = min(1.0, synthetic_swarm.learnt(version) + self.rng.gauss(0.0, 0.008))
            judge = self.evaluator
            judge.version, judge.done = version, judge.done + 1
            self.say(
                at + 0.4,
                lambda at: happened.Evaluated(
                    at=at, peer=judge.id, version=version, accuracy=accuracy, tasks=256
                ),
            )

    def _count(self, learner: Member, at: float, groups: int) -> tuple[happened.Counted, float]:
        """A learner's batch: its verdicts, and the mean lag of what it trained on."""
        ready = [sampler for sampler in self.samplers.values() if sampler.pending > 0]
        senders = (
            self.rng.choices(ready, [one.groups / one.pause for one in ready], k=groups) if ready else []
        )
        verdicts: dict[str, Counter[str]] = {}
        lags: list[int] = []
        for sender in senders:
            lag = max(1, self.version - self._uses(sender, at))
            verdict = (
                Verdict.STALE
                if lag > WINDOW
                else Verdict.DUPLICATE
                if self.rng.random() < 0.002
                else Verdict.ADMIT
            )
            verdicts.setdefault(sender.id, Counter())[verdict.value] += 1
            learner.taken[sender.id] += 1
            sender.pending = max(sender.pending - 1, 0)
            if verdict is Verdict.ADMIT:
                lags.append(lag)
            else:
                sender.refused += 1
                learner.refused += 1
        ages = Counter(str(2 ** math.ceil(math.log2(lag * ROUND))) for lag in lags)
        if senders and self.rng.random() < 0.25:
            shown = synthetic_swarm.show(self.rng, learner, senders[0], self._uses(senders[0], at), at)
            self.say(at, lambda _: shown)
        counted = happened.Counted(
            at=at,
            peer=learner.id,
            verdicts=dict(sum(verdicts.values(), Counter())),
            versions=dict(Counter(map(str, lags))),
            seconds=dict(ages),
            samplers={sampler: dict(counts) for sampler, counts in verdicts.items()},
        )
        return counted, sum(lags) / max(len(lags), 1)

    def _sample(self, member: Member, at: float) -> Events:
        """A sampler between two groups: it takes the newest release that has reached it and goes on."""
        if not member.here:
            return
        self.at(at + member.pause * self.rng.uniform(0.85, 1.15), lambda at: self._sample(member, at))
        newest = next(
            (v for v in range(self.version, member.version, -1) if self.released[v] + member.distance <= at),
            None,
        )
        if newest is not None and not self._suffers(member, "stale", at):
            member.version = newest
            yield happened.Adopted(
                at=at,
                peer=member.id,
                version=newest,
                weights=synthetic_swarm.digest(newest),
                fetch=member.distance,
                load=0.01,
                age=at - self.released[newest],
            )
        member.done += member.groups
        member.pending = min(member.pending + member.groups, 24)
        member.phase = Phase.NO_CREDIT if member.pending == 24 and self.rng.random() < 0.3 else Phase.SAMPLING
