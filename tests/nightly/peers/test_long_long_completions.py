"""Completions of very different lengths: what is trained is what was sampled, whatever its length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec
import numpy as np
import pytest
import torch
from role_swarms import EPOCH, scenario

from peers.commands import sim
from swarm.events import Counted, Dropped, Event, Heard, Judged, Sampled, Stepped
from swarm.learn.files.weights import from_bytes
from swarm.learn.learners.learner import Learner
from swarm.learn.models.policy import TokenScores
from swarm.learn.models.tabular import Tabular
from swarm.net.ports import Work
from swarm.protocol import Kind
from swarm.sample.base import Completions
from swarm.sample.toy import ToyEngine
from swarm.settings.config import BatchSize, Sampling, TaskSettings, Window
from swarm.sim.world import SimPeer, World
from swarm.types import Verdict

T = TypeVar("T")


MEDIAN, LONGEST = 6, 60
"""Tokens of a completion: one of a hundred is as long as all may be."""


TOKEN = 0.2
"""Seconds of a token."""


def lengths_of(seed: int, group_size: int) -> tuple[int, ...]:
    drawn = np.random.default_rng(seed % 2**63).lognormal(np.log(MEDIAN), 1.0, group_size)
    return tuple(int(length) for length in np.clip(drawn.round(), 1, LONGEST))


class RaggedEngine(ToyEngine):
    """Completions end where their seed says."""

    def _group(self, prompt: str, group_size: int, seed: int) -> Completions:
        whole, lengths = super()._group(prompt, group_size, seed), lengths_of(seed, group_size)
        kept = np.arange(LONGEST) < np.array(lengths)[:, None]
        return replace(
            whole,
            lengths=lengths,
            tokens=whole.tokens[kept.ravel()],
            logprobs=whole.logprobs[kept.ravel()],
            texts=tuple(text[:length] for text, length in zip(whole.texts, lengths, strict=True)),
        )


class RaggedTable(Tabular):
    """A table that scores completions of any length."""

    def logprobs(
        self, prompts: Sequence[str], rows: Sequence[Sequence[int]], temperature: float
    ) -> TokenScores:
        padded = [[*row] + [0] * (LONGEST - len(row)) for row in rows]
        scores = super().logprobs(prompts, padded, temperature)
        mask = torch.arange(LONGEST) < torch.tensor([len(row) for row in rows])[:, None]
        return scores._replace(mask=mask)


@dataclass
class TokenPrices:
    """A Work port on which a call that samples takes as long as its longest completion."""

    work: Work
    sleep: Callable[[float], Coroutine[Any, Any, None]]

    async def run(self, kind: Kind, function: Callable[..., T], *args: Any) -> T:
        result: Any = await self.work.run(kind, function, *args)
        if kind is Kind.SAMPLE:
            await self.sleep(TOKEN * max(length for one in result for length in one.lengths))
        return result


class Ragged:
    """The events of a swarm whose completions have these lengths."""

    def __init__(self, versions: int, minutes: float = 2.0) -> None:
        self.all: list[Event] = []
        self.until = EPOCH + 60 * minutes
        played = scenario(
            minutes,
            (2, 64),
            task=TaskSettings(name="toy", options={"letters": LONGEST}),
            sampling=Sampling(group_size=4, max_tokens=LONGEST),
            batch=BatchSize(groups=16, close_after=3.0),
            window=Window(versions=versions),
        )
        prices = {"learn": msgspec.structs.replace(played.prices["learn"], seconds=1.2)}
        World(msgspec.structs.replace(played, prices=prices), self._spawn, sinks=[self.all.append]).run()

    def _spawn(self, peer: SimPeer) -> Coroutine[Any, Any, None]:
        run = peer.config.run
        work = TokenPrices(peer.ports.work, peer.ports.clock.sleep)
        letters = sim.Letters(sim.ALPHABET)
        parts = sim.PolicyParts(
            engine=lambda: RaggedEngine(from_bytes),
            learner=lambda: (Learner(RaggedTable(letters=LONGEST), run), letters),
        )
        return sim.run_peer(replace(peer, ports=replace(peer.ports, work=work)), parts)

    def sampled(self) -> dict[str, int]:
        """Group -> tokens, of those that were finished long enough before the end to be trained."""
        found = [event for event in self.all if isinstance(event, Sampled)]
        return {each.group: each.tokens for each in found if EPOCH + 20 < each.at < self.until - 25}

    def trained(self) -> set[str]:
        return {group for event in self.all if isinstance(event, Stepped) for group in event.groups}

    def too_old(self) -> int:
        """Groups that a learner refused as stale, or dropped since they grew too old there."""
        stale = [each for each in self.all if isinstance(each, Judged) and each.verdict is Verdict.STALE]
        expired = [each for each in self.all if isinstance(each, Dropped) and each.why == "expired"]
        return len(stale) + sum(len(event.groups) for event in expired)

    def tokens(self) -> Counter[str]:
        """What became of tokens, as learners count them, and samplers those that no learner judged."""
        beats = {event.subject: event.beat for event in self.all if isinstance(event, Heard)}
        counted = [event.tokens for event in self.all if isinstance(event, Counted)]
        return sum(map(Counter, [*counted, *(beat.wasted for beat in beats.values())]), Counter[str]())


def test_with_more_samplers_than_a_run_needs_groups_of_all_lengths_are_trained() -> None:
    told = Ragged(versions=11)
    sampled, trained = told.sampled(), told.trained()
    tokens = {group: size for group, size in sampled.items() if group in trained}
    assert len(tokens) > 600 and sum(tokens.values()) >= 0.99 * sum(sampled.values())
    assert sum(tokens.values()) / len(tokens) == pytest.approx(sum(sampled.values()) / len(sampled), rel=0.01)
    longest = sorted(sampled, key=lambda group: sampled[group])[-len(sampled) // 10 :]
    assert len([group for group in longest if group in trained]) >= 0.98 * len(longest)
    assert told.too_old() <= 0.01 * len(sampled)
    ends = told.tokens()
    assert ends["trained"] >= sum(tokens.values()) and ends["trained"] >= 0.99 * ends.total()
