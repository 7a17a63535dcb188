"""Who is left out of rounds for opposing the others."""

from __future__ import annotations

from random import Random

import pytest

from swarm.core.gradient_checks.clipping import Cosines, agreements
from swarm.core.gradient_checks.opposition import LEAST, ROUNDS, Opponents, Opposition, is_below, left_out

MEMBERS = ("a", "b", "c", "liar")


def rounds(count: int, agree: float, spread: float, seed: int = 1) -> tuple[Opposition, int | None]:
    """Rounds in which the last member has the opposite of a cosine, and after how many of them it was left
    out."""
    seen, rng, out = Opposition(), Random(seed), None
    for k in range(count):
        cosines = {peer: rng.gauss(agree, spread) for peer in MEMBERS[:-1]}
        seen.add({**cosines, "liar": rng.gauss(-agree, spread)})
        found = seen.against(MEMBERS)
        assert set(found) <= {"liar"}
        out = out or (k + 1 if found else None)
    return seen, out


@pytest.mark.parametrize(("agree", "spread", "most"), [(0.6, 0.05, LEAST), (0.05, 0.07, 64)])
def test_one_that_opposes_the_others_is_left_out_the_sooner_the_clearer(
    agree: float, spread: float, most: int
) -> None:
    for seed in range(3):
        seen, out = rounds(100, agree, spread, seed)
        assert out is not None and LEAST <= out <= most and list(seen.against(MEMBERS)) == ["liar"]


def test_honest_members_whose_gradients_are_noise_are_not_left_out() -> None:
    for seed in range(8):
        assert rounds(200, 0.0, 0.1, seed)[1] is None


def test_one_that_agrees_again_is_back() -> None:
    seen, _ = rounds(64, 0.6, 0.05)
    for _ in range(64):
        seen.add(dict.fromkeys(MEMBERS, 0.5))
    assert not seen.against(MEMBERS)


@pytest.mark.parametrize(
    ("named", "out"),
    [
        ({"a": ["liar"], "b": ["liar"], "c": [], "liar": ["a"]}, ["liar"]),
        ({"a": ["liar"], "b": [], "c": [], "liar": ["liar"]}, []),
        ({"a": ["liar"], "b": [], "liar": []}, []),
        ({"a": ["liar"], "b": None, "c": None, "liar": ["a"]}, []),
        ({"a": ["liar"], "b": None, "c": None, "liar": []}, ["liar"]),
        ({"a": ["b"], "b": ["a"]}, []),
        ({"a": ["liar", "liar"], "b": [], "liar": ["a"]}, []),
        ({"a": ["b", "liar"], "b": ["a", "liar"], "c": ["a", "b"], "liar": ["a", "b"]}, []),
    ],
)
def test_whom_more_than_half_of_the_others_name_is_left_out(
    named: dict[str, list[str] | None], out: list[str]
) -> None:
    assert list(left_out(named)) == out


def test_who_was_away_keeps_what_was_seen_of_it_and_what_is_kept_is_bounded() -> None:
    seen, agree = Opposition(), dict.fromkeys(MEMBERS[:-1], 0.5)
    for k in range(LEAST):
        seen.add(agree | {"liar": -0.5 - k / 100})
    for k in range(ROUNDS - len(MEMBERS)):
        seen.add(agree | {f"guest {k}": 0.5})
    assert list(seen.against(MEMBERS)) == ["liar"]
    for k in range(2 * ROUNDS):
        seen.add(agree | {f"stranger {k}": 0.5})
        assert len(seen._seen) == ROUNDS and seen._seen.keys() > agree.keys()
    assert not seen.against(MEMBERS), "as many came since"


def test_the_mean_is_so_many_standard_errors_below_0() -> None:
    assert is_below([-3.0, -1.0], 1.99) and not is_below([-3.0, -1.0], 2.01)
    assert not is_below([0.0, 0.0], 4.0), "gradients of zero oppose nobody"


def test_one_that_opposes_the_mean_alone_is_left_out() -> None:
    seen = Opponents()
    for k in range(LEAST):
        cosines = {peer: Cosines(mean=0.5, middle=0.1) for peer in MEMBERS[:-1]}
        seen.add({**cosines, "liar": Cosines(mean=-0.5 - k / 100, middle=0.1)})
    assert list(seen.against(MEMBERS)) == ["liar"]


def test_half_of_the_members_are_never_left_out() -> None:
    seen, _ = rounds(64, 0.6, 0.05)
    assert seen.against(("a", "b", "liar")) and not seen.against(("a", "liar"))


def test_one_that_turns_the_mean_so_that_all_oppose_it_is_told_apart_by_each_of_the_others() -> None:
    rng, seen = Random(1), Opponents()
    for _ in range(LEAST + 1):
        honest = [[rng.gauss(0.1, 1) for _ in range(50)] for _ in MEMBERS[:-1]]
        turned = [-3.5 * sum(values) / 3 for values in zip(*honest, strict=True)]
        vectors = [*honest, turned]
        products = [[sum(map(float.__mul__, a, b)) for b in vectors] for a in vectors]
        company = agreements(products, [0.25] * 4)
        assert all(its.cosines.mean < -0.5 for its in company), "everybody's is opposed to the others' mean"
        seen.add({peer: its.cosines for peer, its in zip(MEMBERS, company, strict=True)})
    assert list(seen.against(MEMBERS)) == ["liar"]
