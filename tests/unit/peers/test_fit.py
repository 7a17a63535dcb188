"""What fits: predictions against real models, the choice of a role, measurements that may fail, and what is
learned from them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Config

from peers import cli
from peers.build.model import factory
from peers.build.model.engine_opening import fitting_role
from peers.build.model.engine_worker import Fitted
from peers.build.run_folder import RunFolder
from peers.commands.fit import command as measure
from peers.commands.fit import probe, table
from peers.errors import CannotHere
from peers.fit import estimates, hardware
from peers.fit import fits as fit
from peers.fit.calibration import Corrections
from peers.fit.estimates import RunShape, Speed
from peers.fit.fits import Case
from peers.fit.hardware import Gpu, Machine
from peers.fit.model_shape import examine
from swarm.frames.run_types import Spec
from swarm.learn.models import tiny, tokenization
from swarm.net.libp2p.node import ThreadWork
from swarm.protocol import Role
from swarm.settings.config import Config
from swarm.settings.loading import load, run_dict
from swarm.types import Digest

FAMILIES = ("llama", "qwen3", "gemma3")
GB = 1 << 30
CPU = Machine(gpus=(), cores=2, ram=16 * GB, free=12 * GB)
SIZES = {
    "0.6B": (1024, 3072, 28, 16, True),
    "1.7B": (2048, 6144, 28, 16, True),
    "8B": (4096, 12288, 36, 32, False),
}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {family: tiny.make(folder / family, family, hidden=128) for family in FAMILIES}


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Configs of the real models, without anything else."""
    found = {}
    for name, (hidden, wide, layers, heads, tied) in SIZES.items():
        config = Qwen3Config(
            vocab_size=151936,
            hidden_size=hidden,
            intermediate_size=wide,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=8,
            head_dim=128,
            tie_word_embeddings=tied,
        )
        found[name] = tmp_path_factory.mktemp(name)
        config.save_pretrained(found[name])
    return found


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "swarm" / "fit.json"


examined = cache(examine)


@pytest.fixture(autouse=True)
def one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model is examined once in this file: its cache is found by a pass through all of its layers."""
    monkeypatch.setattr(fit, "examine", examined)


def settings(*words: str) -> Config:
    return load(None, words).config


def card(gigabytes: float, count: int = 1) -> Machine:
    size = int(gigabytes * GB)
    return Machine(gpus=(Gpu("H100", size, size),) * count, cores=8, ram=128 * GB, free=120 * GB)


# --- predictions against the real thing ---------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_an_anatomy_is_that_of_the_real_model(models: dict[str, Path], family: str) -> None:
    found = examined(models[family])
    model = AutoModelForCausalLM.from_pretrained(models[family])
    output = model(input_ids=torch.zeros(1, 5, dtype=torch.long), use_cache=True)
    cached = sum(layer.keys.numel() + layer.values.numel() for layer in output.past_key_values.layers)
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert found.cache == cached / 5
    assert (found.vocabulary, found.hidden, found.layers) == (output.logits.shape[-1], 128, 2)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("targets", ["all-linear", "q_proj,v_proj"])
def test_the_size_of_an_adapter_is_predicted_exactly(
    models: dict[str, Path], family: str, targets: str
) -> None:
    config = settings("run.model.training=lora", f"run.lora.targets={targets}", "run.lora.rank=3")
    found = examined(models[family], targets)
    assert estimates.trained(found, RunShape.of(config)) == factory.size(models[family], config.run)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_activations_are_predicted_within_three_fifths_of_what_autograd_keeps(
    models: dict[str, Path], family: str, dtype: torch.dtype
) -> None:
    found = examined(models[family])
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(models[family]), dtype=dtype)
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = model.base_model(
            input_ids=torch.zeros(2, 48, dtype=torch.long), use_cache=False
        ).last_hidden_state
    predicted = hidden[..., 0].numel() * found.spread * estimates.ACTIVATION_BYTES[dtype.itemsize]
    assert 1 / 1.6 < predicted / sum(kept.values()) < 1.6


# --- what fits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "role", "kind", "gigabytes", "fits"),
    [
        ("0.6B", "learner", "full", 24, True),
        ("0.6B", "learner", "full", 8, False),
        ("0.6B", "sampler", "bfloat16", 8, True),
        ("1.7B", "learner", "lora", 12, True),
        ("1.7B", "learner", "full", 24, False),
        ("8B", "learner", "qlora", 24, True),
        ("8B", "learner", "lora", 16, False),
        ("8B", "learner", "full", 79, False),
        ("8B", "sampler", "nf4", 12, True),
        ("8B", "sampler", "bfloat16", 12, False),
    ],
)
def test_well_known_pairs_of_models_and_cards(
    qwen3: dict[str, Path], size: str, role: str, kind: str, gigabytes: float, fits: bool
) -> None:
    config = settings("run.sampling.max_tokens=512", "peer.engine.tasks=2")
    found = fit.row(Case.of(qwen3[size], config, card(gigabytes)), role, kind)
    assert (found.fits != "no") is fits
    assert bool(found.why) is not fits


def test_a_learner_that_is_too_large_for_one_card_takes_all_of_them(qwen3: dict[str, Path]) -> None:
    one, four = (
        fit.row(Case.of(qwen3["1.7B"], settings(), card(24, count)), "learner", "full") for count in (1, 4)
    )
    assert (one.fits, one.gpus) == ("no", 1)
    assert four.fits != "no" and four.gpus == 4


def test_an_easy_fit_has_room_for_the_policy_of_audits(qwen3: dict[str, Path]) -> None:
    def needs(*override: str) -> estimates.Needs:
        return fit.row(Case.of(qwen3["1.7B"], settings(*override), card(80)), "learner", "lora").needs

    with_audits, without = needs(), needs("peer.audit.share=0")
    assert with_audits.least == without.least
    weights = with_audits.easy.computing - without.easy.computing
    assert 2.0 < weights / 1.7e9 < 2.6, "bytes of a weight in bfloat16, and what allocators hold beyond"
    assert needs("run.sampling.quantized=true").easy == without.easy, "such runs audit nobody"


def test_more_memory_never_fits_less(qwen3: dict[str, Path]) -> None:
    order = {"no": 0, "tight": 1, "yes": 2}
    cases = [
        Case.of(qwen3["1.7B"], settings("run.sampling.max_tokens=1024"), card(size))
        for size in (4, 8, 12, 16, 24, 48, 80)
    ]
    for column in zip(*(fit.rows(case) for case in cases), strict=True):
        ranks = [order[row.fits] for row in column]
        assert ranks == sorted(ranks), (column[0].role, column[0].kind)


def test_a_device_setting_decides_which_memory_counts(qwen3: dict[str, Path]) -> None:
    case = Case.of(qwen3["0.6B"], settings("peer.learner.device=cpu"), card(80))
    assert fit.row(case, "learner", "full").gpus == 0
    assert fit.row(case, "sampler", "bfloat16").gpus == 1


def test_memory_that_nobody_can_tell_is_no_reason_to_refuse(qwen3: dict[str, Path]) -> None:
    unknown = Machine(gpus=(), cores=8, ram=0, free=0)
    assert fit.row(Case.of(qwen3["1.7B"], settings(), unknown), "learner", "full").fits == "yes"


# --- `swarm join --as auto` ---------------------------------------------------------------------------------


def test_without_a_role_in_the_invite_a_learner_is_what_is_admitted_and_fits(models: dict[str, Path]) -> None:
    case = Case.of(models["qwen3"], settings(), CPU)
    assert fit.choose(case, None, [Role.LEARNER, Role.SAMPLER]).role is Role.LEARNER
    assert fit.choose(case, None, [Role.SAMPLER]).role is Role.SAMPLER


def test_a_learners_invite_makes_a_sampler_where_learning_does_not_fit(qwen3: dict[str, Path]) -> None:
    choice = fit.choose(
        Case.of(qwen3["0.6B"], settings(), card(8)), Role.LEARNER, [Role.LEARNER, Role.SAMPLER]
    )
    assert choice.role is Role.SAMPLER
    assert "learner (full) needs" in choice.reason and "GB of the GPU" in choice.reason


def test_weights_are_quantized_only_where_the_run_allows_it_and_nothing_else_fits(
    qwen3: dict[str, Path],
) -> None:
    words = ["run.model.training=lora", "run.sampling.max_tokens=64", "peer.engine.tasks=1"]
    allowed = settings(*words, "run.sampling.quantized=true")
    assert (
        fit.choose(Case.of(qwen3["8B"], allowed, card(24)), Role.SAMPLER, [Role.SAMPLER]).engine.quantize
        == "none"
    )
    assert (
        fit.choose(Case.of(qwen3["8B"], allowed, card(14)), Role.SAMPLER, [Role.SAMPLER]).engine.quantize
        == "int8"
    )
    assert (
        fit.choose(Case.of(qwen3["8B"], allowed, card(10)), Role.SAMPLER, [Role.SAMPLER]).engine.quantize
        == "nf4"
    )
    with pytest.raises(
        CannotHere, match=r"too small for this run: sampler \(bfloat16\) needs 1\d\.\d of 10\.0 GB of the GPU"
    ):
        fit.choose(Case.of(qwen3["8B"], settings(*words), card(10)), Role.SAMPLER, [Role.SAMPLER])


def test_a_qlora_run_is_sampled_from_its_4_bit_base(qwen3: dict[str, Path]) -> None:
    case = Case.of(qwen3["8B"], settings("run.model.training=qlora", "peer.engine.tasks=1"), card(10))
    assert [row.kind for row in fit.rows(case) if row.role == "sampler"] == ["nf4"]
    assert fit.choose(case, Role.SAMPLER, [Role.SAMPLER]).reason.startswith(
        "sampler (nf4) fits this machine: it needs about"
    )


def test_an_auditor_needs_the_model_alone_on_the_device_of_a_learner(qwen3: dict[str, Path]) -> None:
    case = Case.of(qwen3["1.7B"], settings("peer.engine.device=cpu"), card(8))
    assert fit.choose(case, Role.AUDITOR, [Role.AUDITOR]).reason.startswith("auditor (bfloat16) fits this")
    assert fit.row(case, "learner", "full").fits == "no"


def test_a_server_elsewhere_needs_no_memory_here(qwen3: dict[str, Path]) -> None:
    config = settings("peer.engine.name=vllm-server")
    small = Machine(gpus=(), cores=2, ram=2 * GB, free=GB)
    assert fit.choose(Case.of(qwen3["8B"], config, small), Role.SAMPLER, [Role.SAMPLER]).role is Role.SAMPLER


def test_a_join_takes_the_role_and_the_precision_that_fit(
    qwen3: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [
        "run.model.training=lora",
        "run.sampling.quantized=true",
        "run.sampling.max_tokens=64",
        "peer.engine.tasks=1",
    ]
    config = settings(*words)
    (tmp_path / "model").symlink_to(qwen3["8B"])
    spec = Spec(protocol=1, run=run_dict(config.run), owner="", files={}, genesis=Digest(""), release_size=1)
    run = RunFolder(tmp_path, spec, Digest("ab" * 32))
    monkeypatch.setattr(hardware, "machine", lambda: card(10))
    work = ThreadWork()
    fitted = fitting_role(work, None, run.model, config, Role.SAMPLER, [Role.SAMPLER])
    role, mine = asyncio.run(fitted)
    work.close()
    assert (role, mine.peer.engine.quantize) == (Role.SAMPLER, "nf4")
    assert "sampler (nf4) fits this machine" in capsys.readouterr().err


# --- measurements -------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_what_was_measured_corrects_the_next_prediction(models: dict[str, Path], state: Path) -> None:
    config = settings("run.sampling.max_tokens=16", "run.batch.groups=2", f"run.model.name={models['qwen3']}")
    case = Case.of(models["qwen3"], config, hardware.machine())
    guess = lambda _: Speed(1e15, 1e15, 1e-9)  # noqa: E731 (a machine that does not exist)
    before = fit.row(case, "learner", "lora", guess)
    done = measure.measure(case, models["qwen3"], before, guess)
    assert done.measured is not None and before.predicted is not None
    after = fit.row(Case.of(models["qwen3"], config, hardware.machine()), "learner", "lora", guess)
    assert after.predicted is not None and after.predicted.step > 5 * before.predicted.step
    assert state.exists()


@pytest.mark.nightly
def test_a_measurement_that_runs_out_of_memory_costs_a_line(qwen3: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((qwen3["1.7B"] / "config.json").read_text())
    outcome = probe.run(probe.Job(what="weights", folder=str(tmp_path), ram=2 * GB), measure.START)
    assert outcome.failed == "memory"


def test_a_wrong_guess_of_memory_lowers_the_next_one(
    models: dict[str, Path], state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case.of(models["llama"], settings(), CPU)
    guess = lambda _: Speed(1e12, 1e11, 1e-6)  # noqa: E731
    row = fit.row(case, "sampler", "float32", guess)
    monkeypatch.setattr(
        probe, "run", lambda job, timeout: probe.ProbeResult(failed="memory", detail="cannot allocate")
    )
    failed = measure.measure(case, models["llama"], row, guess)
    assert failed.fits == "no" and "more memory than there is" in failed.why
    again = fit.row(Case.of(models["llama"], settings(), CPU), "sampler", "float32")
    assert again.needs.easy.model > 10 * row.needs.easy.model


@pytest.mark.parametrize(
    ("padded", "shown"),
    [
        ("", "each prompt once"),
        (
            "it takes no mask of groups (TypeError)",
            "each completion with a copy of its prompt: it takes no mask of groups (TypeError)",
        ),
    ],
)
def test_a_measured_learner_says_which_way_its_groups_go_through_the_model(
    models: dict[str, Path], state: Path, monkeypatch: pytest.MonkeyPatch, padded: str, shown: str
) -> None:
    case = Case.of(models["llama"], settings(), CPU)
    guess = lambda _: Speed(1e12, 1e11, 1e-6)  # noqa: E731
    outcome = probe.ProbeResult(seconds=1.0, tokens=100, peak=GB, padded=padded)
    monkeypatch.setattr(probe, "run", lambda job, timeout: outcome)
    row = measure.measure(case, models["llama"], fit.row(case, "learner", "full", guess), guess)
    assert table.table(case, [row])[-1].endswith(shown)
    (data,) = table.as_data(case, "llama", [row])["rows"]  # type: ignore[misc]
    assert data["padded"] == padded


def test_a_measured_prompt_fits_into_the_models_positions_beside_its_completion(
    models: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(models["llama"], tmp_path, dirs_exist_ok=True)
    shape = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(shape | {"max_position_embeddings": 64}))
    config = settings("run.sampling.max_tokens=16")
    for folder, least, most in ((models["llama"], 200, 300), (tmp_path, 30, 64 - 16)):
        prompt = probe._prompt(probe.Job(what="sampler", folder=str(folder), config=config, prompt=256))
        (ids,) = tokenization.load(folder).encode([prompt])
        assert least < len(ids) <= most


@pytest.mark.nightly
def test_a_measurement_that_hangs_or_dies_is_over(models: dict[str, Path]) -> None:
    job = probe.Job(what="sampler", folder=str(models["llama"]))
    assert probe.run(job, 0.05).failed == "time"
    broken = probe.run(probe.Job(what="sampler", folder="/nowhere"), measure.START)
    assert broken.failed == "other" and "/nowhere" in broken.detail


def test_a_memory_factor_rises_at_once_and_falls_by_halves(tmp_path: Path) -> None:
    corrections = Corrections("a card", tmp_path / "fit.json")
    corrections.learn("learner full 1e9", 1.2, 2.0)
    corrections.learn("learner full 1e9", 2.0, 8.0)
    assert Corrections("a card", tmp_path / "fit.json").of("learner full 1e9").memory == 2.0
    assert corrections.of("learner full 1e9").time == 4.0
    assert corrections.learn("learner full 1e9", 1.0, None).memory == 1.5
    assert Corrections("another card", tmp_path / "fit.json").of("learner full 1e9").memory == 1.0
    for torn in (b"torn {", b'{"\xff": {}}'):
        (tmp_path / "fit.json").write_bytes(torn)
        assert Corrections("a card", tmp_path / "fit.json").count() == 0


# --- the command --------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device of which the speed is known."""
    monkeypatch.setattr(
        probe, "run", lambda job, timeout: probe.ProbeResult(flops=1e12, bandwidth=1e11, launch=1e-6)
    )


@pytest.mark.usefixtures("quick")
def test_the_table_has_a_line_for_each_role_and_kind(
    models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["fit", str(models["qwen3"]), "--no-measure"]) == 0
    said = capsys.readouterr().out
    assert "max_tokens" not in said and "512 tokens" in said
    assert (
        len([line for line in said.splitlines() if line.startswith(("sampler", "learner", "evaluator"))])
        == 12
    )
    assert "learner    full *" in said and "tok/s" in said


@pytest.mark.usefixtures("quick")
def test_a_configs_own_settings_are_what_is_asked(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my.toml"
    path.write_text(
        f'[run.model]\nname = "{models["llama"]}"\ntraining = "qlora"\n[run.sampling]\nmax_tokens = 77\n'
    )
    assert cli.main(["fit", str(path), "--no-measure", "--json", "--set", "run.batch.groups=5"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["ask"]["tokens"], said["ask"]["groups"], said["ask"]["training"]) == (77, 5, "qlora")
    assert {row["kind"] for row in said["rows"] if row["role"] == "sampler"} == {"nf4"}
    assert all(row["least_computing"] <= row["easy_computing"] for row in said["rows"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "a round needs 7.9 min on a line of 20 Mbit/s (1.19 GB in float16)"),
        (
            ("run.averaging.deadline=180",),
            "and may take 3 min (run.averaging.deadline): use run.model.training = lora or"
            " run.averaging.compression = int8 or run.averaging.mode = sites or a faster line",
        ),
        (
            ("run.averaging.mode=sites",),
            "a round needs 8.9 s on a line of 20 Mbit/s (0.0222 GB in a contribution)",
        ),
        (("run.model.training=lora", "run.averaging.compression=int8"), "(0.0107 GB in int8)"),
        (("peer.limits.upload=5",), "needs 32 min on a line of 5 Mbit/s (1.19 GB in float16), and may take"),
    ],
)
def test_what_a_round_asks_of_a_line_is_said(
    qwen3: dict[str, Path], capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    case = Case.of(qwen3["0.6B"], settings(*words), CPU)
    assert said in list(table.hints(case, fit.rows(case), 0))[-1]


@pytest.mark.usefixtures("quick")
def test_where_nothing_fits_the_code_is_3_and_something_would_help(
    qwen3: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hardware, "machine", lambda: Machine(gpus=(), cores=1, ram=2 * GB, free=GB))
    assert cli.main(["fit", str(qwen3["8B"]), "--no-measure"]) == 3
    said = capsys.readouterr().err
    assert "nothing fits: even" in said and "a smaller model" in said and "run.model.training=lora" in said


def test_every_setting_that_is_named_where_nothing_fits_takes_memory(qwen3: dict[str, Path]) -> None:
    def small(*words: str) -> Case:
        return Case.of(qwen3["8B"], settings(*words), Machine(gpus=(), cores=1, ram=2 * GB, free=GB))

    def least(case: Case) -> float:
        return min(row.needs.least.computing + row.needs.least.keeping for row in fit.rows(case))

    told = "\n".join(table.hints(small(), fit.rows(small()), 0))
    named = re.findall(r"\((run\.[a-z_.]+)\)", told)
    assert named and all(least(small(f"{name}=1")) < least(small()) for name in named)


@pytest.mark.usefixtures("quick")
def test_a_model_of_damaged_weights_does_not_fit(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = shutil.copytree(models["qwen3"], tmp_path / "here")
    (here / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert cli.main(["fit", str(here), "--no-measure"]) == 3
    assert "model.safetensors cannot be read" in capsys.readouterr().err


def test_a_model_that_is_nowhere_is_said_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert cli.main(["fit", "some-org/no-such-model", "--no-measure"]) in (2, 3)
    assert "some-org/no-such-model" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_every_line_of_a_small_models_table_is_measured(
    models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = models["qwen3"].parent / "bare"
    folder.mkdir(exist_ok=True)
    for file in models["qwen3"].iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    words = ["--set", "run.sampling.max_tokens=16", "--set", "run.batch.groups=2"]
    assert cli.main(["fit", str(folder), "--json", *words]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == 12
    for row in rows:
        assert row["measured"] is not None, row
        assert row["note"] == "random weights"
        assert row["padded"] == ("" if row["role"] == "learner" else None)


# --- the machine --------------------------------------------------------------------------------------------


def test_a_containers_limit_counts_and_its_file_cache_does_not(tmp_path: Path) -> None:
    meminfo, groups = tmp_path / "meminfo", tmp_path / "cgroup"
    meminfo.write_text("MemTotal: 67108864 kB\nMemFree: 1 kB\nMemAvailable: 33554432 kB\n")
    groups.mkdir()
    assert hardware.memory(meminfo, groups) == (64 * GB, 32 * GB)
    (groups / "memory.max").write_text("max\n")
    assert hardware.memory(meminfo, groups) == (64 * GB, 32 * GB)
    (groups / "memory.max").write_text(f"{8 * GB}\n")
    (groups / "memory.current").write_text(f"{5 * GB}\n")
    (groups / "memory.stat").write_text(f"anon 1\ninactive_file {2 * GB}\n")
    assert hardware.memory(meminfo, groups) == (8 * GB, 5 * GB)
    assert hardware.memory(tmp_path / "missing", groups) == (0, 0)


SMI = """#!/bin/sh
echo "0, GPU-aaa, NVIDIA H100 80GB HBM3, 81559, 80000"
echo "1, GPU-bbb, NVIDIA H100 80GB HBM3, 81559, 1000"
echo "2, GPU-ccc, NVIDIA GeForce RTX 4090, 24564, 24000"
"""


@pytest.mark.parametrize(
    ("visible", "said"),
    [
        (None, "2 x H100 80 GB + RTX 4090 24 GB"),
        ("2", "RTX 4090 24 GB"),
        ("GPU-bbb,0", "2 x H100 80 GB"),
        ("0,9,1", "H100 80 GB"),
        ("", "cores"),
    ],
)
def test_gpus_are_those_that_a_process_may_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, said: str
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = hardware.machine()
    assert said in str(found)
    assert found.gpus or visible == ""


def test_a_description_is_short_enough_for_every_heartbeat() -> None:
    many = Machine(gpus=(Gpu("RTX PRO 6000 Blackwell", 96 * GB, 0),) * 8, cores=256, ram=2048 * GB, free=0)
    assert str(many) == "8 x RTX PRO 6000 Blackwell 96 GB, 2048 GB RAM"
    assert len(str(many)) < 80 and "RAM" in hardware.describe()


def test_an_engine_process_answers_with_the_fields_of_a_choice() -> None:
    """A joiner reads the choice of its own process, or that of its engine's."""
    assert Fitted.__struct_fields__ == fit.RoleChoice._fields
