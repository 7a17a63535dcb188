"""Votes against a release, by the heartbeats of five learners as a seed hears them."""

from __future__ import annotations

from random import Random

import pytest
from nouns import beat, release
from still_host import still_host

from peers.runtime.release_votes import Against, Why, mark
from swarm.config import DelayLaw
from swarm.net.in_memory import MemoryNetwork
from swarm.protocol import Role
from swarm.sim.clock import run
from swarm.sim.links import SimLinks
from swarm.types import Digest, PeerId

LEARNERS = [PeerId(f"learner-{k}") for k in range(5)]
FALSE = release(version=3, weights=Digest("f" * 64), publisher=LEARNERS[0], learners=5)


def heard(*denials: tuple[Why, ...]) -> Against | None:
    """What a seed finds after the four others denied it so; () is a witness that does not."""

    async def main() -> Against | None:
        async with MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))) as network:
            host = still_host(network, "seed-0", Role.SEED)
            votes, now = host.releases.doubts.votes, host.now()
            for k, (peer, whys) in enumerate(zip(LEARNERS, ((), *denials), strict=True)):
                denied = b"".join(mark(FALSE, why) for why in whys)
                its = beat(name=peer, role=Role.LEARNER, seq=k, version=2, denied=denied)
                assert host.roster.hear(peer, its, now)
            return votes.hear(FALSE)

    return run(main())


@pytest.mark.parametrize("why", [Why.OTHER_BYTES, Why.OTHER_MEAN])
def test_most_of_the_witnesses_refuse_it_and_name_who_says_that_it_got_their_mean(why: Why) -> None:
    assert heard((why,), (why,), (), ()) is None
    against = heard((why,), (why,), (why,), ())
    assert against is not None and against.names == (why is Why.OTHER_BYTES)
    assert against.reason.startswith("3 learners deny it: it is not what their round made")


def test_a_learner_that_denies_it_for_two_reasons_has_one_vote() -> None:
    both = (Why.OTHER_BYTES, Why.OTHER_MEAN)
    assert heard(both, both, (), ()) is None
    assert heard(both, both, both, ()) is not None


def test_half_of_the_learners_refuse_what_was_made_beside_their_rounds() -> None:
    beside = (Why.BESIDE,)
    assert heard(beside, beside, (), ()) is None
    against = heard(beside, beside, beside, ())
    assert against is not None and against.names and "it comes of none" in against.reason
