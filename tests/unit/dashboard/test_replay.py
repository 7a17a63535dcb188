"""A journal shows any moment as it was, and runs again at any speed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from unittest import mock

import msgspec
from dashboard_happenings import folded, happenings
from dashboard_story import LEARNERS, SAMPLERS, SEED, heard, story
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.serve import replay as replays
from dashboard.serve.replay import JournalReplay
from dashboard.serve.state_view import view_of
from swarm import events as happened
from swarm.journal import Journal

stamped = st.lists(st.tuples(happenings, st.integers(0, 4)), max_size=30)


@settings(max_examples=100, deadline=None)
@given(stamped, st.lists(st.floats(0, 60), min_size=1, max_size=5))
def test_a_moment_is_the_fold_of_what_had_come(
    told: list[tuple[happened.Event, int]], moments: list[float]
) -> None:
    at, journal = 0.0, []
    for event, later in told:
        at += later
        journal.append(msgspec.structs.replace(event, at=at, peer=SEED))
    with mock.patch.object(replays, "STRIDE", 8):
        replay = JournalReplay(journal)
    for moment in moments:
        shown = replay.moment(moment)
        now = min(max(moment, replay.span.first), replay.span.last)
        assert shown.now == now
        assert view_of(shown.state, now) == view_of(
            folded(*(event for event in journal if event.at <= now)), now
        )


def test_clocks_of_others_do_not_move_the_slider() -> None:
    journal = [
        happened.Started(at=9e9, peer=SAMPLERS[0], name="early", role="sampler", version=0, hardware=""),  # type: ignore[arg-type]
        heard(LEARNERS[0], 1, 1000.0),
        happened.Moved(at=5.0, peer=LEARNERS[0], version=1, state="learning", cause=""),
        happened.Moved(at=1e12, peer=LEARNERS[0], version=1, state="matching", cause=""),
        heard(LEARNERS[0], 1, 1010.0, seq=2),
    ]
    replay = JournalReplay(journal)
    assert (replay.span.first, replay.span.last) == (1000.0, 1010.0)
    state = replay.moment(1005.0).state
    assert state.revision == 4 and state.peers[LEARNERS[0]].state == "matching"


def test_a_file_shows_what_its_events_show_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    told = list(story(30, start=1000.0))
    journal = Journal(tmp_path / "journal.jsonl")
    for event in told:
        journal(event)
    journal.close()
    with open(journal.path, "ab") as file:
        file.write(b'{"event":"no')
    for moment in (1000.0, 1007.3, 1018.0):
        assert view_of(JournalReplay(journal.path).moment(moment).state, moment) == view_of(
            JournalReplay(told).moment(moment).state, moment
        )


def test_an_empty_journal_is_an_empty_state(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").touch()
    shown = JournalReplay(tmp_path / "journal.jsonl").moment(17.0)
    assert shown.state.revision == 0 and shown.now == 0.0


def test_each_reader_has_a_place_of_its_own() -> None:
    async def scene() -> None:
        replay = JournalReplay(list(story(60, start=1000.0)))
        slow, fast = replay.updates(at=1000.0, speed=0.0), replay.updates(at=1030.0, speed=2.0)
        first = [
            json.loads(await anext(slow))["head"]["version"],
            json.loads(await anext(fast))["head"]["version"],
        ]
        assert first == [1, 50]
        assert json.loads(await anext(fast))["head"]["version"] > 50
        assert json.loads(await anext(slow))["head"]["version"] == 1
        assert replay.moment(1018.0).state.version == 30

    asyncio.run(scene())
