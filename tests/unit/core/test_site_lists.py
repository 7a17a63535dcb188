"""Which contributions count: who closes a list, when it is complete, and what is wrong with one."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from swarm.core.agreement.site_lists import (
    BYTES_PER_SECOND,
    PATIENCE,
    REACH,
    Gathered,
    entries,
    factors,
    objection,
    overreach,
    turn,
)
from swarm.core.gradient_checks.norm_screening import FAR
from swarm.frames.site_types import Contribution, ListEntry
from swarm.types import Digest, PeerId

WEIGHTS = Digest("a" * 64)
A, B, C = (PeerId(name) for name in "ABC")


def named(learner: PeerId, **changes: Any) -> Contribution:
    good = Contribution(
        version=3,
        weights=WEIGHTS,
        learner=learner,
        root=Digest(learner * 64),
        size=1000,
        groups=8,
        weight=8.0,
    )
    return msgspec.structs.replace(good, **changes)


def gathered(*learners: PeerId, **norms: float) -> Gathered:
    found = Gathered(WEIGHTS)
    for learner in learners:
        assert not found.name(named(learner), 100.0)
    found.norms |= {PeerId(learner): norm for learner, norm in norms.items()}
    return found


def listed(**changes: Any) -> ListEntry:
    good = ListEntry(learner=A, root=Digest("b" * 64), size=10, groups=1, weight=1.0, share=1.0)
    return msgspec.structs.replace(good, **changes)


def test_of_two_contributions_with_one_group_one_is_listed() -> None:
    found = gathered(A, B, C, A=1.0, B=1.0, C=1.0)
    found.marks |= {A: b"group..1group..2", B: b"group..2group..3", C: b"group..3"}
    assert [(one.learner, one.weight) for one in entries(found, 0.0, 16)] == [(A, 8.0), (C, 8.0)]


def test_of_a_learner_the_first_contribution_counts() -> None:
    found = gathered(A)
    assert not found.name(named(A), 101.0)  # said again
    assert "second" in found.name(named(A, root=Digest("c" * 64)), 102.0)
    assert found.named == {A: named(A)} and found.received == {A: 100.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": Digest("f" * 64)},
        {"weight": 0.0},
        {"weight": -1.0},
        {"weight": 1e10},
        {"weight": math.nan},
        {"groups": 0},
    ],
)
def test_a_contribution_that_cannot_count_is_refused(changes: dict[str, Any]) -> None:
    found = Gathered(WEIGHTS)
    assert found.name(named(A, **changes), 100.0)
    assert not found.named


def test_a_list_is_complete_when_all_that_are_expected_are_here() -> None:
    found = gathered(A, B, A=1.0)
    assert not found.complete([B])
    found.norms[B] = 1.0
    assert found.complete([B]) and not found.complete([B, C])


def test_one_whose_bytes_are_of_no_use_is_not_waited_for() -> None:
    found = gathered(A, B, A=1.0)
    found.useless.add(B)
    assert found.complete([B]) and not found.missing()
    assert [one.learner for one in entries(found, 0.0, 16)] == [A]


def test_a_contribution_is_awaited_by_its_size() -> None:
    found, size = gathered(A, A=1.0), 1_000_000
    found.name(named(B, size=size), 200.0)
    due = 200.0 + PATIENCE + size / BYTES_PER_SECOND
    assert found.awaited(due - 0.1) and not found.awaited(due)


def test_the_oldest_that_contributed_and_is_there_closes_the_list() -> None:
    found = gathered(B, C)
    incarnations = {A: 1, B: 2, C: 3}
    assert (turn(found, incarnations, B), turn(found, incarnations, C)) == (0, 1)
    assert turn(found, {A: 1, C: 3}, C) == 0


def test_what_a_list_names_is_what_is_fetched_of_a_learner() -> None:
    found = gathered(A, B, A=1.0, B=2.0)
    other = listed(learner=B, root=Digest("d" * 64))
    assert found.must_have([other], 3, 150.0)
    assert [one.root for one in found.missing()] == [other.root] and B not in found.norms
    assert not found.must_have([other], 3, 151.0)


def test_a_list_is_in_the_order_of_ids_and_weighs_by_groups() -> None:
    found = gathered(C, A, B, A=1.0, B=1.0, C=1.0)
    found.named[B] = named(B, weight=4.0)
    found_entries = entries(found, 0.0, 24)
    assert [one.learner for one in found_entries] == [A, B, C]
    assert factors(found_entries) == [8 / 20, 4 / 20, 8 / 20]


def test_a_share_takes_from_its_contribution_and_gives_the_others_nothing() -> None:
    assert factors([listed(weight=6.0, share=0.5), listed(learner=B, weight=2.0)]) == [3 / 8, 2 / 8]


def test_a_weight_is_at_most_what_the_batch_leaves() -> None:
    found = gathered(A, B, A=1.0, B=1.0)
    found.named[B] = named(B, weight=1e6)
    assert [one.weight for one in entries(found, 0.0, 16)] == [8.0, 8.0]


def test_an_absurd_norm_counts_for_little() -> None:
    found = gathered(A, B, C, A=1.0, B=1.0, C=1000.0)
    assert [one.share for one in entries(found, 0.0, 24)] == [1.0, 1.0, pytest.approx(5e-6)]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ((), "empty"),
        ((listed(), listed(root=Digest("c" * 64))), "twice"),
        ((listed(weight=0.0),), "weight"),
        ((listed(weight=math.inf),), "weight"),
        ((listed(weight=math.nan),), "weight"),
        ((listed(share=-0.1),), "share"),
        ((listed(share=1.1),), "share"),
        ((listed(share=math.nan),), "share"),
        ((listed(groups=-1),), "groups"),
        ((listed(size=0),), "bytes"),
        ((listed(size=101),), "bytes"),
    ],
)
def test_a_list_of_no_use_says_why(bad: tuple[ListEntry, ...], why: str) -> None:
    assert why in objection(bad, largest=100)


def test_a_good_list_has_no_objection() -> None:
    assert not objection([listed(), listed(learner=B)], largest=100)


def test_a_list_that_was_of_no_use_leaves_what_its_learners_named_themselves() -> None:
    found = gathered(A, B, A=1.0, B=2.0)
    other = [listed(learner=who, root=Digest("d" * 64)) for who in (B, C)]
    assert found.must_have(other, 3, 150.0)
    found.norms |= {B: 1.0, C: 1.0}
    assert not found.name(named(B), 151.0)  # said again
    assert "second" in found.name(named(B, size=7), 151.0)
    found.list_gone()
    assert found.named == {A: named(A), B: named(B)} and found.norms == {A: 1.0}
    assert found.missing() == [named(B)] and found.received.keys() == {A, B}


def test_what_a_learner_names_beside_a_list_counts_when_that_is_of_no_use() -> None:
    found = gathered()
    found.must_have([listed(learner=A, root=Digest("d" * 64))], 3, 150.0)
    assert not found.name(named(A), 151.0)
    found.list_gone()
    assert found.missing() == [named(A)]


@pytest.mark.parametrize("weights", [(8.0,), (8.0, 1e6), (1e6, 1e6), (30.0, 1e6, 0.25), (4.0, 4.0, 4.0)])
@pytest.mark.parametrize("norms", [(1.0, 1.0, 1.0), (1.0, 1e3, 1e-3), (0.0, 0.0, 7.0)])
def test_a_list_that_a_learner_computed_has_no_overreach(
    weights: tuple[float, ...], norms: tuple[float, ...]
) -> None:
    """Whatever the usual norm of who signed it is, up to what that of two honest learners differs by."""
    found = gathered()
    for who, weight, norm in zip((A, B, C), weights, norms, strict=False):
        found.name(named(who, weight=weight), 100.0)
        found.norms[who] = norm
    for usual in (0.0, 0.1, 1.0, 9.0):
        assert not overreach(entries(found, usual, 25), norms[: len(weights)], 1.0, 25)


@pytest.mark.parametrize(
    ("count", "weight", "why"),
    [
        (1, 16.0, ""),
        (1, 16.1, "weight 16.1 of A, where the run's batch leaves 16"),
        (2, 12.0, ""),
        (2, 12.1, "weight 12.1 of A, where the run's batch leaves 12"),
        (3, 6.0, ""),
        (3, 6.1, "weight 6.1 of A, where the run's batch leaves 6"),
    ],
)
def test_a_weight_of_a_list_beyond_the_runs_batch_is_overreach(count: int, weight: float, why: str) -> None:
    others = [listed(learner=who, weight=4.0) for who in (B, C)][: count - 1]
    assert overreach([listed(weight=weight), *others], [1.0] * count, 0.0, 16) == why


def test_a_norm_far_beyond_the_usual_is_overreach_unless_its_share_is_small() -> None:
    usual, norm = 2.0, 5000.0
    most = REACH * FAR * usual
    assert not overreach([listed(share=most / norm)], [norm], usual, 16)
    assert "norm 5000 of A" in overreach([listed(share=1.01 * most / norm)], [norm], usual, 16)
    assert not overreach([listed()], [norm], 0.0, 16)  # nothing is usual yet
