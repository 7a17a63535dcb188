"""What was wrong in the last day is kept with begin, end and cause, bounded, and over a restart."""

from __future__ import annotations

import json

from dashboard_story import LEARNERS
from made_up_swarm import Swarm
from starlette.testclient import TestClient

from dashboard.fold.parts.incidents import AGAIN, DAY, MOST, Incidents
from dashboard.fold.parts.pulse import SLOT
from dashboard.fold.snapshot import dump, load
from dashboard.serve.app import create_app
from dashboard.serve.feed import Feed
from dashboard.views import Problem

KILLED = 20.0
"""Seconds for which a learner is away."""


def problem(key: str = "lost x", text: str = "x is silent", **how: object) -> Problem:
    return Problem(key=key, text=text, cause="a cause", todo="a step", **{"level": "warning", **how})  # type: ignore[arg-type]


def after_a_kill() -> Swarm:
    swarm = Swarm()
    swarm.run(40.0)
    swarm.dead.add(LEARNERS[0])
    swarm.run(KILLED)
    swarm.dead.clear()
    swarm.run(20.0)
    return swarm


def test_a_learner_that_was_away_is_an_incident_with_begin_end_and_cause() -> None:
    swarm = after_a_kill()
    away = swarm.now - 20.0 - KILLED
    (incident,) = [one for one in swarm.state.incidents.view() if one.key == f"lost {LEARNERS[0]}"]
    assert incident.end is not None and "killed" in incident.cause and incident.peers == (LEARNERS[0],)
    assert abs(incident.begin - away) <= SLOT and abs(incident.end - away - KILLED) <= SLOT
    client = TestClient(create_app(Feed(swarm.state)), base_url="http://localhost")
    assert incident.begin in [one["begin"] for one in client.get("/api/incidents").json()]


def test_incidents_outlast_a_restart() -> None:
    state = after_a_kill().state
    assert load(dump(state)).incidents.view() == state.incidents.view() != ()


def test_what_comes_again_soon_is_one_incident_and_later_another() -> None:
    incidents = Incidents()
    for at, wrong in ((100.0, True), (105.0, False), (105.0 + AGAIN / 2, True), (170.0, False)):
        incidents.take([problem(since=90.0)] if wrong else [], at)
    (one,) = incidents.view()
    assert (one.begin, one.end) == (90.0, 105.0 + AGAIN / 2)
    incidents.take([problem(level="error")], 300.0)
    first, second = incidents.view()
    assert first == one and (second.begin, second.end, second.level) == (300.0, None, "error")


def test_the_worst_level_and_the_newest_sentence_stay() -> None:
    incidents = Incidents()
    for at, level in ((100.0, "warning"), (105.0, "error"), (110.0, "warning")):
        incidents.take([problem(text=f"at {at:g}", level=level)], at)
    (one,) = incidents.view()
    assert (one.level, one.text) == ("error", "at 110")


def test_notes_are_no_incidents_and_what_is_older_than_a_day_goes() -> None:
    incidents = Incidents()
    incidents.take([problem(level="info"), problem("old")], 100.0)
    assert [one.key for one in incidents.view()] == ["old"]
    incidents.take([], 105.0)
    incidents.take([problem("new")], 101.0 + DAY)
    assert [one.key for one in incidents.view()] == ["new"]


def test_incidents_are_bounded_whatever_happens() -> None:
    incidents = Incidents()
    for number in range(3 * MOST):
        incidents.take([problem(f"lost {number}")], 100.0 + number)
    assert len(incidents.view()) == MOST and len(json.dumps([one.key for one in incidents.kept])) < 99_999
