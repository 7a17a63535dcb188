"""All peers end at the same release, in whatever order they hear of it."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from nouns import release

from swarm.core.agreement.releases import (
    ANNOUNCEMENTS,
    FIRST_RETRY,
    LONGEST_RETRY,
    PUBLISHERS,
    Releases,
    publishers,
    rank,
)
from swarm.types import Digest, PeerId, Release

A, B = Digest("a" * 64), Digest("b" * 64)
digests = st.sampled_from("0123456789abcdef").map(lambda digit: Digest(digit * 64))
releases = st.builds(
    lambda version, groups, learners, weights: release(
        version=version, groups=groups, learners=learners, weights=weights
    ),
    st.integers(0, 4),
    st.integers(0, 3),
    st.integers(1, 3),
    digests,
)


@given(st.lists(releases, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_hearing_does_not_change_who_wins(heard: list[Release], rng) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(heard)
    rng.shuffle(shuffled)
    one, other = Releases(keep=3), Releases(keep=3)
    for told in heard:
        one.receive(told)
    for told in shuffled:
        other.receive(told)
    while (best := one.awaited((), 0.0)) is not None:
        assert other.awaited((), 0.0) == best
        one.refuse(best)
        other.refuse(best)
    assert other.awaited((), 0.0) is None


@given(releases, releases)
def test_ranks_are_a_total_order(one: Release, other: Release) -> None:
    assert (rank(one) < rank(other)) + (rank(one) > rank(other)) + (one == other) == 1


def test_a_higher_version_beats_more_groups_beats_more_learners_beats_a_smaller_digest() -> None:
    falling = [
        release(version=2),
        release(groups=9),
        release(groups=9, learners=0),
        release(weights=Digest("1" * 64)),
        release(weights=Digest("2" * 64)),
    ]
    assert sorted(falling, key=rank, reverse=True) == falling


@given(st.text(max_size=70), st.text(max_size=70))
def test_a_digest_that_is_none_is_ranked_like_any_other(one: str, other: str) -> None:
    heard = Releases()
    heard.receive(release(weights=Digest(one)))
    heard.receive(release(weights=Digest(other)))
    assert heard.wanted((), 0.0) is not None


def test_a_release_is_news_once() -> None:
    heard = Releases()
    assert heard.receive(release())
    assert not heard.receive(release())
    assert heard.receive(release(groups=2))
    assert not heard.receive(release())


def test_only_a_publishers_newest_are_remembered() -> None:
    heard = Releases(keep=3)
    for version in range(100):
        heard.receive(release(version=version))
    assert [version for version in range(100) if heard.named(version, A)] == [97, 98, 99]
    assert not heard.receive(release(version=5)), "too old to be news"


def test_a_release_that_was_outranked_or_given_up_is_still_known() -> None:
    heard = Releases()
    lost, won = release(), release(groups=2, weights=B)
    again = msgspec.structs.replace(lost, publisher=PeerId("learner-1"), released=lost.released + 5.0)
    for each in (won, lost, again):
        heard.receive(each, each.publisher.encode())
    heard.refuse(won)
    assert heard.known(1, A) == [lost, again] and heard.known(1, B) == [won] and heard.known(2, A) == []
    assert [heard.sealed(each) for each in (lost, again)] == [b"learner-0", b"learner-1"]


def test_what_was_heard_is_remembered_within_a_bound() -> None:
    heard = Releases(keep=2)
    for groups in range(100):
        heard.receive(release(groups=groups))
    assert [each.groups for each in heard.known(1, A)] == [*range(100 - 2 * ANNOUNCEMENTS, 100)]


def test_what_others_are_told_of_is_what_is_held() -> None:
    heard = Releases()
    assert heard.held is None
    for version in (1, 2, 3):
        heard.receive(release(version=version))
    heard.hold(release(version=1))
    heard.hold(release(version=2))
    assert heard.held == release(version=2)
    heard.lose(release(version=2))
    assert heard.held == release(version=1)


def lookups(heard: Releases, above: Any, until: float, step: float = 0.25) -> list[tuple[float, int]]:
    """(seconds, version) of every try, none of which finds anything."""
    tries = []
    for tick in range(int(until / step)):
        if (wanted := heard.wanted(above, tick * step)) is not None:
            heard.failed(wanted, tick * step)
            tries.append((tick * step, wanted.version))
    return tries


def test_a_release_that_cannot_be_had_is_tried_for_a_while_then_the_next_lower_one() -> None:
    heard = Releases(patience=10.0)
    for version in (11, 12, 13):
        heard.receive(release(version=version))
    tries = lookups(heard, rank(release(version=11)), 60.0)
    first = [version for at, version in tries if at < 10.0]
    assert set(first) == {13} and 3 <= len(first) <= 6
    assert next(at for at, version in tries if version == 12) < 16.0
    assert 11 not in {version for _, version in tries}, "it does not rank above what is mine"
    assert [at for at, version in tries if version == 13 and at > 20.0], "now and then it is tried again"
    assert len(tries) < 25


def test_a_release_is_waited_for_until_it_could_not_be_had_for_the_patience() -> None:
    heard = Releases(patience=10.0)
    heard.receive(release(version=13))
    assert heard.awaited((12,), 1e6) == release(version=13), "nobody has tried yet: its bytes may be many"
    heard.failed(release(version=13), 100.0)
    assert heard.awaited((12,), 109.9) is not None and heard.lacking((12,), 109.9)
    assert heard.awaited((12,), 110.0) is None and not heard.lacking((12,), 110.0)
    assert list(heard.given_up(110.0)) == [release(version=13)] and list(heard.given_up(111.0)) == [], (
        "told once"
    )


def test_seventy_absurd_announcements_displace_nothing_that_is_held_and_cost_the_patience_once() -> None:
    heard = Releases(patience=10.0)
    for version in (11, 12):
        heard.receive(release(version=version))
        heard.hold(release(version=version))
    for k in range(70):
        heard.receive(release(version=10**15 + k, publisher=PeerId("liar")))
    assert heard.held == release(version=12) and heard.named(11, A) is not None
    assert not [
        version for at, version in lookups(heard, rank(release(version=12)), 10.0) if version < 10**15
    ]
    assert heard.awaited((13,), 10.0) is None, "none of them is waited for: their publisher had its time"
    assert heard.receive(release(version=13)) and heard.wanted(rank(release(version=12)), 10.0) == release(
        version=13
    )
    heard.receive(release(version=10**15 + 100, publisher=PeerId("liar")))
    assert heard.awaited((13,), 10.0) == release(version=13)


def test_who_releases_something_that_can_be_had_is_waited_for_again() -> None:
    heard = Releases(patience=10.0)
    heard.receive(release(version=13))
    heard.failed(release(version=13), 0.0)
    heard.receive(release(version=14))
    assert heard.awaited((12,), 20.0) is None and heard.wanted((12,), 20.0) == release(version=14)
    heard.hold(release(version=14))
    heard.receive(release(version=15))
    assert heard.awaited((14,), 20.0) == release(version=15)


def test_who_released_what_another_member_has_is_waited_for_again() -> None:
    heard, mine = Releases(patience=10.0), PeerId("a")
    for version in (13, 14):
        heard.receive(release(version=version, publisher=mine))
    heard.failed(release(version=13, publisher=mine), 0.0)
    for holder in (mine, None):
        heard.found(14, A, holder)
        assert heard.awaited((13,), 20.0) is None, "its own word, or a stranger's"
    heard.found(14, A, PeerId("b"))
    assert heard.awaited((13,), 20.0) == release(version=14, publisher=mine)


def test_a_release_that_somebody_has_after_all_is_tried_at_once() -> None:
    heard = Releases(patience=10.0)
    heard.receive(release(version=13))
    for at in range(100, 160, 10):
        heard.failed(release(version=13), float(at))
    assert heard.wanted((12,), 160.0) is None and 0.0 < heard.pause((12,), 160.0) <= 60.0
    heard.found(13, A)
    assert heard.wanted((12,), 160.0) == release(version=13) and heard.pause((12,), 160.0) == 0.0
    heard.failed(release(version=13), 160.0)
    heard.receive(release(version=13))
    assert heard.wanted((12,), 160.0) == release(version=13), "its publisher says so again"


def test_mine_is_the_best_again_when_the_better_ranked_of_its_version_cannot_be_had() -> None:
    heard = Releases(patience=10.0)
    mine, theirs = release(version=5), release(version=5, groups=9, weights=B, publisher=PeerId("other"))
    for told in (mine, theirs):
        heard.receive(told)
    heard.hold(mine)
    assert heard.awaited(rank(mine), 0.0) == theirs
    heard.failed(theirs, 0.0)
    assert heard.awaited(rank(mine), 10.0) is None and heard.held == mine


def test_bytes_that_are_of_no_use_are_not_wanted_again() -> None:
    heard = Releases()
    for version in (5, 1005):
        heard.receive(release(version=version))
        heard.hold(release(version=version))
    heard.refuse(release(version=1005))
    assert heard.held == release(version=5) and heard.wanted(rank(release(version=5)), 0.0) is None
    assert heard.named(1005, A) is None and heard.named(5, A) == release(version=5)
    assert not heard.receive(release(version=1005)) and heard.wanted(rank(release(version=5)), 0.0) is None


def test_one_release_of_two_sizes_is_two_promises() -> None:
    """Else a liar could put a size that does not fit in the place of the right one."""
    heard = Releases(patience=10.0)
    lie = release(groups=10**9, size=10**9, publisher=PeerId("liar"))
    heard.receive(release())
    heard.receive(lie)
    heard.failed(lie, 0.0)
    assert heard.wanted((), 10.0) == release()


def test_the_oldest_member_publishes_first_and_ids_settle_ties() -> None:
    assert publishers([(5, "a"), (2, "c"), (2, "b")]) == ["b", "c", "a"]


def test_a_release_that_failed_is_tried_when_its_rest_ends_and_rests_twice_as_long_each_time() -> None:
    heard, now, rests = Releases(patience=1e6), 100.0, []
    heard.receive(release())
    for _ in range(9):
        heard.failed(release(), now)
        rests.append(heard.pause((), now))
        assert heard.wanted((), now + rests[-1] - 0.1) is None
        now += rests[-1]
        assert heard.wanted((), now) == release() and heard.pause((), now) == 0.0
    assert rests == [min(FIRST_RETRY * 2**k, LONGEST_RETRY) for k in range(9)] and rests[-1] == LONGEST_RETRY


def test_what_is_not_waited_for_is_tried_when_its_rest_ends() -> None:
    heard = Releases(patience=0.0)
    heard.receive(release())
    heard.failed(release(), 100.0)
    assert heard.awaited((), 100.0) is None
    assert (
        heard.wanted((), 100.0 + FIRST_RETRY - 0.1) is None
        and heard.wanted((), 100.0 + FIRST_RETRY) == release()
    )


def test_more_holders_are_looked_for_after_a_try_and_not_before() -> None:
    heard = Releases()
    heard.receive(release())
    assert not heard.lacking((), 0.0)
    heard.failed(release(), 0.0)
    assert heard.lacking((), 0.0)


def test_a_release_is_told_to_be_given_up_when_the_patience_ends_and_not_before() -> None:
    heard = Releases(patience=10.0)
    heard.receive(release())
    heard.failed(release(), 100.0)
    assert list(heard.given_up(109.9)) == [] and list(heard.given_up(110.0)) == [release()]


def test_a_release_that_a_better_one_is_here_for_is_not_told_to_be_given_up() -> None:
    heard = Releases(patience=10.0)
    for version in (13, 14):
        heard.receive(release(version=version))
    heard.failed(release(version=13), 100.0)
    heard.hold(release(version=14))
    assert list(heard.given_up(110.0)) == []


def test_a_release_that_was_held_and_lost_is_waited_for_and_given_up_anew() -> None:
    heard = Releases(patience=10.0)
    heard.receive(release())
    heard.failed(release(), 0.0)
    assert list(heard.given_up(10.0)) == [release()]
    heard.hold(release())
    heard.lose(release())
    assert heard.awaited((), 20.0) == release() and not heard.lacking((), 20.0)
    heard.failed(release(), 20.0)
    assert heard.pause((), 20.0) == FIRST_RETRY, "what failed before it was held does not count"
    assert list(heard.given_up(30.0)) == [release()]


def test_bytes_of_a_release_that_nobody_announced_are_not_held() -> None:
    heard = Releases()
    heard.hold(release())
    assert heard.held is None


def test_what_is_held_of_a_publisher_has_a_bound_of_its_own() -> None:
    heard = Releases(keep=3)
    for version in range(10):
        heard.receive(release(version=version))
        heard.hold(release(version=version))
    for version in range(100, 110):
        heard.receive(release(version=version))
    assert [version for version in range(200) if heard.named(version, A)] == [7, 8, 9, 107, 108, 109]


def test_a_candidates_seal_is_known_after_its_announcement_was_pushed_out() -> None:
    heard = Releases(keep=2)
    heard.receive(release(), b"sealed")
    heard.hold(release())
    for version in range(100, 200):
        heard.receive(release(version=version, publisher=PeerId("other")))
    assert heard.known(1, A) == [] and heard.sealed(release()) == b"sealed"
    assert heard.sealed(release(version=500)) == b""


def test_a_better_announcement_of_the_same_bytes_takes_the_place_of_the_first() -> None:
    heard = Releases(keep=1)
    heard.receive(release())
    heard.receive(release(groups=2))
    assert heard.awaited((), 0.0) == release(groups=2)
    heard.receive(release(version=2))
    heard.refuse(release(version=2))
    assert heard.awaited((), 0.0) is None, "version 1 was pushed out, both times that it was announced"


def test_where_nothing_is_worth_waiting_for_what_was_never_tried_comes_first() -> None:
    heard = Releases(patience=10.0)
    tried, new = release(version=14), release(version=13)
    heard.receive(tried)
    heard.failed(tried, 0.0)
    heard.receive(new)
    assert heard.awaited((), 20.0) is None and heard.wanted((), 20.0) == new
    heard.failed(new, 20.0)
    assert heard.wanted((), 30.0) == tried, "of those that were tried the best comes first"


def test_a_release_whose_bytes_came_from_elsewhere_is_there_at_once() -> None:
    heard = Releases()
    heard.receive(release())
    heard.failed(release(), 0.0)
    assert heard.wanted((), 0.1) is None
    heard.hold(release())
    assert heard.wanted((), 0.1) == release() and heard.pause((), 0.1) == 0.0


def test_there_is_no_next_try_where_nothing_is_better_than_mine() -> None:
    heard = Releases()
    heard.receive(release())
    assert heard.pause(rank(release()), 0.0) == math.inf


def test_of_a_publishers_promises_those_that_failed_are_dropped_first_and_then_the_lowest() -> None:
    heard = Releases(keep=2)
    for version in (5, 6):
        heard.receive(release(version=version))
    heard.failed(release(version=6), 0.0)
    heard.receive(release(version=4))
    assert [version for version in range(9) if heard.named(version, A)] == [4, 5]
    heard.receive(release(version=7))
    assert [version for version in range(9) if heard.named(version, A)] == [5, 7]
    assert heard.receive(release(version=1, publisher=PeerId("other"))), "each publisher has its own"


def test_of_a_release_that_somebody_has_only_the_one_with_those_weights_is_tried_again() -> None:
    heard = Releases()
    heard.receive(release())
    heard.failed(release(), 0.0)
    heard.found(1, B)
    heard.found(2, A)
    assert heard.wanted((), 0.1) is None


def test_a_better_announcement_of_the_same_bytes_has_a_rank_and_a_seal_of_its_own() -> None:
    heard, better = Releases(keep=2), release(groups=3)
    for told, sealed in (
        (release(), b"first"),
        (release(groups=2, weights=B), b"other"),
        (better, b"better"),
    ):
        heard.receive(told, sealed)
    assert heard.awaited((), 0.0) == better
    for version in range(100, 100 + 2 * ANNOUNCEMENTS):
        heard.receive(release(version=version, publisher=PeerId("other")))
    assert heard.known(1, A) == [] and heard.sealed(better) == b"better"


def publisher_of(heard: Releases, version: int) -> str | None:
    found = heard.named(version, A)
    return found.publisher if found is not None else None


def test_any_number_of_publishers_displaces_none_whose_release_was_fetched() -> None:
    heard = Releases(keep=3)
    for k in range(3):
        heard.receive(release(version=k, publisher=PeerId(f"learner-{k}")))
        heard.hold(release(version=k, publisher=PeerId(f"learner-{k}")))
    for k in range(10 * PUBLISHERS):
        heard.receive(release(version=1000 + k, publisher=PeerId(f"name-{k}")))
        heard.failed(release(version=1000 + k, publisher=PeerId(f"name-{k}")), 0.0)
    known = [version for version in range(2000) if publisher_of(heard, version)]
    assert known == [0, 1, 2, *range(1000 + 9 * PUBLISHERS + 3, 1000 + 10 * PUBLISHERS)]
    assert len(heard._unavailable) <= PUBLISHERS and heard.held == release(
        version=2, publisher=PeerId("learner-2")
    )


def test_of_publishers_who_came_and_went_the_best_held_ones_stays() -> None:
    heard = Releases(keep=3)
    for k in range(3 * PUBLISHERS):
        made = release(version=3 * PUBLISHERS - k, publisher=PeerId(f"learner-{k}"))
        heard.receive(made)
        heard.hold(made)
    known = [version for version in range(4 * PUBLISHERS) if publisher_of(heard, version)]
    assert known == [*range(1, PUBLISHERS), 3 * PUBLISHERS]


def test_one_that_announces_the_same_bytes_better_and_better_is_waited_for_once() -> None:
    heard = Releases(patience=10.0)
    for second in range(30):
        made = release(groups=second)
        heard.receive(made)
        assert (heard.awaited((), float(second)) is not None) == (second < 10)
        heard.failed(made, float(second))


def test_a_release_that_does_not_count_is_neither_wanted_nor_named_until_it_does() -> None:
    followed = {release(version=5)}
    heard = Releases(counts=followed.__contains__)
    low, high = release(version=5), release(version=6, weights=B, publisher=PeerId("learner-1"))
    for told in (low, high):
        heard.receive(told)
        heard.hold(told)
    assert heard.held == low == heard.awaited((), 0.0) and heard.doubted
    above = rank(low)
    assert heard.awaited(above, 0.0) is heard.wanted(above, 0.0) is None
    assert heard.pause(above, 0.0) == math.inf and not heard.lacking(above, 0.0)
    assert heard.known(6, B) == [high] and heard.named(6, B) == high
    followed.add(high)
    assert heard.held == high == heard.wanted(above, 0.0) == heard.awaited(above, 0.0)


def test_the_best_release_of_some_kind_is_found_whether_it_counts_or_is_here() -> None:
    heard = Releases(counts=lambda _: False)
    for version in (5, 6, 7):
        heard.receive(release(version=version))
    heard.refuse(release(version=6))
    assert heard.best(lambda _: True) == release(version=7)
    assert heard.best(lambda one: one.version < 7) == release(version=5)
    assert heard.best(lambda one: one.version < 5) is None


def test_of_two_announcements_of_the_same_bytes_one_that_counts_is_better_than_one_that_does_not() -> None:
    heard = Releases(counts=lambda each: each.groups in (2, 3))
    heard.receive(release())
    assert heard.awaited((), 0.0) is None
    for groups, best in ((2, 2), (4, 2), (3, 3), (1, 3)):
        heard.receive(release(groups=groups))
        assert heard.awaited((), 0.0) == heard.named(1, release().weights) == release(groups=best)


def test_one_that_was_made_from_another_version_is_another_release() -> None:
    heard = Releases(counts=lambda each: each.groups == 1)
    for made in (release(), release(parent=Digest("d" * 64), groups=9)):
        heard.receive(made)
        heard.hold(made)
    assert heard.awaited((), 0.0) == heard.held == heard.named(1, release().weights) == release()


def test_the_age_of_weights_counts_from_their_first_announcement_whatever_later_ones_say() -> None:
    known, early, late = Releases(), release(version=1, released=-2600.0), release(version=1, released=4600.0)
    assert known.received(1, early.weights) is None
    known.receive(early, at=1000.0)
    known.receive(early, at=1030.0)
    known.receive(late, at=1040.0)
    assert known.received(1, early.weights) == 1000.0 and known.received(2, early.weights) is None
