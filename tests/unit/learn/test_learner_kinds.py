"""Full, LoRA and QLoRA learners on tiny models of three architectures: they learn, and what they keep is all
that is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learner_batches import KINDS, Batch, batch, gradient, learner, model, preference, settings
from rows import each_once, nightly

from swarm.learn.files import checkpoint, weights
from swarm.learn.learners.gradient_accumulator import SKETCH, cosine
from swarm.learn.learners.learner import Learner
from swarm.learn.models import adapters
from swarm.storage.weights import Weights

FAMILIES = ("llama", "qwen3", "gemma3")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {family: model(root, family) for family in FAMILIES}


def begun(folder: Path, training: str = "full", dtype: str = "float32", **of_run: Any) -> Learner:
    """A learner at version 0 of its run."""
    run = settings(training, **of_run)
    one = learner(folder, run, dtype=dtype)
    first = one.weights().data if training == "full" else adapters.genesis(folder, run.lora, 1)
    one.load(Weights.of(first, 0))
    return one


def some(of: Learner, groups: int = 6, seed: int = 0) -> Batch:
    return batch(of.policy, groups, seed)  # type: ignore[arg-type]


@pytest.mark.parametrize(("family", "training"), each_once(FAMILIES, KINDS))
def test_every_kind_of_training_makes_rewarded_completions_likelier(
    folders: dict[str, Path], family: str, training: str
) -> None:
    one = begun(folders[family], training, lr=3e-3)
    made = some(one)
    before = preference(one, made)
    for _ in range(6):
        one.step(gradient(one, made).vector)
    assert preference(one, made) > before + 0.1


@pytest.mark.parametrize("training", ["qlora", *nightly(["full", "lora"])])
def test_bfloat16_learns_as_well(folders: dict[str, Path], training: str) -> None:
    one = begun(folders["qwen3"], training, dtype="bfloat16", lr=3e-3, optimizer="adamw8bit")
    made = some(one)
    before = preference(one, made)
    for _ in range(6):
        one.step(gradient(one, made).vector)
    assert preference(one, made) > before + 0.1


def test_only_an_adapter_is_trained_averaged_and_released(folders: dict[str, Path]) -> None:
    one = begun(folders["qwen3"], "lora")
    frozen = {
        name: value.clone() for name, value in one.policy.module.named_parameters() if not value.requires_grad
    }
    found = gradient(one, some(one))
    assert found.vector.shape == (one.size,)
    assert one.size == sum(value.numel() for value in weights.from_bytes(one.weights().data).values())
    one.step(found.vector)
    now = dict(one.policy.module.named_parameters())
    assert all(torch.equal(value, now[name]) for name, value in frozen.items())
    assert len(one.weights().data) < 0.2 * len(begun(folders["qwen3"]).weights().data)


def test_an_adapters_gradient_is_autograds(folders: dict[str, Path]) -> None:
    """GEPO where nothing has moved, written out: advantages times weights times the mean log-probability of a
    completion."""
    one = begun(folders["llama"], "lora")
    one.step(torch.ones(one.size))  # B is not 0: both matrices have a gradient
    made = some(one, 3)
    value = torch.zeros(())
    for group, prompt, rewards in zip(*made, strict=True):
        rows = [
            row.tolist()
            for row in np.split(np.frombuffer(group.tokens.data, "<i4"), np.cumsum(group.lengths)[:-1])
        ]
        scored = one.policy.logprobs([prompt] * len(rows), rows, 1.0)
        lengths = scored.mask.sum(-1)
        score = (scored.logp * scored.mask).sum(-1) / lengths
        reward = torch.tensor(rewards)
        q = score.detach()  # the batch was sampled from this very policy
        weight = (score - (torch.logsumexp(2 * q, 0) - torch.logsumexp(q, 0))).exp()
        value = value - (weight * (reward - reward.mean())).sum()
    value = value / sum(len(group.lengths) for group in made[0])
    trained = [parameter for parameter in one.policy.module.parameters() if parameter.requires_grad]
    wanted = torch.cat([piece.flatten() for piece in torch.autograd.grad(value, trained)])
    found = gradient(one, made).vector
    assert wanted.abs().max() > 0
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("training", "dtype", "optimizer"),
    [
        ("full", "bfloat16", "adamw8bit"),
        ("lora", "bfloat16", "adamw"),
        ("qlora", "float32", "adamw8bit"),
        *nightly(
            [
                ("full", "bfloat16", "adamw"),
                ("full", "float32", "adamw"),
                ("full", "float32", "adamw8bit"),
                ("lora", "bfloat16", "adamw8bit"),
                ("qlora", "float32", "adamw"),
            ]
        ),
    ],
)
def test_a_restored_learner_of_any_kind_goes_on_exactly_where_it_was(
    folders: dict[str, Path], tmp_path: Path, training: str, dtype: str, optimizer: str
) -> None:
    one, two = (begun(folders["qwen3"], training, dtype, optimizer=optimizer) for _ in range(2))
    vectors = [torch.randn(one.size, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    for vector in vectors[:2]:
        one.step(vector)
    one.save(tmp_path)
    two.step(vectors[3])
    two.restore(tmp_path)
    assert two.weights() == one.weights() and two.state() == one.state()
    for vector in vectors[2:]:
        assert one.step(vector) == two.step(vector)
    assert two.weights() == one.weights() and two.state() == one.state()


def test_an_adapters_checkpoint_holds_the_adapter_and_its_moments_alone(folders: dict[str, Path]) -> None:
    one = begun(folders["qwen3"], "lora")
    one.step(torch.ones(one.size))
    tensors, _ = checkpoint.unpack(one.state())
    assert sum(tensor.numel() for tensor in tensors.values() if tensor.ndim) == 3 * one.size
    assert all(".lora_" in name for name in tensors)


@pytest.mark.parametrize(
    ("training", "optimizer", "says"),
    [
        ("lora", "adamw", "its training is full, here it is lora"),
        ("full", "adamw8bit", "its optimizer is adamw, here it is adamw8bit"),
    ],
)
def test_a_checkpoint_of_another_kind_is_refused_in_a_sentence(
    folders: dict[str, Path], tmp_path: Path, training: str, optimizer: str, says: str
) -> None:
    begun(folders["qwen3"]).save(tmp_path)
    other = begun(folders["qwen3"], training, optimizer=optimizer)
    before = other.state()
    with pytest.raises(ValueError, match=says):
        other.restore(tmp_path)
    assert other.state() == before


def test_masters_are_what_is_released_and_small_steps_are_not_lost(folders: dict[str, Path]) -> None:
    one = begun(folders["llama"], dtype="bfloat16", lr=1e-5)
    first = one.weights().data
    for _ in range(100):
        one.step(torch.ones(one.size))
    masters, before, after = (
        one._optimizer.masters,
        weights.from_bytes(first),
        weights.from_bytes(one.weights().data),
    )
    assert after.keys() == masters.keys() and all(
        torch.equal(after[name], masters[name].bfloat16()) for name in after
    )
    moved = torch.cat([(after[name].float() - before[name].float()).flatten() for name in after])
    assert float(moved.mean()) == pytest.approx(-1e-3, rel=0.1)


def test_a_release_snaps_masters_and_parameters(folders: dict[str, Path]) -> None:
    one, other = (begun(folders["llama"], dtype="bfloat16") for _ in range(2))
    other.step(torch.ones(other.size))
    one.load(Weights.of(other.weights().data, 1))
    assert one.weights() == other.weights()
    assert all(torch.equal(value, value.bfloat16().float()) for value in one._optimizer.masters.values())


@pytest.mark.parametrize(
    ("training", "dtype"),
    [("full", "float32"), *nightly([("full", "bfloat16"), ("lora", "float32"), ("qlora", "bfloat16")])],
)
def test_a_learner_that_loaded_a_release_computes_the_gradient_of_one_that_stepped_to_it(
    folders: dict[str, Path], training: str, dtype: str
) -> None:
    one, other = (begun(folders["qwen3"], training, dtype, lr=3e-4) for _ in range(2))
    for seed in range(3):
        one.step(gradient(one, some(one, seed=seed)).vector)
    other.load(Weights.of(one.weights().data, 3), fresh=True)
    made = some(one, seed=3)
    found = gradient(one, made).vector
    assert torch.equal(gradient(other, made).vector, found)
    for each in (one, other):  # their masters and moments differ: so may their next releases
        each.step(found)
    other.load(Weights.of(one.weights().data, 4))
    assert one._optimizer.masters.keys() == other._optimizer.masters.keys() and one.state() != other.state()
    assert torch.equal(gradient(other, made).vector, gradient(one, made).vector)


def test_gradients_in_bfloat16_are_added_up_in_float32(folders: dict[str, Path]) -> None:
    one = begun(folders["llama"], dtype="bfloat16", micro=1)
    vector = gradient(one, some(one)).vector
    assert vector.dtype is torch.float32 and not torch.equal(vector, vector.bfloat16().float())


def test_the_cosine_of_many_values_is_right() -> None:
    drawn = torch.Generator().manual_seed(1)
    one, two = torch.randn(SKETCH, generator=drawn), torch.randn(SKETCH, generator=drawn)
    exact = torch.nn.functional.cosine_similarity(one.double(), (one + two).double(), dim=0)
    assert cosine(one, one + two) == pytest.approx(float(exact), rel=1e-6)
    assert cosine(one, torch.zeros(SKETCH)) == 0.0


def test_the_cosine_of_a_large_gradient_is_that_of_a_sample(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = begun(folders["llama"])
    made = some(one)
    whole = gradient(one, made)
    monkeypatch.setattr("swarm.learn.learners.gradient_accumulator.SKETCH", 20_000)
    sampled = gradient(one, made)
    assert torch.equal(sampled.vector, whole.vector)
    assert sampled.metrics["cosine"] != whole.metrics["cosine"]
    assert sampled.metrics["cosine"] == pytest.approx(whole.metrics["cosine"], abs=0.05)


def test_the_peak_of_a_gradient_is_told(folders: dict[str, Path]) -> None:
    one = begun(folders["llama"])
    gradient(one, some(one))
    assert 100 << 20 < one.statistics()["peak"] < 100 << 30
