"""Learners of one run in a process of their own, for the row `progress`: how much further each comes in some
versions at a real learning rate, where most steps do not show in a release.

    python -m lab.processes.progress '{"model": ..., "versions": 200}'
        -> {"cases"}, their names, the reference first; for each {"gradients": so far} now and then, and
           {"fall" in nats, "along": how far it came along the reference's way, which is 1}

The learners are those that ship, and so is what becomes of their releases, checkpoints and averaged
gradients; that somebody is killed, or that no round comes about, is played. Right completions are of even
tokens, wrong ones of odd tokens, new ones for every gradient; the fall is that of right ones' mean negative
log-likelihood, of some that nobody learned from. Not handled here: what is lost on the way between peers.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from lab.processes.stepping import SPREAD
from lab.processes.training import GROUPS, PROMPT, SIZE, TOKENS, genesis, made, settings
from lab.swarms.partner import opened, say
from swarm.learn.files import checkpoint
from swarm.learn.learners.learner import Learner
from swarm.learn.models import tiny
from swarm.net.averaging.codec import Codec
from swarm.storage.weights import Weights
from swarm.types import Array, Group

EVERY = 10
"""Versions between two kills, and between two checkpoints (`run.release.checkpoint_every`)."""

TOLD = 100
"""Gradients after which a word is due."""

NOW = 100.0
"""Unix seconds of every gradient: nothing depends on them."""

Rows = Any
"""(SIZE, TOKENS) int32"""


class World:
    """The model that all cases begin with, and ever new groups."""

    def __init__(self, model: Path, versions: int, tell: Callable[[int], None]) -> None:
        """`tell` takes the number of gradients, now and then."""
        self._model, self.versions, self._tell = model, versions, tell
        self._gradients = 0
        self.config = settings({"training": "full", "optimizer": "adamw"})
        self._first = Weights.of(genesis(model, self.config), 0)
        first = self.learner()
        module: Any = first.policy.module
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(SPREAD / tiny.INIT_STD)
        self._first = Weights.of(first.weights().data, 0)
        first = self.learner()
        self.start = masters(first)
        self._held_out = [self._rows(-1 - k)[1::2] for k in range(GROUPS)]
        self._policy = first.policy
        self._before = self.loss(first)

    def learner(self) -> Learner:
        """A learner at version 0."""
        from peers.build.model import factory

        found, tokenization = factory.learner(self._model, self.config)
        assert isinstance(found, Learner)
        self._vocabulary = tokenization.vocabulary
        found.load(self._first, fresh=True)
        return found

    def gradient(self, of: Learner, stream: int) -> torch.Tensor:
        """(P,) float32 of a batch of its own, which the policy of version 0 says that it sampled."""
        self._gradients += 1
        if self._gradients % TOLD == 0:
            self._tell(self._gradients)
        groups = [self._group(stream, of.version, k) for k in range(GROUPS)]
        return of.gradient(groups, [PROMPT] * GROUPS, [group.rewards for group in groups], NOW).vector

    def fall(self, of: Learner) -> float:
        """Nats by which the loss is below that of version 0."""
        return self._before - self.loss(of)

    @torch.no_grad()
    def loss(self, of: Learner) -> float:
        scored = [of.policy.logprobs([PROMPT] * len(rows), rows.tolist(), 1.0) for rows in self._held_out]
        return -sum(float(one.logp[one.mask].double().mean()) for one in scored) / len(scored)

    @torch.no_grad()
    def _group(self, stream: int, version: int, number: int) -> Group:
        rows = self._rows((stream * self.versions + version) * GROUPS + number)
        scored = self._policy.logprobs([PROMPT] * SIZE, rows.tolist(), 1.0)
        return msgspec.structs.replace(
            made(number, self._vocabulary),
            version=version,
            tokens=Array(dtype="int32", shape=(rows.size,), data=rows.astype("<i4").tobytes()),
            logprobs=Array(
                dtype="float32", shape=(rows.size,), data=scored.logp[scored.mask].numpy().tobytes()
            ),
        )

    def _rows(self, seed: int) -> Rows:
        """Every other row is right, as in `made`."""
        rows = np.random.default_rng([seed & 0xFFFF_FFFF]).integers(16, self._vocabulary, (SIZE, TOKENS))
        right = (np.arange(SIZE) % 2)[:, None]
        return rows // 2 * 2 - right + 1


def alone(world: World, stream: int = 1) -> list[Learner]:
    one = world.learner()
    for _ in range(world.versions):
        one.step(world.gradient(one, stream))
    return [one]


def averaged(world: World) -> list[Learner]:
    """Each gradient travels as in a round."""
    pair = [world.learner(), world.learner()]
    for _ in range(world.versions):
        _round(world, pair)
    return pair


def _round(world: World, pair: Sequence[Learner]) -> None:
    codec = Codec(world.config.run.averaging.compression)
    vectors = [codec.as_sent(world.gradient(one, stream))[1] for stream, one in enumerate(pair, 1)]
    _, mean = codec.as_sent(sum(vectors[1:], vectors[0]) / len(vectors))
    for one in pair:
        one.step(mean)


def missing_each_other(world: World) -> list[Learner]:
    """Each steps alone; one release of the two becomes everybody's."""
    pair, coin = [world.learner(), world.learner()], random.Random(0)
    for _ in range(world.versions):
        for stream, one in enumerate(pair, 1):
            one.step(world.gradient(one, stream))
        released = coin.choice(pair).weights()
        for one in pair:
            one.load(released)
    return pair


def killed(world: World, after: int) -> list[Learner]:
    """A learner is killed `after` versions after each of its checkpoints; the one that takes its place has
    the checkpoint and the newest release."""
    one = world.learner()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(world.versions):
            one.step(world.gradient(one, 1))
            one = _survivor(world, one, Path(folder), after)
    return [one]


def killed_beside_another(world: World, after: int) -> list[Learner]:
    """The same of the older of two learners, which takes over the other's state where its bytes differ."""
    pair = [world.learner(), world.learner()]
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(world.versions):
            _round(world, pair)
            if pair[0].digest() != pair[1].digest():
                pair[0].load_state(pair[1].state())
            pair[0] = _survivor(world, pair[0], Path(folder), after)
    return pair


def _survivor(world: World, one: Learner, folder: Path, after: int) -> Learner:
    """This learner, or what takes its place."""
    if one.version % EVERY == 0:
        one.save(folder)
    if one.version < EVERY or one.version % EVERY != after:
        return one
    released, next_one = one.weights(), world.learner()
    next_one.restore(folder)
    if next_one.version < released.version:
        next_one.load(released)
    return next_one


Case = Callable[[World], Sequence[Learner]]

CASES: dict[str, Case] = {
    "one learner": alone,
    "one learner, other groups": lambda world: alone(world, 2),
    "two averaged learners": averaged,
    "two learners that miss each other": missing_each_other,
    "one killed at each checkpoint": lambda world: killed(world, 0),
    "one of two killed between checkpoints": lambda world: killed_beside_another(world, EVERY // 2),
    "one killed between checkpoints": lambda world: killed(world, EVERY // 2),
}


def masters(of: Learner) -> torch.Tensor:
    """(P,) float64"""
    tensors, _ = checkpoint.unpack(of.state())
    return torch.cat(
        [tensors[name].double().flatten() for name in sorted(tensors) if name.startswith("weight/")]
    )


def answers(world: World) -> Iterator[dict[str, Any]]:
    reference = torch.empty(0)
    for case in CASES.values():
        learners = case(world)
        moved = [masters(one) - world.start for one in learners]
        if not len(reference):
            reference = moved[0]
        yield {
            "fall": min(map(world.fall, learners)),
            "along": min(float(one @ reference / (reference @ reference)) for one in moved),
        }


def main() -> int:
    setup = opened()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    say(cases=list(CASES))
    for answer in answers(World(Path(setup["model"]), setup["versions"], lambda count: say(gradients=count))):
        say(**answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
