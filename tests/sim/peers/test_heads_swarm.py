"""Every group is checked by its own heads in the simulator, with the roles that ship."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import msgspec
from role_swarms import scenario

from peers.commands import sim
from swarm.events import Event, Judged, Trained
from swarm.learn.files.weights import from_bytes
from swarm.sample.base import Completions
from swarm.sample.toy import ToyEngine
from swarm.settings.config import Sampling
from swarm.settings.peer_limits import Auditing
from swarm.sim.world import SimPeer, World
from swarm.types import Verdict


class OneToken(ToyEngine):
    """Tells true heads, and another token than was drawn, as probable as its version says."""

    def _group(self, prompt: str, group_size: int, seed: int) -> Completions:
        true = super()._group(prompt, group_size, seed)
        tokens, logprobs = true.tokens.copy(), true.logprobs.copy()
        tokens[0] = (tokens[0] + 1) % 8
        logprobs[0] = self.row(prompt)[0][0, tokens[0]]
        return dataclasses.replace(true, tokens=tokens, logprobs=logprobs)


def test_without_any_replay_a_token_that_was_not_drawn_is_refused_at_the_first_group() -> None:
    told: list[Event] = []

    def spawn(peer: SimPeer) -> Coroutine[Any, Any, None]:
        own = msgspec.structs.replace(peer.config.peer, audit=Auditing(share=0.0))
        peer = dataclasses.replace(peer, config=msgspec.structs.replace(peer.config, peer=own))
        parts = sim.policy_parts(peer.config)
        if peer.name == "sampler-0":
            parts = parts._replace(engine=lambda: OneToken(from_bytes, heads=8))
        return sim.run_peer(peer, parts)

    swarm = scenario(0.15, (1, 3), sampling=Sampling(group_size=4, max_tokens=4, heads=8))
    World(swarm, spawn, sinks=[told.append]).run()
    judged = [event for event in told if isinstance(event, Judged)]
    verdicts = Counter((event.sampler == "sampler-0", event.verdict) for event in judged)
    assert verdicts[True, Verdict.UNTRUSTED] > 3 and not verdicts[True, Verdict.ADMIT]
    assert verdicts[False, Verdict.ADMIT] > 10 and not verdicts[False, Verdict.UNTRUSTED]
    assert any("1 of 16 tokens are not what its seed draws" in event.detail for event in judged)
    assert any(isinstance(event, Trained) for event in told)
