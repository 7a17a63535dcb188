"""Ways by patches to a release: the fewest bytes, from what is here, and never more than the whole."""

from __future__ import annotations

from collections.abc import Sequence

from nouns import release

from swarm.core.agreement.patch_path import RUNG, cheapest
from swarm.limits import WAY_STEPS
from swarm.types import Digest, Patch, Release

WHOLE = 1000


def weights(version: int) -> Digest:
    return Digest(f"{version:064x}")


def made(version: int, *patches: tuple[int, int]) -> Release:
    """Of `version`, with patches (base version, bytes)."""
    found = tuple(
        Patch(base=weights(base), root=Digest(f"{version}<-{base}"), size=size) for base, size in patches
    )
    return release(version=version, weights=weights(version), size=WHOLE, patches=found)


def way(releases: Sequence[Release], *here: int, useless: Sequence[str] = ()) -> list[str]:
    """The files of the way to the last of these."""
    known: dict[Digest, list[Release]] = {}
    for one in releases:
        known.setdefault(one.weights, []).append(one)
    held = set(map(weights, here))
    steps = cheapest(releases[-1], known, held.__contains__, useless)
    assert all(step.patch in step.release.patches for step in steps)
    return [step.patch.root for step in steps]


STEPS = [
    made(0),
    *(made(v, (v - 1, 10)) if v != RUNG else made(v, (v - 1, 10), (0, 40)) for v in range(1, 9)),
]


def test_from_the_version_before_it_is_one_step() -> None:
    assert way(STEPS, 7) == ["8<-7"]


def test_a_rung_is_taken_where_its_steps_are_more_bytes() -> None:
    assert way(STEPS, 0) == ["8<-0"]
    assert way(STEPS, 0, 5) == ["6<-5", "7<-6", "8<-7"]


def test_steps_are_in_the_order_in_which_they_are_applied() -> None:
    assert way(STEPS[:4], 0) == ["1<-0", "2<-1", "3<-2"]


def test_without_a_version_to_start_from_the_whole_is_fetched() -> None:
    assert way(STEPS) == [] and way(STEPS, 9) == []


def test_a_release_that_is_here_already_is_not_its_own_way() -> None:
    assert way(STEPS[:2], 1) == []


def test_a_way_of_as_many_bytes_as_the_whole_is_none() -> None:
    assert way([made(1, (0, 500)), made(2, (1, 500))], 0) == []
    assert way([made(1, (0, 500)), made(2, (1, 499))], 0) == ["1<-0", "2<-1"]


def test_what_is_useless_is_gone_round() -> None:
    assert way(STEPS, 0, useless=["8<-0"]) == [f"{v}<-{v - 1}" for v in range(1, 9)]
    assert way(STEPS, 0, useless=["8<-0", "3<-2"]) == []


def test_a_size_that_no_file_has_leads_nowhere() -> None:
    assert way([made(1, (0, 0))], 0) == [] and way([made(1, (0, -5))], 0) == []


def test_patches_in_a_circle_end() -> None:
    assert way([made(1, (2, 1)), made(2, (1, 1))], 0) == []


def test_a_way_has_at_most_so_many_patches() -> None:
    steps = [made(v, (v - 1, 1)) for v in range(1, WAY_STEPS + 2)]
    assert len(way(steps, 1)) == WAY_STEPS and way(steps, 0) == []


def test_two_announcements_of_one_release_are_two_ways() -> None:
    assert way([made(1, (0, 30)), made(1, (0, 20))], 0) == ["1<-0"]
