"""What is taken of whom in gossip: rates, and suspensions of offenders."""

from __future__ import annotations

import pytest

from swarm.core.gossip_limits import (
    BURST,
    LONGEST,
    OFFENCES_BURST,
    PROVEN_BURST,
    PROVEN_RATE,
    RATE,
    STRANGERS_BURST,
    STRANGERS_RATE,
    SUSPENDED,
    GossipLimits,
)
from swarm.limits import EVENT_LIMIT
from swarm.types import PeerId

MEMBER, STRANGER = PeerId("member"), PeerId("stranger")
SMALL, UNITS = 512, 1.5
"""Bytes of a message, and what it counts."""


class Ears:
    def __init__(self) -> None:
        self.now = 1000.0
        self.limits = GossipLimits(lambda peer: peer == MEMBER, lambda: self.now)

    def taken(self, author: PeerId, messages: int, size: int = SMALL) -> int:
        return sum(self.limits.admits(author, size) for _ in range(messages))


@pytest.mark.parametrize(
    ("author", "rate", "burst"), [(MEMBER, PROVEN_RATE, PROVEN_BURST), (STRANGER, RATE, BURST)]
)
def test_one_author_is_taken_at_its_rate(author: PeerId, rate: float, burst: float) -> None:
    ears = Ears()
    most = int(burst / UNITS)
    assert ears.taken(author, most + 20) == most
    ears.now += 3.0
    assert ears.taken(author, 5000) == int(3.0 * rate / UNITS)


def test_a_learner_of_twenty_versions_a_second_is_heard() -> None:
    """With each of them three heartbeats, a release and two bundles of events of 4 KiB."""
    ears = Ears()
    for _ in range(20 * 60):
        ears.now += 1 / 20
        assert ears.taken(MEMBER, 4, 800) == 4 and ears.taken(MEMBER, 2, 4096) == 2
    assert not ears.limits.suspended()


def test_who_goes_on_beyond_its_rate_is_suspended_and_each_time_for_longer() -> None:
    ears, spans = Ears(), list[float]()
    for _ in range(7):
        ears.taken(STRANGER, 1000)
        assert ears.limits.suspended() == {STRANGER}
        began = ears.now
        while not ears.taken(STRANGER, 1):
            ears.now += 1.0
        spans.append(ears.now - began)
    assert spans == [min(SUSPENDED * 2**k, LONGEST) for k in range(7)]
    assert ears.limits.suspended() == frozenset()


def test_strangers_together_have_a_rate_and_take_nothing_of_a_members() -> None:
    ears, room = Ears(), STRANGERS_BURST / UNITS
    crowd = [PeerId(f"stranger-{k}") for k in range(6000)]
    taken = sum(ears.taken(stranger, 1) for stranger in crowd)
    assert taken == int(room)
    assert ears.taken(MEMBER, 10) == 10
    assert not ears.limits.suspended(), "no key said too much"
    ears.now += 1.0
    assert sum(ears.taken(stranger, 1) for stranger in crowd[:2000]) == int(STRANGERS_RATE / UNITS)


def test_what_is_too_large_is_an_offence_and_never_read() -> None:
    ears = Ears()
    assert ears.taken(STRANGER, int(OFFENCES_BURST) + 1, EVENT_LIMIT.sealed + 1) == 0
    assert ears.limits.suspended() == {STRANGER} and ears.taken(MEMBER, 1) == 1


def test_a_few_bad_frames_a_minute_have_no_consequence() -> None:
    ears = Ears()
    for _ in range(200):
        assert not ears.limits.blame(STRANGER)
        ears.now += 2.0
    assert [ears.limits.blame(STRANGER) for _ in range(int(OFFENCES_BURST) + 1)][-1] == SUSPENDED
    assert not ears.limits.blame(STRANGER), "it is suspended already"
