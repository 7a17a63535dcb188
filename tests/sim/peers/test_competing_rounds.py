"""When a learner steps whose round succeeded, while learners outside of it may step, too."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from nouns import beat
from still_host import still_host

from peers.learner.agreement.other_learners import OtherLearners
from swarm.core.agreement.solo_turns import GOSSIP_SECONDS
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Phase, Role
from swarm.settings.config import DelayLaw, Releasing
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.types import PeerId

Told = tuple[float, str, Phase]
"""From which second on a learner is in this phase."""

MATCHING, STEPPING, GATHERING = Phase.MATCHING, Phase.STEPPING, Phase.GATHERING
TWO = ((0.0, "partner", MATCHING), (0.0, "one", MATCHING), (0.0, "two", MATCHING))
MOST = (*TWO, (0.0, "three", MATCHING))
AT_LAST = GOSSIP_SECONDS + Releasing().timeout + GOSSIP_SECONDS


def gives_way(*told: Told, older: tuple[str, ...] = ()) -> float:
    """Seconds until a learner steps that was in a round with its partner, while it hears these; `older` than
    it are some, the oldest first."""

    async def main() -> float:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            host = still_host(network, "mine", Role.LEARNER, incarnation=5)
            host.status.version = 4
            others, began = OtherLearners(host, lambda: 4), host.steady()

            def receive(seq: int, peer: str, phase: Phase) -> None:
                age = older.index(peer) if peer in older else 9
                heard = beat(version=4, phase=phase, seq=seq, at=host.now(), incarnation=age)
                assert host.roster.receive(PeerId(peer), heard, host.now())
                host.move()

            for seq, (after, peer, phase) in enumerate(told):
                asyncio.get_running_loop().call_later(after, receive, seq + 1, peer, phase)
            await asyncio.sleep(0.01)
            await others.give_way([PeerId("mine"), PeerId("partner")], lambda: False)
            return round(host.steady() - began, 1)

    return run(main())


def test_two_that_listened_step_before_two_younger_ones() -> None:
    step = (0.5, "one", STEPPING), (0.5, "two", STEPPING)
    assert gives_way(*TWO, *step) == GOSSIP_SECONDS
    assert gives_way(*TWO, *step, older=("two",)) == AT_LAST


def test_who_stepped_already_releases_first_however_young_it_is() -> None:
    assert gives_way(*TWO, (0.5, "one", Phase.RELEASING)) == AT_LAST


def test_a_member_that_lost_the_round_does_not_make_it_the_first() -> None:
    """It is the oldest of all, and its partner does not know that it will not step."""
    step = (0.5, "one", STEPPING), (0.5, "two", STEPPING)
    assert gives_way(*TWO, *step, older=("partner", "two")) == AT_LAST
    assert gives_way(*TWO, *step, (0.5, "partner", STEPPING), older=("partner", "two")) == GOSSIP_SECONDS


def test_who_hears_that_a_member_has_stepped_steps_too() -> None:
    step = (0.5, "one", STEPPING), (0.5, "two", STEPPING)
    assert gives_way(*TWO, *step, (3.0, "partner", Phase.EARLY), older=("two",)) == 3.0


def test_they_go_on_when_an_older_one_withdraws() -> None:
    step = (0.5, "one", STEPPING), (0.5, "two", STEPPING)
    assert gives_way(*TWO, *step, (3.0, "two", GATHERING), older=("two",)) == 3.0


def test_while_most_may_be_in_a_round_nobody_else_steps() -> None:
    """Nobody would follow."""
    still = [(3.0, peer, MATCHING) for peer in ("one", "two", "three")]
    assert gives_way(*MOST, *still) == AT_LAST
    assert gives_way(*MOST, (3.0, "three", GATHERING)) == 3.0


@pytest.mark.parametrize("last", [MATCHING, STEPPING])
def test_what_most_made_of_their_round_is_listened_for(last: Phase) -> None:
    """Of three that end their round together two have told it, or all: that most were in it comes with it."""
    told = (0.95, "one", STEPPING), (0.95, "two", STEPPING), (0.95, "three", last)
    assert gives_way(*MOST, *told) > GOSSIP_SECONDS + 0.9
