"""Figures for trackers of experiments: what they are, and that a tracker costs a peer nothing but figures.

The trackers themselves are tested where they are installed (`make test-nightly`)."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
from collections.abc import Callable, Mapping
from itertools import chain, repeat
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from still_host import still_host
from trained_runs import judged, trained

from peers import cli
from peers.runtime.watching import trackers, tracking
from peers.runtime.watching.run_figures import Figures, RunFigures, quantile
from peers.runtime.watching.trackers import Experiment
from peers.runtime.watching.tracking import tracked
from swarm import events as happened
from swarm.events import Event
from swarm.net.memory.network import MemoryNetwork
from swarm.protocol import Role
from swarm.settings.config import DelayLaw
from swarm.settings.page import Track
from swarm.sim.links import SimLinks


def taken(*heard: Event) -> list[tuple[int, Figures]]:
    figures = RunFigures()
    return [one for event in heard for one in figures.take(event)] + list(figures.rest())


# --- which --------------------------------------------------------------------------------------------------


def test_a_versions_figures_are_its_learners_means_by_their_groups() -> None:
    ((version, figures),) = taken(trained(3, 0, 24, reward=0.5), trained(3, 1, 8, reward=1.0, kl=0.25))
    assert version == 3
    assert figures["train/reward"] == 0.625 and figures["train/kl"] == 0.25
    assert figures["seconds/learn"] == 0.25 and figures["seconds/gather"] == 0.5
    assert figures["train/groups"] == 32 and figures["train/learners"] == 2


def test_a_version_is_whole_when_a_later_one_is_trained_and_what_comes_late_is_left_out() -> None:
    late = trained(1, 1, reward=0.0)
    said = taken(trained(1, reward=1.0), trained(2, reward=0.5), late, trained(4, reward=0.25))
    rewards = [(version, figures["train/reward"]) for version, figures in said]
    assert rewards == [(1, 1.0), (2, 0.5), (4, 0.25)]
    assert [figures["train/learners"] for _, figures in said] == [1, 1, 1]


def test_a_learner_whose_groups_no_version_has_counts_as_one_group() -> None:
    ((_, figures),) = taken(trained(3, 0, 7, grad_norm=1.0), trained(3, 1, 0, grad_norm=3.0))
    assert figures["train/grad_norm"] == (7 * 1.0 + 3.0) / 8 and figures["train/groups"] == 7


def test_an_evaluation_is_told_at_once_though_training_is_ahead() -> None:
    said = taken(trained(12), judged(10, 0.75), trained(13))
    assert (10, {"eval/accuracy": 0.75}) in said and [version for version, _ in said] == [10, 12, 13]


@pytest.mark.parametrize(("share", "value"), [(0.25, 1), (0.26, 2), (0.5, 2), (0.75, 2), (1.0, 9)])
def test_a_share_of_what_was_counted_is_no_larger_than_its_quantile(share: float, value: int) -> None:
    assert quantile({9: 1, 1: 1, 2: 2}, share) == value


def test_nothing_counted_has_no_quantile() -> None:
    assert math.isnan(quantile({}, 0.5))


# --- what a tracker may cost --------------------------------------------------------------------------------


class Kept:
    """A tracker that keeps what it gets."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment, self.closed = experiment, False
        self.lines: list[tuple[int, Mapping[str, float]]] = []
        self.thread = threading.current_thread()

    def write(self, version: int, figures: Figures, at: float) -> None:
        self.lines.append((version, figures))

    def close(self) -> None:
        self.closed = True


def heard_by(
    monkeypatch: pytest.MonkeyPatch, tracker: Callable[[Experiment], Any], *heard: Event
) -> list[Event]:
    """What a seed tells of it, which hears this while a tracker is there."""
    monkeypatch.setitem(trackers.TRACKERS, "trackio", tracker)  # type: ignore[arg-type]
    told = list[Event]()

    async def scene() -> None:
        host = still_host(MemoryNetwork(Random(1), SimLinks(DelayLaw(), 1e6, Random(1))), "seed", Role.SEED)
        host.bus.add(told.append)
        async with tracked(host, Track(to="trackio"), Path("unused")):
            for event in heard:
                host.bus.emit(event)
                await asyncio.sleep(0.01)

    asyncio.run(scene())
    return [event for event in told if isinstance(event, happened.Faulted | happened.Recovered)]


def test_a_tracker_gets_every_version_in_a_thread_of_its_own_and_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = list[Kept]()

    def keep(experiment: Experiment) -> Kept:
        made.append(Kept(experiment))
        return made[0]

    assert heard_by(monkeypatch, keep, trained(1), trained(2), judged(1, 0.5)) == []
    (kept,) = made
    assert [version for version, _ in kept.lines] == [1, 1, 2] and kept.closed
    assert kept.thread is not threading.main_thread()
    assert kept.experiment.name == "demo-555555555555" and kept.experiment.settings["seed"] == 1


def test_a_tracker_that_fails_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Moody(Kept):
        def write(self, version: int, figures: Figures, at: float) -> None:
            if version == 1:
                raise OSError("no network")

    fault, recovery = heard_by(monkeypatch, Moody, trained(1), trained(2), trained(3))
    assert isinstance(fault, happened.Faulted) and isinstance(recovery, happened.Recovered)
    assert fault.detail == "trackio did not take version 1: OSError: no network"


def test_a_tracker_that_cannot_be_opened_is_a_fault_and_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(experiment: Experiment) -> Kept:
        raise RuntimeError("no key")

    (fault,) = heard_by(monkeypatch, refuse, trained(1), trained(2))
    assert isinstance(fault, happened.Faulted)
    assert fault.detail == "trackio cannot be opened: RuntimeError: no key"


def test_a_tracker_that_could_not_be_opened_is_opened_after_a_minute_and_then_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = chain([0.0, 0.0, 59.0, 60.0, 60.0], repeat(500.0))
    monkeypatch.setattr(tracking, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    made = list[Kept]()

    def open_later(experiment: Experiment) -> Kept:
        made.append(Kept(experiment))
        if len(made) == 1:
            raise RuntimeError("no key")
        return made[-1]

    fault, recovery = heard_by(monkeypatch, open_later, *map(trained, range(1, 6)))
    assert isinstance(fault, happened.Faulted) and isinstance(recovery, happened.Recovered)
    _, kept = made
    assert [version for version, _ in kept.lines] == [3, 4, 5]


def test_a_tracker_that_does_not_end_is_told_and_keeps_no_process_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracking, "ENDING", 0.05)
    hangs, threads = threading.Event(), list[threading.Thread]()

    class Slow(Kept):
        def close(self) -> None:
            threads.append(self.thread)
            hangs.wait(60.0)

    (fault,) = heard_by(monkeypatch, Slow, trained(1))
    hangs.set()
    assert isinstance(fault, happened.Faulted) and "trackio did not end within" in fault.detail
    assert threads[0].daemon


def test_a_tracker_that_hangs_holds_no_peer_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "ENDING", 0.2)
    monkeypatch.setattr(tracking, "WAITING", 2)
    hangs = threading.Event()

    class Slow(Kept):
        def write(self, version: int, figures: Figures, at: float) -> None:
            hangs.wait(60.0)

    (fault,) = heard_by(monkeypatch, Slow, *map(trained, range(6)))
    hangs.set()
    assert isinstance(fault, happened.Faulted) and "versions behind" in fault.detail


def test_a_tracker_that_is_not_installed_is_named_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.extras.find_spec", lambda name: None)
    said = ["start", "demo", "--folder", str(tmp_path / "run"), "--set", "peer.track.to=wandb"]
    assert cli.main(said) == 3
    assert "gepo-swarm[track]" in capsys.readouterr().err and not (tmp_path / "run").exists()


# --- how trackers are called --------------------------------------------------------------------------------


class Module:
    """Stands in for a tracker's module: what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def called(*args: Any, **named: Any) -> Module:
            self.calls.append((name, args, named))
            return self

        return called

    def of(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(args, named) for call, args, named in self.calls if call == name]


def test_tensorboard_gets_each_figure_at_its_version_and_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Module()
    monkeypatch.setitem(sys.modules, "tensorboard", module)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "tensorboard.summary", module)  # type: ignore[arg-type]
    tracker = trackers.TRACKERS["tensorboard"](Experiment("lab", "mine", {}, tmp_path))
    tracker.write(2, {"train/reward": 0.5, "train/kl": 0.25}, 1e9)
    tracker.close()
    figure = ("add_scalar", ("train/reward", 0.5, 2), {"wall_time": 1e9})
    other = ("add_scalar", ("train/kl", 0.25, 2), {"wall_time": 1e9})
    assert module.calls == [
        ("Writer", (str(tmp_path / "mine"),), {}),
        figure,
        other,
        ("flush", (), {}),
        ("close", (), {}),
    ]


def tracked_by(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Module:
    """A tracker gets two versions and is closed."""
    module = Module()
    monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
    tracker = trackers.TRACKERS[name](Experiment("lab", "mine", {"seed": 1}, folder))
    tracker.write(2, {"train/reward": 0.5}, 1e9)
    tracker.write(1, {"eval/accuracy": 0.25}, 1e9)
    tracker.close()
    assert len(module.of("finish")) == 1 and module.calls[-1][0] == "finish"
    ((_, named),) = module.of("init")
    assert (named["project"], named["name"], named["config"]) == ("lab", "mine", {"seed": 1})
    return module


@pytest.mark.parametrize("mode", [None, "online"])
def test_wandb_is_offline_unless_the_environment_says_so(
    mode: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("WANDB_MODE", mode)
    wandb = tracked_by("wandb", tmp_path / "wandb", monkeypatch)
    ((_, named),) = wandb.of("init")
    assert named["mode"] == (mode or "offline") and named["dir"] == str(tmp_path / "wandb")
    assert (tmp_path / "wandb").is_dir()
    assert wandb.of("define_metric") == [(("*",), {"step_metric": "version"})]
    lines = [line for (line,), _ in wandb.of("log")]
    assert lines == [{"version": 2, "train/reward": 0.5}, {"version": 1, "eval/accuracy": 0.25}]


def test_trackio_stays_on_this_machine_and_goes_on_with_the_run_of_this_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trackio = tracked_by("trackio", tmp_path, monkeypatch)
    ((_, named),) = trackio.of("init")
    assert named["resume"] == "allow" and named["embed"] is False
    assert (named["auto_log_cpu"], named["auto_log_gpu"]) == (False, False)
    assert [(line, said["step"]) for (line,), said in trackio.of("log")] == [
        ({"train/reward": 0.5}, 2),
        ({"eval/accuracy": 0.25}, 1),
    ]
