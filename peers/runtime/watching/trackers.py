"""Experiment trackers: destinations of figures by version.

    (version, figures, unix seconds) --Tracker.write--> event files | trackio's database | wandb's run

Each is imported when it is opened; that takes seconds, and its calls may wait for a network: they belong
into a thread of their own (peers.runtime.watching.tracking). Nothing leaves this machine unless the
environment says so.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from peers.runtime.watching.run_figures import Figures

NONE = "none"


class Experiment(NamedTuple):
    """The run's names at a tracker."""

    project: str
    name: str
    settings: Mapping[str, Any]
    """Of the run."""
    folder: Path
    """For trackers that keep files."""


class Tracker(Protocol):
    def write(self, version: int, figures: Figures, at: float) -> None:
        """Add the figures of a version. A version may come twice, and an older one after a newer one."""

    def close(self) -> None:
        """Finish pending work."""


class TensorBoard:
    """Event files in `folder`/NAME, for `tensorboard --logdir FOLDER`."""

    def __init__(self, experiment: Experiment) -> None:
        from tensorboard.summary import Writer

        self._writer = Writer(str(experiment.folder / experiment.name))

    def write(self, version: int, figures: Figures, at: float) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, version, wall_time=at)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Trackio:
    """Trackio's database on this machine, for `trackio show`."""

    def __init__(self, experiment: Experiment) -> None:
        trackio = importlib.import_module("trackio")
        self._run = trackio.init(
            project=experiment.project,
            name=experiment.name,
            config=dict(experiment.settings),
            resume="allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def write(self, version: int, figures: Figures, at: float) -> None:
        self._run.log(dict(figures), step=version)

    def close(self) -> None:
        self._run.finish()


class WeightsAndBiases:
    """A run of wandb: in `folder`, for `wandb sync`, or at once where WANDB_MODE=online."""

    def __init__(self, experiment: Experiment) -> None:
        wandb = importlib.import_module("wandb")
        experiment.folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=experiment.project,
            name=experiment.name,
            config=dict(experiment.settings),
            dir=str(experiment.folder),
            mode=os.environ.get("WANDB_MODE", "offline"),
            # no prompt for a key: without a login there is none, and a message says so
            settings=wandb.Settings(console="off", silent=True, login_timeout=1),
        )
        # its own steps only grow, and evaluations come late
        self._run.define_metric("*", step_metric="version")

    def write(self, version: int, figures: Figures, at: float) -> None:
        self._run.log({"version": version, **figures})

    def close(self) -> None:
        self._run.finish()


TRACKERS: Mapping[str, Callable[[Experiment], Tracker]] = {
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": WeightsAndBiases,
}
"""By the module that they need, which the extra `track` installs."""
