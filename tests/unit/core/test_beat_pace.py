"""The many beat more seldom the more they are, and are missed later; nobody else is."""

from __future__ import annotations

import math
import random

import pytest
from nouns import NOW, beat

from swarm.core.beat_pace import CROWD, granted, slower
from swarm.core.roster import Roster
from swarm.limits import SLOWEST
from swarm.protocol import Role
from swarm.types import PeerId

SEED, SAMPLER, LEARNER = PeerId("seed"), PeerId("sampler"), PeerId("learner")


@pytest.mark.parametrize(
    ("peers", "times"), [(0, 1.0), (CROWD, 1.0), (2 * CROWD, 2.0), (10_000, 19.53), (10**9, SLOWEST)]
)
def test_all_together_say_as_much_as_a_crowd(peers: int, times: float) -> None:
    assert slower(peers) == times


def test_what_a_seed_hears_is_how_large_the_swarm_is_whatever_others_say() -> None:
    known = Roster(10.0, random.Random(3))
    assert known.crowd() == 0
    known.receive(SAMPLER, beat(role=Role.SAMPLER, hears=10_000), NOW)
    assert known.crowd() == 0
    known.receive(SEED, beat(role=Role.SEED, hears=1000), NOW)
    assert known.crowd() == 1000 and len(known) == 2


def test_who_beats_more_seldom_is_missed_later_unless_others_wait_for_it() -> None:
    known = Roster(10.0, random.Random(3))
    for peer, role in ((SAMPLER, Role.SAMPLER), (LEARNER, Role.LEARNER)):
        told = beat(role=role, slower=4.0)
        known.receive(peer, told, NOW)
        assert granted(told) == (4.0 if role is Role.SAMPLER else 1.0)
    absurd = [granted(beat(role=Role.SAMPLER, slower=said)) for said in (-1.0, 0.0, 1e300)]
    assert absurd == [1.0, 1.0, SLOWEST]
    assert known.expire(NOW + 39) == ([(LEARNER, 39.0)], NOW + 40)
    assert known.expire(NOW + 41) == ([(SAMPLER, 41.0)], math.inf)
