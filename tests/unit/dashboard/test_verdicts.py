"""No sentence of a verdict denies the table of peers below it, whatever happened to a swarm."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from io import StringIO

import msgspec
import pytest
from dashboard_story import EVALUATOR, LEARNERS, SAMPLERS, SEED, who
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_swarm import Swarm
from rich.console import Console

from dashboard.diagnosis import diagnose
from dashboard.diagnosis.condition import condition
from dashboard.fold.state import SwarmState
from dashboard.serve.terminal import render
from dashboard.views import Problem, Row
from swarm import events as happened
from swarm.membership.identity import human_name
from swarm.protocol import RESTING, Phase, Role
from swarm.settings.config import Stop
from swarm.types import PeerId

STRANGERS = (who(30), who(31))
PEERS = (*LEARNERS, *SAMPLERS, EVALUATOR, SEED, *STRANGERS)
REVOKED = "heartbeat of it: its membership of this run was revoked"
HISTORY = ("no ", "forked ", "suspended ", "distrust ")
"""Beginnings of keys of what is told of peers that have gone."""


class Happenings:
    """A swarm to which things happen, as one of its peers sees it."""

    def __init__(self, window: PeerId) -> None:
        self.swarm = Swarm(every=2.0)
        self.swarm.window = window
        self.swarm.strangers.update(STRANGERS)
        self.swarm.run(2.0)

    def happen(self, what: str, peer: PeerId, seconds: float) -> None:
        swarm, away = self.swarm, peer in self.swarm.dead
        if what == "comes" and (away or peer not in swarm.roles):
            swarm.roles.setdefault(peer, Role.SAMPLER)
            swarm.dead.discard(peer)
            swarm.lives[peer] += 1
        elif what == "rests" and not away and peer != SEED:
            swarm.phases[peer] = Phase.PAUSED
        elif what == "works":
            swarm.phases.pop(peer, None)
        elif what == "is longer":
            swarm.far ^= {peer}
        elif away or peer == swarm.window or peer not in swarm.roles:
            pass
        elif what == "dies":
            swarm.dead.add(peer)
        elif what == "leaves":
            swarm.leave(peer)
        elif what == "is revoked":
            swarm.dead.add(peer)
            for _ in range(12):
                swarm.emit(happened.Rejected, swarm.window, sender=peer, kind="beat", reason=REVOKED)
        swarm.listening = what != "window stops"
        swarm.run(seconds)


def contradictions(state: SwarmState, now: float) -> Iterator[str]:
    """What verdicts say and the table denies."""
    problems, rows = diagnose(state, now), {row.id: row for row in state.rows(now)}
    alive = [row for row in rows.values() if row.status == "alive"]
    silent = {peer for one in problems if one.key.startswith("lost") for peer in one.peers}
    for one in problems:
        for why in _denied(state, one, rows, alive, silent):
            yield f"{one.text} | {one.cause} | {one.todo}: {why}"
    said = condition(state, now, problems)
    for why in _condition_denied(state, said.text, alive):
        yield f"{said.text}: {why}"


def _denied(
    state: SwarmState, one: Problem, rows: dict[str, Row], alive: list[Row], silent: set[str]
) -> Iterator[str]:
    """`silent`: peers that are told to be silent, before the table calls them lost."""
    text = f"{one.text} {one.cause}"
    heard = Counter(row.role for row in alive if row.id not in silent)
    for role in re.findall(r"\b[Nn]o (\w+) is here", text):
        if any(row.role == role for row in alive):
            yield f"a {role} is in the table"
    for role in re.findall(r"\bno (\w+) is left\b", text):
        if heard[role]:
            yield f"a {role} is in the table"
    for role in re.findall(r"\bno (\w+)(?: and no \w+)? has come", text):
        if any(row.role == role for row in rows.values()):
            yield f"a {role} has come"
    for role in re.findall(r"Every (\w+) rests", text):
        works = any(row.role == role and row.claims.phase not in RESTING for row in alive)
        if works or not state.receives(Role(role)):
            yield f"a {role} works, or may"
    for number, role in re.findall(r"(the other|\d+) (\w+?)s? (?:goes on|go on|average without)", text):
        if heard[role] < (int(number) if number.isdigit() else 1):
            yield f"fewer {role}s are in the table"
    for row in (rows[peer] for peer in one.peers if peer in rows):
        yield from _denied_of(row, one, text)


def _denied_of(row: Row, one: Problem, text: str) -> Iterator[str]:
    """What is said of one of its peers."""
    if row.status == "left" and not one.key.startswith(HISTORY):
        yield f"{row.name} has left"
    if row.claims.phase in RESTING and one.key.startswith("waits"):
        yield f"{row.name} rests"
    if row.revoked and one.key.startswith("no ") and "revoked" not in text:
        yield f"{row.name} was revoked"
    if "harm" in text:
        yield f"the size of a gradient is no sign of {row.name}'s will"
    if row.status != "left" and re.search(rf"{row.name}, the last one, left", text):
        yield f"{row.name} has not left"


def _condition_denied(state: SwarmState, text: str, alive: list[Row]) -> Iterator[str]:
    workers = [row for row in alive if row.role != Role.OBSERVER]
    counted = [row for row in workers if row.proven]
    for number in re.findall(r"\b(\d+) peers? (?:is|are) here", text):
        if int(number) != len(counted):
            yield f"{len(counted)} in the table"
    if "All is well" in text and not counted:
        yield "nobody is in the table"
    if "Every peer that was here has left" in text and counted:
        yield "a peer is in the table"
    if "No peer was heard yet" in text and workers:
        yield "a peer is in the table"
    if "Nothing is trained yet" in text and (state.tally.trained or state.version):
        yield "something was trained"
    for number in re.findall(r"\b(\d+) strangers? can", text):
        if int(number) != len(workers) - len(counted):
            yield f"{len(workers) - len(counted)} strangers in the table"


KINDS = "goes on,comes,rests,works,dies,leaves,is revoked,is longer,window stops".split(",")
_happenings = st.tuples(
    st.sampled_from(KINDS), st.sampled_from(PEERS), st.sampled_from([0.5, 2.0, 4.5, 7.0, 31.0, 90.0])
)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from([SEED, LEARNERS[0], SAMPLERS[0]]), st.lists(_happenings, max_size=8))
def test_no_verdict_denies_the_table(window: PeerId, told: list[tuple[str, PeerId, float]]) -> None:
    one = Happenings(window)
    for what, peer, seconds in told:
        one.happen(what, peer, seconds)
        assert not list(contradictions(one.swarm.state, one.swarm.now)), (what, human_name(peer), seconds)


def test_a_stranger_that_has_just_fallen_silent_is_in_the_table_and_in_the_sentence() -> None:
    one = Happenings(SEED)
    one.happen("comes", STRANGERS[0], 20.0)
    one.swarm.dead.update({*LEARNERS, *SAMPLERS, EVALUATOR, STRANGERS[0]})
    one.swarm.run(4.5)
    assert "no sampler that has delivered is left" in shown(one.swarm)
    assert not list(contradictions(one.swarm.state, one.swarm.now))


def shown(swarm: Swarm) -> str:
    console = Console(width=120, record=True, file=StringIO())
    console.print(render(swarm.state, swarm.now, 120))
    return " ".join(console.export_text().split())


def test_a_stranger_that_samples_is_no_missing_sampler() -> None:
    swarm = Swarm()
    swarm.run(2.0)
    for peer in SAMPLERS:
        swarm.leave(peer)
    swarm.roles[STRANGERS[0]] = Role.SAMPLER
    swarm.strangers.add(STRANGERS[0])
    swarm.training = False
    swarm.run(200.0)
    text = shown(swarm)
    assert "No sampler is here" not in text and "● sampling" in text
    assert f"No group of 1 sampler was admitted yet: {human_name(STRANGERS[0])}" in text


def test_a_learner_whose_own_heartbeat_is_late_is_not_told_that_no_learner_is_here() -> None:
    swarm = Swarm()
    swarm.window = LEARNERS[0]
    swarm.run(100.0)
    swarm.leave(LEARNERS[1])
    swarm.run(20.0)
    swarm.dead.add(LEARNERS[0])  # its machine is busy: the others are heard
    swarm.run(7.0)
    assert "no learner" not in swarm.problems()


@pytest.mark.parametrize("window", [SEED, SAMPLERS[0]])
def test_who_hears_no_other_sampler_does_not_say_that_every_one_rests(window: PeerId) -> None:
    swarm = Swarm()
    swarm.window = window
    swarm.run(40.0)
    swarm.phases[SAMPLERS[0]] = Phase.PAUSED
    swarm.run(10.0)
    text = shown(swarm)
    assert "Every sampler rests" not in text
    assert (f"{human_name(SAMPLERS[0])} rests" in text) is (window != SEED)


def test_a_revoked_learner_is_told_to_be_revoked_and_not_to_be_missing() -> None:
    swarm = Swarm()
    swarm.run(40.0)
    swarm.leave(LEARNERS[0])
    swarm.run(1.0)
    swarm.dead.add(LEARNERS[1])
    swarm.emit(happened.Rejected, SEED, sender=LEARNERS[1], kind="membership", reason=REVOKED)
    swarm.run(30.0)
    text = shown(swarm)
    assert f"{human_name(LEARNERS[1])}, the last one, was revoked by the run's owner" in text
    assert "– revoked" in text and "None was heard" not in text
    swarm.lives[LEARNERS[1]] += 1  # the owner changed their mind
    swarm.dead.discard(LEARNERS[1])
    swarm.run(3.0)
    assert "– revoked" not in shown(swarm) and "no learner" not in swarm.problems()


def test_a_run_that_is_complete_says_so() -> None:
    swarm = Swarm()
    swarm.state.run = msgspec.structs.replace(swarm.state.run, stop=Stop(versions=60))
    swarm.run(25.0)
    assert "All is well" in shown(swarm)
    swarm.run(15.0)
    assert f"The run is complete, with version {swarm.state.version}" in shown(swarm)
