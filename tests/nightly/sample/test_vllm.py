"""The engine over vLLM against the real one, on the CPU: `make test-vllm`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from nouns import seeds
from undecided_policy import rows
from vllm_policies import LORA, PROMPTS, SAME, TEMPERATURE, Versions, recipe

from swarm.draws.heads import unpack
from swarm.learn import replay
from swarm.learn.files import weights
from swarm.learn.models import model, tiny, tokenization
from swarm.sample import vllm, vllm_noise, vllm_process
from swarm.sample.base import EngineError
from swarm.sample.hf import HfEngine
from swarm.sample.vllm import VllmEngine
from swarm.storage.weights import Weights
from swarm.types import Noise

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
torch.set_num_threads(1)


@pytest.fixture(scope="module", params=["llama", "qwen3", "gemma3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("tiny") / request.param, request.param)


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[tuple[VllmEngine, Versions]]:
    """One process for many tests; each leaves it with the policy that the Versions are at."""
    engine, versions = VllmEngine(recipe(folder)), Versions(folder)
    engine.load(versions.move())
    yield engine, versions
    engine.close()


def starts(engine: VllmEngine) -> float:
    return engine.statistics()["starts"]


def pid(engine: VllmEngine) -> int:
    assert engine._child is not None
    return engine._child.pid


def test_log_probabilities_are_the_learners(served: tuple[VllmEngine, Versions]) -> None:
    engine, versions = served
    assert versions.apart(engine) < SAME


def test_weights_are_replaced_in_place(served: tuple[VllmEngine, Versions]) -> None:
    engine, versions = served
    before, process = starts(engine), pid(engine)
    for _ in range(3):
        engine.load(versions.move())
        assert versions.apart(engine) < SAME
    assert (starts(engine), pid(engine)) == (before, process)
    assert engine.statistics()["version"] == versions.version


def test_learners_replay_what_was_drawn_and_another_seed_shows(served: tuple[VllmEngine, Versions]) -> None:
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


def test_a_group_is_replayed_alone_from_its_seed(served: tuple[VllmEngine, Versions]) -> None:
    engine, _ = served
    together = engine.sample(PROMPTS, 4, seeds(100, PROMPTS))
    for i, prompt in enumerate(PROMPTS):
        alone = engine.sample([prompt], 4, [100 + i])[0]
        assert np.array_equal(alone.tokens, together[i].tokens) and alone.texts == together[i].texts
        np.testing.assert_allclose(alone.logprobs, together[i].logprobs, atol=1e-4)
    assert not np.array_equal(
        engine.sample(PROMPTS[:1], 4, seeds(101, PROMPTS[:1]))[0].tokens, together[0].tokens
    )


def test_groups_of_one_prompt_with_neighbouring_seeds_have_nothing_in_common(
    served: tuple[VllmEngine, Versions],
) -> None:
    engine, _ = served
    drawn = [tuple(row) for group in engine.sample(["1", "1", "1"], 4, [5, 6, 7]) for row in rows(group)]
    assert len(set(drawn)) == 12


def test_the_end_token_counts_and_nothing_follows_it(
    served: tuple[VllmEngine, Versions], folder: Path
) -> None:
    engine, _ = served
    ends = set(tokenization.load(folder).ends)
    sampled = [row for group in engine.sample(PROMPTS, 64, seeds(3, PROMPTS)) for row in rows(group)]
    for row in sampled:
        assert 1 <= len(row) <= 12 and not ends & set(row[:-1])
        assert len(row) == 12 or row[-1] in ends
    assert {row[-1] for row in sampled} & ends


def test_greedy_answers_are_those_of_transformers(served: tuple[VllmEngine, Versions], folder: Path) -> None:
    engine, versions = served
    other = HfEngine(model.load_policy(folder), tokenization.load(folder), weights.load_into, 12)
    other.load(Weights.of(weights.release_bytes(versions.module), 0))
    assert engine.greedy(PROMPTS) == other.greedy(PROMPTS)


def test_weights_of_another_model_change_nothing(served: tuple[VllmEngine, Versions], tmp_path: Path) -> None:
    engine, versions = served
    other = model.load_policy(tiny.make(tmp_path / "wider", "llama", hidden=128))
    with pytest.raises(ValueError, match="of another model"):
        engine.load(Weights.of(weights.release_bytes(other), 99))
    assert engine.version == versions.version and versions.apart(engine) < SAME


def test_a_prompt_that_is_too_long_costs_a_call_and_no_restart(served: tuple[VllmEngine, Versions]) -> None:
    engine, versions = served
    process = pid(engine)
    with pytest.raises(EngineError, match=r"do not fit into 256: raise peer\.engine\.length"):
        engine.sample(["0123456789" * 30], 4, [1])
    assert versions.apart(engine) < SAME and pid(engine) == process


def test_a_held_out_prompt_that_is_too_long_has_an_empty_answer_and_the_others_theirs(
    served: tuple[VllmEngine, Versions],
) -> None:
    engine, _ = served
    first, last = engine.greedy(PROMPTS[:2])
    assert engine.greedy([PROMPTS[0], "0123456789" * 30, PROMPTS[1]]) == [first, "", last]
    assert engine.greedy(["0123456789" * 30]) == [""]


def test_a_call_that_is_stopped_ends_and_leaves_nothing_in_vllm(
    served: tuple[VllmEngine, Versions], folder: Path
) -> None:
    engine, versions = served
    before, process = engine.sample(PROMPTS, 4, seeds(1, PROMPTS)), pid(engine)
    prompts, over = PROMPTS * 100, threading.Event()

    def stops() -> None:
        while not over.wait(0.05):
            engine.stop()

    thread = threading.Thread(target=stops)
    thread.start()
    try:
        with pytest.raises(EngineError, match="of no use any more"):
            engine.sample(prompts, 4, seeds(1, prompts))
    finally:
        over.set()
        thread.join()
    for mine, its in zip(engine.sample(PROMPTS, 4, seeds(1, PROMPTS)), before, strict=True):
        assert np.array_equal(mine.tokens, its.tokens)
    engine.load(versions.move())
    assert versions.apart(engine) < SAME and pid(engine) == process


# --- with one family: these wait for vLLM to start again ----------------------------------------------------


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("once") / "qwen3", "qwen3")


@pytest.fixture(scope="module")
def single(tied: Path) -> Iterator[tuple[VllmEngine, Versions]]:
    engine, versions = VllmEngine(recipe(tied)), Versions(tied)
    engine.load(versions.move())
    yield engine, versions
    engine.close()


def test_vllm_dies_and_is_back_with_the_last_release(single: tuple[VllmEngine, Versions]) -> None:
    engine, versions = single
    os.kill(pid(engine), signal.SIGKILL)
    with pytest.raises(EngineError, match="ended its process with signal SIGKILL"):
        engine.sample(PROMPTS, 4, seeds(1, PROMPTS))
    assert versions.apart(engine) < SAME and engine.version == versions.version


def test_vllm_hangs_and_is_replaced(
    single: tuple[VllmEngine, Versions], tied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, versions = single
    hung = pid(engine)
    os.kill(hung, signal.SIGSTOP)
    quick = recipe(tied, timeout=2.0)
    with monkeypatch.context() as patch, pytest.raises(EngineError, match="did not answer within 2 s"):
        patch.setattr(engine, "_recipe", quick)
        engine.sample(PROMPTS, 4, seeds(1, PROMPTS))
    assert not Path(f"/proc/{hung}").exists()
    assert versions.apart(engine) < SAME


def test_stale_weights_after_a_reload_cost_a_restart(tied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM itself keeps the first weights of a tied head on a CPU: here nobody puts that right."""
    unpacked = (
        "import sys; from swarm.sample import vllm_process, vllm_worker;"
        " vllm_worker.pack = lambda worker: None; vllm_process.main(sys.argv[1])"
    )
    monkeypatch.setattr(vllm, "COMMAND", (sys.executable, "-c", unpacked))
    engine, versions = VllmEngine(recipe(tied)), Versions(tied)
    try:
        for start in (1, 2):
            engine.load(versions.move())
            assert starts(engine) == start and versions.apart(engine) < SAME
    finally:
        engine.close()


def test_more_prompts_than_vllm_reads_in_a_step_are_sampled(tied: Path) -> None:
    engine = VllmEngine(recipe(tied, tasks=64))
    engine.load(Versions(tied).move())
    prompts = [f"{i}" + "0123456789" * 12 for i in range(64)]
    assert [len(group.lengths) for group in engine.sample(prompts, 4, seeds(7, prompts))] == [4] * 64
    engine.close()


def test_a_vllm_that_draws_otherwise_than_asked_is_not_used(
    tied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here each completion of a group has the noise of the first."""
    clones = (
        "import sys; from swarm.draws import noise; from swarm.sample import vllm_noise, vllm_process;"
        " draw_of = vllm_noise.draw_of;"
        " vllm_noise.draw_of = lambda said, number: draw_of(said, number and 0);"
        " vllm_process.main(sys.argv[1])"
    )
    monkeypatch.setattr(vllm, "COMMAND", (sys.executable, "-c", clones))
    engine = VllmEngine(recipe(tied))
    with pytest.raises(
        EngineError, match=r"no learner could replay its groups: set peer\.engine\.name to hf"
    ):
        engine.load(Versions(tied).move())
    engine.close()


def test_both_of_vllms_runners_load_the_processor_and_draw_the_same() -> None:
    """The second one asks for Triton, and runs on no CPU: here its calls are made in its place."""
    from types import SimpleNamespace

    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError
    from vllm.v1.sample import logits_processor as first
    from vllm.v1.worker.gpu.sample import logits_processor as second

    cpu, names = torch.device("cpu"), (vllm_process.PROCESSOR,)
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


def test_nothing_is_left_after_close(tied: Path) -> None:
    engine = VllmEngine(recipe(tied))
    engine.load(Versions(tied).move())
    process, scratch = pid(engine), engine._scratch
    assert scratch is not None and scratch.exists()
    engine.close()
    assert not Path(f"/proc/{process}").exists() and not scratch.exists()


def test_adapters_are_replaced_in_place(tied: Path) -> None:
    engine, versions = VllmEngine(recipe(tied, LORA)), Versions(tied, LORA)
    try:
        for _ in range(4):
            engine.load(versions.move())
            assert versions.apart(engine) < SAME
        assert starts(engine) == 1
        os.kill(pid(engine), signal.SIGKILL)
        with pytest.raises(EngineError, match="ended its process with signal SIGKILL"):
            engine.greedy(PROMPTS)
        assert versions.apart(engine) < SAME
    finally:
        engine.close()
