"""A language model for learning: prompts and completions in, log-probabilities with a gradient out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from swarm.learn.files import weights
from swarm.learn.learners import chunked_logprobs
from swarm.learn.models import packing

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

    from swarm.learn.models.tokenization import Tokenization


CHARACTERS_PER_TOKEN = 3.0
"""Assumed characters per prompt token, when the memory of a pass is predicted."""


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
    ends: Sequence[int]
    """Tokens that end a completion; empty where all have the same length."""
    padded: str
    """Why a completion has a padded row with a copy of its prompt; empty where a group is one row with its
    prompt once, and before the first pass."""

    def logprobs(
        self, prompts: Sequence[str], rows: Sequence[Sequence[int]], temperature: float
    ) -> TokenScores:
        """Score completion `rows[i]` (token ids) of `prompts[i]`; T is the longest row."""
        ...

    def reference(self, prompts: Sequence[str], rows: Sequence[Sequence[int]], temperature: float) -> Tensor:
        """As `logprobs`, (B, T) of the run's version 0, without gradient. Raises ValueError where that is not
        here."""
        ...

    def tokens(self, prompt: str, lengths: Sequence[int]) -> float:
        """Tokens that a group of completions of these lengths takes in a pass, approximately: the memory of a
        pass is proportional to it."""
        ...


class LanguageModel:
    """A transformers causal model, or an adapter on one, with its tokenization.

    A group is one row with its prompt once (swarm.learn.models.packing). Where the model's states are then
    others, each completion has a row with a copy of the prompt: prompts are padded on the left and
    completions on the right, and prompts of one length need no attention mask at all; rows of like lengths go
    together. Logits are computed for
    completions alone: a chunk of tokens at a time where the model's head is linear, else all at once.
    """

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        tokenization: Tokenization,
        padded: str = "",
        in_step: bool = False,
        start: LanguageModel | Mapping[str, Tensor] | None = None,
    ) -> None:
        """`padded`: why groups are not to be packed; empty: they are where the model allows it. `in_step`:
        all groups of a call are one pass, as of a model that is split over several devices, whose parts go
        through their layers together. `start`: version 0, where it is the reference of a KL term: another
        model, or name -> value of an adapter, as in a release; without it the reference is the model below
        the adapter."""
        self.module: nn.Module = model
        self._tokenization = tokenization
        self.ends: Sequence[int] = tokenization.ends
        self._inner: nn.Module = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._base: nn.Module = self._inner.base_model
        self._head = chunked_logprobs.linear_head(self._inner)
        self._config = self._inner.config.get_text_config()
        self._longest, self._start = packing.longest(self._config), start
        self.padded, self.in_step, self._trial = padded, in_step, not padded
        """The first pass tries whether groups can be packed: a policy gets its weights after it is made, and
        with placeholders a trial shows nothing."""

    def logprobs(
        self, prompts: Sequence[str], rows: Sequence[Sequence[int]], temperature: float
    ) -> TokenScores:
        """See Policy."""
        predictions = self._predictions(self._encoded(prompts), rows)
        device = predictions.device
        lengths = torch.tensor([len(row) for row in rows], device=device)
        mask = torch.arange(int(lengths.max()), device=device) < lengths[:, None]
        chosen = torch.tensor([token for row in rows for token in row], device=device)
        scored = (
            _of_logits(predictions, chosen, temperature)
            if self._head is None
            else chunked_logprobs.token_logprobs(
                predictions, self._head.weight, self._head.bias, chosen, temperature
            )
        )
        logp, entropy = (
            torch.zeros(mask.shape, device=device).masked_scatter(mask, values) for values in scored
        )
        return TokenScores(logp, entropy, mask)

    @torch.no_grad()
    def reference(self, prompts: Sequence[str], rows: Sequence[Sequence[int]], temperature: float) -> Tensor:
        """See Policy."""
        if isinstance(self._start, LanguageModel):
            return self._start.logprobs(prompts, rows, temperature).logp
        if self._inner is self.module:
            raise ValueError("this policy trains all weights, and has no copy of those that it started from")
        below = self.module.disable_adapter() if self._start is None else self._with(self._start)  # type: ignore[operator]
        with below:
            return self.logprobs(prompts, rows, temperature).logp

    @contextmanager
    def _with(self, adapter: Mapping[str, Tensor]) -> Iterator[None]:
        """The adapter has these values in here."""
        mine = {name: (value, value.data) for name, value in weights.state(self.module).items()}
        try:
            for name, (parameter, own) in mine.items():
                parameter.data = adapter[name].to(own)
            yield
        finally:
            for parameter, own in mine.values():
                parameter.data = own

    @torch.no_grad()
    def distributions(
        self, prompts: Sequence[str], rows: Sequence[Sequence[int]], temperature: float
    ) -> Iterator[Tensor]:
        """Natural-log probabilities (N, V) of all tokens at the places of the given ones, row by row, some
        places at a time."""
        predictions = self._predictions(self._encoded(prompts), rows)
        if self._head is None:
            yield torch.log_softmax(predictions.float() / temperature, -1)
            return
        yield from chunked_logprobs.distributions(
            predictions, self._head.weight, self._head.bias, temperature
        )

    def tokens(self, prompt: str, lengths: Sequence[int]) -> float:
        """See Policy."""
        start = len(prompt) / CHARACTERS_PER_TOKEN
        group = packing.TokenGroup(range(round(start)), [range(length) for length in lengths])
        parts = [*group.parts(self._longest)]
        packed = not self.padded and max(part.size for part in parts) <= self._longest
        return sum(lengths) + (len(parts) if packed else len(lengths)) * start

    def _encoded(self, prompts: Sequence[str]) -> list[list[int]]:
        distinct = list(dict.fromkeys(prompts))
        ids_of = dict(zip(distinct, self._tokenization.encode(distinct), strict=True))
        return [ids_of[prompt] for prompt in prompts]

    def _predictions(self, starts: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]) -> Tensor:
        """(N, H) states from which the N tokens of `rows` are predicted, row by row; (N, V) logits where the
        head does more than multiply."""
        groups = packing.groups_of(starts, rows)
        if self._trial:
            self.padded, self._trial = packing.objection(self._inner, self._alone, self._packed), False
        if not self.in_step:
            groups = [part for group in groups for part in group.parts(self._longest)]
        sizes = [group.size for group in groups]
        if self.padded or (sum(sizes) if self.in_step else max(sizes)) > self._longest:
            return self._padded(starts, rows)
        most = self._longest if self.in_step else min(packing.ROW, self._longest)
        packed = packing.pack(groups, next(self.module.parameters()).device, most)
        return torch.cat([self._packed(row) for row in packed])

    def _packed(self, row: packing.PackedRow) -> Tensor:
        inputs = row.inputs(self._config)
        if self._head is None:
            logits: Tensor = self._inner(**inputs, logits_to_keep=row.predicts).logits
            return logits[0]
        states: Tensor = self._base(**inputs).last_hidden_state
        return states[0][row.predicts]

    def _alone(self, group: packing.TokenGroup) -> Tensor:
        return self._padded([group.prompt] * len(group.completions), group.completions)

    def _padded(self, starts: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]) -> Tensor:
        """Rows of like lengths go together."""
        shapes = [(len(start), len(row)) for start, row in zip(starts, rows, strict=True)]
        passes = [[*range(len(rows))]] if self.in_step else packing.alike(shapes)
        states: dict[int, Tensor] = {}
        for places in passes:
            found = self._in_one_pass([starts[i] for i in places], [rows[i] for i in places])
            states |= zip(places, found.split([len(rows[i]) for i in places]), strict=True)
        return torch.cat([states[i] for i in range(len(rows))])

    def _in_one_pass(self, starts: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]) -> Tensor:
        """All completions begin in one column."""
        before, after = max(map(len, starts)), max(map(len, rows))
        ids = torch.zeros(len(rows), before + after, dtype=torch.long)
        attend = torch.zeros(ids.shape, dtype=torch.bool)
        for i, (start, row) in enumerate(zip(starts, rows, strict=True)):
            ids[i, before - len(start) : before + len(row)] = torch.tensor([*start, *row])
            attend[i, before - len(start) : before + len(row)] = True
        device = next(self.module.parameters()).device
        inputs: dict[str, Any] = {"input_ids": ids[:, :-1].to(device), "use_cache": False}
        if not bool(attend[:, :before].all()):
            # Padding on the right needs no mask: a causal model never looks there.
            inputs["attention_mask"] = attend[:, :-1].to(device).long()
            inputs["position_ids"] = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        real = attend[:, before:].to(device)
        if self._head is None:
            logits: Tensor = self._inner(**inputs, logits_to_keep=after).logits
            return logits[:, -after:][real]
        states: Tensor = self._base(**inputs).last_hidden_state
        return states[:, -after:][real]


def _of_logits(logits: Tensor, chosen: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """(N, V) logits and (N,) tokens -> (N,) log-probabilities and entropies, all at once."""
    logp = torch.log_softmax(logits.float() / temperature, -1)
    with torch.no_grad():
        entropy = -(logp.exp() * logp).nan_to_num(nan=0.0).sum(-1)
    return logp.gather(-1, chosen[:, None]).squeeze(-1), entropy
