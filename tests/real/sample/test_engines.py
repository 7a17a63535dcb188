"""Engines: what is sampled is what the learner scores; a seed is a group.

The policies are a small random Llama with the embedded tokenizer, and tiny models of the families that people
use, made here: engines do not need them to be any good.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import undecided_policy
from nouns import seeds
from rows import each_once, nightly
from transformers import Gemma3TextConfig, GPT2Config, GPT2LMHeadModel, LlamaConfig, MambaConfig
from undecided_policy import rows

from peers.build.model import factory
from peers.fit.fits import EVALUATOR, Case, needs
from peers.fit.hardware import Machine
from swarm.learn.files import weights
from swarm.learn.models import adapters, model, tiny, tokenization
from swarm.learn.models.policy import LanguageModel
from swarm.learn.models.pretrained import load_tokenizer
from swarm.learn.models.tabular import Tabular
from swarm.sample.base import Completions, Engine, EngineError, NoRoom
from swarm.sample.hf import SHARED, HfEngine, positions
from swarm.sample.server import ServerEngine
from swarm.sample.toy import ToyEngine
from swarm.sample.vllm import LoadedRelease, Recipe, VllmEngine
from swarm.settings.config import Config, EngineSettings, Lora, Peer, Sampling
from swarm.storage.blocks import Blocks
from swarm.storage.weights import Weights
from swarm.types import Task

RAGGED = ["52318=", "1=", "777+12345=", "00000="]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return undecided_policy.make(tmp_path_factory.mktemp("policy") / "embedded")


def hf(folder: Path, temperature: float = 1.0, max_tokens: int = 6) -> HfEngine:
    return HfEngine(
        model.load_policy(folder), tokenization.load(folder), weights.load_into, max_tokens, temperature
    )


def toy() -> ToyEngine:
    policy = Tabular()
    with torch.no_grad():
        policy.module.logits.normal_(generator=torch.Generator().manual_seed(1))  # type: ignore[union-attr, operator]
    engine = ToyEngine(weights.from_bytes)
    engine.load(Weights.of(weights.to_bytes(policy.module.state_dict()), 3))
    return engine


def same(a: Completions, b: Completions) -> bool:
    close = len(a.logprobs) == len(b.logprobs) and np.allclose(a.logprobs, b.logprobs, atol=1e-4)
    return (
        a.lengths == b.lengths and a.texts == b.texts and np.array_equal(a.tokens, b.tokens) and bool(close)
    )


def scored(
    policy: Any,
    tokenizer: tokenization.Tokenization,
    prompts: list[str],
    groups: list[Completions],
    temperature: float = 1.0,
) -> Any:
    """The learner's log-probabilities of all tokens of these groups."""
    asked = [prompt for prompt, group in zip(prompts, groups, strict=True) for _ in group.lengths]
    told = LanguageModel(policy, tokenizer).logprobs(
        asked, [row for group in groups for row in rows(group)], temperature
    )
    return told.logp.detach()[told.mask].numpy()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("prompts", [["52318=", "00000="], RAGGED])
def test_the_learner_scores_completions_as_the_engine_sampled_them(
    folder: Path, prompts: list[str], temperature: float
) -> None:
    groups = hf(folder, temperature).sample(prompts, 8, seeds(4, prompts))
    mine = scored(model.load_policy(folder), tokenization.load(folder), prompts, groups, temperature)
    np.testing.assert_allclose(mine, np.concatenate([group.logprobs for group in groups]), atol=1e-4)
    assert len({length for group in groups for length in group.lengths}) > 1, "some completions end early"


def test_the_log_probabilities_are_those_of_transformers_own_forward(folder: Path) -> None:
    policy, tokenizer = model.load_policy(folder), load_tokenizer(folder)
    group = hf(folder).sample(["52318="], 4, [9])[0]
    start = tokenizer("52318=").input_ids
    for row, logq in zip(rows(group), np.split(group.logprobs, np.cumsum(group.lengths)[:-1]), strict=True):
        with torch.no_grad():
            logp = torch.log_softmax(policy(torch.tensor([start + row])).logits[0], -1)
        expected = [float(logp[len(start) - 1 + t, token]) for t, token in enumerate(row)]
        np.testing.assert_allclose(logq, expected, atol=1e-4)


@pytest.mark.parametrize("make", ["hf", "toy"])
def test_a_group_can_be_replayed_alone_from_its_seed(folder: Path, make: str) -> None:
    engine: Engine = hf(folder) if make == "hf" else toy()
    prompts = RAGGED if make == "hf" else ["3", "20", "5", "3"]
    together = engine.sample(prompts, 8, seeds(100, prompts))
    for i, prompt in enumerate(prompts):
        assert same(engine.sample([prompt], 8, [100 + i])[0], together[i])
        assert len({tuple(row) for row in rows(together[i])}) > 4, "each completion has noise of its own"
    assert not same(engine.sample(prompts[:1], 8, seeds(101, prompts[:1]))[0], together[0])


@pytest.mark.parametrize("family", [*tiny.FAMILIES])
@pytest.mark.parametrize("ends", [["4", "5", "12 + 30", "7"], ["4", "5", "", "7"], ["4", "4", "4", "4"]])
def test_what_prompts_begin_with_is_read_once_and_groups_are_those_of_each_alone(
    families: dict[str, Path], family: str, ends: list[str]
) -> None:
    """But with windows, which padding in the middle of a row would move."""
    engine = hf(families[family])
    prompts = ["What is the sum of these numbers, and which one is the largest? " + end for end in ends]
    alone = [engine.sample([prompt], 4, [9 + i])[0] for i, prompt in enumerate(prompts)]
    answers = [engine.greedy([prompt])[0] for prompt in prompts]
    read = tokens_read(engine)
    assert all(map(same, engine.sample(prompts, 4, seeds(9, prompts)), alone))
    assert engine.greedy(prompts) == answers
    rows = engine._tokenizer.encode(prompts)
    shared = next(
        i for i in range(1, 99) if i == min(map(len, rows)) - 1 or len({row[i] for row in rows}) > 1
    )
    assert shared * 3 > SHARED
    if family == "gemma3":
        assert read[0] == max(map(len, rows)) * 4
    else:
        assert read[:2] == [shared, (max(map(len, rows)) - shared) * 4]


def tokens_read(engine: HfEngine) -> list[int]:
    """Tokens and padding of each pass of the model from now on."""
    read: list[int] = []
    engine._model.register_forward_pre_hook(
        lambda _, args, inputs: read.append(inputs["input_ids"].numel()), with_kwargs=True
    )
    return read


def test_tokens_come_as_often_as_their_probability_says(folder: Path) -> None:
    policy, tokenizer = model.load_policy(folder), load_tokenizer(folder)
    with torch.no_grad():
        expected = torch.softmax(
            policy(torch.tensor([tokenizer("52318=").input_ids])).logits[0, -1], -1
        ).numpy()
    group = hf(folder, max_tokens=1).sample(["52318="], 4000, [1])[0]
    counted = np.bincount(group.tokens, minlength=len(expected)) / 4000
    assert np.abs(counted - expected).max() < 5 * np.sqrt(0.25 / 4000)


def test_the_end_token_counts_and_nothing_follows_it(folder: Path) -> None:
    end = load_tokenizer(folder).eos_token_id
    ended = 0
    for group in hf(folder).sample(RAGGED, 16, seeds(2, RAGGED)):
        for row, text in zip(rows(group), group.texts, strict=True):
            assert 1 <= len(row) <= 6 and end not in row[:-1] and "<end>" not in text
            assert row[-1] == end or len(row) == 6
            ended += row[-1] == end
    assert ended


def test_greedy_answers_do_not_depend_on_padding(folder: Path) -> None:
    engine = hf(folder)
    assert engine.greedy(RAGGED) == [engine.greedy([prompt])[0] for prompt in RAGGED]


@pytest.mark.parametrize("learned", [False, True])
def test_a_prompt_that_does_not_fit_with_its_completion_is_refused_or_has_an_empty_answer(
    learned: bool, folder: Path
) -> None:
    """Learned positions end in an index error, rotary ones go on beyond what the model was made for."""
    policy, tokenizer = model.load_policy(folder), tokenization.load(folder)
    if learned:
        shape = GPT2Config(vocab_size=19, n_positions=12, n_embd=16, n_layer=1, n_head=2)
        policy = GPT2LMHeadModel(shape)
    else:
        policy.config.max_position_embeddings = 12
    engine = HfEngine(policy, tokenizer, weights.load_into, 6)
    fits, longer = "12345=", "123456="
    assert len(engine.sample([fits, "1="], 2, [1, 2])) == 2
    why = "a prompt of 7 tokens and 6 of completion do not fit into 12, the model's own limit: the run needs"
    with pytest.raises(NoRoom, match=why):
        engine.sample([fits, longer], 2, [1, 2])
    answers = engine.greedy([longer, fits, longer * 9, "1="])
    assert [*answers[::2], *answers[1::2]] == ["", "", *engine.greedy([fits, "1="])]
    assert engine.greedy([longer]) == [""]


@pytest.mark.parametrize(
    ("config", "most"),
    [
        (LlamaConfig(max_position_embeddings=64), 64),
        (
            LlamaConfig(max_position_embeddings=64, rope_parameters={"rope_type": "linear", "factor": 2.0}),
            128,
        ),
        (
            LlamaConfig(
                max_position_embeddings=64,
                rope_parameters={
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 32,
                    "rope_theta": 1e4,
                },
            ),
            128,
        ),
        (Gemma3TextConfig(max_position_embeddings=64), 64),
        (MambaConfig(), sys.maxsize),
    ],
)
def test_a_models_limit_is_what_its_config_names_or_stretches_it_to(config: Any, most: int) -> None:
    assert positions(config) == most


@pytest.mark.parametrize(("family", "dtype"), each_once([*tiny.FAMILIES], ["float32", "bfloat16", "float16"]))
def test_an_engine_begins_without_weights_as_who_joins_does(
    families: dict[str, Path], family: str, dtype: str, tmp_path: Path
) -> None:
    bare = tmp_path / family
    shutil.copytree(families[family], bare, ignore=shutil.ignore_patterns("*.safetensors"))
    tokenizer = tokenization.load(bare)
    engine = HfEngine(model.load_policy(bare, dtype=dtype), tokenizer, weights.load_into, 6)
    engine.load(Weights.of(weights.release_bytes(model.load_policy(families[family])), 1))
    assert engine.sample(asked(tokenizer), 2, [1, 2, 3])


def test_loading_weights_changes_what_is_sampled_and_bad_ones_change_nothing(folder: Path) -> None:
    engine = hf(folder)
    before = engine.sample(["52318="], 8, [1])[0]
    with pytest.raises(ValueError, match="cannot be read"):
        engine.load(Weights.of(b"\0" * 64, 7))
    assert same(engine.sample(["52318="], 8, [1])[0], before) and engine.version == -1
    state = {name: torch.zeros_like(value) for name, value in model.load_policy(folder).state_dict().items()}
    engine.load(Weights.of(weights.to_bytes(state), 7))
    np.testing.assert_allclose(engine.sample(["52318="], 8, [1])[0].logprobs, -np.log(19), atol=1e-5)
    assert engine.version == 7


LORA = Lora(rank=4, alpha=8.0)
LONG = "Tell me a long story. " * 9


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    path = tmp_path_factory.mktemp("tiny")
    return {family: tiny.make(path / family, family) for family in tiny.FAMILIES}


def asked(tokenizer: tokenization.Tokenization) -> list[str]:
    """Prompts of three lengths; one is longer than the sliding window of Gemma."""
    prompts = ["What is 12+30?", "Sort: b a", LONG]
    return [tokenizer.render(Task(environment="x", index=0, prompt=prompt, answer="")) for prompt in prompts]


def adapter(folder: Path) -> bytes:
    """One that changes the policy."""
    first = weights.from_bytes(adapters.genesis(folder, LORA, 1))
    random = torch.Generator().manual_seed(1)
    return weights.to_bytes(
        {name: tensor + 0.1 * torch.randn(tensor.shape, generator=random) for name, tensor in first.items()}
    )


def close(mine: Any, said: Any, quantize: str) -> None:
    """LLM.int8() rounds activations, too: now and then the last bit of one decides, for it and the rest of
    its completion."""
    off = np.abs(mine - said)
    assert off.max() < (0.05 if quantize == "int8" else 1e-4) and np.median(off) < 1e-5


@pytest.mark.parametrize("training", ["full", "lora"])
@pytest.mark.parametrize(
    ("family", "quantize"),
    [
        *(("llama", "none"), ("qwen3", "none"), ("gemma3", "none"), ("qwen3", "int8"), ("qwen3", "nf4")),
        *nightly((family, kind) for family in ("llama", "gemma3") for kind in ("int8", "nf4")),
    ],
)
def test_what_an_engine_says_of_its_tokens_is_what_its_policys_own_forward_says(
    families: dict[str, Path], family: str, training: str, quantize: str
) -> None:
    folder, tokenizer = families[family], tokenization.load(families[family])
    lora = LORA if training == "lora" else None
    policy = model.load_policy(folder, quantize=quantize, lora=lora, data=adapter(folder) if lora else None)
    prompts = asked(tokenizer)
    groups = HfEngine(policy, tokenizer, weights.load_into, 12).sample(prompts, 6, seeds(5, prompts))
    said = np.concatenate([group.logprobs for group in groups])
    close(scored(policy, tokenizer, prompts, groups), said, quantize)
    if quantize == "none":
        other = np.abs(scored(model.load_policy(folder), tokenizer, prompts, groups) - said).max()
        assert (other > 1e-3) == (training == "lora"), "the adapter is in the policy"


def test_a_call_says_at_each_step_how_many_of_its_completions_are_done(folder: Path) -> None:
    said = list[int]()
    tokens = tokenization.load(folder)
    engine = HfEngine(model.load_policy(folder), tokens, weights.load_into, 6, alive=said.append, tasks=2)
    (groups,) = engine.sample(RAGGED[:1], 8, seeds(1, RAGGED[:1]))
    longest = max(groups.lengths)
    ended = [sum(length <= step for length in groups.lengths) for step in range(longest)]
    assert said == [count + (8 - count) * step // 6 for step, count in enumerate(ended)]
    said.clear()
    engine.greedy(RAGGED)
    assert said == sorted(said) and said[0] == 0 and 2 in said and said[-1] < len(RAGGED), "two at a time"


def test_a_padded_vocabulary_is_sampled_scored_and_read_as_it_is(families: dict[str, Path]) -> None:
    tokenizer = tokenization.load(families["qwen3"])
    engine = HfEngine(model.load_policy(families["qwen3"]), tokenizer, weights.load_into, 24)
    groups = engine.sample(asked(tokenizer), 16, seeds(1, asked(tokenizer)))
    beyond = [
        token for group in groups for token in group.tokens.tolist() if token >= len(tokenizer.tokenizer)
    ]
    assert beyond and max(beyond) < tokenizer.vocabulary
    for group in groups:
        assert list(group.texts) == [tokenizer.decode(row) for row in rows(group)]


@pytest.mark.parametrize("quantize", ["int8", "nf4"])
@pytest.mark.parametrize("family", ["qwen3", *nightly(["llama", "gemma3"])])
def test_a_release_loaded_into_quantized_layers_is_the_model_that_transformers_quantizes(
    families: dict[str, Path], family: str, quantize: str, tmp_path: Path
) -> None:
    whole, bare = families[family], tmp_path / "bare"
    bare.mkdir()
    for file in ("config.json", "generation_config.json"):
        (bare / file).write_bytes((whole / file).read_bytes())
    tokenizer, other = (
        tokenization.load(whole),
        model.load_policy(tiny.make(tmp_path / "other", family, seed=9)),
    )
    engine = HfEngine(model.load_policy(bare, quantize=quantize), tokenizer, model.loader(True), 12)
    prompts = asked(tokenizer)
    for policy, folder in ((model.load_policy(whole), whole), (other, tmp_path / "other")):
        engine.load(Weights.of(weights.release_bytes(policy), 1))
        expected = HfEngine(
            model.load_policy(folder, quantize=quantize), tokenizer, weights.load_into, 12
        ).sample(prompts, 4, seeds(3, prompts))
        groups = engine.sample(prompts, 4, seeds(3, prompts))
        assert all(same(mine, its) for mine, its in zip(groups, expected, strict=True))
        plain = scored(policy, tokenizer, prompts, groups)
        assert np.abs(plain - np.concatenate([group.logprobs for group in groups])).max() > 1e-3, (
            "these are quantized"
        )
    with pytest.raises(ValueError, match="of another model"):
        engine.load(Weights.of(adapter(whole), 2))
    assert same(engine.sample(prompts, 4, seeds(3, prompts))[0], groups[0]), "and nothing changed"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_smaller_types_sample_what_the_learner_nearly_scores(families: dict[str, Path], dtype: str) -> None:
    tokenizer = tokenization.load(families["llama"])
    policy = model.load_policy(families["llama"], dtype=dtype)
    prompts = asked(tokenizer)
    groups = HfEngine(policy, tokenizer, weights.load_into, 12).sample(prompts, 6, seeds(5, prompts))
    mine = scored(model.load_policy(families["llama"]), tokenizer, prompts, groups)
    assert np.abs(mine - np.concatenate([group.logprobs for group in groups])).max() < 0.05
    assert groups[0].logprobs.dtype == np.float32 and policy.dtype is getattr(torch, dtype)


def short_of_memory(engine: HfEngine, most: int, error: Exception) -> list[int]:
    """Let the real model run out of memory above `most` rows; the rows of each of its prefills."""
    seen: list[int] = []

    def hook(_: Any, args: Any, inputs: dict[str, Any]) -> None:
        ids = inputs["input_ids"]
        if ids.shape[1] > 1:
            seen.append(len(ids))
        if len(ids) > most:
            raise error

    engine._model.register_forward_pre_hook(hook, with_kwargs=True)
    return seen


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried to"
        ),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        MemoryError(),
    ],
)
def test_out_of_memory_halves_the_tasks_of_a_call_and_the_groups_are_the_same(
    folder: Path, error: Exception
) -> None:
    prompts = [*RAGGED, "12345="]
    expected = hf(folder).sample(prompts, 4, seeds(7, prompts))
    engine = hf(folder)
    seen = short_of_memory(engine, 8, error)  # of copied rows; a prefill has one row a task
    assert all(
        same(mine, its)
        for mine, its in zip(engine.sample(prompts, 4, seeds(7, prompts)), expected, strict=True)
    )
    assert seen == [5, 2, 2, 1], "five tasks are too many, two are not"
    seen.clear()
    engine.sample(prompts, 4, seeds(7, prompts))
    assert seen == [2, 2, 1], "what memory holds is remembered"
    assert engine.greedy(prompts) == hf(folder).greedy(prompts)


def test_greedy_answers_are_as_many_at_a_time_as_fit_counts(folder: Path) -> None:
    config = Config(peer=Peer(engine=EngineSettings(tasks=3)))
    case = Case.of(folder, config, Machine((), 1, 0, 0))
    prompts = [f"{number}=" for number in range(8)]
    engine = factory.hf(folder, config)
    rows: list[int] = []
    engine._model.register_forward_pre_hook(
        lambda _, args, inputs: rows.append(len(inputs["input_ids"])), with_kwargs=True
    )
    answers = engine.greedy(prompts)
    least, easy = needs(case, case.run_shape, EVALUATOR, "float32")
    one = (easy.model - least.model) / (3 - 1)
    assert least.model + (max(rows) - 1) * one == pytest.approx(easy.model)
    assert answers == hf(folder, max_tokens=config.run.sampling.max_tokens).greedy(prompts)


def test_one_task_too_many_is_an_engine_error_and_the_engine_lives(folder: Path) -> None:
    engine = hf(folder)
    short_of_memory(engine, 8, torch.OutOfMemoryError("CUDA out of memory."))
    with pytest.raises(
        EngineError, match="one task of 16 completions does not fit into memory: CUDA out of memory"
    ):
        engine.sample(RAGGED, 16, seeds(7, RAGGED))
    assert same(engine.sample(["52318="], 4, [7])[0], hf(folder).sample(["52318="], 4, [7])[0])


def test_a_release_that_memory_ended_in_is_not_sampled_from(folder: Path) -> None:
    engine = hf(folder)
    data = weights.release_bytes(model.load_policy(folder))

    def put(module: torch.nn.Module, data: bytes) -> None:
        next(module.parameters()).detach().zero_()
        raise torch.OutOfMemoryError("CUDA out of memory.")

    engine._load_weights, whole = put, engine._load_weights
    with pytest.raises(EngineError, match="version 4 does not fit into memory beside the policy"):
        engine.load(Weights.of(data, 4))
    with pytest.raises(EngineError, match="no policy until one is loaded whole"):
        engine.sample(RAGGED, 4, seeds(7, RAGGED))
    engine._load_weights = whole
    engine.load(Weights.of(data, 5))
    assert same(engine.sample(["52318="], 4, [7])[0], hf(folder).sample(["52318="], 4, [7])[0])


def test_other_errors_of_a_model_are_not_taken_for_a_lack_of_memory(folder: Path) -> None:
    engine = hf(folder)
    short_of_memory(engine, 0, RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="shapes"):
        engine.sample(RAGGED, 4, seeds(7, RAGGED))


def test_the_toy_engine_samples_what_the_table_scores() -> None:
    engine, policy = toy(), Tabular()
    with torch.no_grad():
        policy.module.logits.normal_(generator=torch.Generator().manual_seed(1)).copy_(  # type: ignore[union-attr, operator]
            policy.module.logits.bfloat16()  # type: ignore[union-attr, operator]
        )
    groups = engine.sample(["3", "19"], 8, [5, 6])
    scored = policy.logprobs(["3"] * 8 + ["19"] * 8, [row for group in groups for row in rows(group)], 1.0)
    np.testing.assert_allclose(
        scored.logp.detach().flatten().numpy(),
        np.concatenate([group.logprobs for group in groups]),
        atol=1e-4,
    )


def test_the_toy_engine_is_fast_enough_for_a_simulated_day() -> None:
    engine, data = toy(), weights.to_bytes(Tabular().module.state_dict())
    best = float("inf")
    for seed in range(50):
        began = time.process_time()
        engine.load(Weights.of(data, seed))
        engine.sample(["3"], 8, [seed])
        best = min(best, time.process_time() - began)
    assert best < 1e-3, "200 samplers for 24 virtual hours are some 100 000 groups"


def over_vllm(folder: Path, kind: str, write: Callable[[Blocks, Path], None], scratch: Path) -> Any:
    recipe = Recipe(
        EngineSettings(url="http://127.0.0.1:9"), Sampling(), tokenization.load(folder), 10, write
    )
    return VllmEngine(recipe, scratch) if kind == "vllm" else ServerEngine(recipe, "model")


def digest_in(blocks: Blocks, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(blocks.root.encode())


@pytest.mark.parametrize("kind", ["vllm", "vllm-server"])
def test_a_full_disk_fails_a_load_and_no_engine(folder: Path, kind: str, tmp_path: Path) -> None:
    def full(blocks: Blocks, folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    engine = over_vllm(folder, kind, full, tmp_path)
    with pytest.raises(EngineError, match=r"cannot be written \(No space left on device\): make room there"):
        engine.load(Weights.of(b"release", 3))
    assert engine.version == -1 and not [*getattr(engine, "_scratch", tmp_path).iterdir()]
    engine.close()


@pytest.mark.parametrize("kind", ["vllm", "vllm-server"])
def test_a_release_that_fails_leaves_the_files_of_another_one_of_its_version(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(release: object) -> None:
        raise EngineError("not now")

    engine = over_vllm(folder, kind, digest_in, tmp_path)
    scratch = getattr(engine, "_scratch", tmp_path)
    mine, others = Weights.of(b"release", 3), Weights.of(b"of a split", 3)
    monkeypatch.setattr(engine, "_take", lambda release: None)
    engine.load(mine)
    monkeypatch.setattr(engine, "_take", fail)
    with pytest.raises(EngineError, match="not now"):
        engine.load(others)
    [held] = scratch.iterdir()
    assert (held / "model.safetensors").read_text() == mine.digest
    monkeypatch.setattr(engine, "_take", lambda release: None)
    engine.load(others)
    [held] = scratch.iterdir()
    assert (held / "model.safetensors").read_text() == others.digest
    engine.close()


def test_a_folder_that_a_cleaner_removed_is_made_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = over_vllm(folder, "vllm-server", digest_in, tmp_path)
    taken: list[bool] = []

    def take(release: LoadedRelease) -> None:
        taken.append(release.folder.exists())
        if len(taken) == 2:
            raise EngineError("not now")

    monkeypatch.setattr(engine, "_take", take)
    monkeypatch.setattr(engine, "_process", lambda: "another one")
    mode = engine._scratch.stat().st_mode
    shutil.rmtree(engine._scratch)
    engine.load(Weights.of(b"release", 3))
    assert engine._scratch.stat().st_mode == mode
    shutil.rmtree(engine._scratch)
    with pytest.raises(EngineError, match="not now"):
        engine.greedy(["1="])
    assert taken == [True, True] and engine._scratch.stat().st_mode == mode
    engine.close()
