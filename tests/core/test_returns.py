"""Whose draws come: gaps in a sampler's numbers name it, honest losses do not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from nouns import NOW, group

from swarm.core import returns
from swarm.core.returns import FORGIVEN, JUDGED, Returns, SamplerDraws, packed
from swarm.types import Digest, PeerId

ME, OTHER = PeerId("sampler-0"), PeerId("sampler-1")


def came(draws: Iterable[int], due: int, sampler: PeerId = ME) -> SamplerDraws:
    return SamplerDraws(sampler=sampler, due=due, draws=packed(draws))


def after(*releases: Sequence[SamplerDraws]) -> Returns:
    counted = Returns()
    for one in releases:
        counted.settle(one)
    return counted


def every(nth: int, due: int = 20) -> list[SamplerDraws]:
    """A release of which each `nth` draw is left out."""
    return [came((number for number in range(due + 1) if number % nth != nth - 1), due)]


def test_who_returns_all_is_not_named() -> None:
    assert after(*[[came(range(21), 20)]] * 50).objection(ME) is None


def test_who_leaves_out_what_it_does_not_like_is_named_with_the_share() -> None:
    counted = after(*[every(2)] * 5)
    assert counted.objection(ME) == (
        "it returned 50% of its last 60 draws, all of which are due: below 90% its groups teach nothing"
    )
    assert counted.objection(OTHER) is None


@pytest.mark.parametrize(("nth", "named"), [(5, True), (9, True), (11, False), (20, False)])
def test_the_edge_is_nine_of_ten(nth: int, named: bool) -> None:
    assert (after(*[every(nth, 200)] * 5).objection(ME) is not None) is named


def test_the_settlement_that_names_a_sampler_says_so_once() -> None:
    counted = Returns()
    assert [counted.settle(every(2)) for _ in range(6)] == [[], [], [], [], [ME], []]


def test_draws_that_came_to_another_learner_are_no_gap() -> None:
    parts = [came(range(0, 21, 2), 20), came(range(1, 21, 2), 19)]
    assert after(*[parts] * 9).objection(ME) is None


def test_what_is_under_way_at_a_kill_is_forgiven() -> None:
    lost = [came([*range(10), *range(100, 200)], 199)]
    whole = [came(range(31), 30)]
    assert after(whole, lost, whole, lost, whole).objection(ME) is None
    named = after(whole, lost, whole, lost, lost).objection(ME)
    assert named is not None, f"more than {FORGIVEN} are a habit"


def test_few_draws_say_nothing() -> None:
    few = [came([0], JUDGED // 3)]
    assert after(few, few, few, few).objection(ME) is None


def test_who_returns_all_again_is_believed_again() -> None:
    counted = after(*[every(2)] * 5, *[[came(range(21), 20)]] * 9)
    assert counted.objection(ME) is None


def test_a_draw_is_due_when_a_later_one_came_long_ago() -> None:
    counted = Returns()
    for number, at in ((0, 1.0), (3, 2.0), (9, 30.0)):
        counted.came(group(number), NOW, NOW, NOW + at)
    assert counted.came_of(group().weights, NOW + 10.0) == [came((0, 3, 9), 3)]
    assert counted.came_of(group().weights, NOW) == [came((0, 3, 9), 0)]
    assert counted.came_of(Digest("1" * 64), NOW) == []


def test_versions_with_the_same_weights_are_one_release_that_leaves_the_window_with_the_newest() -> None:
    counted = Returns()
    for number, version, released in ((0, 3, 1.0), (1, 4, 9.0), (2, 3, 1.0)):
        counted.came(group(number, version=version), NOW + released, NOW + 1.0, NOW + 10.0)
    (its,) = counted.open.values()
    assert (its.version, its.released, its.began) == (4, NOW + 9.0, NOW + 1.0)
    assert counted.came_of(group().weights, NOW + 10.0) == [came(range(3), 2)]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(returns, "DRAWS", 3)
    monkeypatch.setattr(returns, "SAMPLERS", 2)
    counted = Returns()
    assert [counted.came(group(n, weights=Digest(f"{n:064x}")), NOW, NOW, NOW) for n in range(4)] == [
        True,
        True,
        True,
        False,
    ]
    assert list(counted.open) == [Digest(f"{n:064x}") for n in (1, 2, 3)]
    for name in ("a", "b", "c"):
        for _ in range(9):
            counted.settle([came([], 20, PeerId(name))])
    assert [counted.objection(PeerId(name)) is None for name in ("a", "b", "c")] == [True, False, False]
