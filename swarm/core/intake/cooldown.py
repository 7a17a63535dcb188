"""Which of its draws a sampler leaves out where batches are filled by signal (`run.batch.refill`).

    scored(prompt, rewards)      how many groups of the prompt had equal rewards, in a row
    samples(prompt, draw)        False: this draw is left out

A prompt whose last k groups taught nothing is sampled in one of 2^k of its draws, k at most COLDEST: prompts
that are solved, or that no completion solves, come seldom, and none never, since the policy changes. The seed
of the draw decides, so a sampler that begins anew with the same groups leaves out the same. What is left out
changes no draw: a group is checked against its number (swarm.core.intake.curriculum), and numbers may be
left out. Each sampler counts its own groups alone.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

from swarm.core.intake.curriculum import Draw
from swarm.limits import remember

COLDEST = 3
"""One of eight draws: with more, a prompt that the policy has come to answer would wait for long. Draws of a
release are numbered no faster than `admission.DRAWS_PER_SECOND`: those of an engine with 32 groups a
second."""

REMEMBERED = 100_000
"""Prompts, the last ones to be flat: about 15 MB."""


class Cooldown:
    """The prompts of one sampler whose last groups had equal rewards."""

    def __init__(self) -> None:
        self._flat: OrderedDict[bytes, int] = OrderedDict()
        """Prompt -> how many of its groups in a row were flat; those without one are not here."""

    def samples(self, prompt: str, draw: Draw) -> bool:
        """Whether a draw is sampled; False: it is left out."""
        return draw.seed % (1 << self._flat.get(_key(prompt), 0)) == 0

    def scored(self, prompt: str, rewards: Sequence[float]) -> None:
        """A group of the prompt was sampled and scored."""
        key = _key(prompt)
        if len({*rewards}) > 1:
            self._flat.pop(key, None)
        else:
            remember(self._flat, key, min(COLDEST, self._flat.get(key, 0) + 1), REMEMBERED)


def _key(prompt: str) -> bytes:
    return hashlib.blake2b(prompt.encode(errors="surrogatepass"), digest_size=16).digest()
