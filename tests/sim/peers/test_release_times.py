"""A publisher that lies about the time of its releases."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from role_swarms import Told, scenario

from peers.runtime.releases.exchange import ReleaseExchange
from swarm.events import Judged, Noted, Released
from swarm.limits import RELEASE_LIMIT
from swarm.types import PeerId, Release, Verdict


def time_lies(monkeypatch: pytest.MonkeyPatch, lie: float) -> PeerId:
    """A learner, which publishes most releases, says that each is this many seconds younger than it is."""
    true, liar = ReleaseExchange._release, PeerId("learner-0")

    def false(self: ReleaseExchange, *args: Any, **more: Any) -> Release:
        made = true(self, *args, **more)
        mine = made.publisher == liar and made.version > 0
        return msgspec.structs.replace(made, released=made.released + lie) if mine else made

    monkeypatch.setattr(ReleaseExchange, "_release", false)
    return liar


def assert_ages_are_right(told: Told, liar: PeerId, released: int = 10) -> None:
    assert len([one for one in told.of(Released, liar) if one.release.publisher == liar]) > released
    judged = told.of(Judged)
    stale = [one for one in judged if one.verdict is Verdict.STALE]
    assert len(judged) > 70 and not stale and all(-1.0 < one.seconds < 60.0 for one in judged)


@pytest.mark.parametrize("lie", [-3600.0, 3600.0])
def test_the_time_that_a_publisher_gives_its_releases_makes_no_group_stale_and_is_told(
    lie: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    liar = time_lies(monkeypatch, lie)
    told = Told(scenario(0.45, (3, 4)))
    assert_ages_are_right(told, liar)
    named = [one.text for one in told.of(Noted) if one.peer != liar and "is of 3600 s" in one.text]
    assert named and all(text.startswith(f"{liar} says that version") for text in named)
    assert len(named) == len({one.peer for one in told.of(Noted) if one.text in named}), "each says it once"


def test_nor_does_that_of_releases_which_it_lets_the_others_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    liar, true = time_lies(monkeypatch, -3600.0), ReleaseExchange.announce

    async def unsaid(self: ReleaseExchange, release: Release) -> None:
        if release.publisher != liar:
            return await true(self, release)
        self._keep(release, self._kernel.seal(release, RELEASE_LIMIT))

    monkeypatch.setattr(ReleaseExchange, "announce", unsaid)
    assert_ages_are_right(
        Told(scenario(0.6, (3, 4))), liar, released=1
    )  # its turn comes last, since it is late
