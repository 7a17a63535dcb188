"""What leaves a GPU is what a processor makes of the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from learner_batches import batch, gradient, model, policy, settings

from swarm.learn.files import weights
from swarm.learn.learners.gradient_accumulator import GradientAccumulator
from swarm.learn.learners.learner import Learner
from swarm.learn.models import tokenization
from swarm.learn.models.model import load_policy
from swarm.learn.models.policy import LanguageModel

pytestmark = pytest.mark.gpu


def learners(folder: Path) -> tuple[Learner, Learner]:
    """Of one model, on a GPU and on the processor."""
    run = settings()
    there = LanguageModel(load_policy(folder, "cuda", "float32"), tokenization.load(folder))
    here = policy(folder, run)
    return Learner(there, run, ram=lambda: 1 << 40), Learner(here, run, ram=lambda: 1 << 40)


def test_a_gpus_learner_makes_the_gradient_the_step_and_the_release_of_a_processor(tmp_path: Path) -> None:
    there, here = learners(model(tmp_path, "qwen3"))
    made = batch(here.policy, 4)  # type: ignore[arg-type]
    one, two = gradient(there, made), gradient(here, made)
    largest = float(two.vector.abs().max())
    assert one.vector.is_pinned()
    torch.testing.assert_close(one.vector, two.vector, rtol=1e-3, atol=1e-3 * largest)
    steps = [each.step(two.vector)["grad_norm"] for each in (there, here)]
    assert steps[0] == steps[1]
    released = [weights.from_bytes(bytes(each.weights().data)) for each in (there, here)]
    for name, value in released[0].items():
        torch.testing.assert_close(value, released[1][name], rtol=1e-2, atol=1e-6)


def test_a_vector_keeps_its_values_while_the_next_one_is_made() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1000, device="cuda"))
    kept = []
    for value in range(3):
        parameter.grad = torch.full_like(parameter, float(value))
        total = GradientAccumulator({"w": parameter}, page_locked=True)
        total.add()
        kept.append(total.vector())
    assert [set(vector.tolist()) for vector in kept] == [{0.0}, {1.0}, {2.0}]


def test_a_gpu_rounds_a_release_as_a_processor_does() -> None:
    values = torch.randn(300_000, generator=torch.Generator().manual_seed(1)) * 10.0 ** torch.arange(
        -6, 6
    ).repeat(25_000)
    assert weights.to_bytes({"w": values.cuda()}) == weights.to_bytes({"w": values})
