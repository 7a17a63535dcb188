"""Live views for many readers, in virtual time: shared, paced, and without a queue."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from dashboard_happenings import Reader
from dashboard_story import SAMPLERS, heard, story

from dashboard.fold.state import SwarmState
from dashboard.serve import feed as feeds
from dashboard.serve.feed import MANY, Feed
from dashboard.serve.state_view import view_of
from dashboard.views import StateView
from swarm.sim.clock import run
from swarm.types import PeerId


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def fed(versions: int = 5) -> tuple[Feed, Clock]:
    clock = Clock()
    feed = Feed(SwarmState(), clock)
    for event in story(versions, start=clock.now - 0.6 * versions):
        feed(event)
    return feed, clock


async def next_view(updates: AsyncIterator[str]) -> dict:  # type: ignore[type-arg]
    async with asyncio.timeout(5):
        return json.loads(await anext(updates))  # type: ignore[no-any-return]


def test_readers_of_one_revision_share_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(
        state: SwarmState, now: float, since: int = 0, quiet: float = 0.0, flows: bool = True
    ) -> StateView:
        made.append(since)
        return view_of(state, now, since, quiet, flows=flows)

    monkeypatch.setattr("dashboard.serve.feed.view_of", counted)

    async def scene() -> None:
        feed, _ = fed()
        readers = [feed.updates() for _ in range(10)]
        texts = [await anext(reader) for reader in readers]
        assert len(made) <= 2 and len(set(texts)) == len(made)

    run(scene())


def test_what_comes_between_two_readers_of_one_text_reaches_both() -> None:
    async def scene() -> None:
        feed, _ = fed()
        early, late = feed.updates(), feed.updates()
        first = await next_view(early)
        feed(heard(SAMPLERS[0], 5, 100.0, seq=10**6))
        assert await next_view(late) == first
        for reader in (early, late):
            assert [row["id"] for row in (await next_view(reader))["peers"]] == [SAMPLERS[0]]

    run(scene())


def test_a_stream_begins_with_everything_and_goes_on_with_what_changed() -> None:
    async def scene() -> None:
        feed, _ = fed()
        updates = feed.updates()
        first = await next_view(updates)
        assert first["full"] and len(first["peers"]) == 7
        feed(heard(SAMPLERS[0], 5, 100.0, seq=10**6))
        second = await next_view(updates)
        assert not second["full"] and [row["id"] for row in second["peers"]] == [SAMPLERS[0]]
        assert second["revision"] > first["revision"] and second["releases"] == first["releases"][-1:]
        feed.close()
        assert [view async for view in updates] == []

    run(scene())


def test_flows_come_once_a_second_and_whenever_the_view_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "CALM", 2 * feeds.PAUSE)

    async def scene() -> None:
        feed, _ = fed()
        updates = feed.updates()
        told = []
        for seq in range(5):
            view = await next_view(updates)
            told.append((view["full"], view["flows"] is not None))
            feed(heard(SAMPLERS[0], 5, 100.0, seq=10**6 + seq))
        assert told[0] == (True, True) and (False, True) in told and (False, False) in told

    run(scene())


def test_a_reader_that_was_far_behind_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "BEHIND", 0.4)

    async def scene() -> None:
        feed, _ = fed()
        slow = feed.updates()
        assert (await next_view(slow))["full"]
        for seq in range(5):
            feed(heard(SAMPLERS[0], 5, 100.0, seq=10**6 + seq))
            await asyncio.sleep(0.2)
        assert (await next_view(slow))["full"]

    run(scene())


def test_updates_come_less_often_while_many_rows_change() -> None:
    async def scene() -> None:
        feed, _ = fed()
        updates = feed.updates()
        await anext(updates)
        for number in range(MANY + 1):
            feed(heard(PeerId(f"peer{number}"), 5, 100.0))
        await anext(updates)
        feed(heard(SAMPLERS[0], 5, 100.0, seq=10**6))
        began = asyncio.get_running_loop().time()
        await anext(updates)
        assert asyncio.get_running_loop().time() - began > 0.6

    run(scene())


def test_silence_is_told() -> None:
    async def scene() -> None:
        feed, clock = fed()
        updates = feed.updates()
        assert (await next_view(updates))["quiet"] == 0
        clock.now += 30
        assert (await next_view(updates))["quiet"] == 30
        assert feed.moment().quiet == 30 and feed.moment().span is None

    run(scene())


@pytest.mark.nightly
def test_a_reader_of_the_stream_ends_where_the_state_is() -> None:
    async def scene() -> None:
        import msgspec

        feed, clock = Feed(SwarmState(), Clock()), Reader()
        updates = feed.updates()
        for place, event in enumerate(story(40, start=70.0)):
            feed(event)
            if place % 40 == 0:
                clock.take(msgspec.json.decode(await anext(updates), type=StateView))
        while (view := msgspec.json.decode(await anext(updates), type=StateView)).flows is None:
            clock.take(view)
        clock.take(view)
        fresh = Reader()
        fresh.take(view_of(feed.state, 100.0))
        assert clock.shows(24) == fresh.shows(24)

    run(scene())
