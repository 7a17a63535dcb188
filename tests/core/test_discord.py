"""Two learners whose gradients point away from each other."""

from __future__ import annotations

import random

from swarm.core.clipping import Cosines
from swarm.core.discord import LEAST, ROUNDS, Discord

A, B = "learner-0", "learner-1"


def found_after(mean: float, rounds: int, seed: int, spread: float = 0.07, joins: bool = False) -> int:
    """Rounds until the two are found to oppose each other; 0: they are not."""
    rng, discord = random.Random(seed), Discord()
    for number in range(1, rounds + 1):
        cosine = Cosines(rng.gauss(mean, spread), 0.0)
        discord.add({A: cosine, B: cosine})
        if discord.found((A, B), joins):
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
    discord, against = Discord(), Cosines(-0.5, 0.0)
    for number in range(2 * LEAST):
        discord.add({A: Cosines(-0.5 - 0.01 * (number % 2), 0.0), B: against, "learner-2": against})
    assert not discord.found((A, B))
    for number in range(LEAST):
        discord.add({A: Cosines(-0.5 - 0.01 * (number % 2), 0.0), B: against})
    assert discord.found((B, A)) and not discord.found((A, "learner-2"))
    discord.forget()
    assert not discord.found((A, B))
