"""A made-up but realistic run as events: two learners, samplers with different delays, an evaluator and a
seed."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Iterator

from dashboard.fold.state import SwarmState
from dashboard.serve.feed import Feed
from swarm import events as happened
from swarm.membership.identity import human_name, peer_id
from swarm.protocol import PHASES, Phase, Role
from swarm.types import Beat, Digest, Lag, PeerId, Release

HOSTILE = '<img src=x onerror="window.hacked=1">\u202e\x1b[31m</td></tr><script>window.hacked=1</script>'


def who(number: int) -> PeerId:
    return peer_id(bytes([number]) * 32)


SEED, EVALUATOR = who(1), who(7)
LEARNERS = (who(2), who(3))
SAMPLERS = (who(4), who(5), who(6))
ROLES = dict.fromkeys(LEARNERS, Role.LEARNER) | dict.fromkeys(SAMPLERS, Role.SAMPLER) | {SEED: Role.SEED}
ROLES[EVALUATOR] = Role.EVALUATOR
DELAYS = dict(zip(SAMPLERS, (1, 6, 40), strict=True))


def beat(
    peer: PeerId,
    version: int,
    at: float,
    name: str | None = None,
    seq: int = 0,
    role: Role | None = None,
    start: float = 0,
) -> Beat:
    role = role or ROLES.get(peer, Role.SAMPLER)
    learner, sampler = role is Role.LEARNER, role is Role.SAMPLER
    doing = {Role.LEARNER: Phase.LEARNING, Role.SAMPLER: Phase.SAMPLING, Role.EVALUATOR: Phase.NO_RELEASE}
    phase = doing.get(role, Phase.SERVING)
    return Beat(
        name=human_name(peer) if name is None else name,
        role=role,
        version=version,
        incarnation=int(1000 * start),
        seq=seq,
        weights=digest(version),
        state=PHASES[phase],
        phase=phase,
        credit=24 if learner else 0,
        takers=3,
        inbox=3,
        done=16 * version if learner else 9 * version if sampler else version // 10,
        refused=version // 9 if learner or sampler else 0,
        rate=11.5 if learner else 8.25 if sampler else 0.1,
        tokens=3100.0 if sampler else 0.0,
        busy=0.83 if learner else 0.97 if sampler else 0.2,
        lag=Lag(versions=3.0, download=0.4, generation=2.0, upload=0.2),
        addresses=(),
        hardware="2 cores",
        at=at,
    )


def digest(version: int) -> Digest:
    return Digest(f"{version * 7919 + 11:064x}")


def heard(peer: PeerId, version: int, at: float, **how: object) -> happened.Heard:
    return happened.Heard(at=at, peer=SEED, subject=peer, beat=beat(peer, version, at, **how))  # type: ignore[arg-type]


def still(state: SwarmState | None = None) -> Feed:
    """A feed whose clock stands: who was heard now stays here, however slow the machine is."""
    moment = time.time()
    return Feed(state or SwarmState(), clock=lambda: moment)


def released(version: int, at: float, publisher: PeerId | None = None) -> Release:
    return Release(
        version=version,
        weights=digest(version),
        size=200_000,
        parent=digest(version - 1),
        publisher=publisher or min(LEARNERS),
        learners=2,
        groups=32,
        released=at,
    )


def story(versions: int, start: float, seconds: float = 0.6) -> Iterator[happened.AnyEvent]:
    """A run of `versions` releases, `seconds` apart, as the seed's journal tells it."""
    rng = random.Random(versions)
    for peer, role in ROLES.items():
        yield happened.Started(
            at=start, peer=peer, name=human_name(peer), role=role, version=0, hardware="2 cores"
        )
    yield happened.Evaluated(at=start + 0.5, peer=EVALUATOR, version=0, accuracy=0.352, tasks=256)
    at = start
    for version in range(1, versions + 1):
        at = start + version * seconds
        yield from _step(version, at, seconds, rng)
        if version % 3 == 0:
            for peer in (peer for peer in ROLES if peer != SAMPLERS[1] or version < versions - 18):
                yield heard(peer, max(version - DELAYS.get(peer, 0), 0), at, seq=version, start=start)
        if version % 10 == 0:
            accuracy = _learnt(version) + rng.gauss(0, 0.008)
            yield happened.Evaluated(
                at=at, peer=EVALUATOR, version=version, accuracy=min(accuracy, 1.0), tasks=256
            )
    yield happened.RoundBroke(
        at=at, peer=LEARNERS[0], version=versions, reason="a member sent no part within 5 s"
    )
    yield happened.Faulted(
        at=at, peer=LEARNERS[1], part="averager", detail="the process did not answer within 20 s"
    )
    yield happened.Recovered(at=at, peer=LEARNERS[1], part="averager", seconds=3.4)
    yield happened.Lost(at=at, peer=SEED, subject=SAMPLERS[1], silent=11.0)


def _learnt(version: int) -> float:
    return 0.352 + 0.6 * (1 - math.exp(-version / 90))


def _step(version: int, at: float, seconds: float, rng: random.Random) -> Iterator[happened.AnyEvent]:
    yield happened.Averaged(at=at, peer=LEARNERS[0], version=version, members=LEARNERS, seconds=0.2)
    for learner in LEARNERS:
        lags = [min(int(rng.lognormvariate(1.6, 0.9)), 64) for _ in range(16)]
        refused = rng.choice(("stale", "stale", "duplicate", "over-quota", "malformed"))
        metrics = {
            "reward": _learnt(version) * 0.94 + rng.gauss(0, 0.02),
            "kl": 0.004 + 0.003 * rng.random() + 0.01 * math.exp(-version / 40),
            "ess": 0.9 + 0.08 * rng.random(),
            "grad_norm": 0.3 + rng.random() * 0.4,
            "lag_versions": sum(lags) / len(lags),
            "lag_seconds": sum(lags) / len(lags) * seconds,
            "entropy": 0.6,
            "weight_var": 0.1,
        }
        yield happened.Trained(
            at=at,
            peer=learner,
            version=version,
            groups=16,
            members=2,
            metrics=metrics,
            gather=0.2,
            learn=0.2,
            average=0.2,
            step=0.01,
        )
        bounds = Counter(str(2 ** max(math.ceil(math.log2(max(lag, 1) * seconds)), 0)) for lag in lags)
        yield happened.Counted(
            at=at,
            peer=learner,
            verdicts={"admit": 16, refused: int(rng.random() < 0.3)},
            versions=Counter(map(str, lags)),
            seconds=bounds,
            samplers={str(SAMPLERS[0]): {"admit": 16}},
        )
    yield happened.Released(at=at, peer=min(LEARNERS), release=released(version, at))
