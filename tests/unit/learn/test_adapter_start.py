"""A run that trains on from an adapter that somebody has: a folder that peft wrote."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_batches import batch, gradient, model
from msgspec.structs import replace
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from peers.build import new_run, run_sources
from peers.build.joining import spec_transfer
from peers.build.model import base_model, factory
from peers.build.run_folder import START, RunFolder
from peers.commands.run_check import check
from peers.errors import Refusal, WrongUsage
from swarm.learn.files import peft_folder
from swarm.learn.models import adapters
from swarm.learn.models.model import load_policy
from swarm.learn.models.pretrained import ModelError
from swarm.settings.config import Config, Lora, Model, ObjectiveSettings, Optimizer, Run
from swarm.settings.layers import ConfigError
from swarm.settings.loading import from_run_dict, load, run_dict
from swarm.storage.weights import Weights

IDS = torch.arange(5, 25)[None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model(tmp_path_factory.mktemp("models"), "qwen3")


@pytest.fixture(scope="module")
def adapter(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As peft trains and writes it, with values that bfloat16 has."""
    settings = LoraConfig(r=4, lora_alpha=12, target_modules=r".*\.(q_proj|v_proj)", lora_dropout=0.1)
    made = get_peft_model(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), settings)
    noise = torch.Generator().manual_seed(1)
    for parameter in made.parameters():
        if parameter.requires_grad:
            parameter.data = (0.3 * torch.randn(parameter.shape, generator=noise)).bfloat16().float()
    target = tmp_path_factory.mktemp("adapters") / "theirs"
    made.save_pretrained(target)
    return target


def of(folder: Path, adapter: Path, lora: Lora | None = None, **options: Any) -> Run:
    return Run(
        model=Model(name=str(folder), training="lora", adapter=str(adapter)),
        lora=lora or Lora(),
        objective=ObjectiveSettings(options=options),
        optimizer=Optimizer(lr=3e-3, warmup=1),
    )


def created(run: Run, path: Path) -> RunFolder:
    return new_run.create(path, *base_model.pinned(run))


def theirs(folder: Path, adapter: Path) -> torch.Tensor:
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits: torch.Tensor = PeftModel.from_pretrained(plain, adapter).eval()(input_ids=IDS).logits
    return logits


def test_version_0_is_the_adapter_as_peft_loads_it(
    folder: Path, adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = created(of(folder, adapter), tmp_path / "run")
    lora = made.settings.lora
    assert (lora.rank, lora.alpha, lora.targets) == (4, 12.0, "q_proj,v_proj")
    assert "rank 4, alpha 12, on q_proj,v_proj" in capsys.readouterr().err
    genesis = made.genesis() or b""
    with torch.no_grad():
        ours = load_policy(folder, data=genesis, lora=lora)(input_ids=IDS).logits
        merged = adapters.merged(load_policy(folder), lora, genesis)(input_ids=IDS).logits
        below = load_policy(folder)(input_ids=IDS).logits
    wanted = theirs(folder, adapter)
    torch.testing.assert_close(ours, wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(merged, wanted, atol=1e-4, rtol=1e-4)
    assert (below - wanted).abs().max() > 0.1
    assert START not in made.spec.files  # joiners have it as a release


def test_settings_of_the_runs_own_that_are_others_are_refused_with_both(folder: Path, adapter: Path) -> None:
    for lora, says in (
        (Lora(rank=8), "run.lora.rank is 8, and the adapter .* has 4"),
        (Lora(alpha=5.0), "run.lora.alpha is 5.0, and the adapter .* has 12.0"),
        (Lora(targets="k_proj"), "run.lora.targets is 'k_proj', and the adapter .* has 'q_proj,v_proj'"),
    ):
        with pytest.raises(WrongUsage, match=says):
            base_model.pinned(of(folder, adapter, lora))
    same = base_model.pinned(of(folder, adapter, Lora(rank=4, alpha=12.0, targets="v_proj,q_proj")))[0]
    assert same.lora.targets == "q_proj,v_proj"


def test_a_run_goes_on_with_the_settings_that_it_was_pinned_to(
    folder: Path, adapter: Path, tmp_path: Path
) -> None:
    asked = of(folder, adapter)
    begun = created(asked, tmp_path / "run")
    assert base_model.pinned_as(asked, begun.settings) == begun.settings
    assert from_run_dict(run_dict(begun.settings)) == begun.settings
    other = replace(asked, lora=Lora(rank=8))
    assert base_model.pinned_as(other, begun.settings) != begun.settings


def test_an_adapter_that_changed_since_the_run_began_is_refused(
    folder: Path, adapter: Path, tmp_path: Path
) -> None:
    mine = shutil.copytree(adapter, tmp_path / "mine")
    asked = of(folder, mine)
    begun = created(asked, tmp_path / "run")
    run_sources.check(begun, asked)
    file = mine / peft_folder.VALUES
    save_file({name: value + 1 for name, value in load_file(file).items()}, file)
    with pytest.raises(Refusal, match=r"adapter_model.safetensors is not what this run began with"):
        run_sources.check(begun, asked)


def edited(**settings: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / peft_folder.CONFIG
        path.write_text(json.dumps(json.loads(path.read_text()) | settings))

    return edit


def of_values(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / peft_folder.VALUES
        save_file(change(load_file(path)), path)

    return edit


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (edited(use_dora=True), "use_dora = True: only plain LoRA"),
        (edited(use_rslora=True), "use_rslora = True"),
        (edited(modules_to_save=["lm_head"]), "modules_to_save"),
        (edited(rank_pattern={"q_proj": 8}), "rank_pattern"),
        (edited(init_lora_weights="pissa_niter_4"), "init_lora_weights = 'pissa_niter_4'"),
        (edited(of_a_later_peft={"a": 1}), "of_a_later_peft"),
        (edited(peft_type="IA3"), "not of a LoRA adapter"),
        (edited(r="many"), "is not LoRA's"),
        (lambda it: (it / peft_folder.CONFIG).write_text("{"), "cannot be read .*copy the adapter again"),
        (lambda it: (it / peft_folder.CONFIG).unlink(), "has no adapter_config.json"),
        (lambda it: (it / peft_folder.VALUES).unlink(), "cannot be read"),
        (of_values(lambda it: it | {"lm_head.weight": torch.ones(2)}), "holds lm_head.weight"),
        (of_values(lambda it: dict([*it.items()][1:])), r"is not of this model: .* is not there in it"),
        (of_values(lambda it: {k: v[:1].contiguous() for k, v in it.items()}), "is not of this model"),
        (of_values(lambda it: {k: v / 0 for k, v in it.items()}), "not finite"),
    ],
)
def test_what_is_no_plain_adapter_of_the_model_is_refused_with_a_reason(
    folder: Path, adapter: Path, tmp_path: Path, damage: Callable[[Path], None], says: str
) -> None:
    mine = shutil.copytree(adapter, tmp_path / "mine")
    damage(mine)
    with pytest.raises(ModelError, match=says):
        created(of(folder, mine), tmp_path / "run")


def test_an_adapter_without_a_run_that_trains_one_or_a_folder_is_refused_at_once(
    folder: Path, adapter: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"run.model.training = 'full': all weights are trained"):
        load(None, [f"run.model.adapter={adapter}"])
    settings = [f"run.model.name={folder}", "run.model.training=lora", "run.optimizer.lr=1e-4"]
    check(load(None, [*settings, f"run.model.adapter={adapter}"]))
    for name, says in ((folder, "has no adapter_config.json"), (tmp_path / "none", "there is no folder")):
        with pytest.raises(ConfigError, match=says):
            check(load(None, [*settings, f"run.model.adapter={name}"]))


def test_a_kl_term_is_against_the_model_with_that_adapter(
    folder: Path, adapter: Path, tmp_path: Path
) -> None:
    made = created(of(folder, adapter, kl=0.1, kl_against="ref"), tmp_path / "run")
    assert START in made.spec.files
    spec_transfer._check(made.spec)  # joiners take it
    one, _ = factory.learner(made.model, Config(run=made.settings))
    one.load(Weights.of(made.genesis() or b"", 0), fresh=True)
    some: Any = batch(one.policy, 2)  # type: ignore[attr-defined]
    flat = (*some[:2], [(1.0,) * len(each) for each in some[2]])
    assert gradient(one, flat).vector.count_nonzero() == 0  # type: ignore[arg-type]
    before = one.policy.reference([some[1][0]], [[5, 6, 7]], 1.0)  # type: ignore[attr-defined]
    one.step(gradient(one, some).vector)  # type: ignore[arg-type]
    digest = one.weights().digest
    assert gradient(one, flat).vector.count_nonzero() > 0  # type: ignore[arg-type]
    assert torch.equal(one.policy.reference([some[1][0]], [[5, 6, 7]], 1.0), before)  # type: ignore[attr-defined]
    assert not torch.equal(one.policy.logprobs([some[1][0]], [[5, 6, 7]], 1.0).logp, before)  # type: ignore[attr-defined]
    assert one.weights().digest == digest
