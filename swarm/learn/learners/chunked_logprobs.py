"""Log-probabilities of given tokens from hidden states, chunk by chunk, without the logits of a whole batch.

    hidden (N, H), weight (V, H), bias (V,), chosen (N,)
        --token_logprobs--> logp (N,) with gradient, entropy (N,) without
    hidden, weight, bias --distributions--> logp (rows, V) of each chunk

No more than rows x V logits exist at a time: forward keeps one log-sum-exp a row, backward computes each
chunk's logits again. Arithmetic is in float32 whatever the model's dtype; gradients are cast back once, at
the end. `linear_head` tells whether a model's logits are such a product at all. Not handled here: second
derivatives, heads split over devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LOGITS = 1 << 24
"""A chunk's logits are 64 MiB in float32: 110 rows at a vocabulary of 151,936, enough for an efficient matrix
product, and small beside the weight and its gradient there. With a small vocabulary one chunk holds all
rows."""

LARGE = 1000.0
"""Magnitude of the logits at which a head is probed: far above any soft cap, which is nearly the identity on
small logits."""


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    chosen: Tensor,
    temperature: float,
    rows: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Natural-log probabilities (N,) of the token ids `chosen` (N,), and entropies (N,) in nats, of
    softmax((hidden @ weight.T + bias) / temperature). `hidden` is (N, H), `weight` (V, H), `bias` (V,).

    Both results are float32; only the first has a gradient. `rows`: rows of a chunk, by default as many as
    make LOGITS logits. Raises ValueError for rows < 1.
    """
    rows = max(1, LOGITS // len(weight)) if rows is None else rows
    if rows < 1:
        raise ValueError(f"a chunk of {rows} rows scores nothing: give at least 1")
    logp, entropy = _TokenLogprobs.apply(hidden, weight, bias, chosen, temperature, rows)
    return logp, entropy


@torch.no_grad()
def distributions(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float
) -> Iterator[Tensor]:
    """Natural-log probabilities (rows, V) of all tokens, float32, a chunk of rows at a time."""
    wide, rows = weight.float(), max(1, LOGITS // len(weight))
    for start in range(0, len(hidden), rows):
        yield torch.log_softmax(_logits(hidden[start : start + rows], wide, bias, temperature), -1)


def linear_head(model: Any) -> nn.Linear | None:
    """The output embedding of a transformers model, or None when its logits are not exactly hidden @ W^T (+
    bias).

    Found by a trial on one token: the hidden states of the base are replaced by large ones, and the model's
    logits are compared with the product. This finds soft caps and scales, whatever a config calls them.
    """
    head, base = model.get_output_embeddings(), model.base_model
    if type(head) is not nn.Linear or base is model:
        return None
    probe: list[Tensor] = []

    def replace(_: nn.Module, __: Any, output: Any) -> Any:
        if getattr(output, "last_hidden_state", None) is not None:
            hidden = torch.ones_like(output.last_hidden_state)
            hidden[..., ::2] = -0.5
            size = F.linear(hidden, head.weight).abs().max().clamp(min=1e-9)
            output.last_hidden_state = hidden * (LARGE / size)
            probe.append(output.last_hidden_state)
        return output

    handle = base.register_forward_hook(replace)
    try:
        with torch.no_grad():
            logits = model(
                input_ids=torch.zeros(1, 1, dtype=torch.long, device=head.weight.device), use_cache=False
            ).logits
    finally:
        handle.remove()
    if not probe:
        return None
    with torch.no_grad():
        wanted = F.linear(probe[-1], head.weight, head.bias)
    alike = logits.shape == wanted.shape and torch.allclose(
        logits.float(), wanted.float(), rtol=1e-3, atol=1e-3 * LARGE
    )
    return head if alike and float(wanted.abs().max()) > LARGE / 2 else None


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        chosen: Tensor,
        temperature: float,
        rows: int,
    ) -> tuple[Tensor, Tensor]:
        wide, logp, entropy, total = (
            weight.float(),
            *(hidden.new_empty(len(hidden), dtype=torch.float32) for _ in range(3)),
        )
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            logits = _logits(hidden[part], wide, bias, temperature)
            total[part] = logits.logsumexp(-1)
            logits -= total[part, None]
            logp[part] = logits.gather(-1, chosen[part, None]).squeeze(-1)
            entropy[part] = -logits.exp().mul_(logits).nan_to_num_(nan=0.0).sum(-1)
        ctx.save_for_backward(hidden, weight, bias, chosen, total)
        ctx.temperature, ctx.rows = temperature, rows
        ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients for hidden (N, H), weight (V, H) and bias (V,): d logp / d logits = (onehot - softmax) /
        T, a chunk of rows at a time."""
        hidden, weight, bias, chosen, total = ctx.saved_tensors
        need_hidden, need_weight, need_bias = ctx.needs_input_grad[:3]
        wide = weight.float()
        to_hidden = torch.empty_like(hidden) if need_hidden else None
        to_weight = torch.zeros_like(wide) if need_weight else None
        to_bias = torch.zeros_like(bias, dtype=torch.float32) if need_bias else None
        for start in range(0, len(hidden), ctx.rows):
            part = slice(start, start + ctx.rows)
            scale = (grads[0][part] / ctx.temperature)[:, None]
            slope = (
                _logits(hidden[part], wide, bias, ctx.temperature).sub_(total[part, None]).exp_().mul_(-scale)
            )
            slope.scatter_add_(-1, chosen[part, None], scale)
            if to_hidden is not None:
                to_hidden[part] = (slope @ wide).to(hidden.dtype)
            if to_weight is not None:
                to_weight.addmm_(slope.T, hidden[part].float())
            if to_bias is not None:
                to_bias += slope.sum(0)
        cast = to_weight if to_weight is None else to_weight.to(weight.dtype)
        return to_hidden, cast, to_bias if to_bias is None else to_bias.to(bias.dtype), None, None, None


def _logits(hidden: Tensor, wide: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    """(rows, V) float32."""
    return F.linear(hidden.float(), wide, None if bias is None else bias.float()).div_(temperature)
