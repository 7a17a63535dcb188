"""The peers of a synthetic swarm and the events of each; synthetic_events schedules them.

Everything is drawn from the caller's generator, so that the same seed gives the same run.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from dataclasses import dataclass, field

from swarm import events as happened
from swarm.membership.identity import human_name, peer_id
from swarm.protocol import PHASES, Phase, Role
from swarm.types import Beat, Digest, Lag, PeerId, Release

ROUND = 1.2
"""Seconds between two releases: the demo's pace on two cores."""

SIZE = 200_000
"""Bytes of a release in the demo."""

MACHINES = (
    "2 cores x86_64",
    "8 cores aarch64",
    "RTX 3060 12 GB",
    "RTX 4090 24 GB",
    "M2 Pro 16 GB",
    "H100 80 GB",
)
HOSTILE = (
    '<img src=x onerror="window.hacked=1">',
    "</td></tr><script>window.hacked=1</script>",
    "\u202egnp.exe\u2066",
    "\x1b[31mred\x1b[0m",
    "javascript:alert(1)",
    "${alert(1)}{{7*7}}",
    "a" * 64,
    "\u0000\ufeff\u200b",
    "' onmouseover='alert(1)",
    "&lt;b&gt;&#x3c;b",
)
"""Names that try to be more than text on a dashboard or in a terminal."""


@dataclass(eq=False)
class Member:
    """A peer that does not exist."""

    id: PeerId
    name: str
    role: Role
    hardware: str
    born: float
    distance: float
    """Seconds that a release or a group takes on its way."""
    pause: float
    """Seconds that a sampler needs for its groups of one version."""
    groups: int
    relayed: bool
    version: int = 0
    phase: Phase = Phase.SAMPLING
    done: int = 0
    refused: int = 0
    seq: int = 0
    pending: int = 0
    """A sampler's groups on their way to a learner."""
    here: bool = True
    taken: Counter[str] = field(default_factory=Counter)
    """A learner's groups by sampler since it last said what it received."""


def enlist(rng: random.Random, role: Role, born: float, name: str | None = None) -> Member:
    me = peer_id(rng.randbytes(32))
    far = role is Role.SAMPLER and rng.random() < 0.25
    return Member(
        me,
        human_name(me) if name is None else name,
        role,
        rng.choice(MACHINES),
        born,
        relayed=far and rng.random() < 0.5,
        distance=rng.uniform(2.0, 12.0) if far else rng.uniform(0.02, 0.5),
        pause=rng.uniform(1.0, 6.0),
        groups=rng.randint(2, 8),
        phase={
            Role.SAMPLER: Phase.SAMPLING,
            Role.SEED: Phase.SERVING,
            Role.EVALUATOR: Phase.NO_RELEASE,
        }.get(role, Phase.GATHERING),
    )


def beat(rng: random.Random, member: Member, version: int, newest: int, at: float) -> Beat:
    """What it says of itself while it uses `version`."""
    sampler, learner = member.role is Role.SAMPLER, member.role is Role.LEARNER
    lag = Lag(
        versions=float(newest - version),
        download=member.distance * rng.uniform(0.8, 1.2),
        queue=0.2 * rng.random(),
        generation=member.pause * rng.uniform(0.8, 1.1),
        upload=member.distance * rng.uniform(0.3, 0.6),
        inbox=0.4 * rng.random(),
    )
    rate = member.groups / member.pause if sampler else 9.0 if learner else 0.1
    return Beat(
        name=member.name,
        role=member.role,
        incarnation=int(1000 * member.born),
        seq=member.seq,
        version=version,
        weights=digest(version),
        state=PHASES[member.phase],
        phase=member.phase,
        credit=rng.randint(8, 48) if learner else 0,
        takers=4,
        inbox=rng.randint(0, 12) if learner else min(member.pending, 4),
        done=member.done,
        refused=member.refused,
        rate=rate * rng.uniform(0.9, 1.1),
        tokens=rate * 380 * rng.uniform(0.9, 1.1) if sampler else 0.0,
        busy=min(1.0, rng.gauss(0.93 if sampler else 0.8 if learner else 0.1, 0.03)),
        lag=lag if sampler else Lag(),
        addresses=(f"/ip4/10.0.0.{len(member.name)}/tcp/4242",),
        hardware=member.hardware,
        at=at - 0.02,
    )


def metrics(rng: random.Random, version: int, lag: float) -> dict[str, float]:
    """Of a step on groups that were `lag` versions old on average."""
    skill = learnt(version)
    drift = 0.003 + 0.0012 * min(lag, 10.0) * math.exp(-version / 300)
    return {
        "reward": 0.94 * skill + rng.gauss(0.0, 0.02),
        "kl": drift * rng.uniform(0.8, 1.3),
        "ess": 0.98 - drift * rng.uniform(3.0, 6.0),
        "weight_var": drift * rng.uniform(4.0, 9.0),
        "weight_max": 1.0 + 40 * drift * rng.uniform(0.7, 1.6),
        "grad_norm": 0.25 + rng.random() * 0.4,
        "entropy": 0.9 * (1.05 - skill) + 0.02 * rng.random(),
        "zero": 3 * drift,
        "flat": skill * skill * rng.uniform(0.6, 0.7),
        "cosine": 0.35 + rng.gauss(0.0, 0.12),
        "length": 5.9 + 0.1 * rng.random(),
        "lag_versions": lag,
        "lag_seconds": lag * ROUND,
    }


def show(rng: random.Random, learner: Member, sampler: Member, version: int, at: float) -> happened.Shown:
    """One group of digit sums, right with the chance that the policy has learnt."""
    digits = [rng.randint(0, 9) for _ in range(5)]
    answer = "".join(str(sum(digits[: place + 1]) % 10) for place in range(5))
    texts = [
        answer if rng.random() < learnt(version) else f"{answer[:3]}{rng.randint(0, 99):02}" for _ in range(8)
    ]
    rewards = [float(text == answer) for text in texts]
    mean = sum(rewards) / len(rewards)
    return happened.Shown(
        at=at,
        peer=learner.id,
        group=rng.randbytes(16).hex(),
        sampler=sampler.id,
        version=version,
        prompt="".join(map(str, digits)) + "=",
        answer=answer,
        completions=tuple(texts),
        rewards=tuple(rewards),
        advantages=tuple(reward - mean for reward in rewards),
        weights=tuple(rng.lognormvariate(0.0, 0.15) for _ in texts),
    )


def release(version: int, publisher: PeerId, learners: int, groups: int, at: float) -> Release:
    return Release(
        version=version,
        weights=digest(version),
        size=SIZE,
        parent=digest(version - 1),
        publisher=publisher,
        learners=learners,
        groups=groups,
        released=at,
    )


def digest(version: int) -> Digest:
    return Digest(hashlib.sha256(str(version).encode()).hexdigest())


def learnt(version: int) -> float:
    """Held-out accuracy on the way from the demo's warm start to its end."""
    return 0.352 + 0.61 * (1.0 - math.exp(-version / 160))
