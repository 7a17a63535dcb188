"""The engine over vLLM in its process: over transformers in vLLM's place (fake_vllm.py), and over the real
one on the CPU (`make test-vllm`)."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import fake_vllm
import numpy as np
import pytest
import torch
from engine_workers import FAKE_VLLM, fork_workers, run_programs
from nouns import seeds
from rows import nightly
from undecided_policy import rows
from vllm_policies import LORA, PROMPTS, SAME, TEMPERATURE, Versions, hosted, recipe

from peers.build.model.engine_process import EngineProcess
from swarm.draws.heads import unpack
from swarm.learn import replay
from swarm.learn.files import weights
from swarm.learn.models import model, tiny, tokenization
from swarm.sample import vllm, vllm_noise
from swarm.sample.base import EngineError, NoRoom
from swarm.sample.vllm import VllmEngine
from swarm.storage.weights import Weights
from swarm.types import Noise

pytestmark = pytest.mark.timeout(900)

Served = tuple[EngineProcess, Versions]
FAKE, REAL = "fake", pytest.param("real", marks=pytest.mark.vllm)
REAL_FAMILIES = [pytest.param(f"real {family}", marks=pytest.mark.vllm) for family in tiny.FAMILIES]


def start_with(patch: pytest.MonkeyPatch, kind: str, code: str = "pass") -> None:
    """Engines' processes have this kind of vLLM from now on, and run this code first."""
    if kind.startswith("real"):
        run_programs(patch, code)
    else:
        fork_workers(patch, f"{FAKE_VLLM}; {code}")


@pytest.fixture(scope="module", params=[*nightly(["fake llama"]), *REAL_FAMILIES])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    family = kind.split()[1]
    return tiny.make(tmp_path_factory.mktemp("tiny") / family, family)


@pytest.fixture(scope="module")
def served(folder: Path, kind: str) -> Iterator[Served]:
    """One process for many tests; each leaves it with the policy that the Versions are at."""
    with pytest.MonkeyPatch.context() as patch:
        start_with(patch, kind)
        engine, versions = hosted(folder), Versions(folder)
        engine.load(versions.move())
    yield engine, versions
    engine.close()


def starts(engine: EngineProcess) -> float:
    return engine.statistics()["starts"]


def test_log_probabilities_are_the_learners(served: Served) -> None:
    engine, versions = served
    assert versions.apart(engine) < SAME


def test_weights_are_replaced_in_place(served: Served) -> None:
    engine, versions = served
    before, process = starts(engine), engine.pid
    for _ in range(3):
        engine.load(versions.move())
        assert versions.apart(engine) < SAME
    assert (starts(engine), engine.pid) == (before, process)
    assert engine.statistics()["version"] == versions.version


def test_learners_replay_what_was_drawn_and_another_seed_shows(
    served: Served,
) -> None:
    engine, versions = served
    drawn = engine.sample(PROMPTS, 4, [(1 << 64) - 1, 5, 1 << 63])
    for prompt, seed, group in zip(PROMPTS, (-1, 5, 1 << 63), drawn, strict=True):
        assert group.noise == Noise.GUMBEL and group.heads is not None
        told = prompt, rows(group), TEMPERATURE
        head = unpack(group.heads, len(group.tokens))
        found = replay.replay(versions.learned, *told, seed, head)
        assert found.margins.max() < SAME and found.apart is not None and found.apart.max() < 2 * SAME
        assert np.abs(found.logprobs - group.logprobs).max() < SAME
        assert replay.replay(versions.learned, *told, seed + 1).margins.mean() > 1.0
        assert len({tuple(row) for row in rows(group)}) == 4


def test_groups_of_one_prompt_with_neighbouring_seeds_have_nothing_in_common(
    served: Served,
) -> None:
    engine, _ = served
    drawn = [tuple(row) for group in engine.sample(["1", "1", "1"], 4, [5, 6, 7]) for row in rows(group)]
    assert len(set(drawn)) == 12


def test_the_end_token_counts_and_nothing_follows_it(served: Served, folder: Path) -> None:
    engine, _ = served
    ends = set(tokenization.load(folder).ends)
    sampled = [row for group in engine.sample(PROMPTS, 64, seeds(3, PROMPTS)) for row in rows(group)]
    for row in sampled:
        assert 1 <= len(row) <= 12 and not ends & set(row[:-1])
        assert len(row) == 12 or row[-1] in ends
    assert {row[-1] for row in sampled} & ends


def test_weights_of_another_model_change_nothing(served: Served, tmp_path: Path) -> None:
    engine, versions = served
    other = model.load_policy(tiny.make(tmp_path / "wider", "llama", hidden=128))
    with pytest.raises(ValueError, match="of another model"):
        engine.load(Weights.of(weights.release_bytes(other), 99))
    assert engine.statistics()["version"] == versions.version and versions.apart(engine) < SAME


# --- with one family: these wait for vLLM to start again ----------------------------------------------------


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("once") / "qwen3", "qwen3")


@pytest.fixture(params=[*nightly([FAKE]), REAL])
def used(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kind of vLLM of the engines that a test makes."""
    start_with(monkeypatch, request.param)
    return request.param


@pytest.mark.parametrize(
    ("stays", "code"),
    [
        (FAKE, "fake_vllm.LLM.stale = True"),
        # vLLM itself keeps the first weights of a tied head on a CPU: here nothing puts that right.
        pytest.param(
            "real",
            "from swarm.sample import vllm_worker; vllm_worker.pack = lambda worker: None",
            marks=pytest.mark.vllm,
        ),
    ],
)
def test_stale_weights_after_a_reload_cost_a_restart(
    tied: Path, monkeypatch: pytest.MonkeyPatch, stays: str, code: str
) -> None:
    start_with(monkeypatch, stays, code)
    engine, versions = hosted(tied), Versions(tied)
    with closing(engine):
        for start in (1, 2):
            engine.load(versions.move())
            assert starts(engine) == start and versions.apart(engine) < SAME


def test_more_prompts_than_vllm_reads_in_a_step_are_sampled(tied: Path, used: str) -> None:
    prompts = [f"{i}" + "0123456789" * 12 for i in range(64)]
    with closing(hosted(tied, tasks=64)) as engine:
        engine.load(Versions(tied).move())
        assert [len(group.lengths) for group in engine.sample(prompts, 4, seeds(7, prompts))] == [4] * 64


def test_a_vllm_that_draws_otherwise_than_asked_is_not_used(
    tied: Path, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here each completion of a group has the noise of the first."""
    clones = (
        "from swarm.sample import vllm_noise; draw_of = vllm_noise.draw_of;"
        " vllm_noise.draw_of = lambda said, number: draw_of(said, number and 0)"
    )
    start_with(monkeypatch, used, clones)
    with closing(hosted(tied)) as engine:
        with pytest.raises(EngineError, match=r"could not be replayed: set peer\.engine\.name to hf"):
            engine.load(Versions(tied).move())


def test_nothing_is_sampled_before_a_release(tied: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no policy has been loaded"):
        VllmEngine(recipe(tied), tmp_path).sample(PROMPTS, 4, seeds(1, PROMPTS))


@pytest.fixture
def loaded(tied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., VllmEngine]:
    """An engine in this process, with such settings."""
    for name, module in fake_vllm.modules().items():
        monkeypatch.setitem(sys.modules, name, module)

    def load(**settings: int) -> VllmEngine:
        engine = VllmEngine(recipe(tied, **settings), tmp_path)
        engine.load(Versions(tied).move())
        return engine

    return load


@pytest.mark.parametrize(("tasks", "sequences"), [(8, 32), (256, 1024), (2048, 1024)])
def test_vllm_is_asked_for_no_more_completions_at_once_than_it_starts_with(
    loaded: Callable[..., VllmEngine], tasks: int, sequences: int
) -> None:
    loaded(tasks=tasks)
    assert fake_vllm.LLM.asked["max_num_seqs"] == sequences


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (1024, r"raise peer\.engine\.length, to 1024 at most \(and peer\.engine\.memory"),
        (256, r"the model's own limit: the run needs shorter"),
        (128, r"raise peer\.engine\.length \(and peer\.engine\.memory"),
    ],
)
def test_a_prompt_that_does_not_fit_is_told_with_what_would_help(
    loaded: Callable[..., VllmEngine], own: int, said: str
) -> None:
    engine = loaded()
    engine._llm._own = own
    with pytest.raises(NoRoom, match=rf"tokens and 12 .* do not fit into 256.*{said}"):
        engine.sample(["1", "0123456789" * 30], 4, [1, 2])


@pytest.mark.vllm
def test_both_of_vllms_runners_load_the_processor_and_draw_the_same() -> None:
    """The second one asks for Triton, and runs on no CPU: here its calls are made in its place."""
    from types import SimpleNamespace

    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError
    from vllm.v1.sample import logits_processor as first
    from vllm.v1.worker.gpu.sample import logits_processor as second

    cpu, names = torch.device("cpu"), (vllm.PROCESSOR,)
    asked = [
        SamplingParams(temperature=0.0, seed=g, extra_args=vllm_noise.argument(7, 4, 0.8)) for g in (2, 0)
    ]
    [kind] = first.cached_load_custom_logitsprocs(names)
    processor = kind(None, cpu, False)
    swap = (0, 1, first.MoveDirectionality.SWAP)
    added = [(k, each, None, [3] * k) for k, each in enumerate(asked)]
    processor.update_state(first.BatchUpdate(2, [], added, [swap]))
    states = SimpleNamespace(
        device=cpu, max_num_reqs=4, vocab_size=50, prompt_len=SimpleNamespace(np=np.array([0, 9, 0, 6]))
    )
    [kind] = second.loader._cached_load_v2_logitsprocs(names)
    other = kind(None, states)
    for slot, each in zip((3, 1), asked, strict=True):
        assert other.add_request(slot, each)
    other.apply_staged_writes()
    slots = torch.tensor([1, 3])
    context = second.LogitsContext(slots, slots, slots.numpy(), None, None, torch.tensor([9, 5]), None)
    logits = torch.randn(2, 50)
    assert torch.equal(processor.apply(logits.clone()), other.apply(logits.clone(), context))
    with pytest.raises(VLLMValidationError, match=vllm_noise.ARGUMENT):
        second.build_custom_logits_processors_params_validator(names)(
            SamplingParams(extra_args={vllm_noise.ARGUMENT: [7, 4, 0.8]})
        )


def test_adapters_are_replaced_in_place(tied: Path, used: str) -> None:
    versions = Versions(tied, LORA)
    with closing(hosted(tied, LORA)) as engine:
        for _ in range(4):
            engine.load(versions.move())
            assert versions.apart(engine) < SAME
        assert starts(engine) == 1
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="ended its process with signal SIGKILL"):
            engine.greedy(PROMPTS)
        assert versions.apart(engine) < SAME
