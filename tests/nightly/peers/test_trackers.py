"""The trackers themselves, offline, where the extra `track` is installed (`make test-nightly`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from peers.runtime.watching.trackers import TRACKERS, Experiment, Tracker


def experiment(folder: Path) -> Experiment:
    return Experiment("project", "lab-5555", {"seed": 1, "model": {"name": "embedded"}}, folder)


def fed(tracker: Tracker) -> None:
    """Versions in their order, but for an evaluation that comes late."""
    for version in (1, 2, 3):
        tracker.write(version, {"train/reward": version / 4}, 1e9 + version)
    tracker.write(1, {"eval/accuracy": 0.5}, 1e9 + 9)
    tracker.close()


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    fed(TRACKERS["tensorboard"](experiment(tmp_path)))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(tmp_path / "lab-5555"))
    read.Reload()
    assert set(read.Tags()["tensors"]) == {"train/reward", "eval/accuracy"}
    rewards = [
        (one.step, one.wall_time, one.tensor_proto.float_val[0]) for one in read.Tensors("train/reward")
    ]
    assert rewards == [(1, 1e9 + 1, 0.25), (2, 1e9 + 2, 0.5), (3, 1e9 + 3, 0.75)]


def test_trackio_keeps_it_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))  # before it is imported
    trackio = pytest.importorskip("trackio")
    fed(TRACKERS["trackio"](experiment(tmp_path)))
    (run,) = trackio.Api().runs("project")
    assert run.name == "lab-5555" and run.config["seed"] == 1
    from trackio.sqlite_storage import SQLiteStorage

    lines = SQLiteStorage.get_logs("project", "lab-5555")
    kept = [(line["step"], line["train/reward"]) for line in lines if "train/reward" in line]
    assert kept == [(1, 0.25), (2, 0.5), (3, 0.75)]


def test_wandb_keeps_a_run_for_a_later_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    fed(TRACKERS["wandb"](experiment(tmp_path / "wandb")))
    (kept,) = (tmp_path / "wandb").rglob("*.wandb")
    written = kept.read_bytes()
    assert kept.parent.name.startswith("offline-run-")
    assert b"train/reward" in written and b"eval/accuracy" in written and b"embedded" in written
