"""A prompt that teaches nothing is sampled seldom, and never not at all."""

from __future__ import annotations

from fractions import Fraction

import pytest

from swarm.core.intake.cooldown import COLDEST, Cooldown
from swarm.core.intake.curriculum import Draws
from swarm.types import Digest, PeerId

DRAWS = [Draws(Digest("0" * 64), 8).of(Digest("2" * 64), PeerId("a"), number) for number in range(1024)]
FLAT, TEACHES = (1.0, 1.0), (0.0, 1.0)


def share(cooldown: Cooldown, prompt: str) -> float:
    return sum(cooldown.samples(prompt, draw) for draw in DRAWS) / len(DRAWS)


@pytest.mark.parametrize(("times", "expected"), [(0, 1), (1, Fraction(1, 2)), (3, Fraction(1, 8))])
def test_each_flat_group_in_a_row_halves_the_draws_that_are_sampled(times: int, expected: Fraction) -> None:
    cooldown = Cooldown()
    for _ in range(times):
        cooldown.scored("solved", FLAT)
    assert share(cooldown, "solved") == pytest.approx(float(expected), abs=0.04)
    assert share(cooldown, "another") == 1.0


def test_no_prompt_is_left_out_for_ever() -> None:
    cooldown = Cooldown()
    for _ in range(100):
        cooldown.scored("hopeless", (0.0, 0.0))
    assert share(cooldown, "hopeless") == pytest.approx(0.5**COLDEST, abs=0.04)


def test_a_prompt_that_teaches_again_is_sampled_each_time() -> None:
    cooldown = Cooldown()
    for rewards in (FLAT, FLAT, TEACHES):
        cooldown.scored("frontier", rewards)
    assert share(cooldown, "frontier") == 1.0


def test_which_draws_are_left_out_follows_from_the_groups_alone() -> None:
    one, other = Cooldown(), Cooldown()
    for each in (one, other):
        each.scored("a", FLAT)
    assert [one.samples("a", draw) for draw in DRAWS] == [other.samples("a", draw) for draw in DRAWS]


def test_a_prompt_may_be_any_text() -> None:
    cooldown = Cooldown()
    cooldown.scored("half of a pair: \ud800", FLAT)
    assert share(cooldown, "half of a pair: \ud800") < 1.0
