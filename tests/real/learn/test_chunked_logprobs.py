"""Chunked scoring against all logits at once: the same values and gradients, never the whole matrix."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_families import Letters, tiny
from torch.utils._python_dispatch import TorchDispatchMode

from swarm.learn.learners.chunked_logprobs import linear_head, token_logprobs
from swarm.learn.models.policy import LanguageModel, TokenScores

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "qwen3": ("Qwen3", {}),
    "gemma2": ("Gemma2", {}),
    "cohere": ("Cohere", {"logit_scale": 0.3}),
    "granite": ("Granite", {"logits_scaling": 4.0}),
}


def model(kind: str, tied: bool = False) -> Any:
    family, extra = KINDS[kind]
    return tiny(family, 1, **extra, tie_word_embeddings=tied)


def naive(
    hidden: torch.Tensor, weight: torch.Tensor, bias: Any, chosen: torch.Tensor, temperature: float
) -> Any:
    logp = torch.log_softmax(torch.nn.functional.linear(hidden, weight, bias).float() / temperature, -1)
    return logp.gather(-1, chosen[:, None]).squeeze(-1), -(logp.exp() * logp).sum(-1)


def inputs(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(1)
    leaves = [torch.randn(shape).to(dtype).requires_grad_() for shape in ((10, 8), (50, 8), (50,))]
    return leaves, torch.randint(50, (10,))


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 2e-5), (torch.bfloat16, 4e-2)])
@pytest.mark.parametrize("rows", [1, 3, 10, None])
def test_values_and_gradients_are_those_of_all_logits_at_once(
    dtype: torch.dtype, close: float, rows: int | None
) -> None:
    leaves, chosen = inputs(dtype)
    ours = token_logprobs(*leaves, chosen, 0.7, rows)
    theirs = naive(*(leaf.float() for leaf in leaves), chosen, 0.7)
    grad = torch.randn(10)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    mine, other = (torch.autograd.grad(x[0], leaves, grad) for x in (ours, theirs))
    for a, b in zip(mine, other, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a, b, rtol=close, atol=close)
    assert not ours[1].requires_grad


def test_the_gradient_is_the_slope_of_finite_differences() -> None:
    leaves, chosen = inputs()
    found = torch.autograd.grad(token_logprobs(*leaves, chosen, 1.3, 4)[0].sum(), leaves)
    for i, slope in enumerate(found):
        step = torch.randn(slope.shape) * 1e-2
        ends = [
            token_logprobs(*[x + s * step if i == j else x for j, x in enumerate(leaves)], chosen, 1.3, 4)[
                0
            ].sum()
            for s in (1, -1)
        ]
        assert float((ends[0] - ends[1]).detach() / 2) == pytest.approx(
            float((slope * step).sum()), rel=2e-2, abs=1e-3
        )


class Largest(TorchDispatchMode):
    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, tuple | list) else (out,):
            if isinstance(one, torch.Tensor):
                self.numel = max(self.numel, one.numel())
        return out


def test_no_more_logits_than_a_chunk_are_ever_made() -> None:
    hidden, weight = torch.randn(64, 4, requires_grad=True), torch.randn(300, 4, requires_grad=True)
    with Largest() as seen:
        token_logprobs(hidden, weight, None, torch.zeros(64, dtype=torch.long), 1.0, 5)[0].sum().backward()
    assert seen.numel == 5 * 300


def test_tokens_that_cannot_come_leave_the_entropy_finite() -> None:
    leaves, _ = inputs()
    bias = torch.zeros(50).index_fill(0, torch.tensor([7]), -torch.inf)
    logp, entropy = token_logprobs(leaves[0], leaves[1], bias, torch.full((10,), 3), 1.0, 4)
    logp.sum().backward()
    assert entropy.isfinite().all() and leaves[0].grad.isfinite().all()


def test_a_chunk_of_nothing_is_refused() -> None:
    leaves, chosen = inputs()
    with pytest.raises(ValueError, match="at least 1"):
        token_logprobs(*leaves, chosen, 1.0, 0)


@pytest.mark.parametrize(
    ("kind", "linear"), [("llama", 1), ("qwen3", 1), ("gemma2", 0), ("cohere", 0), ("granite", 0)]
)
def test_heads_that_transform_their_logits_are_told_from_those_that_do_not(kind: str, linear: int) -> None:
    assert (linear_head(model(kind)) is not None) == bool(linear)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma2"])
def test_ragged_rows_of_a_model_score_as_its_whole_logits_do(kind: str, tied: bool) -> None:
    policy = LanguageModel(model(kind, tied), Letters())  # type: ignore[arg-type]
    rows = [[5, 6, 7, 2], [9], [60, 3]]
    ours = policy.logprobs(["abc", "d", "abc"], rows, 0.8)
    policy._head = None
    theirs = policy.logprobs(["abc", "d", "abc"], rows, 0.8)
    found = []
    for scored in (ours, theirs):
        policy.module.zero_grad()
        _total(scored).backward()
        found.append([p.grad.clone() for p in policy.module.parameters()])
    torch.testing.assert_close(ours.logp[ours.mask], theirs.logp[ours.mask])
    torch.testing.assert_close(ours.entropy[ours.mask], theirs.entropy[ours.mask])
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)


def _total(scored: TokenScores) -> torch.Tensor:
    return (scored.logp * torch.arange(1, 5))[scored.mask].sum()
