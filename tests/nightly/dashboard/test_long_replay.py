"""A journal shows any moment as it was, and runs again at any speed."""

from __future__ import annotations

import asyncio
import time

import msgspec
from dashboard_story import story

from dashboard.serve.replay import JournalReplay
from dashboard.views import StateView


def test_a_stream_runs_as_fast_as_asked_and_stays_at_the_end() -> None:
    async def scene() -> None:
        replay = JournalReplay(list(story(60, start=1000.0)))
        began, views = time.monotonic(), list[StateView]()
        async for text in replay.updates(at=1010.0, speed=20.0):
            views.append(msgspec.json.decode(text, type=StateView))
            if [view.now for view in views[-3:]] == [1036.0] * 3:
                replay.close()
        assert time.monotonic() - began > 26.0 / 20.0 - 0.1, "no faster than asked"
        assert views[0].full and views[0].now == 1010.0 and views[0].head.version in (15, 16)
        assert not views[1].full and views[1].now > 1010
        assert views[-1].now == 1036.0 and views[-1].head.version == 60
        assert [view.now for view in views] == sorted(view.now for view in views)
        assert all(view.replay == replay.span for view in views)

    asyncio.run(scene())


def test_a_moment_of_a_long_journal_is_found_quickly() -> None:
    told = list(story(15_000, start=0.0))
    replay = JournalReplay(told)
    spent = []
    for part in (0.13, 0.37, 0.61, 0.99):
        began = time.process_time()
        replay.moment(replay.span.last * part)
        spent.append(time.process_time() - began)
    assert len(told) > 100_000 and min(spent) < 0.2
