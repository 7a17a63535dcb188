"""Makes a group of a draw and its completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from peers.runtime.host import Host
from swarm import events
from swarm.core.intake.admission import group_id
from swarm.core.intake.curriculum import Draw
from swarm.sample.base import Completions
from swarm.types import Array, Group, PeerId, Release, Task, Times


class Drawn(NamedTuple):
    """Completions of a task, before they are scored."""

    task: Task
    draw: Draw
    completions: Completions
    policy: tuple[Release, float]
    """The release, and when its bytes had arrived."""
    used: float
    """When sampling began."""


def sealed(host: Host, drawn: Drawn, rewards: Sequence[float]) -> Group:
    """The group of newly scored completions. Where there are `rewards` a Sampled event reports it."""
    (release, fetched), now = drawn.policy, host.now()
    times = Times(released=release.released, fetched=fetched, used=drawn.used, finished=now, sent=now)
    group = make_group(host.ports.me, release, drawn.draw, drawn.completions, rewards, times)
    if rewards:
        host.emit(
            events.Sampled,
            group=group.id,
            task=drawn.task.index,
            version=release.version,
            seconds=round(now - drawn.used, 3),
            tokens=len(drawn.completions.tokens),
            reward=sum(rewards) / len(rewards),
        )
    return group


def make_group(
    sampler: PeerId,
    release: Release,
    draw: Draw,
    completions: Completions,
    rewards: Sequence[float],
    times: Times,
) -> Group:
    """Make a group; its id is a hash of its tokens, so that every delivery of the group has the same id.
    Without `rewards` it says that its sampler could not score it."""
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
