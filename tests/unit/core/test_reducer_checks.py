"""Whose means leave gradients out: found by what is left of one's own."""

from __future__ import annotations

from random import Random

import pytest

from swarm.core.gradient_checks.inner_products import InnerProducts
from swarm.core.gradient_checks.reducer_checks import HALF, LEAST, MOST, ROUNDS, Presences, presence


def of(times: float, noise: float = 0.0) -> float:
    """A part of norm 3 that is in the mean `times` its weight of a quarter."""
    return presence(InnerProducts(both=times * 0.25 * 9 + noise, one=9.0, other=1.0), 0.25)


def test_a_part_with_its_weight_in_the_mean_is_present() -> None:
    assert of(1) == pytest.approx(1 - HALF) and of(0) == -HALF and of(-1) == -MOST
    assert of(100) == MOST and presence(InnerProducts(1.0, 0.0, 1.0), 0.25) == 0


@pytest.mark.parametrize("false", [0.0, -1.0, 0.2])
def test_a_reducer_whose_means_leave_mine_out_is_doubted_and_noise_is_not(false: float) -> None:
    presences, members = Presences(), ["me", "a", "b", "c"]
    for k in range(LEAST):
        noise = (1 + k % 3) * (-1) ** k
        presences.add({"me": of(1), "a": of(1, noise), "b": of(false), "c": of(0.9)})
        assert presences.doubted(members) == (["b"] if k == LEAST - 1 else [])


def test_where_most_means_leave_mine_out_nobody_is_doubted() -> None:
    presences, members = Presences(), ["me", "a", "b", "c"]
    for _ in range(2 * LEAST):
        presences.add({"me": of(0), "a": of(0), "b": of(0.1), "c": of(1)})
    assert presences.doubted(members) == ()


def test_honest_means_with_much_noise_are_not_doubted_and_a_reducer_that_is_honest_again_is_trusted() -> None:
    rng, presences, members = Random(1), Presences(), ["a", "b", "c", "liar"]
    for _ in range(200):
        presences.add({peer: rng.gauss(0.0, 0.1) for peer in members})
        assert not presences.doubted(members)
    for _ in range(ROUNDS):
        presences.add(dict.fromkeys(members[:-1], 0.5) | {"liar": rng.gauss(-0.5, 0.1)})
    assert presences.doubted(members) == ["liar"] and not presences.doubted(["a", "liar"]), "never half"
    for _ in range(ROUNDS):
        presences.add(dict.fromkeys(members, 0.5))
    assert not presences.doubted(members)


def test_the_record_of_an_absent_reducer_is_kept_and_what_is_kept_is_bounded() -> None:
    presences, honest = Presences(), dict.fromkeys("abc", 0.5)
    for k in range(LEAST):
        presences.add(honest | {"liar": -0.5 - k / 100})
    for k in range(ROUNDS - 4):
        presences.add(honest | {f"guest {k}": 0.5})
    assert presences.doubted(["a", "b", "c", "liar"]) == ["liar"]
    for k in range(2 * ROUNDS):
        presences.add(honest | {f"stranger {k}": 0.5})
        assert len(presences._seen) == ROUNDS and presences._seen.keys() > honest.keys()
    assert not presences.doubted(["a", "b", "c", "liar"]), "as many came since"
