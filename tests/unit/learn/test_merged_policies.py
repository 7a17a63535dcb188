"""The mean of two policies is taken in float32: a release shows little of what a step at a real learning rate
changes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from learner_batches import learner, model, policy, settings
from torch import Tensor

from swarm.learn.files import checkpoint
from swarm.learn.learners.learner import Learner
from swarm.learn.learners.site_learner import SiteLearner
from swarm.settings.config import Averaging
from swarm.storage.weights import Weights


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model(tmp_path_factory.mktemp("models"), "qwen3")


def stepped(folder: Path, dtype: str, seed: int) -> Learner:
    one, noise = learner(folder, settings(lr=1e-6), dtype=dtype), torch.Generator().manual_seed(seed)
    for _ in range(3):
        one.step(torch.randn(one.size, generator=noise))
    return one


def tensors(one: Learner) -> dict[str, Tensor]:
    return checkpoint.unpack(one.state())[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_merge_is_the_mean_of_both_masters_and_has_the_moments_of_one(folder: Path, dtype: str) -> None:
    one, other = (stepped(folder, dtype, seed) for seed in (1, 2))
    mine, theirs = tensors(one), tensors(other)
    other.merge(one.masters(), 0.25)
    merged = tensors(other)
    assert other.version == 4 and merged.keys() == theirs.keys() and one.masters().keys() < merged.keys()
    for name, value in merged.items():
        mean = theirs[name].lerp(mine[name], 0.25) if name in one.masters() else theirs[name]
        assert torch.equal(value, mean)
    assert sum(int((merged[name] != theirs[name]).sum()) for name in one.masters()) > one.size / 2
    other.step(torch.ones(other.size))


def test_what_a_site_trained_since_its_version_goes_on_from_the_mean(folder: Path) -> None:
    run = msgspec.structs.replace(settings(lr=1e-3), averaging=Averaging(mode="sites"))
    one = SiteLearner(policy(folder, run, "float32"), run)
    one.load(Weights.of(one.weights().data, 0), fresh=True)
    other = {name: value + 1.0 for name, value in one.masters().items()}
    start = one._optimizer.gather()
    one.step_locally(torch.ones(one.size))
    local = one._optimizer.gather() - start
    one.merge(other, 0.5)
    assert torch.allclose(one._optimizer.gather() - local, start + 0.5, atol=1e-6)
    for name, value in one.masters().items():
        assert torch.allclose(value, other[name] - 0.5, atol=1e-6)
