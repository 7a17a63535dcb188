"""Nouns for tests: a good one each, and keyword arguments to spoil it."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec

from swarm.core.admission import group_id
from swarm.protocol import Phase, Role
from swarm.types import Array, Beat, Digest, Group, Lag, PeerId, Release, Times

NOW = 1_750_000_000.0
VOCABULARY = 8
SAMPLER = PeerId("sampler-0")


def group(seed: int = 0, *, released: float = NOW, **changes: Any) -> Group:
    """Two completions of 2 and 1 tokens, whose id is right unless it is among the changes."""
    good = Group(
        id="",
        sampler=SAMPLER,
        task=seed,
        version=0,
        weights=Digest("0" * 64),
        lease="",
        seed=seed,
        lengths=(2, 1),
        tokens=ints(1, 2, 3),
        logprobs=floats(-1.0, -0.5, -2.0),
        rewards=(1.0, 0.0),
        times=Times(released=released, fetched=released, used=released, finished=released, sent=released),
    )
    made = msgspec.structs.replace(good, **changes)
    return made if "id" in changes else named(made)


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
