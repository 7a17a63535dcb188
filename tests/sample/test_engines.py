"""Engines: what is sampled is what the learner scores; a seed is a group.

The policy is a small random Llama with the embedded tokenizer, made here: engines do not need it to be any good.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from swarm import tasks
from swarm.learn import embedded, model, weights
from swarm.learn.policy import LanguageModel
from swarm.learn.tabular import Tabular
from swarm.sample.base import Completions, Engine
from swarm.sample.hf import HfEngine
from swarm.sample.toy import ToyEngine
from swarm.types import Digest

RAGGED = ["52318=", "1=", "777+12345=", "00000="]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("policy") / "embedded"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "LAST_STEP", 12)  # a high-entropy policy with some end tokens is what these tests want
        source = tasks.source("digit-sums", 1)
        embedded.make(path, 1, source.characters, source.example, lambda line: None)
    return path


def hf(folder: Path, temperature: float = 1.0, max_tokens: int = 6) -> HfEngine:
    return HfEngine(model.load_policy(folder), model.load_tokenizer(folder), weights.load_into, max_tokens, temperature)


def toy() -> ToyEngine:
    policy = Tabular()
    with torch.no_grad():
        policy.module.logits.normal_(generator=torch.Generator().manual_seed(1))  # type: ignore[union-attr, operator]
    engine = ToyEngine(weights.from_bytes)
    engine.load(weights.to_bytes(policy.module.state_dict()), 3, Digest("d"))
    return engine


def rows(c: Completions) -> list[list[int]]:
    return [row.tolist() for row in np.split(c.tokens, np.cumsum(c.lengths)[:-1])]


def same(a: Completions, b: Completions) -> bool:
    close = len(a.logprobs) == len(b.logprobs) and np.allclose(a.logprobs, b.logprobs, atol=1e-4)
    return a.lengths == b.lengths and a.texts == b.texts and np.array_equal(a.tokens, b.tokens) and bool(close)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("prompts", [["52318=", "00000="], RAGGED])
def test_the_learner_scores_completions_as_the_engine_sampled_them(folder: Path, prompts: list[str], temperature: float) -> None:
    groups = hf(folder, temperature).sample(prompts, 8, 4)
    policy = LanguageModel(model.load_policy(folder), model.load_tokenizer(folder))
    asked = [prompt for prompt in prompts for _ in range(8)]
    scored = policy.logprobs(asked, [row for group in groups for row in rows(group)], temperature)
    mine = scored.logp.detach()[scored.mask].numpy()
    np.testing.assert_allclose(mine, np.concatenate([group.logprobs for group in groups]), atol=1e-4)
    assert len({length for group in groups for length in group.lengths}) > 1, "some completions end early"


def test_the_log_probabilities_are_those_of_transformers_own_forward(folder: Path) -> None:
    policy, tokenizer = model.load_policy(folder), model.load_tokenizer(folder)
    group = hf(folder).sample(["52318="], 4, 9)[0]
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
    together = engine.sample(prompts, 8, 100)
    for i, prompt in enumerate(prompts):
        assert same(engine.sample([prompt], 8, 100 + i)[0], together[i])
    assert not same(engine.sample(prompts[:1], 8, 101)[0], together[0])


def test_tokens_come_as_often_as_their_probability_says(folder: Path) -> None:
    policy, tokenizer = model.load_policy(folder), model.load_tokenizer(folder)
    with torch.no_grad():
        expected = torch.softmax(policy(torch.tensor([tokenizer("52318=").input_ids])).logits[0, -1], -1).numpy()
    group = hf(folder, max_tokens=1).sample(["52318="], 4000, 1)[0]
    counted = np.bincount(group.tokens, minlength=len(expected)) / 4000
    assert np.abs(counted - expected).max() < 5 * np.sqrt(0.25 / 4000)


def test_the_end_token_counts_and_nothing_follows_it(folder: Path) -> None:
    end = model.load_tokenizer(folder).eos_token_id
    ended = 0
    for group in hf(folder).sample(RAGGED, 16, 2):
        for row, text in zip(rows(group), group.texts, strict=True):
            assert 1 <= len(row) <= 6 and end not in row[:-1] and "<end>" not in text
            assert row[-1] == end or len(row) == 6
            ended += row[-1] == end
    assert ended


def test_greedy_answers_do_not_depend_on_padding(folder: Path) -> None:
    engine = hf(folder)
    assert engine.greedy(RAGGED) == [engine.greedy([prompt])[0] for prompt in RAGGED]


def test_loading_weights_changes_what_is_sampled_and_bad_ones_change_nothing(folder: Path) -> None:
    engine = hf(folder)
    before = engine.sample(["52318="], 8, 1)[0]
    with pytest.raises(ValueError, match="cannot be read"):
        engine.load(b"\0" * 64, 7, Digest("d"))
    assert same(engine.sample(["52318="], 8, 1)[0], before) and engine.version == -1
    state = {name: torch.zeros_like(value) for name, value in model.load_policy(folder).state_dict().items()}
    engine.load(weights.to_bytes(state), 7, Digest("d"))
    np.testing.assert_allclose(engine.sample(["52318="], 8, 1)[0].logprobs, -np.log(19), atol=1e-5)
    assert engine.version == 7


def test_the_toy_engine_samples_what_the_table_scores() -> None:
    engine, policy = toy(), Tabular()
    with torch.no_grad():
        policy.module.logits.normal_(generator=torch.Generator().manual_seed(1)).copy_(  # type: ignore[union-attr, operator]
            policy.module.logits.bfloat16()  # type: ignore[union-attr, operator]
        )
    groups = engine.sample(["3", "19"], 8, 5)
    scored = policy.logprobs(["3"] * 8 + ["19"] * 8, [row for group in groups for row in rows(group)], 1.0)
    np.testing.assert_allclose(
        scored.logp.detach().flatten().numpy(), np.concatenate([group.logprobs for group in groups]), atol=1e-4
    )


def test_the_toy_engine_is_fast_enough_for_a_simulated_day() -> None:
    engine, data = toy(), weights.to_bytes(Tabular().module.state_dict())
    best = float("inf")
    for seed in range(50):
        began = time.process_time()
        engine.load(data, seed, Digest("d"))
        engine.sample(["3"], 8, seed)
        best = min(best, time.process_time() - began)
    assert best < 1e-3, "200 samplers for 24 virtual hours are some 100 000 groups"
