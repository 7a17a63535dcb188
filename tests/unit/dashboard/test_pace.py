"""What takes long now, when the run ends at its pace, and which settings change that: from heartbeats,
releases and the seconds of steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from io import StringIO

import pytest
from nouns import NOW, beat, release
from rich.console import Console

from dashboard.diagnosis import follow
from dashboard.diagnosis.pace import coming, pace, work
from dashboard.fold import snapshot
from dashboard.fold.state import SwarmState
from dashboard.serve.terminal import forecast, headline, render
from dashboard.text import clock, how_far
from dashboard.views import PaceView, WorkView
from swarm import events
from swarm.membership.identity import Keyring
from swarm.protocol import STAGES, Role, WorkStage
from swarm.settings.config import Averaging, Run, Sampling, Stop
from swarm.types import Digest, Fetching, PeerId, StageProgress

NOTE = "50% of it is waiting for groups; run.batch.groups and run.sampling.group_size change that most."
SEED, LEARNER, OTHER, SAMPLER = (Keyring.new().me for _ in range(4))


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def hear(state: SwarmState, peer: PeerId, at: float, **said: object) -> None:
    told = beat(**{"role": Role.LEARNER, "seq": int(at - NOW) + 1, **said})
    follow(state, events.Heard(at=at, peer=SEED, subject=peer, beat=told))


def versions(state: SwarmState, *seconds: float, length: float = 2.0, **spent: float) -> None:
    """Releases 1, 2, ... these seconds after NOW, each with its step."""
    for version, at in enumerate(seconds, 1):
        weights = Digest(f"{version:064x}")
        new = release(version=version, weights=weights, released=NOW + at)
        took = {"gather": 1.0, "learn": 1.0, "average": 0.0, "step": 0.0} | spent
        metrics = {"reward": 0.5, "length": length}
        step = {"version": version, "groups": 8, "members": 1, "metrics": metrics}
        follow(state, events.Trained(at=NOW + at, peer=LEARNER, **step, **took))  # type: ignore[arg-type]
        follow(state, events.Released(at=NOW + at, peer=LEARNER, release=new))
    state.peers[LEARNER].role = Role.LEARNER


def batch(done: int, total: int = 8, **more: float) -> StageProgress:
    return StageProgress(stage=WorkStage.BATCH, done=done, total=total, **more)  # type: ignore[arg-type]


def test_work_of_one_kind_is_added_up_over_its_peers_and_ends_with_the_last_one() -> None:
    state = SwarmState()
    hear(state, LEARNER, NOW, progress=batch(5, left=40.0))
    hear(state, OTHER, NOW + 1, progress=batch(2, 4, left=10.0))
    hear(
        state,
        SAMPLER,
        NOW,
        role=Role.EVALUATOR,
        progress=StageProgress(stage="evaluation", done=9, total=256),
    )
    assert work(state, NOW + 2) == (
        WorkView(stage="batch", unit="groups", done=7, total=12, ends=NOW + 40.0, peers=2),
        WorkView(stage="evaluation", unit="tasks", done=9, total=256, ends=None, peers=1),
    )
    hear(state, OTHER, NOW + 3, progress=batch(2, 4))
    assert work(state, NOW + 3)[0].ends is None, "one of them does not know"
    hear(state, OTHER, NOW + 4)
    assert [one.done for one in work(state, NOW + 4)] == [5, 9]
    assert work(state, NOW + 60) == (), "they are silent"


def test_a_stranger_and_a_stage_of_a_later_program_are_left_out() -> None:
    state = SwarmState()
    hear(state, SAMPLER, NOW, role=Role.SAMPLER, progress=StageProgress(stage="sampling", done=1, total=8))
    follow_stranger = beat(role=Role.SAMPLER, progress=StageProgress(stage="sampling", done=1, total=8))
    heard = events.Heard(at=NOW, peer=SEED, subject=OTHER, beat=follow_stranger, invited=False)
    follow(state, heard)
    hear(state, LEARNER, NOW, progress=StageProgress(stage="dreaming", done=1, total=8))
    assert [(one.stage, one.peers) for one in work(state, NOW + 1)] == [("sampling", 1)]


def test_a_download_is_told_once_its_pace_is_seen() -> None:
    state = SwarmState()
    for second, held in ((0, 20), (2, 40), (4, 60)):
        fetching = Fetching(version=3, held=held, size=100)
        hear(state, SAMPLER, NOW + second, role=Role.SAMPLER, fetching=fetching)
        told = work(state, NOW + second)
        assert len(told) == (second > 0)
    assert told == (WorkView(stage="release", unit="bytes", done=60, total=100, ends=NOW + 8.0, peers=1),)
    hear(state, SAMPLER, NOW + 6, role=Role.SAMPLER, fetching=Fetching(version=4, held=10, size=100))
    assert work(state, NOW + 6) == (), "another one"


def test_the_reward_of_the_groups_that_came_is_told_until_a_version_has_one() -> None:
    state = SwarmState()
    assert "no reward yet" in headline(state, NOW) and coming(state, NOW) is None
    hear(state, LEARNER, NOW, progress=batch(6, reward=0.5))
    hear(state, OTHER, NOW, progress=batch(2, reward=0.1))
    assert coming(state, NOW) == pytest.approx(0.4)
    assert "reward 0.40 so far" in headline(state, NOW)
    assert "reward 0.40 so far" in _screen(state)
    hear(state, LEARNER, NOW + 1)
    assert coming(state, NOW + 1) == pytest.approx(0.4), "its gradient is not long yet"
    versions(state, 10.0)
    assert "reward 0.50," in headline(state, NOW + 10)


def test_the_line_says_how_far_and_how_long_and_without_times_only_what_has_changed() -> None:
    state = SwarmState(Run(stop=Stop(versions=60)))
    hear(state, LEARNER, NOW, progress=batch(5, left=40.0))
    assert headline(state, NOW).startswith("version 0 of 60, ")
    assert headline(state, NOW).endswith("; batch 5 of 8 groups (4.5/min, about 40 s left)")
    assert headline(state, NOW, timed=False).endswith("; batch 5 of 8 groups")
    versions(state, 100.0, 280.0, 460.0)
    hear(state, LEARNER, NOW + 461.0)
    assert headline(state, NOW + 461.0).endswith("; ends about 18:05")
    assert "ends" not in headline(state, NOW + 461.0, timed=False)


def _screen(state: SwarmState, now: float = NOW) -> str:
    console = Console(width=120, file=StringIO())
    console.print(render(state, now, 120))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_live_view_has_the_work_and_the_forecast_and_each_peer_how_far_it_is() -> None:
    state = SwarmState(Run(stop=Stop(versions=60)))
    versions(state, 100.0, 280.0, 460.0, learn=150.0)
    gradient = StageProgress(stage="gradient", done=5, total=8, left=30.0)
    hear(state, LEARNER, NOW + 461, version=3, progress=gradient)
    shown = _screen(state, NOW + 461)
    assert "version 3 of 60" in shown and "gradient 5 of 8 groups (6/min, about 30 s left)" in shown
    assert "at this pace 60 versions take 3 h, until about 18:05" in shown
    assert "gathering 5/8" in shown


def test_a_forecast_comes_after_a_minute_of_versions_or_three_of_their_intervals() -> None:
    state = SwarmState(Run(stop=Stop(versions=10, accuracy=0.9)))
    assert pace(state, NOW) is None and forecast(state, NOW) == ""
    versions(state, 100.0)
    assert pace(state, NOW + 100) is None, "the first one waits for all peers to come"
    assert _at(130.0, 100.0, 130.0) is None, "two versions of one call of a sampler"
    assert _at(170.0, 100.0, 170.0) == 70.0
    assert _at(106.0, 100.0, 102.0, 104.0, 106.0) == 2.0
    state = SwarmState(state.run)
    versions(state, 100.0, 170.0)
    found = pace(state, NOW + 170.0)
    assert found == PaceView(seconds=70.0, whole=700.0, ends=NOW + 170.0 + 8 * 70.0, note=NOTE)
    said = "at this pace 10 versions take 12 min, until about 15:18, or less where the accuracy reaches 90%"
    assert forecast(state, NOW + 170.0) == f"{said}; {NOTE[:-1]}"


def _at(now: float, *released: float) -> float | None:
    state = SwarmState()
    versions(state, *released)
    found = pace(state, NOW + now)
    return found.seconds if found is not None else None


def test_versions_in_bursts_have_the_pace_of_all_and_a_night_without_training_changes_nothing() -> None:
    bursts = [100.0 + 60.0 * call + late for call in range(6) for late in (0.0, 2.0)]
    assert _at(bursts[-1], *bursts) == pytest.approx(30.0, rel=0.2)
    night = [100.0, 130.0, 160.0, 190.0, 30_000.0, 30_030.0, 30_060.0]
    assert _at(30_060.0, *night) == 30.0
    assert _at(30_060.0 + 100.0, *night) == pytest.approx(40.0), "this one takes longer"
    state = SwarmState()
    versions(state, *night)
    kept = snapshot.load(snapshot.dump(state), state.run)
    assert (again := pace(kept, NOW + 30_060.0)) is not None and again.seconds == 30.0


def test_a_run_without_a_last_version_has_a_pace_alone_and_one_that_is_complete_no_end() -> None:
    state = SwarmState()
    versions(state, 100.0, 170.0)
    assert forecast(state, NOW + 170) == f"at this pace a version takes 70 s; {NOTE[:-1]}"
    state = SwarmState(Run(stop=Stop(versions=2)))
    versions(state, 100.0, 170.0)
    found = pace(state, NOW + 170)
    assert found is not None and found.ends is None


def test_where_no_learner_is_here_nothing_is_foretold() -> None:
    state = SwarmState(Run(stop=Stop(versions=3)))
    versions(state, 100.0, 170.0)
    follow(state, events.Left(at=NOW + 171, peer=LEARNER, name="", reason="asked to stop"))
    assert pace(state, NOW + 171) is None and forecast(state, NOW + 171) == ""


def test_a_run_that_is_late_ends_at_any_time_but_not_in_the_past() -> None:
    state = SwarmState(Run(stop=Stop(versions=3)))
    versions(state, 100.0, 170.0)
    found = pace(state, NOW + 1000)
    assert found is not None and found.ends == NOW + 1000


@pytest.mark.parametrize(
    ("spent", "limit", "said"),
    [
        (
            {"gather": 8.0},
            256,
            "89% of it is waiting for groups; run.batch.groups and run.sampling.max_tokens change that most.",
        ),
        (
            {"learn": 8.0},
            256,
            (
                "89% of it is computing gradients; run.batch.groups and run.sampling.max_tokens change that"
                " most."
            ),
        ),
        (
            {"learn": 8.0},
            2048,
            (
                "89% of it is computing gradients; run.batch.groups and run.sampling.group_size change that"
                " most."
            ),
        ),
        (
            {"average": 8.0},
            256,
            "80% of it is averaging; run.averaging.overlap and run.averaging.mode change that most.",
        ),
        (
            {"step": 8.0},
            256,
            "80% of it is optimizer steps; run.model.training and run.optimizer.name change that most.",
        ),
    ],
)
def test_the_two_settings_are_those_of_what_takes_most_of_a_version(
    spent: dict[str, float], limit: int, said: str
) -> None:
    state = SwarmState(Run(sampling=Sampling(max_tokens=limit)))
    versions(state, 100.0, 170.0, length=200.0, **spent)
    found = pace(state, NOW + 170)
    assert found is not None and found.note == said
    assert forecast(state, NOW + 170).endswith(f"70 s; {said[:-1]}")


@pytest.mark.parametrize(
    ("averaging", "said"),
    [
        (Averaging(overlap=True), "run.averaging.compression and run.averaging.mode"),
        (Averaging(mode="sites"), "run.averaging.local_steps and run.averaging.density"),
    ],
)
def test_what_a_run_has_set_already_is_no_advice(averaging: Averaging, said: str) -> None:
    state = SwarmState(Run(averaging=averaging))
    versions(state, 100.0, 170.0, average=8.0)
    found = pace(state, NOW + 170)
    assert found is not None and found.note == f"80% of it is averaging; {said} change that most."


def test_every_stage_has_a_unit() -> None:
    assert {*STAGES} == {*WorkStage}


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (("batch", "groups", 5, 8, None), "batch 5 of 8 groups"),
        (("batch", "groups", 5, 8, 40.0), "batch 5 of 8 groups (4.5/min, about 40 s left)"),
        (("batch", "groups", 8, 8, 0.0), "batch 8 of 8 groups"),
        (
            ("evaluation", "tasks", 1200, 2400, 600.0),
            "evaluation 1,200 of 2,400 tasks (2/s, about 10 min left)",
        ),
        (
            ("release", "bytes", 12e6, 140e6, 40.0),
            "release 12 MB of 140 MB (3.2 MB/s, about 40 s left)",
        ),
    ],
)
def test_progress_is_told_with_its_rate_and_its_end(
    told: tuple[str, str, int, int, float | None], said: str
) -> None:
    assert how_far(*told) == said


def test_a_time_of_day_has_its_day_where_that_is_another_one() -> None:
    assert clock(NOW, NOW) == "15:06"
    assert clock(NOW + 86400.0, NOW) == "Mon 15:06"
    assert clock(NOW + 10 * 86400.0, NOW) == "25 Jun 15:06"
