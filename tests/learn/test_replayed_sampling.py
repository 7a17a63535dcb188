"""A group's sampling is replayed from its text: honest groups agree, each cheat shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import undecided_policy
from undecided_policy import rows

from swarm.learn import model, replay, tokenization, weights
from swarm.learn.policy import LanguageModel
from swarm.sample.base import Completions
from swarm.sample.hf import HfEngine

PROMPTS = ["52318=", "1=", "777+12345=", "00000="]
GROUP, SEED = 8, 2**40
HONEST = 0.1
"""Nats: what rounding to bfloat16 moves a score by, twice over."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return undecided_policy.make(tmp_path_factory.mktemp("policy") / "embedded")


def sampled(folder: Path, temperature: float = 1.0, dtype: str = "float32") -> list[Completions]:
    policy = model.load_policy(folder, dtype=dtype)
    engine = HfEngine(policy, tokenization.load(folder), weights.load_into, 6, temperature)
    return engine.sample(PROMPTS, GROUP, SEED)


def replayed(
    folder: Path, groups: list[Completions], temperature: float = 1.0, seed: int = SEED
) -> list[float]:
    """The largest margin of each completion."""
    policy = LanguageModel(model.load_policy(folder), tokenization.load(folder))
    found = [
        replay.margins(policy, prompt, rows(group), temperature, seed + i)
        for i, (prompt, group) in enumerate(zip(PROMPTS, groups, strict=True))
    ]
    assert [len(one) for group in found for one in group] == [n for group in groups for n in group.lengths]
    return [float(one.max()) for group in found for one in group]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_policy_finds_the_tokens_that_it_sampled(folder: Path, temperature: float) -> None:
    margins = replayed(folder, sampled(folder, temperature), temperature)
    assert len(margins) == len(PROMPTS) * GROUP and max(margins) < 1e-3


def test_another_dtype_moves_the_margins_a_little(folder: Path) -> None:
    assert 0 <= max(replayed(folder, sampled(folder, dtype="bfloat16"))) < HONEST


def test_one_token_that_is_not_what_was_drawn_shows(folder: Path) -> None:
    groups = sampled(folder)
    for group in groups:
        group.tokens[0] = (group.tokens[0] + 1) % 10  # of the first completion: another digit
    margins = replayed(folder, groups)
    assert min(margins[::GROUP]) > HONEST


@pytest.mark.parametrize("what", ["another seed", "a lower temperature", "the most likely tokens"])
def test_who_samples_otherwise_shows_in_most_completions(folder: Path, what: str) -> None:
    if what == "another seed":
        margins = replayed(folder, sampled(folder), seed=SEED + 100)
    elif what == "a lower temperature":
        margins = replayed(folder, sampled(folder, 0.3))
    else:
        margins = replayed(folder, sampled(folder, 1e-3))
    assert np.mean(np.array(margins) > HONEST) > 0.5
