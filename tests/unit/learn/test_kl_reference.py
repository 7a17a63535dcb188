"""A KL term against version 0: its gradient is a plain computation's, and adapters need no second model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from learner_batches import KINDS, Batch, batch, gradient, model, settings
from msgspec.structs import replace
from rows import nightly
from torch import Tensor

from peers.build import new_run
from peers.build.model import base_model, factory
from peers.build.run_folder import BASE
from peers.fit import estimates
from peers.fit.estimates import RunShape
from peers.fit.model_shape import examine
from swarm.draws.replays import rows_of
from swarm.learn.fsdp.learner import ShardedLearner
from swarm.learn.learners.learner import Learner
from swarm.learn.methods import METHODS
from swarm.learn.models import adapters
from swarm.learn.models.model import load_policy
from swarm.learn.reference import has_reference
from swarm.settings.config import Config, ObjectiveSettings, Run
from swarm.settings.config import Model as ModelSettings
from swarm.storage.weights import Weights

KL = {"kl": 0.1, "kl_kind": "k3-reversed", "kl_against": "ref"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model(tmp_path_factory.mktemp("models"), "qwen3")


def run(training: Any = "full", **options: Any) -> Run:
    objective = ObjectiveSettings(name="gepo", options=KL | options)
    return replace(settings(training, lr=3e-3), objective=objective)


def begun(folder: Path, training: str, **options: Any) -> Learner:
    """A learner at version 0."""
    its = run(training, **options)
    one, _ = factory.learner(folder, Config(run=its))
    assert isinstance(one, Learner)
    first = one.weights().data if training == "full" else adapters.genesis(folder, its.lora, 1)
    one.load(Weights.of(first, 0), fresh=True)
    return one


def flat(made: Batch) -> Batch:
    """Rewards without advantages: what is left of a gradient is its KL term."""
    groups, prompts, rewards = made
    return groups, prompts, [(1.0,) * len(each) for each in rewards]


def plain_logprobs(module: Any, starts: list[list[int]], made: Batch) -> list[Tensor]:
    """Of each completion, alone in its row."""
    found = []
    for group, start in zip(made[0], starts, strict=True):
        for row in rows_of(group):
            logits = module(torch.tensor([[*start, *row]])).logits[0, len(start) - 1 : -1]
            found.append(torch.log_softmax(logits.float(), -1).gather(-1, torch.tensor(row)[:, None])[:, 0])
    return found


@pytest.mark.parametrize("training", KINDS)
def test_the_gradient_is_that_of_a_plain_computation(folder: Path, training: str) -> None:
    one = begun(folder, training)
    made = batch(one.policy, 3)  # type: ignore[arg-type]
    assert gradient(one, flat(made)).vector.count_nonzero() == 0  # version 0 is the reference itself
    for _ in range(3):
        one.step(gradient(one, made).vector)
    found = gradient(one, flat(made)).vector

    start = load_policy(folder, quantize="nf4" if training == "qlora" else "none")
    starts = one.policy._tokenization.encode(made[1])  # type: ignore[attr-defined]
    mine = plain_logprobs(one.policy.module, starts, made)
    with torch.no_grad():
        before = plain_logprobs(start, starts, made)
    kl = [(b - p).exp() - (b - p) - 1 for p, b in zip(mine, before, strict=True)]
    loss = 0.1 * torch.stack([each.mean() for each in kl]).mean()
    wanted = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(one._named.values()))])
    assert wanted.norm() > 1e-4
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("training", ["lora", *nightly(["qlora"])])
def test_an_adapter_is_switched_off_for_it_and_on_again(folder: Path, training: str) -> None:
    one = begun(folder, training)
    made = batch(one.policy, 2)  # type: ignore[arg-type]
    one.step(gradient(one, made).vector)
    before = one.weights().digest
    twice = [gradient(one, made).vector for _ in range(2)]
    assert torch.equal(*twice) and one.weights().digest == before
    assert all(parameter.requires_grad for parameter in one._named.values())
    scored = [one.policy.logprobs(made[1][:1], rows_of(made[0][0])[:1], 1.0).logp for _ in range(2)]
    reference = one.policy.reference(made[1][:1], rows_of(made[0][0])[:1], 1.0)
    assert torch.equal(*scored) and not torch.equal(scored[0], reference)


@pytest.mark.parametrize(("training", "copies"), [("full", 1), ("lora", 0)])
def test_only_where_all_weights_are_trained_there_is_a_second_copy(
    folder: Path, training: str, copies: int
) -> None:
    one = begun(folder, training)
    second = one.policy._start  # type: ignore[attr-defined]
    found = 0 if second is None else sum(each.numel() for each in second.module.parameters())
    assert found == copies * sum(each.numel() for each in load_policy(folder).parameters())
    assert second is None or not any(each.requires_grad for each in second.module.parameters())
    other, _ = factory.learner(folder, Config(run=run(training, kl_against="sampler")))
    assert other.policy._start is None  # type: ignore[attr-defined]
    predicted = [
        estimates.learner(examine(folder), shape, training, gpu=False).least.model
        for shape in (RunShape.of(Config(run=each.run)) for each in (one, other))
    ]
    own = replace(one.run, objective=ObjectiveSettings(name="not.here:OWN"))
    assert not RunShape.of(Config(run=own)).reference  # nothing is imported for an estimate
    more = copies * 4 * found * estimates.ALLOCATOR_OVERHEAD
    assert predicted[0] - predicted[1] == pytest.approx(more, rel=0.01)


@pytest.mark.parametrize("against", ["ref", "sampler"])
def test_a_joiner_makes_the_reference_from_the_runs_files(folder: Path, tmp_path: Path, against: str) -> None:
    its = replace(run(kl_against=against), model=ModelSettings(name=str(folder)))
    made = new_run.create(tmp_path / "run", its, folder)
    assert (BASE in made.spec.files) == (against == "ref")
    if against == "ref":
        assert base_model.start(made.model, its) == made.model
        one, _ = factory.learner(made.model, Config(run=its))
        one.load(Weights.of(made.genesis() or b"", 0), fresh=True)
        some = batch(one.policy, 1)  # type: ignore[attr-defined]
        assert gradient(one, flat(some)).vector.count_nonzero() == 0  # type: ignore[arg-type]


def test_a_model_on_several_gpus_has_no_reference(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"set peer.learner.gpus to 1, or take kl_against=sampler"):
        ShardedLearner(folder, run(), ["cpu", "cpu"])


def test_no_method_has_a_reference_that_its_run_does_not_ask_for() -> None:
    assert not [method.name for method in METHODS if method.has_reference]
    weighted = ObjectiveSettings(name="disco", options={"kl_against": "ref"})  # it has a KL term by itself
    assert has_reference(Run(objective=weighted))
    assert has_reference(run()) and not has_reference(run(kl_against="sampler"))
    assert not has_reference(Run()) and not has_reference(run(kl=0))
