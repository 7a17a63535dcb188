"""Delay laws have the quantiles that their names promise."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.delays import draw
from swarm.settings.config import DelayLaw

DRAWS = 20_000


def quantile(law: DelayLaw, share: float) -> float:
    rng = random.Random(7)
    return sorted(draw(law, rng) for _ in range(DRAWS))[int(share * DRAWS)]


@pytest.mark.parametrize(("share", "sigmas"), [(0.5, 0.0), (0.841, 1.0), (0.023, -2.0)])
def test_lognormal_has_its_median_and_its_sigmas(share: float, sigmas: float) -> None:
    law = DelayLaw(law="lognormal", seconds=339.0, shape=0.617, longest=1e9)
    assert quantile(law, share) == pytest.approx(339.0 * math.exp(0.617 * sigmas), rel=0.04)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_weibull_has_its_quantiles(share: float) -> None:
    law = DelayLaw(law="weibull", seconds=100.0, shape=1.5, longest=1e9)
    assert quantile(law, share) == pytest.approx(100.0 * (-math.log(1 - share)) ** (1 / 1.5), rel=0.05)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_exponential_has_the_quantiles_of_its_mean(share: float) -> None:
    law = DelayLaw(law="exponential", seconds=100.0, shape=7.0, longest=1e9)
    assert quantile(law, share) == pytest.approx(-100.0 * math.log(1 - share), rel=0.05)


def test_none_takes_no_time_and_constant_its_own() -> None:
    rng = random.Random(1)
    assert draw(DelayLaw(law="none", seconds=9.0), rng) == 0.0
    assert draw(DelayLaw(law="constant", seconds=9.0), rng) == 9.0


LAWS = ["none", "constant", "lognormal", "weibull", "exponential"]


@given(st.sampled_from(LAWS), st.floats(0, 1e6), st.floats(0.05, 20), st.integers())
def test_a_delay_is_bounded_and_follows_from_the_generator(
    law: str, seconds: float, shape: float, seed: int
) -> None:
    made = DelayLaw(law=law, seconds=seconds, shape=shape, longest=60.0)  # type: ignore[arg-type]
    delays = [draw(made, random.Random(seed)) for _ in range(2)]
    assert delays[0] == delays[1] and 0.0 <= delays[0] <= 60.0


def test_an_unknown_law_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match="'gamma': use none"):
        draw(DelayLaw(law="gamma"), random.Random(1))  # type: ignore[arg-type]


def test_a_delay_of_less_than_no_time_takes_none() -> None:
    assert draw(DelayLaw(law="constant", seconds=-3.0), random.Random(1)) == 0.0
