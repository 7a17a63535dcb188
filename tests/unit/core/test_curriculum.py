"""What a sampler draws is not its choice: run, release, sampler and count say task and seed."""

from __future__ import annotations

import pytest

from swarm.core.intake import curriculum
from swarm.core.intake.curriculum import INDEX_BITS, SLOTS, TRIES, Curriculum, Draw, Draws
from swarm.types import Digest, PeerId

A, B = PeerId("a"), PeerId("b")
RUN, OTHER = Digest("0" * 64), Digest("1" * 64)
FIRST, SECOND = Digest("2" * 64), Digest("3" * 64)
BATCH = 8
ALL = SLOTS * BATCH
"""Slots of a release."""


def stream(run: Digest, weights: Digest, sampler: PeerId, count: int = 50) -> list[Draw]:
    drawn = Curriculum(Draws(run, BATCH), sampler)
    return [drawn.next(weights) for _ in range(count)]


def groups(*draws: Draw) -> set[tuple[int, int]]:
    return {(one.task, one.seed) for one in draws}


def test_whoever_knows_the_count_computes_the_draw() -> None:
    assert stream(RUN, FIRST, A) == [Draws(RUN, BATCH).of(FIRST, A, number) for number in range(50)]


def test_the_draws_that_follow_are_known_and_do_not_count_until_they_are_drawn() -> None:
    ours = Curriculum(Draws(RUN, BATCH), A)
    ours.next(FIRST)
    following = ours.following(FIRST, 3)
    assert following == ours.following(FIRST, 3) == [ours.next(FIRST) for _ in following]
    assert ours.following(SECOND, 1)[0].number == 0


def test_a_stream_does_not_repeat_itself() -> None:
    draws = stream(RUN, FIRST, A, 3 * ALL)
    assert len({one.task for one in draws}) == len({one.seed for one in draws}) == 3 * ALL
    assert all(0 <= number < 1 << INDEX_BITS for one in draws for number in (one.task, one.seed))


@pytest.mark.parametrize("other", [(OTHER, FIRST), (RUN, SECOND)])
def test_another_run_or_release_has_other_groups(other: tuple[Digest, Digest]) -> None:
    assert not groups(*stream(RUN, FIRST, A, ALL)) & groups(*stream(*other, A, ALL))


def test_a_second_identity_draws_the_same_groups_in_another_order() -> None:
    mine, its = stream(RUN, FIRST, A, ALL), stream(RUN, FIRST, B, ALL)
    assert groups(*mine) == groups(*its)
    assert len(groups(*mine[:50]) & groups(*its[:50])) < 10


def test_who_tries_a_thousand_identities_finds_no_group_beyond_the_slots() -> None:
    draws = Draws(RUN, BATCH)
    assert groups(*(draws.of(FIRST, PeerId(f"key-{i}"), 0) for i in range(1000))) < groups(
        *stream(RUN, FIRST, A, ALL)
    )


@pytest.mark.parametrize("samplers", [2, 10, 50])
def test_samplers_that_fill_a_batch_together_seldom_draw_the_same_group(samplers: int) -> None:
    batch, draws = 100, Draws(RUN, 100)
    made = [
        draws.of(Digest(f"{release:064x}"), PeerId(f"sampler-{sampler}"), number)
        for release in range(20)
        for sampler in range(samplers)
        for number in range(batch // samplers)
    ]
    assert 1 - len(groups(*made)) / len(made) < 1 / SLOTS


def test_a_sampler_that_goes_back_to_a_release_goes_on_with_its_count() -> None:
    drawn = Curriculum(Draws(RUN, BATCH), A)
    counts = [drawn.next(weights).number for weights in (FIRST, FIRST, SECOND, FIRST)]
    assert counts == [0, 1, 0, 2]


def test_a_call_that_fails_draws_the_same_again_and_fewer_at_once() -> None:
    drawn = Curriculum(Draws(RUN, BATCH), A)
    for most in (8, 4, 2, 1):
        assert drawn.at_once >= most
        draws = [drawn.next(FIRST) for _ in range(most)]
        assert [one.number for one in draws] == [*range(most)]
        drawn.failed(FIRST, draws)
    assert drawn.at_once == 1
    drawn.stopped(FIRST, [drawn.next(FIRST)])
    assert drawn.next(FIRST).number == 0
    drawn.sampled()
    assert drawn.at_once == 2 and drawn.next(FIRST).number == 1


def test_a_draw_that_fails_alone_again_and_again_keeps_no_other_from_being_drawn() -> None:
    drawn, numbers = Curriculum(Draws(RUN, BATCH), A), list[int]()
    for _ in range(2 * TRIES):
        draw = drawn.next(FIRST)
        numbers.append(draw.number)
        drawn.failed(FIRST, [draw])
    assert numbers == [0] * TRIES + [1] * TRIES


def test_a_draw_that_fails_for_good_is_left_out_at_once_once_it_is_alone() -> None:
    drawn = Curriculum(Draws(Digest("run"), 4), PeerId("me"))
    drawn.failed(FIRST, [drawn.next(FIRST) for _ in range(2)], again=False)
    assert drawn.at_once == 1
    drawn.failed(FIRST, [drawn.next(FIRST)], again=False)
    assert drawn.next(FIRST).number == 1


def test_a_next_life_goes_on_with_its_count() -> None:
    drawn = Curriculum(Draws(RUN, BATCH), A)
    drawn.go_on({FIRST: 7})
    assert (drawn.next(FIRST).number, drawn.next(SECOND).number) == (7, 0)


def test_counts_of_releases_long_gone_are_forgotten() -> None:
    drawn = Curriculum(Draws(RUN, BATCH), A)
    for number in range(curriculum.RELEASES + 1):
        drawn.next(Digest(f"{number:064x}"))
    assert drawn.next(Digest(f"{0:064x}")).number == 0
    assert drawn.next(Digest(f"{curriculum.RELEASES:064x}")).number == 1


def test_a_run_that_is_played_again_draws_what_it_drew() -> None:
    assert Draws(RUN, BATCH).of(FIRST, A, 0) == Draw(0, 167573059296025, 252596318930906)
