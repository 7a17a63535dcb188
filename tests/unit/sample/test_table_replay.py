"""A table's groups are replayed: honest margins are 0, each cheat shows."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from msgspec.structs import replace
from nouns import floats, ints
from nouns import group as any_group
from undecided_policy import rows

from swarm.draws.heads import Head, contradiction, of_group, pack
from swarm.draws.replays import claims_of, replay_group, weigh
from swarm.learn.files.weights import from_bytes, release_bytes
from swarm.learn.models.tabular import Tabular
from swarm.sample.base import Completions
from swarm.sample.toy import TableReplay, ToyEngine
from swarm.storage.weights import Weights
from swarm.types import Group

SEED, GROUP = -5, 8


def table(seed: int) -> Weights:
    policy = Tabular()
    torch.manual_seed(seed)
    with torch.no_grad():
        policy.module.get_parameter("logits").normal_()
    return Weights.of(release_bytes(policy.module), seed)


def sampled(weights: Weights, temperature: float = 1.0) -> Completions:
    engine = ToyEngine(from_bytes, temperature)
    engine.load(weights)
    return engine.sample(["3"], GROUP, [SEED])[0]


def margins(group: Completions, weights: Weights, seed: int = SEED, prompt: str = "3") -> np.ndarray:
    again = TableReplay(from_bytes)
    again.load(weights)
    found = again.replay(prompt, rows(group), seed)
    assert len(found.margins) == len(found.logprobs) == sum(group.lengths)
    return found.margins


def test_an_honest_group_has_no_margin_at_all() -> None:
    weights = table(1)
    group = sampled(weights)
    assert margins(group, weights).max() == 0.0
    again = TableReplay(from_bytes)
    again.load(weights)
    np.testing.assert_array_equal(again.replay("3", rows(group), SEED).logprobs, group.logprobs)


def test_another_seed_version_temperature_task_or_token_shows() -> None:
    weights, limit = table(1), TableReplay.allowed.hard
    group = sampled(weights)
    changed = group.tokens.copy()
    changed[5] = (changed[5] + 1) % 8
    one = Completions(group.lengths, changed, group.logprobs, group.texts)
    assert (margins(one, weights) > limit).sum() == 1
    for found in (
        margins(group, weights, seed=SEED + 1),
        margins(group, table(2)),
        margins(group, weights, prompt="4"),
        margins(sampled(weights, 0.8), weights),
    ):
        assert (found > limit).sum() >= 2


def test_completions_of_another_length_than_the_table_s_show() -> None:
    group = sampled(table(1))
    longer = Completions((5, *group.lengths[1:]), np.append(group.tokens, 0), group.logprobs, group.texts)
    assert np.isinf(margins(longer, table(1))).all()


def test_a_table_is_checked_by_its_heads() -> None:
    weights = table(1)
    cooler = sampled(weights, 0.8)
    again = TableReplay(from_bytes)
    again.load(weights)
    logprobs = again.replay("3", rows(cooler), SEED).logprobs
    for count in (4, 8):
        group = told(weights, count)
        honest = of(group)
        assert contradiction(honest, 8) is None
        cheat = dataclasses.replace(group, tokens=cooler.tokens, logprobs=logprobs)
        assert "what its seed draws" in (contradiction(of(cheat), 8) or "")
        assert "nats off" in (contradiction(replace(honest, seed=SEED + 1), 8) or "")


def test_a_replay_tells_heads_that_are_not_those_of_the_version() -> None:
    group = of(told(table(1), 4))
    again = TableReplay(from_bytes)
    for weights, false in ((table(1), 0), (table(2), 4 * GROUP)):
        again.load(weights)
        found = replay_group(again, "3", group)
        assert found.apart is not None and (found.apart > again.allowed.hard).sum() == false
    claims = claims_of(group)
    again.load(table(1))
    for spoiled, off in ((group, 0), (without_the_first(group), 1)):
        assert weigh(replay_group(again, "3", spoiled), claims, again.allowed).off == off


def told(weights: Weights, heads: int) -> Completions:
    engine = ToyEngine(from_bytes, heads=heads)
    engine.load(weights)
    return engine.sample(["3"], GROUP, [SEED])[0]


def without_the_first(group: Group) -> Group:
    """The head of its first token leaves out the most probable one; what it says of the others is true."""
    ids, logprobs = (each.copy() for each in head_of(group))
    ids[0], logprobs[0] = np.roll(ids[0], -1), np.roll(logprobs[0], -1)
    ids[0, -1] = min({*range(8)} - {*ids[0].tolist()})
    logprobs[0, -1] = logprobs[0, -2]
    return replace(group, heads=pack(ids, logprobs))


def head_of(group: Group) -> Head:
    head = of_group(group)
    assert head is not None
    return head


def of(made: Completions) -> Group:
    return any_group(
        seed=SEED,
        lengths=made.lengths,
        tokens=ints(*made.tokens.tolist()),
        logprobs=floats(*made.logprobs.tolist()),
        rewards=(0.0,) * GROUP,
        noise=made.noise,
        heads=made.heads,
    )
