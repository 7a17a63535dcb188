"""Groups in, batches out: none lost, none doubled, none too old."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nouns import NOW, SAMPLER, group

from swarm.core.intake.admission import staleness
from swarm.core.intake.batcher import UNREPLAYED, Batcher
from swarm.settings.config import BatchSize, Window
from swarm.types import PeerId

WINDOW = Window(versions=4, seconds=30.0)
SIZE = BatchSize(groups=4, close_after=5.0, buffer=2.0)
STRANGER, OTHER = PeerId("stranger"), PeerId("another")


def filled(count: int, now: float = NOW, unproven: Collection[PeerId] = ()) -> Batcher:
    batcher = Batcher(SIZE, WINDOW, is_unproven=lambda sampler: sampler in unproven)
    for seed in range(count):
        batcher.add(group(seed), now)
    return batcher


def test_groups_of_an_unproven_sampler_wait_beside_the_batches_and_take_up_room() -> None:
    unproven = {STRANGER}
    batcher = Batcher(SIZE, WINDOW, is_unproven=unproven.__contains__)
    for seed in range(4):
        batcher.add(group(seed, sampler=STRANGER), NOW)
    assert batcher.due(1, NOW) is None and not batcher.take(1, 0, NOW).groups
    batcher.add(group(9, sampler=OTHER), NOW + 2)
    assert batcher.due(1, NOW + 3) == 4.0, "the close counts from the first group that it takes"
    assert [item.group.sampler for item in batcher.take(1, 0, NOW + 3).groups] == [OTHER]
    assert batcher.credit(1) == 4
    unproven.clear()
    assert len(batcher.take(1, 0, NOW + 3).groups) == 4


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 6)),
        st.tuples(st.just("take"), st.integers(1, 3)),
        st.tuples(st.just("give back"), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 12)),
        st.tuples(st.just("step"), st.integers(1, 2)),
    ),
    max_size=60,
)


@given(steps)
def test_every_group_leaves_once_and_none_in_a_batch_that_it_is_too_old_for(
    script: list[tuple[str, int]],
) -> None:
    batcher, now, version = Batcher(SIZE, WINDOW), NOW, 0
    added: list[str] = []
    gone: list[str] = []
    at_hand: list = []
    for what, number in script:
        if what == "add":
            made = group(len(added), version=max(0, version - number), released=now)
            added.append(made.id)
            batcher.add(made, now)
        elif what == "take":
            gone += [item.group.id for item in at_hand]
            taken = batcher.take(number, version, now)
            assert all(staleness(item.group, WINDOW, version, now) is None for item in taken.groups)
            assert all(staleness(item.group, WINDOW, version, now) is not None for item in taken.expired)
            assert len(taken.groups) <= batcher.share(number)
            gone += [item.group.id for item in taken.expired]
            at_hand = taken.groups
        elif what == "give back":
            batcher.give_back(at_hand)
            at_hand = []
        elif what == "wait":
            now += number
        else:
            version += number
    while len(batcher):
        rest = batcher.take(1, version, now)
        gone += [item.group.id for item in (*rest.groups, *rest.expired)]
    gone += [item.group.id for item in at_hand]
    assert sorted(gone) == sorted(added)


def test_a_batch_is_the_oldest_groups_in_their_order() -> None:
    batcher = filled(6)
    assert [item.group.draw for item in batcher.take(1, 0, NOW).groups] == [0, 1, 2, 3]


def test_of_groups_that_wait_those_that_outgrow_the_window_first_make_the_batch() -> None:
    batcher = filled(2)
    for number, (version, released) in enumerate([(1, NOW), (0, NOW - 5), (1, NOW - 2), (0, NOW)], 2):
        batcher.add(group(number, version=version, released=released), NOW)
    assert batcher.due(2, NOW + 1) == 0.0
    assert [item.group.draw for item in batcher.take(1, 1, NOW).groups] == [3, 0, 1, 5]
    assert [item.group.draw for item in batcher.take(1, 1, NOW).groups] == [4, 2]


def test_a_batch_closes_by_the_group_that_waits_for_longest_and_not_by_the_oldest_policy() -> None:
    batcher = Batcher(SIZE, WINDOW)
    batcher.add(group(0, version=1), NOW)
    batcher.add(group(1, version=0), NOW + 2)
    assert batcher.due(1, NOW + 3) == 2.0


def test_what_is_given_back_comes_first_again_and_in_its_order() -> None:
    batcher = filled(6)
    batcher.give_back(batcher.take(1, 0, NOW).groups)
    assert [item.group.draw for item in batcher.take(1, 0, NOW).groups] == [0, 1, 2, 3]


def test_what_is_given_back_too_late_is_expired_at_the_next_take() -> None:
    batcher = filled(4)
    batcher.give_back(batcher.take(1, 0, NOW).groups)
    taken = batcher.take(1, WINDOW.versions + 1, NOW)
    assert not taken.groups and len(taken.expired) == 4 and len(batcher) == 0


def test_a_full_batch_closes_at_once_and_a_smaller_one_by_the_age_of_its_first_group() -> None:
    assert filled(0).due(1, NOW) is None
    assert filled(4).due(1, NOW) == 0.0
    assert filled(3).due(1, NOW + 1) == pytest.approx(4.0)
    assert filled(3).due(1, NOW + 5) == 0.0
    assert filled(2).due(2, NOW) == 0.0, "two learners share a batch"


@given(st.integers(1, 64), st.integers(1, 9))
def test_shares_make_up_the_batch_and_waste_less_than_a_group_each(groups: int, learners: int) -> None:
    share = Batcher(BatchSize(groups=groups), WINDOW).share(learners)
    assert groups <= share * learners < groups + learners


@given(st.integers(0, 40), st.integers(1, 5))
def test_credit_asks_for_what_the_buffer_lacks_and_one_alone_may_fill_it_and_a_third_more(
    held: int, learners: int
) -> None:
    batcher = filled(held)
    buffer = math.ceil(SIZE.buffer * batcher.share(learners))
    assert batcher.credit(learners) == max(0, buffer - held)
    assert max(0, batcher.room(SAMPLER, learners, NOW).groups) == max(0, math.ceil(4 / 3 * buffer - held))
    assert (batcher.room(OTHER, learners, NOW).groups > 0) == (held < 2 * buffer)


@pytest.mark.parametrize("version", [0, WINDOW.versions + 1], ids=["trained on", "outgrew the window"])
def test_a_sampler_whose_groups_are_gone_has_the_room_of_one_that_sent_none(version: int) -> None:
    batcher, empty = filled(4), filled(0)
    assert batcher.room(SAMPLER, 1, NOW).groups < empty.room(SAMPLER, 1, NOW).groups
    batcher.take(1, version, NOW)
    assert len(batcher) == 0
    assert batcher.room(SAMPLER, 1, NOW) == empty.room(SAMPLER, 1, NOW)


def test_groups_that_are_being_scored_take_room_like_those_that_wait() -> None:
    scores, waits = filled(0), filled(2)
    scores.scoring[SAMPLER] += 2
    assert scores.credit(1) == waits.credit(1)
    for sampler in (SAMPLER, STRANGER):
        assert scores.room(sampler, 1, NOW) == waits.room(sampler, 1, NOW)


def crowded(**size: float) -> Batcher:
    """An invited sampler delivers whole batches; a buffer has 11 groups."""
    batcher = Batcher(BatchSize(groups=4, buffer=2.6, **size), WINDOW)  # type: ignore[arg-type]
    batcher.quotas.invited(SAMPLER)
    for seed in range(4):
        batcher.add(group(seed), NOW)
    return batcher


def test_a_stranger_has_its_share_of_the_buffer_while_others_fill_the_rest_of_a_batch() -> None:
    batcher = crowded(share=0.5, newcomers=1.0)
    assert [batcher.room(peer, 1, NOW).groups for peer in (STRANGER, OTHER)] == [6, 6]
    batcher.add(group(9, sampler=STRANGER), NOW)
    batcher.scoring[STRANGER] += 1
    assert [batcher.room(peer, 1, NOW).groups for peer in (STRANGER, OTHER)] == [4, 6]
    why = batcher.room(STRANGER, 1, NOW).why
    assert "your share is limited to 50% of a batch" in why and "run.batch.share" in why
    assert "your invite is one for strangers" in why and "without an invite" not in why
    assert batcher.room(SAMPLER, 1, NOW).groups > 6, "its owner vouches for it"


def test_newcomers_share_their_part_of_the_buffer_while_the_known_fill_the_rest_of_a_batch() -> None:
    batcher = crowded(share=1.0, newcomers=0.5)
    assert [batcher.room(peer, 1, NOW).groups for peer in (STRANGER, OTHER)] == [6, 6]
    for seed in range(2):
        batcher.add(group(seed, sampler=STRANGER), NOW)
    batcher.scoring[OTHER] += 3
    assert [batcher.room(peer, 1, NOW).groups for peer in (STRANGER, OTHER)] == [1, 1]
    why = batcher.room(OTHER, 1, NOW).why
    assert "together at most 50% of a batch" in why and "run.batch.newcomers" in why
    assert batcher.room(SAMPLER, 1, NOW).groups > 1, "an invited one is no newcomer"


def test_newcomers_that_are_bound_share_the_credit_of_one() -> None:
    batcher = crowded(share=1.0, newcomers=0.5)
    for senders, takers in (([SAMPLER, STRANGER, OTHER], 2), ([STRANGER, OTHER], 1), ([SAMPLER], 1)):
        assert batcher.takers(senders, 1, NOW) == takers
    assert filled(0).takers([STRANGER, OTHER], 1, NOW) == 2, "nobody is bound where nobody delivers"


def test_samplers_with_an_invite_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    batcher = filled(3)
    batcher.quotas.invited(SAMPLER)
    looks: list[PeerId] = []
    monkeypatch.setattr(batcher.quotas, "newcomer", lambda sampler, now: bool(looks.append(sampler)))
    batcher.takers([SAMPLER, STRANGER], 1, NOW)
    batcher.due(1, NOW)
    assert looks == [STRANGER], "a thousand samplers are many looks at every receipt"


def test_strangers_are_looked_at_once_a_moment_while_the_same_groups_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unproven, looks = set[PeerId](), list[PeerId]()
    batcher = filled(3, unproven=unproven)
    monkeypatch.setattr(batcher.quotas, "newcomer", lambda sampler, now: bool(looks.append(sampler)))
    assert batcher.due(1, NOW) == 5.0 and (first := len(looks))
    assert batcher.due(1, NOW) == 5.0 and len(looks) == first
    batcher.add(group(3), NOW)
    assert batcher.due(1, NOW) == 0.0
    unproven.add(SAMPLER)
    assert batcher.due(1, NOW) is None
    unproven.clear()
    taken = batcher.take(1, 0, NOW).groups
    assert batcher.due(1, NOW) is None
    batcher.give_back(taken)
    assert batcher.due(1, NOW) == 0.0
    batcher.remove(lambda one: one.draw == 0)
    assert batcher.due(1, NOW) == 5.0 and batcher.due(2, NOW) == 0.0


def test_groups_that_a_quota_left_over_do_not_close_the_next_batch_early() -> None:
    batcher = Batcher(BatchSize(groups=8, close_after=5.0, share=0.5, newcomers=1.0), WINDOW)
    batcher.quotas.invited(SAMPLER)
    for seed in range(5):
        batcher.add(group(seed), NOW)
    batcher.add(group(0, sampler=STRANGER), NOW)
    assert batcher.due(1, NOW + 1) == 4.0, "the first batch closes by its first group"
    for seed in range(1, 6):
        batcher.add(group(seed, sampler=STRANGER), NOW)
    assert len(batcher.take(1, 0, NOW + 1).groups) == 8 and len(batcher) == 3
    assert batcher.due(1, NOW + 1) == 5.0
    everybody = filled(6)
    everybody.take(1, 0, NOW + 1)
    assert everybody.due(1, NOW + 1) == 4.0, "where nobody is bound the first group counts"


def test_of_more_samplers_than_fit_the_oldest_groups_make_the_batch() -> None:
    batcher = Batcher(BatchSize(groups=4, share=0.5), WINDOW)
    for sampler in (SAMPLER, OTHER, PeerId("a third")):
        batcher.quotas.invited(sampler)
        for seed in range(2):
            batcher.add(group(seed, sampler=sampler), NOW)
    taken = batcher.take(1, 0, NOW).groups
    assert [item.group.sampler for item in taken] == [SAMPLER, SAMPLER, OTHER, OTHER]


def test_one_sampler_has_beyond_its_share_only_what_the_others_leave_and_keeps_its_order() -> None:
    batcher = Batcher(BatchSize(groups=4, share=0.5), WINDOW)
    for seed in range(6):
        batcher.add(group(seed), NOW)
    batcher.add(group(9, sampler=OTHER), NOW)
    assert [item.group.draw for item in batcher.take(1, 0, NOW).groups] == [0, 1, 2, 9]
    assert [item.group.draw for item in batcher.take(1, 0, NOW).groups] == [3, 4, 5]


@pytest.mark.parametrize(
    "size",
    [{"share": 0.5, "newcomers": 1.0}, {"share": 1.0, "newcomers": 0.5}],
    ids=["stranger", "newcomers"],
)
def test_who_is_bound_has_no_more_than_its_part_though_its_groups_came_first(size: dict[str, float]) -> None:
    batcher = crowded(**size)
    for seed in range(8):
        batcher.add(group(seed, sampler=STRANGER), NOW)

    def take() -> Counter[PeerId]:
        return Counter(item.group.sampler for item in batcher.take(1, 0, NOW).groups)

    while SAMPLER in (batch := take()):
        assert batch[STRANGER] <= 2
    assert batch == {STRANGER: 2}, "what it had saved"
    assert not take()
    batcher.add(group(9), NOW)
    assert take() == {SAMPLER: 1, STRANGER: 1}


def test_strangers_whose_groups_nobody_can_replay_have_one_share_together() -> None:
    size = BatchSize(groups=8, close_after=60.0, buffer=4.0, share=0.25, newcomers=1.0)
    names = [PeerId(f"{number}") for number in range(6)]
    batcher = Batcher(size, WINDOW, is_replayable=lambda group: bool(group.noise))
    for number, sampler in enumerate(names * 4):
        batcher.add(group(number, sampler=sampler), NOW)
    assert {item.payer for item in batcher.take(1, 0, NOW).groups} <= set(names)
    more = {one.id for one in batcher.groups()[6:]}
    batcher.remove(lambda each: each.id in more)
    for number in range(12):
        batcher.add(group(100 + number, sampler=PeerId(f"opaque-{number}"), noise=""), NOW)
    kinds = Counter(item.payer == UNREPLAYED for item in batcher.take(1, 0, NOW + 1.0).groups)
    assert kinds == {False: 6, True: 2}, "a quarter of a batch that others fill"
    for sampler in names:
        batcher.quotas.forget(sampler)
    assert len(batcher.take(1, 0, NOW + 2.0).groups) == 8, "all of one that nobody else fills"


def test_a_sampler_with_an_invite_has_its_own_share_whatever_it_sends_also_of_what_comes_back() -> None:
    batcher = Batcher(SIZE, WINDOW, is_replayable=lambda group: bool(group.noise))
    batcher.quotas.invited(OTHER)
    for number, sampler in enumerate((OTHER, STRANGER)):
        batcher.add(group(number, sampler=sampler, noise=""), NOW)
    taken = batcher.take(1, 0, NOW + 9.0).groups
    assert [item.payer for item in taken] == [OTHER, UNREPLAYED]
    batcher.quotas.invited(STRANGER)
    batcher.give_back(taken)
    assert [item.payer for item in batcher.take(1, 0, NOW + 9.0).groups] == [OTHER, STRANGER]
    assert batcher.credit(1) == 8


def test_flat_groups_make_room_for_as_many_others_as_a_batch_allows() -> None:
    batcher = Batcher(BatchSize(groups=4, refill="signal"), WINDOW)
    assert [batcher.leaves_out(1) for _ in range(18)] == 16 * [True] + 2 * [False]
    batcher.add(group(1), NOW)
    batcher.take(1, 0, NOW)
    assert batcher.leaves_out(1), "each batch has as many"
    assert [batcher.leaves_out(2) for _ in range(8)] == 7 * [True] + [False], "of this learner's share"


def test_flat_groups_have_a_place_where_batches_take_all() -> None:
    assert not Batcher(BatchSize(groups=4), WINDOW).leaves_out(1)
