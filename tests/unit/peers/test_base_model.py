"""Where policies come from: folders and the Hub, whose real client talks here to a small server of ours, or
to nobody."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import close_session
from model_hub import COMMIT, UNWANTED, Hub, folder, point, served
from msgspec.structs import replace

from peers.build import new_run, run_folder
from peers.build.model import base_model, factory
from peers.errors import CannotHere, Refusal, UserError, WrongUsage
from swarm.learn.files import weights
from swarm.learn.models import adapters
from swarm.learn.models.model import load_policy
from swarm.learn.models.pretrained import ModelError
from swarm.sample.hf import HfEngine
from swarm.settings.config import Config, EngineSettings, Lora, Model, Optimizer, Peer, Run, Sampling
from swarm.storage.blocks import Blocks
from swarm.storage.image import in_memory
from swarm.storage.weights import Weights

__all__ = ["folder"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and nobody at the Hub's address."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    point(monkeypatch, "http://127.0.0.1:9")
    close_session()
    yield tmp_path / "cache"
    close_session()


@pytest.fixture
def hub(cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The server; what it was asked."""
    asked: list[str] = []
    with served(type("Here", (Hub,), {"folder": folder, "asked": asked}), monkeypatch):
        yield asked


def of(name: str, revision: str = "", **more: Any) -> Run:
    return Run(model=Model(name=name, revision=revision, **more), optimizer=Optimizer(lr=1e-6))


def keep(cache: Path, folder: Path) -> None:
    """Lay a model down as the Hub's client does."""
    place = cache / "models--org--tiny"
    shutil.copytree(folder, place / "snapshots" / COMMIT)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)


def test_a_folder_is_itself(folder: Path) -> None:
    run = of(str(folder))
    assert base_model.pinned(run) == (run, folder)


@pytest.mark.parametrize("damage", [b"", b"version https://git-lfs.github.com/spec/v1\n", None])
def test_damaged_weights_are_told_by_the_name_of_their_file(
    folder: Path, tmp_path: Path, damage: bytes | None
) -> None:
    here = shutil.copytree(folder, tmp_path / "here")
    file = here / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100] if damage is None else damage)
    with pytest.raises(ModelError, match=f"{file} cannot be read .*copy the model again; .*Git LFS pointer"):
        base_model.pinned(of(str(here)))


def test_an_adapter_may_be_the_hubs(
    cache: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lora = Lora(rank=2, alpha=4.0, targets="k_proj")
    adapters.write_folder(
        tmp_path / "adapter", Blocks.of(adapters.genesis(folder, lora, 5)), lora, "org/base"
    )
    keep(cache, tmp_path / "adapter")
    run = base_model.pinned(of(str(folder), training="lora", adapter="org/tiny"))[0]
    assert run.lora == lora and "the adapter org/tiny has rank 2" in capsys.readouterr().err
    made = new_run.create(tmp_path / "run", run, folder)
    assert made.genesis() == adapters.genesis(folder, lora, 5)


def test_a_hub_model_is_fetched_once_and_pinned_to_its_commit(hub: list[str], folder: Path) -> None:
    run, path = base_model.pinned(of("org/tiny"))
    assert run.model.revision == COMMIT
    assert (path / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert not any((path / name).exists() for name in UNWANTED)
    hub.clear()
    assert base_model.pinned(run) == (run, path) and hub == [], "a commit that is here needs nobody"


def test_a_cached_copy_does_without_a_network(cache: Path, folder: Path) -> None:
    keep(cache, folder)
    run, path = base_model.pinned(of("org/tiny"))
    assert run.model.revision == COMMIT and weights.release_bytes(load_policy(path)) == weights.release_bytes(
        load_policy(folder)
    )


def test_a_cached_copy_does_offline(cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    keep(cache, folder)
    assert base_model.pinned(of("org/tiny"))[0].model.revision == COMMIT
    with pytest.raises(CannotHere, match=r"org/other is not on this disk .*HF_HUB_OFFLINE, or name a folder"):
        base_model.folder(of("org/other"))


def test_no_network_and_no_copy_says_what_to_do(cache: Path) -> None:
    with pytest.raises(CannotHere, match=r"org/tiny is not on this disk .* \(Connect.*\): check the network"):
        base_model.folder(of("org/tiny"))


def test_a_gated_model_names_its_page_and_the_command(hub: list[str]) -> None:
    with pytest.raises(
        UserError,
        match=r"gated: accept its terms on http://127.0.0.1:\d+/org/gated, then run `hf auth login`",
    ):
        base_model.folder(of("org/gated"))


def test_a_model_that_nobody_has_is_a_wrong_name(hub: list[str]) -> None:
    with pytest.raises(WrongUsage, match="no folder and no Hub model org/nothing"):
        base_model.folder(of("org/nothing"))
    with pytest.raises(WrongUsage, match=r"'./not-here/at/all' is neither a folder here nor a Hub id"):
        base_model.folder(of("./not-here/at/all"))
    with pytest.raises(WrongUsage, match="org/tiny has no revision v9"):
        base_model.folder(of("org/tiny", "v9"))


def test_a_disk_that_says_no_is_not_taken_for_a_lack_of_network(
    cache: Path, hub: list[str], tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file in the folder's place")
    with pytest.raises(NotADirectoryError):
        base_model.folder(of("org/tiny"))


def test_adapters_on_a_hub_model_take_their_base_from_the_hubs_cache_at_the_commit(
    hub: list[str], tmp_path: Path
) -> None:
    run, path = base_model.pinned(of("org/tiny", training="lora"))
    made = new_run.create(tmp_path / "run", run, path)
    assert "model.safetensors" not in made.spec.files, "it does not travel: everybody can fetch it"
    assert base_model.base(made.model, run) == path
    engine = factory.hf(made.model, Config(run=run))
    engine.load(Weights.of((made.path / "genesis").read_bytes(), 0))
    assert engine.sample(["12"], 2, [1])[0].lengths
    assert factory.size(made.model, run) == factory.learner(made.model, Config(run=run))[0].size


def test_who_has_a_hub_model_makes_version_0_of_its_run_without_a_network(
    cache: Path, folder: Path, tmp_path: Path
) -> None:
    assert base_model.version_zero(of("org/tiny", COMMIT)) is None, "it is not here"
    keep(cache, folder)
    run, path = base_model.pinned(of("org/tiny"))
    made = new_run.create(tmp_path / "run", run, path)
    write = base_model.version_zero(run)
    assert write is not None and write(in_memory).root == made.spec.genesis
    assert base_model.version_zero(of("org/tiny")) is None, "no commit is named"
    assert base_model.version_zero(of("org/tiny", COMMIT, training="lora")) is None
    for file in path.glob("*.safetensors"):
        file.unlink()
    assert base_model.version_zero(run) is None, "only the tokenizer is here"


def test_a_run_whose_template_asks_for_the_date_is_pinned_to_the_day_on_which_it_begins(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert base_model.pinned(of(str(folder)))[0].model.date == ""
    dated = shutil.copytree(folder, tmp_path / "dated")
    (dated / "chat_template.jinja").write_text("{{ strftime_now('%d %b %Y') }} {{ messages[-1].content }}")
    days = [datetime.now(UTC).date().isoformat()]
    run, _ = base_model.pinned(of(str(dated)))
    days += [datetime.now(UTC).date().isoformat()]
    assert run.model.date in days and f"run.model.date is {run.model.date}" in capsys.readouterr().err
    made = new_run.create(tmp_path / "run", run, dated)
    assert run_folder.existing_run(made.path, of(str(dated))) == made, "the next day is not another run"
    named = of(str(dated), date="2024-07-26")
    assert base_model.pinned(named)[0] == replace(named, optimizer=run.optimizer)
    with pytest.raises(Refusal, match=r"other settings \(model\)"):
        run_folder.existing_run(made.path, named)
    assert base_model.pinned(of(str(dated), template="off"))[0].model.date == ""


def test_the_base_that_came_with_a_run_is_its_base(folder: Path, tmp_path: Path) -> None:
    run = of(str(folder), training="qlora")
    made = new_run.create(tmp_path / "run", run, folder)
    assert base_model.base(made.model, run) == made.model
    engine = factory.hf(made.model, Config(run=run))
    assert isinstance(engine, HfEngine) and engine._model.is_quantized, (
        "the policy of a qlora run is quantized for everybody"
    )
    (made.model / "model.safetensors").unlink()
    with pytest.raises(CannotHere, match="leave and join again"):
        base_model.base(made.model, run)


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_quantized_sampling_is_for_runs_that_allow_it(folder: Path, kind: Any) -> None:
    peer = Peer(engine=EngineSettings(quantize=kind))
    with pytest.raises(
        WrongUsage, match=rf"does not allow sampling with {kind} weights .*set peer.engine.quantize to none"
    ):
        factory.hf(folder, Config(peer=peer))
    engine = factory.hf(folder, Config(peer=peer, run=Run(sampling=Sampling(quantized=True))))
    engine.load(Weights.of(weights.release_bytes(load_policy(folder)), 3))
    assert engine.sample(["12"], 2, [1])[0].lengths and engine.statistics()["version"] == 3
