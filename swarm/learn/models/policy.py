"""A language model for learning: prompts and completions in, log-probabilities with a gradient out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from swarm.learn.learners import chunked_logprobs

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

    from swarm.learn.models.tokenization import Tokenization


class TokenScores(NamedTuple):
    """Log-probabilities of B completions, padded to T tokens."""

    logp: Tensor
    """(B, T) natural-log probabilities of the given tokens at the temperature; with gradient; undefined where
    mask is 0."""
    entropy: Tensor
    """(B, T) nats, without gradient."""
    mask: Tensor
    """(B, T) bool."""


class Policy(Protocol):
    """A learner's interface to a model."""

    module: nn.Module

    def logprobs(
        self, prompts: Sequence[str], rows: Sequence[Sequence[int]], temperature: float
    ) -> TokenScores:
        """Score completion `rows[i]` (token ids) of `prompts[i]`; T is the longest row."""
        ...


class LanguageModel:
    """A transformers causal model, or an adapter on one, with its tokenization.

    Prompts are padded on the left and completions on the right, so that all completions begin in one column
    and only their logits are computed: a chunk of real tokens at a time where the model's head is linear,
    else all at once. Prompts of one length need no attention mask at all.
    """

    def __init__(self, model: PreTrainedModel | PeftModel, tokenization: Tokenization) -> None:
        self.module: nn.Module = model
        self._tokenization = tokenization
        self._inner: nn.Module = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._base: nn.Module = self._inner.base_model
        self._head = chunked_logprobs.linear_head(self._inner)

    def logprobs(
        self, prompts: Sequence[str], rows: Sequence[Sequence[int]], temperature: float
    ) -> TokenScores:
        """See Policy."""
        inputs, chosen, mask = self._inputs(prompts, rows)
        if self._head is None:
            return TokenScores(*self._whole(inputs, chosen, temperature), mask)
        scored = chunked_logprobs.token_logprobs(
            self._hidden(inputs, mask), self._head.weight, self._head.bias, chosen[mask], temperature
        )
        logp, entropy = (
            torch.zeros(mask.shape, device=mask.device).masked_scatter(mask, values) for values in scored
        )
        return TokenScores(logp, entropy, mask)

    @torch.no_grad()
    def distributions(
        self, prompts: Sequence[str], rows: Sequence[Sequence[int]], temperature: float
    ) -> Iterator[Tensor]:
        """Natural-log probabilities (N, V) of all tokens at the places of the given ones, row by row, some
        places at a time."""
        inputs, _, mask = self._inputs(prompts, rows)
        if self._head is None:
            yield torch.log_softmax(self._logits(inputs, mask.shape[1], temperature)[mask], -1)
            return
        yield from chunked_logprobs.distributions(
            self._hidden(inputs, mask), self._head.weight, self._head.bias, temperature
        )

    def _inputs(
        self, prompts: Sequence[str], rows: Sequence[Sequence[int]]
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """The model's inputs, the tokens to score (B, T) and a mask of the real ones (B, T)."""
        device = next(self.module.parameters()).device
        distinct = list(dict.fromkeys(prompts))
        ids_of = dict(zip(distinct, self._tokenization.encode(distinct), strict=True))
        starts = [ids_of[prompt] for prompt in prompts]
        before, after = max(map(len, starts)), max(map(len, rows))
        ids = torch.zeros(len(rows), before + after, dtype=torch.long)
        attend = torch.zeros(ids.shape, dtype=torch.bool)
        for i, (start, row) in enumerate(zip(starts, rows, strict=True)):
            ids[i, before - len(start) : before + len(row)] = torch.tensor([*start, *row])
            attend[i, before - len(start) : before + len(row)] = True
        ids, mask = ids.to(device), attend[:, before:].to(device)
        inputs: dict[str, Tensor] = {"input_ids": ids[:, :-1]}
        if not bool(attend[:, :before].all()):
            # Padding on the right needs no mask: a causal model never looks there.
            inputs["attention_mask"] = attend[:, :-1].to(device).long()
            inputs["position_ids"] = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        return inputs, ids[:, before:], mask

    def _hidden(self, inputs: dict[str, Tensor], mask: Tensor) -> Tensor:
        """Hidden states (N, H) from which the N real tokens are predicted."""
        states: Tensor = self._base(**inputs, use_cache=False).last_hidden_state
        return states[:, -mask.shape[1] :][mask]

    def _logits(self, inputs: dict[str, Tensor], after: int, temperature: float) -> Tensor:
        """(B, T, V) float32, divided by the temperature."""
        logits: Tensor = self._inner(**inputs, use_cache=False, logits_to_keep=after).logits
        return logits[:, -after:].float() / temperature

    def _whole(self, inputs: dict[str, Tensor], chosen: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """(B, T) log-probabilities and entropies from all logits at once: for a head that does more than
        multiply."""
        logp = torch.log_softmax(self._logits(inputs, chosen.shape[1], temperature), -1)
        with torch.no_grad():
            entropy = -(logp.exp() * logp).nan_to_num(nan=0.0).sum(-1)
        return logp.gather(-1, chosen[..., None]).squeeze(-1), entropy
