"""What is wrong is said in time, with names, and not said any more when it is over; of a healthy swarm
nothing is said."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO

import msgspec
import pytest
from dashboard_story import EVALUATOR, LEARNERS, SAMPLERS, SEED, story, who
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_swarm import METRICS, START, Swarm
from rich.console import Console
from synthetic_events import Fault, swarm_events
from trained_runs import trained

from dashboard.diagnosis import diagnose
from dashboard.fold.folds import fold
from dashboard.fold.recent import MARKS, SENDERS, TRACES, VERSIONS, Recent
from dashboard.fold.state import SwarmState
from dashboard.serve.terminal import render
from dashboard.views import Problem
from swarm import events as happened
from swarm.membership.identity import human_name, peer_id
from swarm.protocol import RESTING, Phase, Role
from swarm.settings.config import Pace, Stop
from swarm.types import Digest, Lag, PeerId

WINDOW = PeerId("window")
WARM = 35.0
"""Seconds until every peer of the made-up swarm has settled."""


@dataclass(frozen=True)
class Case:
    key: str
    """The problem's key begins so."""
    wrong: Callable[[Swarm], object]
    mend: Callable[[Swarm], object]
    within: float
    """Seconds until it is told."""
    clears: float
    """Seconds until it is not told any more."""
    names: tuple[PeerId, ...] = ()
    says: str = ""
    """A pattern in one of its sentences."""


def _metrics(**bad: float) -> tuple[Callable[[Swarm], object], Callable[[Swarm], object]]:
    return lambda swarm: swarm.metrics.update(bad), lambda swarm: swarm.metrics.update(METRICS)


def _verdict(
    verdict: str, sampler: PeerId = SAMPLERS[0]
) -> tuple[Callable[[Swarm], object], Callable[[Swarm], object]]:
    return lambda swarm: swarm.verdict.update({sampler: verdict}), lambda swarm: swarm.verdict.clear()


def _phase(peer: PeerId, phase: Phase) -> tuple[Callable[[Swarm], object], Callable[[Swarm], object]]:
    return lambda swarm: swarm.phases.update({peer: phase}), lambda swarm: swarm.phases.pop(peer)


def _other_rewards(swarm: Swarm) -> None:
    swarm.verdict[SAMPLERS[0]] = "untrusted"
    why = "it claims a reward of 0.3 where 0.7 is computed here"
    swarm.emit(happened.Rejected, LEARNERS[0], sender=SAMPLERS[0], kind=happened.REWARDS, reason=why)


def _overflows(swarm: Swarm) -> None:
    swarm.verdict[SAMPLERS[0]] = "malformed"
    why = "a log-probability is not finite"
    swarm.emit(happened.Rejected, LEARNERS[0], sender=SAMPLERS[0], kind=happened.LOGPROBS, reason=why)


def _dead(*peers: PeerId) -> tuple[Callable[[Swarm], object], Callable[[Swarm], object]]:
    return lambda swarm: swarm.dead.update(peers), lambda swarm: swarm.dead.clear()


def _flag(name: str, wrong: bool = True) -> tuple[Callable[[Swarm], object], Callable[[Swarm], object]]:
    return lambda swarm: setattr(swarm, name, wrong), lambda swarm: setattr(swarm, name, not wrong)


def _late(cause: str) -> tuple[Callable[[Swarm], object], Callable[[Swarm], object]]:
    def wrong(swarm: Swarm) -> None:
        swarm.lag[SAMPLERS[1]] = Lag(**{"generation": 0.4, cause: 40.0})
        swarm.verdict[SAMPLERS[1]] = "stale"

    return wrong, lambda swarm: (swarm.lag.clear(), swarm.verdict.clear())


def _emit(
    what: type[happened.Event], peer: PeerId, times: int = 1, **fields: object
) -> Callable[[Swarm], object]:
    def emit(swarm: Swarm) -> None:
        for _ in range(times):
            swarm.emit(what, peer, **fields)

    return emit


def _evaluated(first: float, last: float, at: int = 8_000) -> Callable[[Swarm], object]:
    def emit(swarm: Swarm) -> None:
        for version, accuracy in ((0, first), (at, last)):
            swarm.emit(happened.Evaluated, EVALUATOR, version=version, accuracy=accuracy, tasks=256)

    return emit


def _nothing(_: Swarm) -> None:
    """It is over by itself."""


def _waits(swarm: Swarm) -> None:
    swarm.phases.update(dict.fromkeys(LEARNERS, Phase.GATHERING))


def _hold(swarm: Swarm) -> None:
    """The samplers stay at this version."""
    swarm.held = swarm.version


def _calm(swarm: Swarm) -> None:
    for bent in (swarm.phases, swarm.verdict, swarm.skews, swarm.behind):
        bent.clear()
    swarm.held = None


def _clock(*peers: PeerId, skew: float = 5.0) -> Callable[[Swarm], object]:
    return lambda swarm: swarm.skews.update(dict.fromkeys(peers, skew))


CASES = {
    "a killed learner": Case("lost", *_dead(LEARNERS[0]), 10, 3, (LEARNERS[0],), "goes on alone"),
    "the last learner": Case("lost", *_dead(*LEARNERS), 10, 3, LEARNERS, "nothing is trained"),
    "a killed sampler": Case("lost", *_dead(SAMPLERS[0]), 10, 3, (SAMPLERS[0],), "2 samplers go on"),
    "all samplers": Case("lost", *_dead(*SAMPLERS), 10, 3, SAMPLERS, "no new groups"),
    "a killed evaluator": Case("lost", *_dead(EVALUATOR), 10, 3, (EVALUATOR,), "held-out accuracy"),
    "late by download": Case(
        "late", *_late("download"), 10, 25, (SAMPLERS[1],), "download: 40 s, in which 80 versions came"
    ),
    "late by queue": Case("late", *_late("queue"), 10, 25, (SAMPLERS[1],), "before it is used"),
    "late by generation": Case("late", *_late("generation"), 10, 25, (SAMPLERS[1],), "delay is sampling"),
    "late by upload": Case("late", *_late("upload"), 10, 25, (SAMPLERS[1],), "way to the learner"),
    "200 versions behind": Case(
        "late",
        lambda swarm: swarm.behind.update({SAMPLERS[2]: 200}),
        lambda swarm: swarm.behind.clear(),
        10,
        3,
        (SAMPLERS[2],),
        "versions? behind; groups older than 64",
    ),
    "malformed groups": Case(
        "refused", *_verdict("malformed"), 10, 25, (SAMPLERS[0],), "another version of swarm"
    ),
    "untrusted groups": Case(
        "refused", *_verdict("untrusted"), 10, 25, (SAMPLERS[0],), "do not accept its claims"
    ),
    "gradients that are not finite": Case(
        "not finite",
        _emit(happened.RoundBroke, LEARNERS[0], 128, version=3, reason=f"{happened.NOT_FINITE}: lower it"),
        _nothing,
        10,
        130,
        (LEARNERS[0],),
        "No link has a part in it.*Lower `run.optimizer.lr`",
    ),
    "rewards that differ": Case(
        "refused",
        _other_rewards,
        lambda swarm: swarm.verdict.clear(),
        10,
        25,
        (SAMPLERS[0],),
        "rewards differ from the learners': it claims a reward of 0.3 where 0.7 .*Is the reward random",
    ),
    "log-probabilities that are not finite": Case(
        "refused",
        _overflows,
        lambda swarm: swarm.verdict.clear(),
        10,
        25,
        (SAMPLERS[0],),
        "the policy overflows.*lower `run.optimizer.lr`",
    ),
    "unscored groups": Case("refused", *_verdict("unscored"), 10, 25, (SAMPLERS[0],), "`swarm task try`"),
    "duplicate groups": Case("refused", *_verdict("duplicate"), 10, 25, (SAMPLERS[0],), "already judged"),
    "a full inbox": Case("refused", *_verdict("over-quota"), 10, 25, (SAMPLERS[0],), "no room"),
    "no credit": Case(
        "no credit", *_phase(SAMPLERS[0], Phase.NO_CREDIT), 25, 3, (SAMPLERS[0],), "waited for credit"
    ),
    "no policy": Case(
        "no policy",
        *_phase(SAMPLERS[0], Phase.NO_POLICY),
        25,
        3,
        (SAMPLERS[0],),
        "could not be fetched",
    ),
    "a learner without groups": Case("waits", _waits, _calm, 40, 3, LEARNERS, "no group that it can use"),
    "a round that hangs": Case(
        "waits", *_phase(LEARNERS[0], Phase.MATCHING), 15, 3, (LEARNERS[0],), "where 0.1 s is usual"
    ),
    "a gradient that hangs": Case(
        "waits", *_phase(LEARNERS[1], Phase.LEARNING), 70, 3, (LEARNERS[1],), "computed one gradient"
    ),
    "training that stopped": Case("stopped", *_flag("training", False), 45, 3, (), "Training stands still"),
    "learners apart": Case("split", *_flag("apart"), 17, 3, LEARNERS, "train apart"),
    "broken rounds": Case("broken", *_flag("breaking"), 10, 70, LEARNERS, "a member sent no part"),
    "other weights": Case("differs", *_flag("snapping"), 5, 70, LEARNERS, "other weights"),
    "a gradient that is scaled down": Case(
        "far",
        lambda swarm: swarm.far.add(LEARNERS[1]),
        lambda swarm: swarm.far.clear(),
        35,
        70,
        (LEARNERS[1],),
        "much longer than is usual",
    ),
    "a release nobody takes": Case("unfetched", _hold, _calm, 15, 3, (), "no sampler has fetched"),
    "a clock ahead": Case(
        "clock", _clock(SAMPLERS[0], skew=6.5), _calm, 10, 10, (SAMPLERS[0],), "6.5 s ahead of"
    ),
    "a clock behind": Case(
        "clock", _clock(LEARNERS[0], skew=-90.0), _calm, 10, 10, (LEARNERS[0],), "90 s behind"
    ),
    "this window's clock": Case(
        "clock", _clock(*LEARNERS, *SAMPLERS, EVALUATOR), _calm, 10, 10, (), "this machine is off"
    ),
    "weights that collapsed": Case("weights", *_metrics(ess=0.13), 10, 10, (), "1 count"),
    "samples without weight": Case("weights", *_metrics(zero=0.97), 10, 10, (), "97% of the samples"),
    "policies apart": Case("kl", *_metrics(kl=6.0), 10, 10, (), "nats per token"),
    "groups without signal": Case("flat", *_metrics(flat=1.0), 10, 10, (), "equal rewards"),
    "an exploded gradient": Case("gradient", *_metrics(grad_norm=40.0), 5, 5, (), "exploded"),
    "a run that unlearns": Case(
        "accuracy",
        _evaluated(0.41, 0.20),
        _evaluated(0.41, 0.36, at=9_000),
        5,
        5,
        (),
        "20.0% at version 8000, and was 41.0% at version 0",
    ),
    "a collapsed reward": Case("reward", *_metrics(reward=0.02), 30, 30, (), "reward collapsed"),
    "a broken part": Case(
        "fault",
        _emit(happened.Faulted, LEARNERS[0], part="dht", detail="the child died"),
        _emit(happened.Recovered, LEARNERS[0], part="dht", seconds=9.0),
        10,
        1,
        (LEARNERS[0],),
        "the child died",
    ),
    "rewards that fail": Case(
        "fault",
        _emit(happened.Faulted, SAMPLERS[0], part="rewards", detail="mine.py:f raised KeyError"),
        _emit(happened.Recovered, SAMPLERS[0], part="rewards", seconds=9.0),
        10,
        1,
        (SAMPLERS[0],),
        "`swarm task try`",
    ),
    "a full disk": Case(
        "disk",
        _emit(happened.Faulted, LEARNERS[0], part="disk", detail="no space left"),
        _nothing,
        5,
        65,
        (LEARNERS[0],),
        r"is full: kept in memory until there is space.* no space left\. .*Make room",
    ),
    "a membership that ends": Case(
        "membership",
        _emit(happened.Faulted, LEARNERS[0], part="membership", detail="ends in 6 days: no seed is here"),
        _emit(happened.Recovered, LEARNERS[0], part="membership", seconds=9.0),
        5,
        1,
        (LEARNERS[0],),
        "ends in 6 days",
    ),
    "one key in two places": Case(
        "identity",
        _emit(
            happened.Faulted,
            SAMPLERS[0],
            part="identity",
            detail="another process, at /ip4/10.0.0.9/tcp/1 (2 cores), has this peer's key",
        ),
        _nothing,
        5,
        75,
        (SAMPLERS[0],),
        "10.0.0.9",
    ),
    "frames that nobody believes": Case(
        "distrust",
        _emit(happened.Rejected, SEED, 12, sender=SAMPLERS[0], kind="beat", reason="wrong signature"),
        _nothing,
        5,
        65,
        (SAMPLERS[0],),
        "wrong signature",
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_each_fault_is_named_in_time_and_not_after_it_is_over(what: str) -> None:
    case, swarm = CASES[what], Swarm()
    swarm.run(WARM)
    assert not swarm.problems()
    case.wrong(swarm)

    def told(problems: dict[str, Problem]) -> bool:
        ours = [problem for key, problem in problems.items() if key.split()[0] == case.key.split()[0]]
        return bool(ours) and all(any(peer in problem.peers for problem in ours) for peer in case.names)

    assert swarm.run(case.within, told) is not None, (
        f"{what} is not told within {case.within} s: {list(swarm.problems())}"
    )
    found = [problem for key, problem in swarm.problems().items() if key.startswith(case.key)]
    assert any(re.search(case.says, " ".join((p.text, p.cause, p.todo))) for p in found), found
    assert all(p.text and p.cause and p.todo for p in found)
    assert all(any(human_name(peer) in f"{p.text} {p.cause}" for p in found) for peer in case.names)
    case.mend(swarm)
    assert swarm.run(case.clears, lambda problems: not problems) is not None, list(swarm.problems())


@pytest.mark.parametrize("pace", [Pace(beat=1.0, patience=5.0), Pace(), Pace(beat=300.0, patience=1000.0)])
def test_of_a_healthy_swarm_nothing_is_said_at_any_pace(pace: Pace) -> None:
    swarm = Swarm(pace, every=max(0.5, pace.beat / 4))
    assert swarm.run(120.0 * pace.beat, bool) is None, swarm.problems()


def test_of_a_healthy_crowd_nothing_is_said() -> None:
    state, looked = SwarmState(), START
    for event in swarm_events(60, 90.0, START):
        fold(state, event)
        if state.last >= looked + 1.0:
            looked = state.last
            assert diagnose(state, looked) == ()


def test_of_the_story_only_its_silent_sampler_is_told() -> None:
    state, keys = SwarmState(), set()
    for event in story(300, START):
        fold(state, event)
        keys |= (
            {problem.key for problem in diagnose(state, event.at)}
            if isinstance(event, happened.Released)
            else set()
        )
    assert keys == {f"lost {SAMPLERS[1]}"}


@pytest.mark.parametrize(("kind", "key"), [("learner", "lost"), ("stale", "late")])
def test_a_fault_in_a_crowd_is_named_within_ten_seconds(kind: str, key: str) -> None:
    state, looked, told = SwarmState(), START, None
    for event in swarm_events(30, 145.0, START, fault=Fault(kind, START + 130.0)):  # type: ignore[arg-type]
        fold(state, event)
        if state.last >= looked + 0.5:
            looked = state.last
            keys = [problem.key for problem in diagnose(state, looked)]
            assert all(found.startswith(key) for found in keys)
            told = looked if keys and told is None else told
    assert told is not None and told - START - 130.0 <= 10.0


def test_of_a_crowd_that_beats_seldom_silence_is_judged_by_its_own_pace() -> None:
    swarm, one = Swarm(), SAMPLERS[0]
    swarm.slower[one] = 8.0
    swarm.run(WARM)
    swarm.dead.add(one)
    row, pace = swarm.state.peers[one], swarm.state.run.pace
    assert swarm.run(3 * 8.0 * pace.beat, bool) is None, swarm.problems()
    assert swarm.run(8.0 * pace.beat, bool) is not None and set(swarm.problems()) == {f"lost {one}"}
    assert row.status(swarm.now, pace.patience) == "alive"
    swarm.run(8.0 * pace.patience)
    assert row.status(swarm.now, pace.patience) == "lost"


def test_a_crowd_of_silent_strangers_hides_no_learner() -> None:
    swarm = Swarm()
    strangers = [peer_id(bytes([number]) * 32) for number in range(20, 60)]
    swarm.roles |= dict.fromkeys(strangers, Role.SAMPLER)
    swarm.run(WARM)
    swarm.dead.update([*strangers, LEARNERS[0]])
    swarm.run(13.0)
    assert set(swarm.problems()) == {"lost many sampler", f"lost {LEARNERS[0]}"}


def test_a_killed_auditor_leaves_replays_to_learners() -> None:
    swarm, auditor = Swarm(), who(8)
    swarm.roles[auditor] = Role.AUDITOR
    swarm.run(WARM)
    assert not swarm.problems()
    swarm.dead.add(auditor)
    swarm.run(13.0)
    (problem,) = swarm.problems().values()
    assert "learners replay all that they draw themselves again" in problem.text


@pytest.mark.parametrize("phase", RESTING)
def test_a_peer_that_rests_is_no_fault(phase: Phase) -> None:
    swarm = Swarm()
    swarm.run(WARM)
    swarm.phases |= dict.fromkeys((SAMPLERS[0], LEARNERS[0], EVALUATOR), phase)
    assert swarm.run(300.0, bool) is None, swarm.problems()


@pytest.mark.parametrize(("role", "peers"), [(Role.LEARNER, LEARNERS), (Role.SAMPLER, SAMPLERS)])
def test_where_all_of_a_role_rest_the_page_says_why_nothing_comes_and_that_nothing_is_broken(
    role: Role, peers: tuple[PeerId, ...]
) -> None:
    swarm = Swarm()
    swarm.run(WARM)
    swarm.phases |= dict.fromkeys(LEARNERS, Phase.GATHERING) | dict.fromkeys(peers, Phase.PAUSED)
    swarm.training = False
    swarm.run(300.0)
    assert {key: problem.level for key, problem in swarm.problems().items()} == {f"rest {role}": "info"}


def _accused(swarm: Swarm) -> list[Problem]:
    return [one for key, one in swarm.problems().items() if key.startswith("far")]


@pytest.mark.parametrize("turns", [1, 4, 12])
def test_two_honest_learners_whose_gradients_are_longer_in_turn_are_not_told_of(turns: int) -> None:
    """One batch with much to learn from beside one with nothing."""
    swarm = Swarm()
    swarm.run(WARM)
    for turn in range(0, 240, turns):
        swarm.far = {LEARNERS[turn // turns % 2]} if turns < 12 or turn % 48 == 0 else set()
        swarm.run(swarm.every * turns)
        assert not _accused(swarm), turn


def test_a_gradient_that_is_long_beside_vanishing_ones_alone_is_not_told_of() -> None:
    swarm = Swarm()
    swarm.metrics |= {"grad_norm": 0.004, "flat": 0.9, "reward": 0.99}
    swarm.run(WARM)
    swarm.far, swarm.share = {LEARNERS[1]}, 0.05
    assert swarm.run(60.0, lambda _: bool(_accused(swarm))) is None, swarm.problems()
    swarm.metrics["grad_norm"] = 0.4  # batches that teach again
    swarm.run(20.0)
    assert "gradient" not in swarm.problems()
    swarm.share = 1e-6  # of an honest size no more
    assert swarm.run(60.0, lambda _: bool(_accused(swarm))) is not None


def test_where_all_gradients_are_longer_than_usual_none_is_told_of() -> None:
    swarm = Swarm()
    swarm.run(WARM)
    swarm.far = {*LEARNERS}
    assert swarm.run(60.0, lambda _: bool(_accused(swarm))) is None, swarm.problems()


def test_a_size_alone_is_told_without_a_word_of_harm_or_of_expelling() -> None:
    swarm = Swarm()
    swarm.run(WARM)
    swarm.far = {LEARNERS[1]}
    swarm.run(40.0)
    told = _accused(swarm)
    assert {one.key.split()[0] for one in told} == {"far"}
    for one in told:
        assert not re.search("harm|revoke|invite|expel|liar", f"{one.text} {one.cause} {one.todo}"), one


def test_a_site_that_goes_dark_is_one_problem() -> None:
    swarm = Swarm()
    extra = [peer_id(bytes([number]) * 32) for number in range(20, 120)]
    swarm.roles |= dict.fromkeys(extra, Role.SAMPLER)
    swarm.run(WARM)
    swarm.dead.update(extra)
    swarm.run(10.0, bool)
    swarm.run(3.0)
    (problem,) = swarm.problems().values()
    assert re.match("100 samplers have been silent for .* or longer, among them ", problem.text)


def test_a_window_that_hears_nobody_else_doubts_itself() -> None:
    swarm = Swarm()
    swarm.run(WARM)
    swarm.dead.update(set(swarm.roles) - {SEED})
    swarm.run(10.0)
    (problem,) = swarm.problems().values()
    assert problem.level == "error" and "this window's own network" in problem.cause


@pytest.mark.parametrize("leave", [lambda swarm: swarm.dead.add(SEED), lambda swarm: swarm.leave(SEED)])
def test_newcomers_are_told_their_way_in_beside_a_seed_that_is_gone(leave: Callable[[Swarm], object]) -> None:
    """Every peer serves the run's files, and every folder makes words (tests/nightly/e2e/test_founder.py)."""
    swarm = Swarm()
    swarm.window = LEARNERS[0]
    swarm.run(WARM)
    leave(swarm)
    swarm.run(20.0)
    (problem,) = swarm.problems().values()
    assert "nobody new can join" not in problem.text and "`swarm invite` in any peer's folder" in problem.todo


def test_a_window_that_heard_samplers_for_a_while_misses_none_of_them() -> None:
    """As any peer's own folder does, which listens to samplers while it has no release."""
    swarm = Swarm()
    swarm.window = LEARNERS[0]
    swarm.run(WARM)
    swarm.dead.update(SAMPLERS)
    assert swarm.run(60.0, bool) is None, swarm.problems()
    console = Console(width=120, record=True, file=StringIO())
    console.print(render(swarm.state, swarm.now, 120))
    text = console.export_text()
    assert "lost" not in text and "of 1 sampler" not in text and human_name(LEARNERS[0]) in text


def test_nobody_misses_who_was_revoked_nor_hears_that_its_frames_are_refused() -> None:
    why = "heartbeat of it: its membership of this run was revoked"
    for window, missed in ((SEED, False), (SAMPLERS[1], True)):  # another one's word hides nobody
        swarm = Swarm()
        swarm.run(WARM)
        swarm.dead.add(SAMPLERS[0])
        for _ in range(16):
            swarm.emit(happened.Rejected, window, sender=SAMPLERS[0], kind="beat/sampler", reason=why)
        swarm.run(30.0)
        assert (f"lost {SAMPLERS[0]}" in swarm.problems()) is missed
        assert (f"distrust {SAMPLERS[0]}" in swarm.problems()) is missed


def test_a_window_that_was_stopped_accuses_nobody_when_it_goes_on() -> None:
    swarm = Swarm()
    swarm.run(WARM)
    swarm.listening = swarm.training = False
    swarm.run(15.0)
    assert list(swarm.problems()) == ["deaf"]
    swarm.listening = swarm.training = True
    swarm.roles, rest = {SEED: Role.SEED}, swarm.roles  # its own heartbeat comes first
    swarm.run(1.5)
    assert not swarm.problems()
    swarm.roles = rest
    assert swarm.run(20.0, bool) is None, swarm.problems()


def test_a_loss_becomes_history_after_ten_minutes() -> None:
    swarm = Swarm(every=4.0)
    swarm.run(WARM)
    swarm.dead.add(SAMPLERS[0])
    swarm.run(500.0)
    assert f"lost {SAMPLERS[0]}" in swarm.problems()
    swarm.run(150.0)
    assert not swarm.problems()


def test_who_leaves_cleanly_is_not_missed_unless_it_was_the_last() -> None:
    swarm = Swarm()
    swarm.run(WARM)
    swarm.leave(LEARNERS[0])
    assert swarm.run(20.0, bool) is None
    swarm.leave(LEARNERS[1])
    swarm.run(10.0)
    (problem,) = swarm.problems().values()
    assert (
        problem.text == "No learner is here: nothing is trained." and human_name(LEARNERS[1]) in problem.cause
    )


def test_a_complete_run_ends_without_a_word() -> None:
    swarm = Swarm()
    swarm.state.run = msgspec.structs.replace(swarm.state.run, stop=Stop(accuracy=0.9))
    swarm.judged = 0.94, 256
    swarm.run(WARM)
    swarm.phases[SEED] = Phase.COMPLETE
    swarm.run(1.5)
    for peer in set(swarm.roles) - {SEED}:
        swarm.leave(peer)
    swarm.emit(happened.Faulted, SEED, part="network", detail="no peer is connected any more")
    assert swarm.run(30.0, bool) is None


def test_a_seed_alone_does_not_end_a_run() -> None:
    swarm = Swarm()
    swarm.state.run = msgspec.structs.replace(swarm.state.run, stop=Stop(accuracy=0.9))
    swarm.judged = 0.93, 256
    swarm.run(WARM)
    swarm.phases[SEED] = Phase.COMPLETE
    swarm.run(1.5)
    for learner in LEARNERS:
        swarm.leave(learner)
    swarm.run(30.0)
    assert "No learner is here" in " ".join(problem.text for problem in swarm.problems().values())


def test_a_window_of_a_run_that_its_accuracy_ended_misses_nobody() -> None:
    swarm = Swarm()
    swarm.state.run = msgspec.structs.replace(swarm.state.run, stop=Stop(accuracy=0.9))
    swarm.roles[WINDOW] = Role.OBSERVER
    swarm.run(WARM)
    swarm.emit(happened.Evaluated, EVALUATOR, version=swarm.version, accuracy=0.93, tasks=256)
    assert not swarm.problems()
    for peer in set(swarm.roles) - {WINDOW}:
        swarm.leave(peer)
    swarm.training = False
    assert swarm.run(30.0, bool) is None, swarm.problems()


def test_no_advice_is_given_for_a_part_that_explains_little_of_the_lag() -> None:
    swarm = Swarm()
    swarm.run(WARM)
    swarm.lag[SAMPLERS[0]] = Lag(generation=1.5)
    swarm.behind[SAMPLERS[0]] = 200
    swarm.verdict[SAMPLERS[0]] = swarm.verdict[SAMPLERS[1]] = "stale"
    swarm.run(20.0)
    behind, fresh = (swarm.problems()[f"late {peer}"] for peer in SAMPLERS[:2])
    assert "versions behind" in behind.text
    assert "newer releases do not reach it" in behind.cause.lower() and "peer.engine" not in behind.todo
    assert "do not explain it" in fresh.cause and "behind" not in fresh.text


def test_a_publisher_that_gives_its_releases_an_old_time_makes_no_sampler_late() -> None:
    swarm = Swarm()
    swarm.off = -3600.0
    swarm.behind.update(dict.fromkeys(SAMPLERS, 2))
    assert swarm.run(WARM, bool) is None, swarm.problems()


def test_errors_come_first() -> None:
    swarm = Swarm()
    swarm.run(WARM)
    CASES["no credit"].wrong(swarm)
    CASES["a full inbox"].wrong(swarm)
    CASES["weights that collapsed"].wrong(swarm)
    swarm.run(30.0)
    levels = [problem.level for problem in swarm.problems().values()]
    assert levels[0] == "error" and levels[-1] == "info"


def test_the_same_state_and_time_give_the_same_problems() -> None:
    swarm = Swarm()
    swarm.run(WARM)
    CASES["late by upload"].wrong(swarm)
    swarm.run(10.0)
    assert diagnose(swarm.state, swarm.now) == diagnose(swarm.state, swarm.now) != ()


_ids = st.integers(0, 2000).map(lambda number: PeerId(f"peer{number}"))
_words = st.text(max_size=20)
_hostile = st.one_of(
    st.builds(
        happened.Moved, at=st.floats(0, 1e9), peer=_ids, version=st.integers(), state=_words, cause=_words
    ),
    st.builds(happened.Faulted, at=st.floats(0, 1e9), peer=_ids, part=_words, detail=_words),
    st.builds(happened.Rejected, at=st.floats(0, 1e9), peer=_ids, sender=_ids, kind=_words, reason=_words),
    st.builds(
        happened.Trained,
        at=st.floats(0, 1e9),
        peer=_ids,
        version=st.integers(),
        groups=st.integers(),
        members=st.integers(),
        metrics=st.dictionaries(st.sampled_from(sorted(METRICS)), st.floats(-1e308, 1e308)),
        gather=st.just(0.0),
        learn=st.floats(-1e308, 1e308),
        average=st.just(0.0),
        step=st.just(0.0),
    ),
    st.builds(
        happened.Counted,
        at=st.floats(0, 1e9),
        peer=_ids,
        verdicts=st.just({}),
        versions=st.just({}),
        seconds=st.just({}),
        samplers=st.dictionaries(_ids, st.dictionaries(_words, st.integers())),
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_hostile, max_size=80), st.floats(0, 2e9))
def test_no_event_breaks_a_diagnosis(events: list[happened.Event], now: float) -> None:
    state = SwarmState()
    for event in events:
        fold(state, event)
    assert isinstance(diagnose(state, now), tuple)


def test_a_learner_none_of_whose_groups_teaches_lowers_no_mean_of_weights() -> None:
    recent = Recent()
    recent.take(trained(3, 0, 16, reward=1.0, flat=1.0))
    recent.take(trained(3, 1, 48, reward=0.5, flat=0.5, ess=0.8))
    assert (recent.metric("ess"), recent.metric("reward")) == ([pytest.approx(0.8)], [0.625])


def test_memory_is_bounded_whatever_comes() -> None:
    recent = Recent()
    for number in range(3 * TRACES):
        peer = PeerId(f"peer{number}")
        recent.take(happened.Moved(at=number, peer=peer, version=number, state=f"s{number}", cause=""))
        recent.take(happened.Faulted(at=number, peer=peer, part=f"part{number}", detail="x" * 1000))
        recent.take(happened.Rejected(at=number, peer=SEED, sender=peer, kind="beat", reason="y" * 1000))
        recent.take(happened.RoundBroke(at=number, peer=peer, version=number, reason="z" * 1000))
        recent.take(
            happened.Forked(
                at=number, peer=peer, version=number, since=number, versions=1, groups=1, first=Digest("f")
            )
        )
        recent.take(
            happened.Trained(
                at=number,
                peer=peer,
                version=number,
                groups=1,
                members=1,
                metrics={f"m{number}": 1.0},
                gather=0,
                learn=0,
                average=0,
                step=0,
            )
        )
    assert len(recent.traces) <= TRACES and max(len(recent.faults), len(recent.distrust)) <= SENDERS
    assert len(recent.steps) <= VERSIONS and len(recent.broken) <= VERSIONS and len(recent.forks) <= MARKS
    assert all(len(trace.steps) <= MARKS for trace in recent.traces.values())


def test_a_diagnosis_of_500_peers_is_quick() -> None:
    state = SwarmState()
    for event in swarm_events(500, 40.0, START):
        fold(state, event)
    spent = []
    for _ in range(20):
        start = time.process_time()
        diagnose(state, state.last)
        spent.append(time.process_time() - start)
    assert sorted(spent)[10] < 0.01, "1 ms on a free core; ten times as much is a loop inside a loop"
