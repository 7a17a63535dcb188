"""Measures the cost of a sampler with false log-probabilities to a learner that checks claims, and to one
that does not.

    Lied (by how much, which learner checks) --a simulated swarm of the shipping roles--> Row: accuracy

Not handled here: the choice of cells, honest samplers, the report (lab.studies.liars.band).
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import msgspec

from lab.studies.experiments import Row
from lab.studies.trainings import GROUPS, Cell, Figures, scenario
from peers.commands import sim
from swarm.core.intake import claimed_logprobs
from swarm.protocol import Role
from swarm.sample.base import Completions, Engine
from swarm.settings import config as settings
from swarm.settings.config import Run
from swarm.sim.scenario import Scenario
from swarm.sim.world import SimPeer, World
from swarm.types import Struct

EVERY_TOKEN = -20.0
"""The log-probability that a liar claims for every token."""

SAMPLERS = 3


class Lied(Struct):
    """A training of which one sampler of three claims less than the truth."""

    cell: Cell
    nats: float
    """By how much for each token; infinite: EVERY_TOKEN is claimed for all; 0: no sampler lies."""
    doubts: bool
    """The learner is the one that ships; else it trusts everything."""


def suffer(one: Lied) -> Row:
    """One training, as the staleness study tells it: first, best and last held-out accuracy and the curve."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    told = Figures()

    def spawn(peer: SimPeer) -> Coroutine[Any, Any, None]:
        whole = msgspec.structs.replace(
            peer.config,
            peer=msgspec.structs.replace(
                peer.config.peer, engine=settings.EngineSettings(tasks=GROUPS // SAMPLERS + 1)
            ),
        )
        kit = sim.policy_parts(whole)
        if peer.name == "sampler-0" and one.nats:
            kit = kit._replace(engine=lambda true=kit.engine: Lying(true(), one.nats))  # type: ignore[misc]
        return sim.run_peer(dataclasses.replace(peer, config=whole), kit)

    with nullcontext() if one.doubts else believing():
        World(liar_scenario(one), spawn, sinks=[told]).run()
    return told.row(one.cell)


@contextmanager
def believing() -> Iterator[None]:
    """In this process, no evidence is enough."""
    with mock.patch.multiple(
        claimed_logprobs, GROUP_EVIDENCE_LIMIT=math.inf, SAMPLER_EVIDENCE_LIMIT=math.inf
    ):
        yield


def liar_scenario(one: Lied) -> Scenario:
    """The cell's scenario with SAMPLERS of them, each at a third of the pace, and for the learner that ships
    its band."""
    base = scenario(one.cell)
    slow = base.prices["sample"]
    slow = msgspec.structs.replace(slow, seconds=SAMPLERS * slow.seconds, longest=SAMPLERS * slow.longest)
    window = msgspec.structs.replace(
        base.run.window, drift=settings.Window().drift if one.doubts else base.run.window.drift
    )
    run: Run = msgspec.structs.replace(base.run, window=window)
    peers = {**base.peers, Role.SAMPLER: SAMPLERS}
    return msgspec.structs.replace(base, peers=peers, prices={**base.prices, "sample": slow}, run=run)


class Lying:
    """An engine whose log-probabilities are not true."""

    def __init__(self, true: Engine, nats: float) -> None:
        self._true, self._nats = true, nats

    def __getattr__(self, name: str) -> Any:
        return getattr(self._true, name)

    def sample(self, prompts: Sequence[str], n: int, seeds: Sequence[int]) -> list[Completions]:
        said = []
        for drawn in self._true.sample(prompts, n, seeds):
            claimed = (
                drawn.logprobs - self._nats if math.isfinite(self._nats) else drawn.logprobs * 0 + EVERY_TOKEN
            )
            said.append(dataclasses.replace(drawn, logprobs=claimed.astype("float32")))
        return said
