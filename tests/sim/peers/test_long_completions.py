"""Completions of very different lengths: what is trained is what was sampled, whatever its length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine
from typing import Any

import msgspec
from role_swarms import scenario

from peers.commands import sim
from swarm.events import Event, Heard, Judged, Sampled
from swarm.learn.files.weights import from_bytes
from swarm.sample.toy import ToyEngine
from swarm.settings.config import DelayLaw, Window
from swarm.sim.world import SimPeer, World
from swarm.types import PeerId, Verdict


def test_a_call_whose_groups_would_come_too_late_is_stopped_and_its_tokens_are_counted() -> None:
    """One call of eight takes longer than the window is open."""
    stopped = Counter[PeerId]()

    class Stoppable(ToyEngine):
        def __init__(self, peer: SimPeer) -> None:
            super().__init__(from_bytes)
            self._peer = peer.ports.me

        def stop(self) -> None:
            stopped[self._peer] += 1

    def spawn(peer: SimPeer) -> Coroutine[Any, Any, None]:
        parts = sim.policy_parts(peer.config)
        return sim.run_peer(peer, parts._replace(engine=lambda: Stoppable(peer)))

    told = list[Event]()
    played = scenario(1.5, (1, 6), window=Window(versions=4))
    tail = DelayLaw(law="lognormal", seconds=1.0, shape=1.6, longest=60.0)
    played = msgspec.structs.replace(played, prices=played.prices | {"sample": tail})
    World(played, spawn, sinks=[told.append]).run()
    beats = {event.subject: event.beat for event in told if isinstance(event, Heard)}
    wasted = {peer: beats[peer].wasted.get("doomed", 0) for peer in stopped}
    assert stopped.total() >= 5 and 0 < sum(wasted.values()) <= 16 * stopped.total()
    assert max(event.seconds for event in told if isinstance(event, Sampled)) < 30
    stale = [event for event in told if isinstance(event, Judged) and event.verdict is Verdict.STALE]
    assert len(stale) <= 1, "one may end as the next version comes"
