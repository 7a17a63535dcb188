"""What quotas say of a moment is computed once, and anew as soon as something changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from swarm.config import BatchSize
from swarm.core.quotas import Quota, Quotas
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
