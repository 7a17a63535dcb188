"""A sampler that cheats, as a process: everything but its engine, and what it says of its draws, is what
`swarm` runs.

    python tests/support/cheating_peer.py CHEAT join WORD --as sampler --folder DIR ...

CHEAT is one of OFFERED: cheats of lab.studies.liars.cheats that are for any policy. Its engine `hf` is in its
own process, since a cheat asks it for more than an honest sampler does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from lab.studies.liars.cheats import ANYWHERE, CHEATS, Cheat, at_temperature
from peers import cli
from peers.build import assembly
from peers.build.model.engine_opening import imported
from peers.build.model.engine_process import EngineProcess
from peers.sampler.new_group import Drawn
from peers.sampler.sampler import Sampler
from swarm.core.intake.curriculum import Draw
from swarm.protocol import Kind
from swarm.sample.base import Completions
from swarm.settings.config import Config
from swarm.storage.weights import Weights

if TYPE_CHECKING:
    from swarm.net.ports import Work

OLDER = "an older version, relabelled"
"""It goes on with the first version that it was given."""

OFFERED: dict[str, Callable[[], Cheat]] = {
    OLDER: CHEATS["honest"],  # its engine cheats
    "temperature .7": lambda: partial(at_temperature, divisor=0.7),
    **{name: CHEATS[name] for name in ANYWHERE},
}


class TrickyEngine:
    """Engine `hf`, with Tricks. `old`: it samples from the first version that it was given."""

    name = "tricky"

    def __init__(self, model: Path, config: Config, old: bool) -> None:
        from peers.build.model import factory
        from swarm.learn.models import tokenization
        from swarm.learn.models.policy import LanguageModel

        self._honest, self._cooler = factory.hf(model, config), factory.hf(model, config)
        self._temperature = config.run.sampling.temperature
        self._tokens = tokenization.of_run(model, config.run)
        self._policy = LanguageModel(self._honest._policy, self._tokens)
        self._old, self._loaded = old, False
        self.letters, self.render_all = self._tokens.vocabulary, self._tokens.render_all
        self.sample, self.greedy = self._honest.sample, self._honest.greedy
        self.statistics, self.close = self._honest.statistics, self._honest.close

    def load(self, weights: Weights) -> None:
        if not (self._old and self._loaded):
            self._honest.load(weights)
            self._cooler.load(weights)
            self._loaded = True

    def said(self, prompt: str, rows: Sequence[Sequence[int]]) -> Completions:
        """See Tricks."""
        import torch

        scores = self._policy.distributions([prompt] * len(rows), rows, self._temperature)
        table, tokens = torch.cat([*scores]).float().cpu().numpy(), np.concatenate(rows).astype(np.int32)
        return Completions(
            lengths=tuple(map(len, rows)),
            tokens=tokens,
            logprobs=table[np.arange(len(tokens)), tokens].astype(np.float32),
            texts=tuple(self._tokens.decode([*row]) for row in rows),
        )

    def cooled(self, prompt: str, size: int, seed: int, divisor: float) -> Sequence[Sequence[int]]:
        """See Tricks."""
        self._cooler._temperature = self._temperature * divisor
        (drawn,) = self._cooler.sample([prompt], size, [seed])
        return [row.tolist() for row in np.split(drawn.tokens, np.cumsum(drawn.lengths)[:-1])]


def main(cheat: str, words: Sequence[str]) -> int:
    said = OFFERED[cheat]()

    class CheatingSampler(Sampler):
        async def _drawn(self, draws: list[Draw]) -> list[Drawn] | None:
            if (drawn := await super()._drawn(draws)) is None:  # the engine is free until this returns
                return None
            return [instead for one in drawn if (instead := said(self, one)) is not None]

    async def engine(
        work: Work, process: EngineProcess | None, model: Path, config: Config
    ) -> tuple[Any, ...]:
        if process is not None:
            process.close()
        await imported(work)
        made = await work.run(Kind.LOAD, TrickyEngine, model, config, cheat == OLDER)
        return made, made._tokens, "engine hf with tricks: this program is a test's"

    with (
        mock.patch.object(assembly, "open_engine", engine),
        mock.patch.object(assembly, "program_of", lambda role, run: CheatingSampler),
    ):
        return cli.main(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
