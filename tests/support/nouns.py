"""Nouns for tests: a good one each, and keyword arguments to spoil it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from swarm.core.intake.admission import group_id
from swarm.core.intake.curriculum import Draws
from swarm.protocol import Phase, Role
from swarm.types import Array, Beat, Digest, Group, Lag, Noise, PeerId, Release, Times

NOW = 1_750_000_000.0
VOCABULARY = 8
RUN = Digest("a" * 64)
DRAWS = Draws(RUN, batch=4)
SAMPLER = PeerId("sampler-0")


def group(number: int = 0, *, released: float = NOW, **changes: Any) -> Group:
    """Two completions of 2 and 1 tokens, the sampler's draw of this number. Its task, seed and id are right
    unless they are among the changes."""
    good = Group(
        id="",
        sampler=SAMPLER,
        task=0,
        version=0,
        weights=Digest("0" * 64),
        draw=number,
        seed=0,
        lengths=(2, 1),
        tokens=ints(1, 2, 3),
        logprobs=floats(-1.0, -0.5, -2.0),
        rewards=(1.0, 0.0),
        times=Times(released=released, fetched=released, used=released, finished=released, sent=released),
        noise=Noise.GUMBEL,
    )
    made = msgspec.structs.replace(good, **changes)
    due = DRAWS.of(made.weights, made.sampler, made.draw)
    made = msgspec.structs.replace(made, **{"task": due.task, "seed": due.seed} | changes)
    return made if "id" in changes else named(made)


def seeds(first: int, prompts: Sequence[str]) -> Sequence[int]:
    """A seed for each prompt, from `first` on."""
    return range(first, first + len(prompts))


def named(made: Group) -> Group:
    identity = group_id(
        made.sampler, made.version, made.task, made.seed, made.tokens.data, made.logprobs.data
    )
    return msgspec.structs.replace(made, id=identity)


def ints(*values: int) -> Array:
    return Array(dtype="int32", shape=(len(values),), data=array("i", values).tobytes())


def floats(*values: float) -> Array:
    return Array(dtype="float32", shape=(len(values),), data=array("f", values).tobytes())


def beat(**changes: Any) -> Beat:
    good = Beat(
        name="brisk-umber-otter",
        role=Role.LEARNER,
        incarnation=1,
        seq=1,
        version=0,
        weights=Digest("0" * 64),
        state="gathering",
        phase=Phase.GATHERING,
        credit=4,
        takers=1,
        inbox=0,
        done=0,
        refused=0,
        rate=0.0,
        tokens=0.0,
        busy=0.0,
        lag=Lag(),
        addresses=(),
        hardware="",
        at=NOW,
    )
    return msgspec.structs.replace(good, **changes)


def release(**changes: Any) -> Release:
    good = Release(
        version=1,
        weights=Digest("a" * 64),
        size=1,
        parent=Digest("c" * 64),
        publisher=PeerId("learner-0"),
        learners=1,
        groups=1,
        released=NOW,
    )
    return msgspec.structs.replace(good, **changes)
