"""Two learners whose gradients point away from each other, or differ grossly in length."""

from __future__ import annotations

import random

from swarm.core.gradient_checks.clipping import Cosines
from swarm.core.gradient_checks.norm_screening import FAR, AnnouncedNorm
from swarm.core.gradient_checks.pair_conflict import FEW, LEAST, NORMS, OPPOSED, ROUNDS, UNEQUAL, PairConflict

A, B = "learner-0", "learner-1"

ALIKE = {A: AnnouncedNorm(8.0, 1.0, 1.0), B: AnnouncedNorm(8.0, 1.0, 1.0)}
"""What two announce whose gradients are of one length."""

GROUPS = 16


def found_after(mean: float, rounds: int, seed: int, spread: float = 0.07, joins: bool = False) -> int:
    """Rounds until the two are found to oppose each other; 0: they are not."""
    rng, conflict = random.Random(seed), PairConflict()
    for number in range(1, rounds + 1):
        cosine = Cosines(rng.gauss(mean, spread), 0.0)
        conflict.add({A: cosine, B: cosine}, ALIKE, GROUPS)
        if conflict.found((A, B), joins):
            return number
    return 0


def test_a_gradient_that_is_turned_around_is_found_and_a_noisy_one_is_not() -> None:
    assert {found_after(-0.5, 100, seed) for seed in range(10)} == {LEAST}
    assert all(0 < found_after(-0.04, 400, seed) < 2 * ROUNDS for seed in range(10))
    assert not any(found_after(0.01, 1000, seed) for seed in range(20))


def test_who_hears_that_the_other_one_is_sure_joins_in_earlier_and_not_without_a_reason() -> None:
    alone, joined = (
        sum(found_after(-0.04, 400, seed, joins=joins) for seed in range(10)) for joins in (False, True)
    )
    assert joined < alone / 2
    assert not any(found_after(0.05, 200, seed, joins=True) for seed in range(10))


def test_rounds_of_others_and_of_another_pair_tell_nothing_of_these_two() -> None:
    conflict, against = PairConflict(), Cosines(-0.5, 0.0)
    for number in range(2 * LEAST):
        three = {A: Cosines(-0.5 - 0.01 * (number % 2), 0.0), B: against, "learner-2": against}
        conflict.add(three, ALIKE | {"learner-2": ALIKE[A]}, GROUPS)
    assert not conflict.found((A, B))
    for number in range(LEAST):
        conflict.add({A: Cosines(-0.5 - 0.01 * (number % 2), 0.0), B: against}, ALIKE, GROUPS)
    assert conflict.found((B, A)) == OPPOSED and not conflict.found((A, "learner-2"))
    conflict.forget()
    assert not conflict.found((A, B))


def norms_found(
    rounds: list[tuple[float, float]], joins: bool = False, weights: tuple[float, float] = (8.0, 8.0)
) -> int:
    """Rounds of these norms until two that agree in direction are found to differ; 0: they are not."""
    conflict, agree = PairConflict(), Cosines(0.5, 0.0)
    for number, norms in enumerate(rounds, 1):
        claims = {
            peer: AnnouncedNorm(weight, norm, 1.0)
            for peer, weight, norm in zip((A, B), weights, norms, strict=True)
        }
        conflict.add({A: agree, B: agree}, claims, GROUPS)
        if why := conflict.found((A, B), joins):
            assert why == UNEQUAL
            return number
    return 0


def test_a_gradient_that_is_far_too_long_or_too_short_is_found_though_it_agrees() -> None:
    for lie in (10.0, 1000.0, 0.1, 0.001):
        assert norms_found([(1.0, lie)] * NORMS) == norms_found([(lie, 1.0)] * NORMS) == FEW
    honest = [(1.0, 1.0)] * NORMS
    assert norms_found([*honest, *[(1.0, 1000.0)] * NORMS]) == NORMS + NORMS // 2 + 1
    assert norms_found([*honest, *[(1.0, 1000.0)] * NORMS], joins=True) == NORMS + NORMS // 4 + 1


def test_growth_that_both_see_and_now_and_then_a_long_one_are_no_alarm() -> None:
    assert not norms_found([(1.5**k, 0.3 * 1.5**k) for k in range(4 * NORMS)])
    assert not norms_found([(100.0, 1.0), (1.0, 100.0), (1.0, 1.0)] * NORMS)
    assert not norms_found([(1.0, 1.0), (1.0, 1.0), (100.0, 1.0)] * NORMS)
    assert not norms_found([(1.0, 0.0)] * 4 * NORMS), "zeros say nothing"


def test_noise_makes_the_gradient_of_one_group_longer_than_that_of_many() -> None:
    at = (1.0, 15.0)
    assert not norms_found([(15**0.5 * FAR * 0.99, 1.0)] * NORMS, weights=at)
    assert norms_found([(15**0.5 * FAR * 1.01, 1.0)] * NORMS, weights=at) == FEW
    assert norms_found([(1.0, FAR * 1.01)] * NORMS, weights=at) == FEW
    assert norms_found([(1.0, 0.001)] * NORMS, weights=(8.0, 1e6)) == FEW, (
        "a weight is believed up to its share"
    )
