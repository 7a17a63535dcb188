"""All peers end at the same release, in whatever order they hear of it."""

from __future__ import annotations

from core_samples import release
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.releases import Releases, publishers, rank
from swarm.types import Digest, Release

digests = st.sampled_from("0123456789abcdef").map(lambda digit: Digest(digit * 64))
releases = st.builds(
    lambda version, groups, learners, weights: release(version=version, groups=groups, learners=learners, weights=weights),
    st.integers(0, 4), st.integers(0, 3), st.integers(1, 3), digests,
)  # fmt: skip


@given(st.lists(releases, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_hearing_does_not_change_who_wins(heard: list[Release], rng) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(heard)
    rng.shuffle(shuffled)
    one, other = Releases(keep=2), Releases(keep=2)
    for told in heard:
        one.hear(told)
    for told in shuffled:
        other.hear(told)
    assert one.newest == other.newest
    assert [one.of(version) for version in range(5)] == [other.of(version) for version in range(5)]


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
    heard.hear(release(weights=Digest(one)))
    heard.hear(release(weights=Digest(other)))
    assert heard.newest is not None


def test_a_release_is_news_once() -> None:
    heard = Releases()
    assert heard.hear(release())
    assert not heard.hear(release())
    assert heard.hear(release(groups=2))
    assert not heard.hear(release())


def test_only_the_newest_are_remembered() -> None:
    heard = Releases(keep=3)
    for version in range(100):
        heard.hear(release(version=version))
    assert [version for version in range(100) if heard.of(version)] == [97, 98, 99]
    assert not heard.hear(release(version=5)), "too old to be news"


def test_the_oldest_member_publishes_first_and_ids_settle_ties() -> None:
    assert publishers([(5, "a"), (2, "c"), (2, "b")]) == ["b", "c", "a"]
