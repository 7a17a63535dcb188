"""Replays a group's sampling from its finished text: one forward pass shows how far each token is from the
choice of the group's noise.

    prompt, rows of a group, its seed --replay--> max over v of (log p + noise)(v) - (log p + noise)(token),
                                                  log p(token)

A margin is 0 where the replaying policy chooses the same token. Honest sampling elsewhere rounds otherwise:
its margins are small and seldom above 0. Another text, seed, temperature, policy or truncation makes large
ones. How small the honest ones are depends on the model: of the first CALIBRATED groups a second pass in
another precision shows which tokens a sampler in that precision would draw after the same text; several times
their deviation is allowed (swarm.core.audits.auditing). Not handled here: the consequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from swarm.core.audits.auditing import Tolerance, tolerance
from swarm.draws import noise
from swarm.draws.heads import Head, apart
from swarm.draws.replays import Replayed
from swarm.learn.models.policy import LanguageModel
from swarm.storage.blocks import Blocks
from swarm.storage.weights import Weights
from swarm.types import Noise

CALIBRATED = 16
"""Groups: thousands of tokens, and the second pass costs as much as the first."""

ASSUMED, FEW = 0.05, 10
"""Nats: the mean of margins that are not 0 as far as nothing is measured, which counts as much as so many
tokens. Of a vocabulary of 151,936 it is .073 (docs/trust.md), of small ones .01."""

BOTH = 2**0.5
"""Factor where the learner itself rounds: the second pass is off by the learner's errors alone, a sampler by
errors of its own as well."""


class ModelReplay:
    """A Replay under a language model. `load_weights` is that of swarm.sample.hf."""

    noise = Noise.GUMBEL

    def __init__(
        self,
        policy: LanguageModel,
        load_weights: Callable[[nn.Module, Blocks], None],
        ends: Sequence[int],
        longest: int,
        temperature: float,
    ) -> None:
        """`longest`: tokens of a completion that no end token ends."""
        self._policy, self._load_weights, self._temperature = policy, load_weights, temperature
        self._ends, self._longest = frozenset(ends), longest
        self._usual: list[Replayed] = []
        """Of honest sampling in another precision."""
        policy.module.eval()

    @property
    def allowed(self) -> Tolerance:
        if not self._usual:
            return tolerance(0.0, 0.0, 0.0)
        margins = np.concatenate([each.margins for each in self._usual])
        differ = np.concatenate([each.logprobs for each in self._usual])
        return tolerance(float(margins.max()), float(margins.mean()), float(differ.mean()))

    @property
    def usual(self) -> float:
        """As Replayed.usual, from its replays so far."""
        margins = np.concatenate([each.margins for each in self._usual])
        mean = float((margins.sum() + FEW * ASSUMED) / ((margins > 0).sum() + FEW))
        return mean if _dtype(self._policy) == torch.float32 else BOTH * mean

    def load(self, weights: Weights) -> None:
        self._load_weights(self._policy.module, weights.blocks)

    def replay(
        self, prompt: str, rows: Sequence[Sequence[int]], seed: int, head: Head | None = None
    ) -> Replayed:
        group = prompt, rows, self._temperature, seed, head
        if len(self._usual) < CALIBRATED:
            found, usual = replay_both(self._policy, *group)
            self._usual.append(usual)
        else:
            found = replay(self._policy, *group)
        wrong = np.concatenate([self._ended_otherwise(row) for row in rows])
        margins = np.where(wrong, np.float32(np.inf), found.margins)
        return replace(found, margins=margins, usual=self.usual)

    def _ended_otherwise(self, row: Sequence[int]) -> NDArray[np.bool_]:
        """(T,) Which tokens come after an end, or are the last one though nothing ended there."""
        ends = np.array([token in self._ends for token in row])
        wrong = ends.cumsum() - ends > 0
        wrong[-1] |= not ends[-1] and len(row) < self._longest
        return wrong


def replay(
    policy: LanguageModel,
    prompt: str,
    rows: Sequence[Sequence[int]],
    temperature: float,
    seed: int,
    head: Head | None = None,
) -> Replayed:
    """Of the G completions `rows` (token ids) of the group that was drawn with this seed, (sum T_i,)."""
    return _of_tokens(policy, prompt, rows, temperature, seed, [_ids(rows)], head)[0]


def replay_both(
    policy: LanguageModel,
    prompt: str,
    rows: Sequence[Sequence[int]],
    temperature: float,
    seed: int,
    head: Head | None = None,
) -> tuple[Replayed, Replayed]:
    """The replay, and that of the tokens that another precision would draw, each after the same text; instead
    of log-probabilities it has by how much that precision has other ones for the tokens of `rows`."""
    dtype = torch.bfloat16 if _dtype(policy) == torch.float32 else torch.float16
    chosen, drawn, claims = _ids(rows), list[Tensor](), list[Tensor]()
    with torch.autocast(next(policy.module.parameters()).device.type, dtype):
        for part, logp, scores in _scores(policy, prompt, rows, temperature, seed):
            drawn.append(scores.argmax(-1).cpu())
            claims.append(logp.gather(1, chosen[part, None].to(logp.device))[:, 0].cpu())
    both = [chosen, torch.cat(drawn)]
    found, usual = _of_tokens(policy, prompt, rows, temperature, seed, both, head)
    return found, Replayed(usual.margins, np.abs(torch.cat(claims).float().numpy() - found.logprobs))


def _of_tokens(
    policy: LanguageModel,
    prompt: str,
    rows: Sequence[Sequence[int]],
    temperature: float,
    seed: int,
    choices: Sequence[Tensor],
    head: Head | None,
) -> list[Replayed]:
    """In one forward pass, the replay of each choice of tokens (sum T_i,) at the places of `rows`, each token
    after their text; all have the distance of `head`."""
    margins = [list[NDArray[np.float32]]() for _ in choices]
    logprobs = [list[NDArray[np.float32]]() for _ in choices]
    beside: list[NDArray[np.float32]] = []
    for part, logp, scores in _scores(policy, prompt, rows, temperature, seed):
        best = scores.max(-1).values
        for k, chosen in enumerate(choices):
            tokens = chosen[part, None].to(logp.device)
            margins[k].append((best - scores.gather(1, tokens)[:, 0]).cpu().numpy())
            logprobs[k].append(logp.gather(1, tokens)[:, 0].cpu().numpy())
        if head is not None:
            beside.append(_beside(Head(head.tokens[part], head.logprobs[part]), logp))
    far = np.concatenate(beside) if beside else None
    both = zip(margins, logprobs, strict=True)
    return [Replayed(np.concatenate(one), np.concatenate(other), far) for one, other in both]


def _beside(head: Head, logp: Tensor) -> NDArray[np.float32]:
    """(N,) nats between heads and the log-probabilities (N, V) of all tokens."""
    tokens = torch.from_numpy(head.tokens.astype(np.int64)).to(logp.device)
    highest = logp.topk(head.tokens.shape[1]).values
    return apart(head, logp.gather(1, tokens).float().cpu().numpy(), highest.float().cpu().numpy())


def _scores(
    policy: LanguageModel, prompt: str, rows: Sequence[Sequence[int]], temperature: float, seed: int
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Some places at a time: which ones, log-probabilities (N, V), the same with the noise."""
    places = [(seed, g, t) for g, row in enumerate(rows) for t in range(len(row))]
    done = 0
    for logp in policy.distributions([prompt] * len(rows), rows, temperature):
        part = slice(done, done + len(logp))
        yield part, logp, logp + noise.at_places(places[part], len(rows), logp.shape[1], logp.device)
        done += len(logp)


def _dtype(policy: LanguageModel) -> torch.dtype:
    return next(policy.module.parameters()).dtype


def _ids(rows: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor([token for row in rows for token in row])
