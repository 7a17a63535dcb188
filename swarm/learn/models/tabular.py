"""The simulator's policy: a trainable table of logits, one distribution per (prompt, position).

The prompt is a decimal number and selects the row of its value modulo the number of rows. Completions have a
fixed length and no end token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from swarm.learn.models.policy import TokenScores


class Table(nn.Module):
    """Logits (buckets, letters, alphabet), all 0 at the start, and `filler` values that are released and not
    trained: a simulated model may be larger than its trained part."""

    def __init__(self, buckets: int, letters: int, alphabet: int, filler: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(buckets, letters, alphabet))
        if filler:
            self.register_buffer("filler", torch.zeros(filler, dtype=torch.bfloat16))


class Tabular:
    """A Policy over a Table: (buckets, positions, tokens), uniform at the start."""

    ends: Sequence[int] = ()
    padded = ""

    def __init__(self, buckets: int = 16, letters: int = 4, alphabet: int = 8, filler: int = 0) -> None:
        self._table = Table(buckets, letters, alphabet, filler)
        self.module: nn.Module = self._table

    def logprobs(
        self, prompts: Sequence[str], rows: Sequence[Sequence[int]], temperature: float
    ) -> TokenScores:
        """Rows are exactly as long as the table has positions. Raises ValueError otherwise."""
        buckets, letters, _ = self._table.logits.shape
        if any(len(row) != letters for row in rows):
            raise ValueError(f"a completion of this table has {letters} tokens")
        which = torch.tensor([int(prompt) % buckets for prompt in prompts])
        logp = torch.log_softmax(self._table.logits / temperature, -1)[which]
        with torch.no_grad():
            entropy = -(logp.exp() * logp).sum(-1)
        chosen = logp.gather(-1, torch.tensor([[*row] for row in rows])[:, :, None]).squeeze(-1)
        return TokenScores(chosen, entropy, torch.ones_like(chosen, dtype=torch.bool))

    def reference(self, prompts: Sequence[str], rows: Sequence[Sequence[int]], temperature: float) -> Tensor:
        """See Policy: all tokens are as likely."""
        return torch.full((len(rows), len(rows[0])), -math.log(self._table.logits.shape[-1]))

    def tokens(self, prompt: str, lengths: Sequence[int]) -> float:
        """See Policy."""
        return float(sum(lengths))
