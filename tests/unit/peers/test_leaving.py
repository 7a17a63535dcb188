"""Whoever is asked to leave has the time for the group or step at hand: by Ctrl-C of `swarm up`, by `swarm
leave`, by systemd."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from peers.commands.runs import status, up
from peers.commands.runs.leaving import SEED_LEAVES
from peers.errors import CannotHere
from peers.runtime import peer_folder
from peers.runtime.signals import LEAVE_PATIENCE
from swarm.settings.config import Config

STEP = 100.0
"""Seconds that the step at hand takes."""


class Hours:
    """The time module, with a clock that runs as long as somebody sleeps."""

    time = staticmethod(time.time)

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Peer:
    """A child that ends `step` seconds after it was asked to."""

    pid = 7

    def __init__(self, hours: Hours, step: float) -> None:
        self.hours, self.step, self.ends = hours, step, float("inf")

    def terminate(self) -> None:
        self.ends = self.hours.now + self.step

    def poll(self) -> int | None:
        return 0 if self.hours.now >= self.ends else None


@pytest.fixture
def hours(monkeypatch: pytest.MonkeyPatch) -> Hours:
    hours = Hours()
    for module in (up, status):
        monkeypatch.setattr(module, "time", hours)
    return hours


@pytest.fixture
def house(hours: Hours, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> up.Children:
    """A swarm of one child, whose kills are `killed`."""

    def killed(pid: int, number: int) -> None:
        assert (pid, number) == (Peer.pid, signal.SIGKILL)
        child.ends = hours.now
        house.killed.append(hours.now)  # type: ignore[attr-defined]

    child = Peer(hours, STEP)
    house = up.Children(tmp_path, Config())
    house.children["learner-1"] = SimpleNamespace(process=child)  # type: ignore[assignment]
    house.killed = []  # type: ignore[attr-defined]
    monkeypatch.setattr(up.os, "killpg", killed)
    return house


def test_one_ctrl_c_of_up_lets_a_step_of_a_hundred_seconds_be_finished(
    house: up.Children, hours: Hours, capsys: pytest.CaptureFixture[str]
) -> None:
    house._on_signal(signal.SIGINT, None)
    house.end()
    assert not house.killed and hours.now >= 1000.0 + STEP  # type: ignore[attr-defined]
    said = " ".join(capsys.readouterr().err.split())
    assert "finishes the group or step at hand" in said and "Ctrl-C again ends them now" in said


@pytest.mark.parametrize(("step", "asked_after"), [(3.0, 3.0), (1e9, LEAVE_PATIENCE - SEED_LEAVES)])
def test_the_seed_leaves_last_and_who_is_waited_for_is_said(
    house: up.Children,
    hours: Hours,
    capsys: pytest.CaptureFixture[str],
    step: float,
    asked_after: float,
) -> None:
    """It hears the last release and the others' farewells; one that hangs does not keep it for ever."""
    seed, began = Peer(hours, 1.0), hours.now
    house.children = {"seed": SimpleNamespace(process=seed)} | house.children  # type: ignore[dict-item]
    house.children["learner-1"].process.step = step  # type: ignore[union-attr]
    house._on_signal(signal.SIGINT, None)
    house.end()
    assert seed.ends - 1.0 - began == pytest.approx(asked_after, abs=0.2)
    assert hours.now - began < LEAVE_PATIENCE + 1.0
    said = capsys.readouterr().err
    assert "processes that are still here after 120 s are ended" in " ".join(said.split())
    assert ("1 of 2 have left; waiting for " in said) and ("waiting for seed, learner-1 (15 s)" in said) is (
        step > 9
    )


def test_a_second_ctrl_c_ends_them_at_once(house: up.Children, hours: Hours) -> None:
    for _ in range(2):
        house._on_signal(signal.SIGINT, None)
    house.end()
    assert house.killed and hours.now < 1001.0  # type: ignore[attr-defined]


def test_a_child_that_never_leaves_is_killed(house: up.Children, hours: Hours) -> None:
    house.children["learner-1"].process.step = 1e9  # type: ignore[union-attr]
    house._on_signal(signal.SIGINT, None)
    house.end()
    assert house.killed and hours.now < 1125.0  # type: ignore[attr-defined]


@pytest.mark.parametrize("heard", [True, False])
def test_who_came_too_late_to_hear_that_a_run_is_complete_is_asked_to_leave(
    house: up.Children, hours: Hours, heard: bool
) -> None:
    child = house.children["learner-1"].process
    child.step = 1.0  # type: ignore[union-attr]
    child.ends = hours.now + 5.0 if heard else float("inf")  # type: ignore[union-attr]
    house.complete, began = True, hours.now
    house.end()
    assert not house.killed  # type: ignore[attr-defined]
    assert hours.now - began == pytest.approx(5.0 if heard else up.TOO_LATE + 1.0, abs=0.2)


def test_a_signal_while_the_peers_of_a_complete_run_leave_asks_them_to(
    house: up.Children, hours: Hours
) -> None:
    house.complete, began = True, hours.now
    house.children["learner-1"].process.step = 1.0  # type: ignore[union-attr]
    house._on_signal(signal.SIGTERM, None)
    house.end()
    assert not house.killed and hours.now - began < 2.0  # type: ignore[attr-defined]


@pytest.mark.parametrize(("step", "leaves"), [(0.5, True), (STEP, True), (1e9, False)])
def test_leave_waits_for_the_step_and_says_so(
    hours: Hours,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    step: float,
    leaves: bool,
) -> None:
    ends = hours.now + step
    monkeypatch.setattr(peer_folder, "running", lambda _: {"learner-1": 7} if hours.now < ends else {})
    monkeypatch.setattr(status.os, "kill", lambda pid, number: None)
    if leaves:
        assert status.leave(Path("run")) == 0
        assert hours.now >= ends
    else:
        with pytest.raises(CannotHere, match=r"still finishes .* `kill -9` ends it now, and .* is lost"):
            status.leave(Path("run"))
    said = capsys.readouterr().err
    assert ("waiting for learner-1 (process 7): each finishes" in said) is (step > 1.0)
