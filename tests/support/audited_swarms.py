"""A simulated swarm with one sampler that cheats, and the cheat: text of another policy."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from role_swarms import scenario

from peers.commands import sim
from peers.runtime.host import Host
from swarm.events import Event
from swarm.learn.files.weights import from_bytes
from swarm.protocol import Role
from swarm.sample.base import Completions
from swarm.sample.toy import TableReplay, ToyEngine
from swarm.settings.config import DelayLaw
from swarm.settings.peer_limits import Auditing
from swarm.sim.scenario import Fault
from swarm.sim.world import SimPeer, World


class Cheat(ToyEngine, ABC):
    """Claims the log-probabilities that the version has for its tokens, whatever these are."""

    def __init__(self) -> None:
        super().__init__(from_bytes)
        self._rng = np.random.default_rng(1)

    def sample(self, prompts: Sequence[str], group_size: int, seeds: Sequence[int]) -> list[Completions]:
        drawn = zip(prompts, seeds, super().sample(prompts, group_size, seeds), strict=True)
        return [
            self.claimed(prompt, self.changed(prompt, group.tokens.reshape(group_size, -1), seed))
            for prompt, seed, group in drawn
        ]

    @abstractmethod
    def changed(self, prompt: str, tokens: np.ndarray, seed: int) -> np.ndarray:
        """(G, letters) tokens instead of these, which it drew."""

    def claimed(self, prompt: str, tokens: np.ndarray) -> Completions:
        logp, _ = self.row(prompt)
        letters = len(logp)
        return Completions(
            lengths=(letters,) * len(tokens),
            tokens=tokens.astype(np.int32).ravel(),
            logprobs=logp[np.arange(letters), tokens].astype(np.float32).ravel(),
            texts=tuple("".join(chr(ord("a") + token) for token in row) for row in tokens.tolist()),
            noise=super().sample([prompt], 1, [0])[0].noise,
        )


class OtherText(Cheat):
    def changed(self, prompt: str, tokens: np.ndarray, seed: int) -> np.ndarray:
        return self._rng.integers(0, 8, tokens.shape)


HONEST = 3


def played(
    minutes: float,
    cheats: Sequence[Callable[[], ToyEngine]],
    *faults: Fault,
    disks: Path | None = None,
    learners: Sequence[Callable[[], TableReplay] | None] = (None,),
    auditors: Sequence[Callable[[], TableReplay] | None] = (),
    seed: Callable[[Host], None] = lambda _: None,
    audit_price: float = 0.0,
    evaluators: int = 0,
    quantized: bool = False,
    **audit: Any,
) -> list[Event]:
    """sampler-0, sampler-1, ... cheat in this order, and HONEST more do not. `learners`, `auditors`: what
    each replays with, None as it should be. `quantized`: auditors know that samplers may use fewer bits.
    `seed` hears of the seed's host when it starts."""
    told: list[Event] = []

    def spawn(peer: SimPeer) -> Coroutine[Any, Any, None]:
        settings = Auditing(**({"invited": True} | audit))
        own = msgspec.structs.replace(peer.config.peer, audit=settings)
        run = peer.config.run
        if quantized and peer.role is Role.AUDITOR:
            fewer = msgspec.structs.replace(run.sampling, quantized=True)
            run = msgspec.structs.replace(run, sampling=fewer)
        peer = dataclasses.replace(peer, config=msgspec.structs.replace(peer.config, run=run, peer=own))
        parts, number = sim.policy_parts(peer.config), int(peer.name.rpartition("-")[2])
        replays = {Role.LEARNER: learners, Role.AUDITOR: auditors}.get(peer.role)
        if replays is not None and (replay := replays[number]) is not None:
            parts = parts._replace(replay=replay)
        if peer.name.startswith("sampler") and number < len(cheats):
            parts = parts._replace(engine=cheats[number])

        def role(host: Host, parts: sim.PolicyParts) -> sim.RoleProgram:
            if peer.name.startswith("seed"):
                seed(host)
            return sim.role_of(host, parts, folder=peer.folder)

        return sim.run_peer(peer, parts, role)

    swarm = scenario(minutes, (len(learners), HONEST + len(cheats)), *faults)
    swarm = msgspec.structs.replace(
        swarm,
        peers=swarm.peers
        | ({"auditor": len(auditors)} if auditors else {})
        | ({"evaluator": evaluators} if evaluators else {}),
        prices=swarm.prices | {"audit": DelayLaw(law="constant", seconds=audit_price)},
    )
    World(swarm, spawn, sinks=[told.append], disks=disks).run()
    return told


def of(told: list[Event], kind: type[Any]) -> list[Any]:
    return [event for event in told if isinstance(event, kind)]
