"""The learning rate of a run that names none: known kinds with their source, everything else refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
import transformers
from places import ROOT

from peers.build import new_run, run_folder
from peers.build.model import base_model
from peers.errors import WrongUsage
from swarm.learn.learners.learner import Learner
from swarm.learn.learners.learning_rates import UnknownRate, decayed, known_rate, with_learning_rate
from swarm.learn.learners.site_learner import SiteLearner
from swarm.learn.models import tiny
from swarm.learn.models.tabular import Tabular
from swarm.settings.config import Averaging, Model, Optimizer, Run, Stop, TaskSettings
from swarm.settings.layers import ConfigError
from swarm.settings.loading import load, run_dict
from swarm.storage.weights import Weights

QWEN = 596_049_920
"""Parameters of Qwen3-0.6B."""


def run(name: str = "embedded", training: str = "full", task: str = "digit-sums") -> Run:
    return Run(model=Model(name=name, training=training), task=TaskSettings(name=task))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "parameters", "lr", "source"),
    [
        (run(), 0, 1e-3, "demo"),
        (run(task="sorting"), 0, 4e-4, "docs/staleness/report.md"),
        (run("Qwen/Qwen3-0.6B"), QWEN, 1e-6, "2508.17850"),
        (run("Qwen/Qwen3-0.6B", "lora"), QWEN, 1e-5, "LoRA Without Regret"),
        (run("Qwen/Qwen3-8B", "qlora"), 8.2e9, 1e-5, "LoRA Without Regret"),
    ],
)
def test_a_kind_of_which_something_is_known_has_a_rate_with_its_source(
    what: Run, parameters: float, lr: float, source: str
) -> None:
    known = known_rate(what, parameters)
    assert known.lr == lr and source in known.source
    pinned, said = with_learning_rate(what, parameters)
    assert (
        pinned.optimizer.lr == lr
        and f"learning rate {lr:g}" in said
        and "run.optimizer.lr sets another" in said
    )


@pytest.mark.parametrize(
    ("what", "parameters", "says"),
    [
        (
            run(task="my-task"),
            0,
            "all weights of embedded on the task my-task: set run.optimizer.lr; 1e-4",
        ),
        (run(training="lora"), 0, "an adapter of embedded"),
        (run("./mine"), 2e6, r"all weights of ./mine \(2.0M parameters\)"),
        (
            run("./mine", "lora"),
            7e10,
            r"an adapter of ./mine \(70.0B parameters\).*1e-05 is a cautious start",
        ),
    ],
)
def test_a_kind_of_which_nothing_is_known_is_refused_with_what_to_try(
    what: Run, parameters: float, says: str
) -> None:
    with pytest.raises(UnknownRate, match=says):
        known_rate(what, parameters)


def test_a_rate_of_the_runs_own_is_left_alone_and_needs_no_word() -> None:
    mine = Run(model=Model(name="./mine"), optimizer=Optimizer(lr=3e-7))
    assert with_learning_rate(mine, 1.0) == (mine, "")


def test_a_learner_is_not_made_with_a_rate_that_nobody_settled() -> None:
    with pytest.raises(ValueError, match=r"run\.optimizer\.lr is 0: a run is given its rate where it begins"):
        Learner(Tabular(), Run())


def test_a_run_begins_with_the_rate_of_its_kind_and_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny.make(tmp_path / "policy", "qwen3")
    with pytest.raises(WrongUsage, match="no learning rate is known for all weights of"):
        base_model.pinned(run(str(folder)))
    monkeypatch.setattr(base_model, "_parameters", lambda files: QWEN)
    begun, path = base_model.pinned(run(str(folder)))
    assert begun.optimizer.lr == 1e-6 and "learning rate 1e-06: GEPO's authors" in capsys.readouterr().err
    made = new_run.create(tmp_path / "run", begun, path)
    assert run_folder.existing_run(tmp_path / "run", run(str(folder))) == made, (
        "settings without a rate are those it began with"
    )


def test_parameters_are_counted_from_the_files_headers(tmp_path: Path) -> None:
    from swarm.learn.models.model import load_policy

    folder = tiny.make(tmp_path / "policy", "qwen3")
    counted = base_model._parameters(sorted(folder.glob("*.safetensors")))
    assert counted == sum(parameter.numel() for parameter in load_policy(folder).parameters())


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda path: path.name)
def test_every_config_has_a_rate_or_is_of_a_kind_that_is_known(path: Path) -> None:
    assert with_learning_rate(load(path).config.run, 0)[0].optimizer.lr > 0


def decaying(decay: str, warmup: int = 2, versions: int = 12) -> Run:
    optimizer = Optimizer(lr=0.5, warmup=warmup, decay=decay)  # type: ignore[arg-type]
    return Run(optimizer=optimizer, stop=Stop(versions=versions))


@pytest.mark.parametrize("decay", ["linear", "cosine", "constant"])
def test_a_rate_decays_as_that_of_transformers(decay: str) -> None:
    schedules = {
        "linear": lambda it: transformers.get_linear_schedule_with_warmup(it, 2, 12),
        "cosine": lambda it: transformers.get_cosine_schedule_with_warmup(it, 2, 12),
        "constant": lambda it: transformers.get_constant_schedule_with_warmup(it, 2),
    }
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    theirs, wanted = schedules[decay](optimizer), []
    for _ in range(13):
        wanted.append(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
    run = decaying(decay)
    assert [0.5 * decayed(run, version) for version in range(2, 13)] == pytest.approx(wanted[2:])
    assert [decayed(run, version) for version in range(2)] == [1.0, 1.0]  # the warm-up is of each learner
    assert decayed(run, 40) == (1.0 if decay == "constant" else 0.0)


def test_the_rate_of_a_version_is_that_of_every_learner_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    one, late = (Learner(Tabular(), decaying("linear")) for _ in range(2))
    vector = torch.ones(one.size)
    rates = [one.step(vector)["lr"] for _ in range(5)]
    assert rates == pytest.approx([0.25, 0.5, 0.5, 0.45, 0.4])
    one.save(tmp_path)
    again = Learner(Tabular(), decaying("linear"))
    again.restore(tmp_path)
    assert again.step(vector)["lr"] == one.step(vector)["lr"] == pytest.approx(0.35)
    late.load(Weights.of(one.weights().data, 6), fresh=True)
    assert [late.step(vector)["lr"] for _ in range(2)] == pytest.approx([0.3 / 2, 0.25])


def test_local_steps_of_a_site_have_the_rate_of_their_version() -> None:
    run = msgspec.structs.replace(decaying("linear", 0), averaging=Averaging(mode="sites"))
    site = SiteLearner(Tabular(), run)
    vector = torch.ones(site.size)
    for version in range(3):
        rates = [site.step_locally(vector)["lr"] for _ in range(2)]
        assert rates == pytest.approx([0.5 * (1 - version / 12)] * 2)
        site.outer_step([], mine=True)


def test_a_decay_without_an_end_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"run.optimizer.decay = 'cosine' needs run.stop.versions"):
        load(None, ["run.optimizer.decay=cosine"])
    ended = load(None, ["run.optimizer.decay=cosine", "run.stop.versions=9"]).config.run
    assert run_dict(ended)["optimizer"]["decay"] == "cosine"  # type: ignore[index]
