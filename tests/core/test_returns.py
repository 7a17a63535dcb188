"""Whose draws come: gaps in a sampler's numbers name it, honest losses do not."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest
from nouns import NOW, beat, group

from swarm import wire
from swarm.core import returns
from swarm.core.returns import FORGIVEN, JUDGED, DrawsCame, Returns, SamplerDraws, missing, packed
from swarm.core.roster import Roster
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


def test_what_nobody_can_sample_is_not_due() -> None:
    counted, its = Returns(), every(2)
    lost = missing(its, {})
    assert lost == {ME: [*range(1, 20, 2)]}
    for _ in range(20):
        assert counted.settle(its, unsampled={ME: set(lost[ME])}) == []
    assert counted.objection(ME) is None
    for _ in range(20):
        counted.settle(its, unsampled={ME: set(lost[ME][:5])})
    assert str(counted.objection(ME)).startswith("it returned 67% of its last 210 draws")


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


LIAR, THIRD = PeerId("learner-1"), PeerId("learner-2")


def says(*draws: SamplerDraws, more: bool = False) -> DrawsCame:
    return DrawsCame(since=NOW, samplers=draws, more=more)


def test_what_is_due_is_nobodys_word() -> None:
    counted = Returns()
    for _ in range(9):
        counted.settle([came(range(21), 20)], {LIAR: says(came([], 1000), came([], 1000, OTHER))})
    assert counted.objection(ME) is None and counted.objection(OTHER) is None


def test_who_sends_to_a_learner_that_says_that_nothing_came_is_not_named() -> None:
    mine, third = came(range(0, 60, 3), 60), came(range(1, 60, 3), 57)
    counted = Returns()
    for _ in range(9):
        assert counted.settle([mine], {LIAR: says(), THIRD: says(third)}) == []
    assert counted.objection(ME) is None


@pytest.mark.parametrize("others", [0, 1, 2, 5])
def test_who_leaves_out_more_than_one_learner_can_have_taken_is_named(others: int) -> None:
    """A third is left out, the rest goes to all learners alike."""
    sent = [number for number in range(240) if number % 3]
    parts = [came(sent[part :: others + 1], 240) for part in range(others + 1)]
    counted = Returns()
    for _ in range(9):
        counted.settle(parts[:1], {PeerId(f"learner-{n}"): says(part) for n, part in enumerate(parts[1:])})
    assert counted.objection(ME) is not None


def played(
    learners: int, lying: int, seed: int, most: int = 4, left_out: float = 0.0
) -> dict[PeerId, set[PeerId]]:
    """Honest learner -> whom it named in forty releases of a sampler that sends to learners by their credits;
    the last `lying` of them tell of nothing. `most`: draws of a release for each learner; `left_out`: part of
    the draws that it sends to nobody."""
    rng, heard = random.Random(seed), Roster(10.0, random.Random(seed))
    everybody = [PeerId(f"learner-{k}") for k in range(learners)]
    honest = everybody[: learners - lying]
    counted, named = {one: Returns() for one in honest}, {one: set[PeerId]() for one in honest}
    for one in everybody:
        heard.hear(one, beat(credit=4), NOW)
    for _ in range(40):
        took: dict[PeerId, list[int]] = {one: [] for one in everybody}
        for number in range(rng.randint(learners, most * learners)):
            to = heard.choose(NOW)
            assert to is not None
            heard.acknowledged(to, rng.randint(2, 6))
            if rng.random() >= left_out:
                took[to].append(number)
        told = {one: says(came(took[one], 0)) if one in honest else says() for one in everybody}
        for one in (one for one in honest if took[one]):
            others = {other: answer for other, answer in told.items() if other != one}
            named[one].update(counted[one].settle([came(took[one], max(took[one]))], others))
    return named


@pytest.mark.parametrize("learners", [3, 5])
def test_no_honest_sampler_is_named_where_one_of_three_learners_or_more_lies(learners: int) -> None:
    for seed in range(40):
        assert not set().union(*played(learners, 1, seed).values()), seed


@pytest.mark.parametrize("learners", [2, 3, 5])
def test_who_leaves_out_a_third_is_named_by_all_whatever_learners_may_have_hidden(learners: int) -> None:
    for seed in range(8):
        assert all(played(learners, 0, seed, most=12, left_out=1 / 3).values()), seed


def read(counted: Returns) -> DrawsCame:
    """An answer as the asker reads it."""
    told, more = counted.came_of(group().weights, NOW + 1.0), counted.is_beyond(group().weights)
    return wire.decode(wire.encode(DrawsCame(since=NOW, samplers=tuple(told), more=more)), DrawsCame)


def test_more_samplers_than_are_remembered_leave_an_answer_that_judges_those_it_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(returns, "SAMPLERS", 3)
    counted = Returns()
    for name in ("a", "b", "c", "d"):
        assert counted.came(group(sampler=PeerId(name)), NOW, NOW, NOW)
    answer = read(counted)
    assert [one.sampler for one in answer.samplers] == ["a", "b", "c"] and answer.more
    asking = Returns()
    for _ in range(9):
        asking.settle([came([], 20, PeerId(name)) for name in ("a", "d")], {LIAR: answer})
    assert asking.objection(PeerId("a")) is not None and asking.objection(PeerId("d")) is None


def test_more_draws_than_are_remembered_leave_out_their_sampler_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(returns, "OF_ONE", 5)
    counted = Returns()
    counted.came(group(0, sampler=OTHER), NOW, NOW, NOW)
    for number in range(20):
        assert counted.came(group(number), NOW, NOW, NOW)
    answer = read(counted)
    assert [one.sampler for one in answer.samplers] == [OTHER] and answer.more


def test_one_release_does_not_grow_beyond_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(returns, "DRAWS", 10)
    counted = Returns()
    counted.came(group(0, sampler=OTHER), NOW, NOW, NOW)
    for number in range(100):
        assert counted.came(group(number), NOW, NOW, NOW)
    (its,) = counted.open.values()
    assert sum(map(len, its.samplers.values())) <= 10
    assert [one.sampler for one in read(counted).samplers] == [OTHER]


def test_an_answer_as_large_as_can_be_is_read() -> None:
    counted = Returns()
    for name in range(returns.SAMPLERS + 1):
        counted.came(group(sampler=PeerId(f"s{name}")), NOW, NOW, NOW)
    for number in range(returns.OF_ONE):
        counted.came(group(number, sampler=PeerId("s0")), NOW, NOW, NOW)
    assert len(read(counted).samplers) == returns.SAMPLERS


def test_draws_that_came_in_another_order_are_all_counted() -> None:
    me, counted = PeerId("sampler-0"), Returns()
    for _ in range(20):
        counted.settle([SamplerDraws(sampler=me, due=5, draws=packed(range(5, -1, -1)))])
    assert counted.objection(me) is None
