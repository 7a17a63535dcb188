"""At a real learning rate most steps do not show in bfloat16: a learner that takes releases keeps its
training all the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from learner_batches import learner, model, settings
from rows import nightly
from torch import Tensor

from swarm.learn.files import checkpoint
from swarm.learn.fsdp.learner import ShardedLearner
from swarm.learn.learners.learner import Learner
from swarm.learn.models import adapters
from swarm.storage.weights import Weights

STEPS = 40
KINDS = [
    ("full", "bfloat16"),
    *nightly([("full", "float32"), ("lora", "float32"), ("lora", "bfloat16"), ("qlora", "bfloat16")]),
]
Either = Learner | ShardedLearner


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model(tmp_path_factory.mktemp("models"), "qwen3")


def begun(folder: Path, training: str, dtype: str, ranks: int = 0) -> Either:
    """A learner at version 0 of its run, with the base's own values or those of its first adapter as
    masters."""
    run = settings(training, lr=1e-6)
    one: Either = ShardedLearner(folder, run, ["cpu"] * ranks) if ranks else learner(folder, run, dtype=dtype)
    first = one.weights().data if training == "full" else adapters.genesis(folder, run.lora, 1)
    one.load(Weights.of(first, 0), fresh=True)
    return one


def masters(of: Either) -> Tensor:
    tensors, _ = checkpoint.unpack(of.state())
    return torch.cat(
        [tensors[name].double().flatten() for name in sorted(tensors) if name.startswith("weight/")]
    )


def gradients(size: int, seed: int) -> Iterator[Tensor]:
    """(size,) each: the same for every step and learner in one half, noise in the other. The first is without
    noise."""
    signal = torch.randn(size, generator=torch.Generator().manual_seed(0))
    yield signal
    noise = torch.Generator().manual_seed(seed)
    for _ in range(STEPS - 1):
        yield signal + torch.randn(size, generator=noise)


def trained(one: Either, loads: bool) -> Tensor:
    """How far the masters come from where they are, with one's own release taken after every step or
    never."""
    start = masters(one)
    for vector in gradients(one.size, 1):
        one.step(vector)
        if loads:
            one.load(Weights.of(one.weights().data, one.version))
    return masters(one) - start


def progress(moved: Tensor, reference: Tensor) -> float:
    """How far `moved` goes the way of `reference`; 1 is as far."""
    return float(moved @ reference / (reference @ reference))


@pytest.mark.parametrize(("training", "dtype"), KINDS)
def test_a_learner_that_takes_its_own_release_after_every_step_comes_as_far_as_one_that_never_does(
    folder: Path, training: str, dtype: str
) -> None:
    never = trained(begun(folder, training, dtype), loads=False)
    assert float(never.abs().median()) > 1e-6
    assert progress(trained(begun(folder, training, dtype), loads=True), never) >= 0.98


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("training", ["full", "lora"])
def test_so_does_one_whose_model_is_split_over_two_devices(folder: Path, training: str) -> None:
    found = {}
    for loads in (False, True):
        one = begun(folder, training, "float32", ranks=2)
        assert isinstance(one, ShardedLearner)
        found[loads] = trained(one, loads)
        one.close()
    assert progress(found[True], found[False]) >= 0.98


@pytest.mark.parametrize(("training", "dtype"), KINDS)
def test_two_learners_that_take_turns_in_whose_release_counts_come_as_far_as_one(
    folder: Path, training: str, dtype: str
) -> None:
    """What a swarm does whose rounds break: each learner steps alone, and one of the two releases becomes
    everybody's."""
    pair, coin = [begun(folder, training, dtype) for _ in range(2)], random.Random(3)
    start = masters(pair[0])
    for vectors in zip(*(gradients(pair[0].size, seed) for seed in (1, 2)), strict=True):
        for one, vector in zip(pair, vectors, strict=True):
            one.step(vector)
        winner = coin.choice(pair)
        for one in pair:
            one.load(Weights.of(winner.weights().data, one.version))
            assert one.weights() == winner.weights()
    alone = trained(begun(folder, training, dtype), loads=False)
    assert all(progress(masters(one) - start, alone) >= 0.95 for one in pair)


@pytest.mark.parametrize(("training", "dtype"), KINDS)
@pytest.mark.parametrize("how", ["fresh", "without a policy"])
def test_a_learner_that_has_nothing_to_keep_takes_the_released_values_themselves(
    folder: Path, training: str, dtype: str, how: str
) -> None:
    one = begun(folder, training, dtype)
    one.step(torch.ones(one.size))
    assert not torch.equal(masters(one), masters(one).bfloat16().double())
    if how == "without a policy":
        one.version = -1
    one.load(Weights.of(one.weights().data, 7), fresh=how == "fresh")
    assert torch.equal(masters(one), masters(one).bfloat16().double())
