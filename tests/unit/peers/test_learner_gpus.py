"""How many GPUs a learner's model is split over: what is asked for, or as few as the estimate of `swarm fit`
allows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from peers.build.model import factory
from peers.errors import CannotHere
from peers.fit import hardware
from peers.fit.hardware import Gpu, Machine
from swarm.learn.models import tiny
from swarm.settings.config import Config, Model, Optimizer, Peer, Run, Training

GB = 1 << 30


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("model") / "llama", "llama")


def config(run: Run | None = None, **learner: object) -> Config:
    return Config(run=run or Run(), peer=Peer(learner=Training(**learner)))  # type: ignore[arg-type]


def machine(monkeypatch: pytest.MonkeyPatch, gpus: int, free: float) -> None:
    found = Machine(tuple(Gpu("H100", 80 * GB, int(free * GB)) for _ in range(gpus)), 16, 512 * GB, 400 * GB)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(hardware, "machine", lambda: found)


@pytest.mark.parametrize(("free", "gpus"), [(80.0, 1), (0.7, 4)])
def test_a_model_takes_one_gpu_when_it_fits_there_and_all_when_not(
    monkeypatch: pytest.MonkeyPatch, model: Path, free: float, gpus: int
) -> None:
    machine(monkeypatch, 4, free)
    assert factory.learner_gpus(model, config()) == gpus


def test_what_is_asked_for_is_taken(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    machine(monkeypatch, 4, 80.0)
    assert [factory.learner_gpus(model, config(gpus=n)) for n in (1, 3)] == [1, 3]
    assert factory.learner_gpus(model, config(device="cuda:1")) == 1


def test_a_machine_without_gpus_has_one_device(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    machine(monkeypatch, 0, 0)
    assert [factory.learner_gpus(model, config(gpus=n)) for n in (0, 1)] == [1, 1]


@pytest.mark.parametrize(("gpus", "device"), [(5, "auto"), (2, "cpu"), (2, "cuda:0")])
def test_more_gpus_than_there_are_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, model: Path, gpus: int, device: str
) -> None:
    machine(monkeypatch, 4, 80.0)
    with pytest.raises(CannotHere, match=r"set gpus to 0 and device to auto"):
        factory.learner_gpus(model, config(gpus=gpus, device=device))


@pytest.mark.parametrize(
    "run", [Run(model=Model(training="qlora")), Run(optimizer=Optimizer(name="adamw8bit"))]
)
def test_what_cannot_be_split_takes_one_gpu_unasked_and_says_why_it_takes_no_more(
    monkeypatch: pytest.MonkeyPatch, model: Path, run: Run
) -> None:
    machine(monkeypatch, 4, 0.5)
    assert factory.learner_gpus(model, config(run)) == 1
    with pytest.raises(
        CannotHere, match=r"cannot be split over several devices: set peer\.learner\.gpus to 1"
    ):
        factory.learner(model, config(run, gpus=2))
