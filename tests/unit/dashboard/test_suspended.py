"""The dashboard says who is suspended, why, and how to check it."""

from __future__ import annotations

from io import StringIO

from dashboard_story import LEARNERS, SAMPLERS, story
from rich.console import Console

from dashboard.diagnosis import diagnose
from dashboard.fold.folds import fold
from dashboard.fold.sentences import sentence_of
from dashboard.fold.state import SwarmState
from dashboard.serve.terminal import render
from dashboard.views import Problem
from swarm import events as happened
from swarm.membership.identity import human_name

WHY = "5 of 64 tokens of a group are not what its seed and version draw"


def audited(until: float, finding: str = "forged", why: str = WHY) -> happened.Audited:
    return happened.Audited(
        at=9.0,
        peer=LEARNERS[0],
        group="g",
        sampler=SAMPLERS[0],
        finding=finding,
        tokens=64,
        off=5,
        largest=3.0,
        until=until,
        strikes=1,
        why=why if until else "",
    )


def found(now: float, *more: happened.Event) -> list[Problem]:
    state = SwarmState()
    for each in (*story(9, start=0.0), *more):
        fold(state, each)
    return [*diagnose(state, now)]


def problems(event: happened.Audited, now: float) -> list[Problem]:
    return [each for each in found(now, event) if each.key.startswith("suspended")]


def test_a_sampler_that_is_suspended_is_named_until_it_may_come_back() -> None:
    (problem,) = problems(audited(9.0 + 3600.0), 10.0)
    assert problem.peers == (str(SAMPLERS[0]),)
    assert (
        "suspends" in problem.text
        and "for another 60 min" in problem.text
        and "5 of 64 tokens" in problem.cause
    )
    assert "`swarm verify g.evidence`" in problem.todo and f"`swarm pardon {SAMPLERS[0]}`" in problem.todo
    assert not problems(audited(9.5), 10.0) and not problems(audited(0.0, "honest"), 10.0)


def test_who_found_it_first_goes_by_its_name() -> None:
    (problem,) = problems(audited(3609.0, why=f"{WHY}; {SAMPLERS[1]} found it first"), 10.0)
    assert f"; {human_name(SAMPLERS[1])} found it first." in problem.cause


def test_its_refused_groups_are_no_second_problem() -> None:
    refused = happened.Counted(
        at=9.5,
        peer=LEARNERS[0],
        verdicts={"unverified": 200},
        versions={},
        seconds={},
        samplers={SAMPLERS[0]: {"unverified": 200}},
    )
    keys = [
        {each.key.partition(" ")[0] for each in found(10.0, *more) if str(SAMPLERS[0]) in each.peers}
        for more in ((refused,), (refused, audited(3609.0)))
    ]
    assert keys == [{"refused"}, {"suspended"}]


def test_the_event_is_a_sentence_where_it_says_something() -> None:
    def told(event: happened.Audited) -> str:
        news = sentence_of(event, lambda _: "brisk-umber-otter")
        return news.text if news is not None else ""

    assert told(audited(3609.0)).endswith(f"suspends brisk-umber-otter for 60 min: {WHY}.")
    assert "bad luck" in told(audited(0.0, "unlikely")) and not told(audited(0.0, "honest"))


def told_suspended(until: float, group: str = "") -> happened.SetAside:
    return happened.SetAside(
        at=9.0, peer=SAMPLERS[1], by=LEARNERS[0], sampler=SAMPLERS[0], until=until, why=WHY, group=group
    )


def shown(*events: happened.Event) -> str:
    """What `swarm status` prints of them."""
    state, console = SwarmState(), Console(width=200, record=True, file=StringIO())
    for each in (*story(9, start=0.0), *events):
        fold(state, each)
    console.print(render(state, 10.0, 200))
    return " ".join(console.export_text().split())


def test_who_hears_of_it_shows_it_with_the_evidence_until_it_may_come_back() -> None:
    by_receipt, by_gossip = told_suspended(3609.0), told_suspended(3609.0, "g")
    for news, name in (((by_receipt,), "*"), ((by_receipt, by_gossip), "g"), ((by_gossip, by_receipt), "g")):
        text = shown(*news)
        assert "for another 60 min" in text and WHY in text and f"`swarm verify {name}.evidence`" in text
    for over in ((), (by_gossip, told_suspended(0.0)), (told_suspended(9.5),)):
        assert "suspends" not in shown(*over)
