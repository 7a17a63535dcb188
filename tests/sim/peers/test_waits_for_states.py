"""Whether a learner that has its gradient waits for one that takes over a state."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from random import Random

from nouns import beat, release
from still_host import still_host

from peers.learner.agreement.other_learners import OtherLearners
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Phase, Role
from swarm.settings.config import DelayLaw
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.types import PeerId

FALLS, WAITS = PeerId("falls in"), PeerId("waits")
NEW = FALLS, Phase.SYNCING, 1
MEETS = WAITS, Phase.MATCHING, 4


def waits(*heard: tuple[PeerId, Phase, int], against: Collection[PeerId] = ()) -> bool:
    """Does a learner at version 4 wait that heard these, in this order?"""

    async def main() -> bool:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            host = still_host(network, "mine", Role.LEARNER)
            others = OtherLearners(host, lambda: 4)
            for seq, (peer, phase, version) in enumerate(heard):
                told = beat(version=version, phase=phase, seq=seq + 1, at=host.now())
                assert host.roster.receive(peer, told, host.now())
            waiting = asyncio.ensure_future(others.all_here(5.0, lambda: False, against))
            _, pending = await asyncio.wait({waiting}, timeout=5.0)
            waiting.cancel()
            return bool(pending)

    return run(main())


def test_one_that_falls_in_is_waited_for_with_all_who_came_since() -> None:
    assert waits(NEW) and waits(NEW, MEETS) and not waits(MEETS)


def test_a_round_that_began_before_is_not_kept_waiting_for_it() -> None:
    """Who gives it a state is in that round, which waits for the last gradient."""
    assert not waits(MEETS, NEW)
    assert waits((WAITS, Phase.MATCHING, 3), NEW), "that one is of another version"
    assert not waits(MEETS, NEW, (FALLS, Phase.SYNCING, 3)), "it has loaded a release since"


def test_nobody_is_waited_for_whom_it_wants_to_be_left_out() -> None:
    assert not waits(NEW, against=[FALLS]) and waits(NEW, against=[WAITS])


def giver(*heard: tuple[PeerId, Phase]) -> PeerId | None:
    """Whom a learner asks for the state of a release of WAITS, of those that are at it."""

    async def main() -> PeerId | None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            host = still_host(network, "mine", Role.LEARNER)
            wanted = release(version=5, publisher=WAITS)
            for peer, phase in heard:
                told = beat(version=5, weights=wanted.weights, phase=phase, at=host.now())
                assert host.roster.receive(peer, told, host.now())
            return OtherLearners(host, lambda: 4).at_release(wanted)

    return run(main())


def test_one_that_has_the_weights_alone_is_not_asked_for_a_state() -> None:
    assert giver((FALLS, Phase.MATCHING)) == FALLS and giver((FALLS, Phase.SYNCING)) is None
    assert giver((FALLS, Phase.SYNCING), (WAITS, Phase.SYNCING)) == WAITS, "it will have it"


def test_who_takes_over_a_state_gives_none() -> None:
    async def main() -> list[bool]:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            others = OtherLearners(still_host(network, "mine", Role.LEARNER), lambda: 4)
            found = list[bool]()
            for syncs in (False, True, False):
                others.set_syncing(syncs)
                found.append(others.is_changing)
            return found

    assert run(main()) == [False, True, False]
