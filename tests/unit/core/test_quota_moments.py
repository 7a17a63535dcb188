"""What quotas say of a moment is computed once, and anew as soon as something changes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest

from swarm.core.intake.quotas import HORIZON, KNOWN, KNOWN_AFTER, Quota, Quotas
from swarm.settings.config import BatchSize
from swarm.types import PeerId

GROUPS = 32
NOW = 10_000.0
BUSY, FRESH = [PeerId(f"busy-{k}") for k in range(5)], PeerId("fresh")


def crowded() -> Quotas:
    """Five that have delivered for long, and one that is new."""
    quotas = Quotas(BatchSize())
    for k in range(400):
        for peer in BUSY:
            quotas.admitted(peer, NOW - 4000.0 + 10.0 * k)
    quotas.admitted(FRESH, NOW)
    return quotas


def said(quota: Quota) -> list[object]:
    return [quota.newcomers, *(quota.bound(peer) for peer in (*BUSY, FRESH))]


def test_what_is_asked_at_one_moment_is_computed_once() -> None:
    quotas = crowded()
    assert quotas.at(GROUPS, NOW) is quotas.at(GROUPS, NOW)
    assert quotas.at(GROUPS, NOW + 1.0).now == NOW + 1.0
    assert quotas.at(GROUPS // 2, NOW + 1.0).groups == GROUPS // 2


@pytest.mark.parametrize(
    "change",
    [
        lambda quotas: quotas.admitted(FRESH, NOW),
        lambda quotas: quotas.invited(BUSY[0]),
        lambda quotas: quotas.taken(GROUPS, Counter({BUSY[0]: 20, FRESH: 12}), NOW),
    ],
    ids=["admitted", "invited", "taken"],
)
def test_a_change_at_the_same_moment_is_seen(change: Callable[[Quotas], None]) -> None:
    quotas = crowded()
    before = quotas.at(GROUPS, NOW)
    assert any(said(before))
    change(quotas)
    assert quotas.at(GROUPS, NOW) is not before
    assert said(quotas.at(GROUPS, NOW)) == said(Quota(quotas, GROUPS, NOW))


def test_who_delivered_nothing_of_late_is_not_looked_at() -> None:
    quotas = crowded()
    quotas.admitted(FRESH, NOW + 1000.0)
    assert list(quotas.recent(NOW + 1000.0)) == [FRESH]


def test_a_group_counts_less_with_time_and_nothing_after_the_horizon() -> None:
    size = BatchSize(close_after=5.0)
    quotas, constant = Quotas(size), HORIZON * size.close_after
    for _ in range(2):
        quotas.admitted(FRESH, NOW)
    assert quotas.recent(NOW)[FRESH] == 2.0
    half = NOW + constant / 2
    assert quotas.recent(half)[FRESH] == pytest.approx(2.0 * math.exp(-0.5))
    quotas.admitted(FRESH, half)
    assert quotas.recent(half)[FRESH] == pytest.approx(2.0 * math.exp(-0.5) + 1.0)
    assert FRESH in quotas.recent(half + 0.99 * constant) and not quotas.recent(half + constant)


def test_a_fast_sampler_has_stopped_after_a_pause_and_not_after_many_of_its_gaps_alone() -> None:
    size = BatchSize(close_after=5.0)
    quotas = Quotas(size)
    for _ in range(60):
        quotas.admitted(FRESH, NOW)
    for waited, here in ((0.0, True), (8.0, True), (10.0, True), (10.5, False)):
        quotas.waits(True, NOW + waited)
        assert (FRESH in quotas.recent(NOW + waited)) is here, waited


@pytest.mark.parametrize(("delivered", "binds"), [(23, False), (24, True)])
def test_strangers_are_bound_from_where_the_others_deliver_what_they_leave_of_a_batch(
    delivered: int, binds: bool
) -> None:
    quotas = Quotas(BatchSize(share=0.25, newcomers=0.25))
    quotas.invited(BUSY[0])
    for _ in range(delivered):
        quotas.admitted(BUSY[0], NOW)
    quota = quotas.at(GROUPS, NOW)
    assert (quota.bound(FRESH) is not None) is (quota.newcomers is not None) is binds
    assert quota.bound(BUSY[0]) is None, "its owner vouches for it"


def test_a_stranger_counts_among_the_others_as_one_share_however_much_it_sends() -> None:
    quotas = Quotas(BatchSize(share=0.25, newcomers=0.25))
    for _ in range(40):
        quotas.admitted(FRESH, NOW)
    for peer, binds in ((BUSY[0], False), (BUSY[1], False), (BUSY[2], True)):
        for _ in range(30):
            quotas.admitted(peer, NOW)
        assert (quotas.at(GROUPS, NOW).bound(FRESH) is not None) is binds


def test_of_strangers_that_are_too_few_to_fill_a_batch_by_their_shares_the_last_is_not_bound() -> None:
    quotas = Quotas(BatchSize(share=0.25, newcomers=1.0))
    for peer, delivered in zip(BUSY, (40, 30, 20, 10, 10), strict=True):
        for _ in range(delivered):
            quotas.admitted(peer, NOW)
    bound = [peer for peer in BUSY if quotas.at(GROUPS, NOW).bound(peer) is not None]
    assert bound == BUSY[:2], "the third delivers more than a share, and a batch has to come from somewhere"
    quotas.invited(BUSY[0])
    bound = [peer for peer in BUSY if quotas.at(GROUPS, NOW).bound(peer) is not None]
    assert bound == BUSY[1:3], "of the strangers alone"


def test_newcomers_count_among_the_others_as_one_share_however_much_they_send() -> None:
    quotas, known, guest, *new = Quotas(BatchSize(share=0.25, newcomers=0.25)), *BUSY
    quotas.invited(guest)
    for _ in range(KNOWN):
        quotas.admitted(known, NOW - KNOWN_AFTER)
    for peer, delivered in ((known, 10), (guest, 15), *((peer, 7) for peer in new)):
        for _ in range(delivered):
            quotas.admitted(peer, NOW)
    assert quotas.at(GROUPS, NOW).newcomers is not None
    assert quotas.at(GROUPS, NOW).bound(known) is None, "15 of the guest and 8 of the newcomers are too few"
    quotas.admitted(guest, NOW)
    assert quotas.at(GROUPS, NOW).bound(known) is not None


@pytest.mark.parametrize("name", ["one sampler", "newcomers"])
def test_who_is_bound_has_one_group_for_three_of_others_and_saves_what_it_does_not_use(name: str) -> None:
    quotas = crowded()
    for peer in (*BUSY, BUSY[0]):
        quotas.admitted(peer, NOW)
    mine, other = (BUSY[0], BUSY[1]) if name == "one sampler" else (FRESH, BUSY[0])

    def allowed(*others: int) -> list[int]:
        quota = quotas.at(GROUPS, NOW)
        limit = quota.bound(mine) if name == "one sampler" else quota.newcomers
        assert limit is not None
        return [limit.beside(count) for count in others]

    assert allowed(0, 24) == [8, 8], "a share of a batch is saved from the start"
    quotas.taken(GROUPS, Counter({mine: 8}), NOW)
    assert allowed(0, 2, 3, 24, 99) == [0, 0, 1, 8, 8]
    quotas.taken(GROUPS, Counter({other: 9}), NOW)
    assert allowed(0, 3) == [3, 4]
    quotas.taken(GROUPS, Counter({other: 6, mine: 4}), NOW)
    assert allowed(0, 3) == [1, 2]
    quotas.taken(GROUPS, Counter({other: 900}), NOW)
    assert allowed(0, 24) == [8, 8], "no more than its share of a full batch"
