"""Makes a group of what was drawn and sampled."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.core.admission import group_id
from swarm.core.curriculum import Draw
from swarm.sample.base import Completions
from swarm.types import Array, Group, PeerId, Release, Times


def make_group(
    sampler: PeerId,
    release: Release,
    draw: Draw,
    completions: Completions,
    rewards: Sequence[float],
    times: Times,
) -> Group:
    """Make a group; its id is a hash of what was sampled, so that every delivery of the group has the same
    id. Without `rewards` it says that its sampler could not score it."""
    tokens, logprobs = completions.tokens.tobytes(), completions.logprobs.tobytes()
    total = len(completions.tokens)
    return Group(
        id=group_id(sampler, release.version, draw.task, draw.seed, tokens, logprobs),
        sampler=sampler,
        task=draw.task,
        version=release.version,
        weights=release.weights,
        draw=draw.number,
        seed=draw.seed,
        lengths=tuple(completions.lengths),
        tokens=Array(dtype="int32", shape=(total,), data=tokens),
        logprobs=Array(dtype="float32", shape=(total,), data=logprobs),
        rewards=tuple(rewards) or (0.0,) * len(completions.lengths),
        scored=bool(rewards),
        times=times,
        noise=completions.noise,
        heads=completions.heads,
    )
