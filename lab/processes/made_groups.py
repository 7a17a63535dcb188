"""Groups of random tokens, for measurements of a learner: it computes as it does on sampled ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from swarm.types import Array, Digest, Group, PeerId, Times


def made_group(number: int, lengths: Sequence[int], vocabulary: int) -> Group:
    """The group of that number, whose completions have so many tokens; rewards alternate between 0 and 1."""
    count = sum(lengths)
    tokens = np.random.default_rng(number).integers(0, vocabulary, count).astype("<i4")
    logprobs = np.full(count, -np.log(vocabulary), "<f4")
    return Group(
        id=f"{number:032x}",
        sampler=PeerId("bench"),
        task=number,
        version=0,
        weights=Digest("0" * 64),
        draw=0,
        seed=number,
        lengths=tuple(lengths),
        tokens=Array(dtype="int32", shape=(count,), data=tokens.tobytes()),
        logprobs=Array(dtype="float32", shape=(count,), data=logprobs.tobytes()),
        rewards=tuple(float(i % 2) for i in range(len(lengths))),
        times=Times(released=0.0, fetched=0.0, used=0.0, finished=0.0, sent=0.0),
    )
