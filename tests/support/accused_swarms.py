"""A replay that accuses honest samplers: every token is far off."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from swarm.draws.heads import Head
from swarm.draws.replays import Replayed
from swarm.sample.toy import TableReplay

CHEAT, LIAR = "sampler-0", "learner-2"


class Slander(TableReplay):
    """Finds every token far off."""

    def replay(
        self, prompt: str, rows: Sequence[Sequence[int]], seed: int, head: Head | None = None
    ) -> Replayed:
        true = super().replay(prompt, rows, seed, head)
        return Replayed(true.margins + np.float32(9.0), true.logprobs)
