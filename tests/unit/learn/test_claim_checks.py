"""Claimed log-probabilities beside the learner's: honest ones are left alone, lies are found, nothing is
unbounded."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learner_batches import Batch, batch, gradient, learner, model, policy, settings
from torch import Tensor

from swarm.core.intake.claimed_logprobs import GROUP_EVIDENCE_LIMIT, SLACK, objection
from swarm.learn.learners import learner as learning
from swarm.learn.learners.claim_checks import bound_logq, check_claims
from swarm.types import Array

GROUPS, COMPLETIONS, TOKENS, WORDS = 400, 8, 5, 12
DRIFT = 8.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model(tmp_path_factory.mktemp("model"), "llama")


def drawn(apart: float, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """(logp, logq, mask) of GROUPS honest groups, one after the other, whose learner's logits are `apart`
    (standard deviation) from those that sampled."""
    generator = torch.Generator().manual_seed(seed)
    shape = (GROUPS * COMPLETIONS, TOKENS)
    sampler = torch.randn(*shape, WORDS, generator=generator)
    other = sampler + apart * torch.randn(*shape, WORDS, generator=generator)
    token = torch.multinomial(sampler.softmax(-1).flatten(0, 1), 1, generator=generator).view(*shape, 1)
    logp, logq = (logits.log_softmax(-1).gather(-1, token).squeeze(-1) for logits in (other, sampler))
    length = torch.randint(1, TOKENS + 1, (shape[0], 1), generator=generator)
    return logp, logq, torch.arange(TOKENS) < length


def evidence(logp: Tensor, logq: Tensor, mask: Tensor) -> list[float]:
    sizes = [COMPLETIONS] * (len(logp) // COMPLETIONS)
    return [check.evidence for check in check_claims(logp, logq, mask, sizes, TOKENS)]


@pytest.mark.parametrize("apart", [0.0, 0.1, 0.5, 1.0, 3.0])
def test_an_honest_group_is_not_doubted_however_far_the_policies_are_apart(apart: float) -> None:
    found = evidence(*drawn(apart))
    assert max(found) < GROUP_EVIDENCE_LIMIT
    # an e-value: its expectation is at most 1
    assert sum(math.exp(each) for each in found) / len(found) < 1.5


LIES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "every token is -20": lambda p, q, right: torch.full_like(q, -20.0),
    "1.5 nats less": lambda p, q, right: q - 1.5,
    "nothing is that small": lambda p, q, right: torch.full_like(q, -3e38),
    "wrong completions 5 nats less, right ones more": lambda p, q, right: torch.where(
        right, q.new_zeros(()), q - 5.0
    ),
    "one token": lambda p, q, right: torch.cat([q[:, :1] - 25.0 * ~right[:, :1], q[:, 1:]], -1),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_claim_that_makes_completions_count_more_is_doubted(lie: str) -> None:
    logp, logq, mask = drawn(0.3)
    right = (torch.arange(len(logp)) % 2 == 0)[:, None].expand_as(logp)
    doubted = [each > GROUP_EVIDENCE_LIMIT for each in evidence(logp, LIES[lie](logp, logq, right), mask)]
    assert sum(doubted) > 0.9 * GROUPS


def test_small_lies_add_up() -> None:
    logp, logq, mask = drawn(0.3)
    honest, lying = evidence(logp, logq, mask), evidence(logp, logq - 0.3, mask)
    assert sum(lying[:10]) > 20 > 0 > sum(honest)


def test_a_token_that_is_impossible_for_the_learner_counts_as_one_of_a_hundred_nats() -> None:
    logp, logq, mask = drawn(0.0)
    (whole,) = check_claims(logp[:1], logq[:1], mask[:1], [1], TOKENS)
    (lost,) = check_claims(torch.full((1, TOKENS), -math.inf), logq[:1], mask[:1], [1], TOKENS)
    assert (whole.drift, lost.drift) == (0.0, -100.0) and math.isfinite(lost.evidence)


def test_padding_is_not_read() -> None:
    logp, logq, mask = drawn(0.5)
    spoiled = torch.where(mask, logq, torch.nan)
    assert evidence(logp, spoiled, mask) == evidence(logp, logq, mask)


def test_an_honest_claim_is_not_changed_by_a_bit_and_any_other_is_bounded_on_both_sides() -> None:
    logp, logq, _ = drawn(1.0)
    assert torch.equal(bound_logq(logp, logq, DRIFT), logq)
    for claim in (-3e38, -20.0, 0.0, 1e-3):
        ratio = (logp - 10.0) - bound_logq(logp - 10.0, torch.full_like(logq, claim), DRIFT)
        assert float(ratio.min()) >= -2 * DRIFT - 1e-5 and float(ratio.max()) <= DRIFT + 1e-5
    far = logp - 3 * DRIFT - 1.0
    for claim, edge in ((0.0, -2 * DRIFT), (-3e38, DRIFT)):
        ratio = far - bound_logq(far, torch.full_like(logq, claim), DRIFT)
        torch.testing.assert_close(ratio, torch.full_like(ratio, edge))


def spoiled(made: Batch, which: tuple[int, ...], by: float) -> Batch:
    """Their samplers claim `by` nats less for each token."""
    import msgspec

    groups = list(made[0])
    for i in which:
        values = np.frombuffer(groups[i].logprobs.data, "<f4") - np.float32(by)
        less = Array(dtype="float32", shape=values.shape, data=values.tobytes())
        groups[i] = msgspec.structs.replace(groups[i], logprobs=less)
    return groups, made[1], made[2]


def test_a_gradient_of_honest_groups_has_the_same_bits_as_without_any_bound(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = settings()
    made = batch(policy(folder, run), 6)
    of = learner(folder, run)
    of.step(torch.randn(of.size, generator=torch.Generator().manual_seed(1)))
    with_bound = gradient(of, made)
    monkeypatch.setattr(learning, "bound_logq", lambda logp, logq, drift: logq)
    monkeypatch.setattr(learning, "objection", lambda check, drift: None)
    assert with_bound.vector.abs().max() > 0 and torch.equal(gradient(of, made).vector, with_bound.vector)


@pytest.mark.parametrize("micro", [2, 32])
def test_a_group_that_is_not_believed_counts_as_one_that_teaches_nothing(folder: Path, micro: int) -> None:
    run = settings(micro=micro)
    made = batch(policy(folder, run), 6)
    # Not its place in the batch, nor its claim: with equal rewards a group teaches nothing, too.
    flat = (made[0], made[1], [(1.0,) * 4 if i in (0, 3) else rewards for i, rewards in enumerate(made[2])])
    told = gradient(learner(folder, run), spoiled(made, (0, 3), 20.0))
    assert [objection(each, DRIFT) is None for each in told.checks] == [False, True, True, False, True, True]
    expected = gradient(learner(folder, run), flat).vector
    rounding = 1e-6 * float(expected.abs().max())
    torch.testing.assert_close(told.vector, expected, rtol=1e-4, atol=rounding)
    assert told.groups == 6 and max(map(abs, told.advantages)) > 0


def test_a_batch_that_is_not_believed_has_no_gradient_and_no_nan(folder: Path) -> None:
    run = settings()
    told = gradient(learner(folder, run), spoiled(batch(policy(folder, run), 3), (0, 1, 2), 1e30))
    assert not told.vector.any() and all(objection(each, DRIFT) for each in told.checks)


def test_the_bound_is_the_runs(folder: Path) -> None:
    run: Any = settings()
    far = spoiled(batch(policy(folder, run), 2), (1,), -20.0)
    assert objection(gradient(learner(folder, run), far).checks[1], run.window.drift)


def test_the_evidence_is_that_of_the_formula() -> None:
    logp = torch.zeros(2, 2, dtype=torch.float64)
    logq = logp - torch.tensor([[2.0, 1.0], [0.5, 3.0]], dtype=torch.float64)
    x = [[2.0 - SLACK, 1.0 - SLACK], [0.5 - SLACK, 3.0 - SLACK]]
    parts = [
        math.exp(sum(map(sum, x))),
        sum(math.exp(sum(row)) for row in x) / 2,
        sum(math.exp(v) for row in x for v in row) / (2 * 2),
    ]
    (found,) = check_claims(logp, logq, torch.ones(2, 2), [2], 2)
    assert found.evidence == pytest.approx(math.log(sum(parts) / 3), rel=1e-6)
    assert found.drift == pytest.approx(6.5 / 4)
