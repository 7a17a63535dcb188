"""A group's sampling is replayed from its text: honest groups agree, each cheat shows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import undecided_policy
from msgspec.structs import replace
from nouns import floats, ints, seeds
from nouns import group as any_group
from undecided_policy import rows

from swarm.core.audits.auditing import Audits, Finding
from swarm.core.suspensions import Suspension
from swarm.draws.heads import contradiction
from swarm.draws.noise import GroupNoise
from swarm.draws.replays import replay_group, weigh
from swarm.learn.files import weights
from swarm.learn.models import model, tokenization
from swarm.learn.models.policy import LanguageModel
from swarm.learn.replay import ModelReplay
from swarm.sample import hf
from swarm.sample.base import Completions
from swarm.sample.hf import HfEngine
from swarm.types import PeerId

PROMPTS = ["52318=", "1=", "777+12345=", "00000="]
GROUP, SEED = 8, 2**40
HONEST = 0.1
"""Nats: what rounding to bfloat16 moves a score by, twice over."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return undecided_policy.make(tmp_path_factory.mktemp("policy") / "embedded")


def sampled(
    folder: Path, temperature: float = 1.0, dtype: str = "float32", heads: int = 0
) -> list[Completions]:
    policy = model.load_policy(folder, dtype=dtype)
    engine = HfEngine(policy, tokenization.load(folder), weights.load_into, 6, temperature, heads)
    return engine.sample(PROMPTS, GROUP, seeds(SEED, PROMPTS))


def replayed(
    folder: Path, groups: list[Completions], temperature: float = 1.0, seed: int = SEED
) -> list[float]:
    """The largest margin of each completion."""
    again = replayer(folder, temperature)
    found = []
    for i, (prompt, group) in enumerate(zip(PROMPTS, groups, strict=True)):
        flat = again.replay(prompt, rows(group), seed + i)
        found += np.split(flat.margins, np.cumsum(group.lengths)[:-1])
    return [float(one.max()) for one in found]


def replayer(folder: Path, temperature: float = 1.0) -> ModelReplay:
    tokens = tokenization.load(folder)
    policy = LanguageModel(model.load_policy(folder), tokens)
    return ModelReplay(policy, weights.load_into, tokens.ends, 6, temperature)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_policy_finds_the_tokens_that_it_sampled(folder: Path, temperature: float) -> None:
    margins = replayed(folder, sampled(folder, temperature), temperature)
    assert len(margins) == len(PROMPTS) * GROUP and max(margins) < 1e-3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_heads_of_any_precision_contradict_no_honest_group(folder: Path, dtype: str) -> None:
    vocabulary = tokenization.load(folder).vocabulary
    for i, made in enumerate(sampled(folder, 0.9, dtype, heads=4)):
        group = any_group(
            seed=SEED + i,
            lengths=made.lengths,
            tokens=ints(*made.tokens.tolist()),
            logprobs=floats(*made.logprobs.tolist()),
            rewards=(0.0,) * GROUP,
            noise=made.noise,
            heads=made.heads,
        )
        assert made.heads is not None and len(made.heads.tokens) == 16 * len(made.tokens)
        assert contradiction(group, vocabulary) is None
        assert "nats off" in (contradiction(replace(group, seed=SEED - 1), vocabulary) or "")
        again = replayer(folder, 0.9)
        found, other = (replay_group(again, prompt, group) for prompt in (PROMPTS[i], "31="))
        assert found.apart is not None and found.apart.max() < again.allowed.hard
        assert other.apart is not None and other.apart.max() > again.allowed.hard


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


def test_the_log_probabilities_of_a_replay_are_those_that_an_honest_sampler_claims(folder: Path) -> None:
    groups = sampled(folder)
    for i, (prompt, group) in enumerate(zip(PROMPTS, groups, strict=True)):
        found = replayer(folder).replay(prompt, rows(group), SEED + i)
        np.testing.assert_allclose(found.logprobs, group.logprobs, atol=1e-4)


def test_a_completion_that_was_cut_or_goes_on_after_its_end_shows(folder: Path) -> None:
    again, (end,) = replayer(folder), tokenization.load(folder).ends
    for prompt, seed, group in zip(PROMPTS, range(SEED, SEED + 4), sampled(folder), strict=True):
        whole = rows(group)
        longest = max(whole, key=len)
        cut = again.replay(prompt, [longest[: len(longest) // 2]], seed)
        assert cut.margins[-1] == np.inf and np.isfinite(cut.margins[:-1]).all()
        more = again.replay(prompt, [[5, end, 6, 7]], seed)
        assert np.isinf(more.margins).tolist() == [False, False, True, True]


def test_what_is_allowed_follows_from_another_precision_of_the_same_policy(folder: Path) -> None:
    again = replayer(folder)
    before = again.allowed
    groups = sampled(folder, dtype="bfloat16")
    found = [
        again.replay(prompt, rows(group), SEED + i)
        for i, (prompt, group) in enumerate(zip(PROMPTS, groups, strict=True))
    ]
    assert before == (0.5, 1e-3, 0.1)
    honest = np.concatenate([one.margins for one in found])
    usual = np.concatenate([one.margins for one in again._usual])
    assert len(usual) == len(honest) and 0 < usual.max() < HONEST
    assert again.allowed.claimed == 0.1 and np.concatenate([one.logprobs for one in again._usual]).max() > 0
    assert honest.max() < again.allowed.hard and honest.mean() < again.allowed.mean


class Steering(GroupNoise):
    """Of a sampler that takes a digit of its liking where that costs at most so many nats."""

    pays, digits, places = 0.0, (1, 3, 5, 7, 9), (1, 2, 3)

    def at(self, position: int, rows: torch.Tensor) -> torch.Tensor:
        noise = super().at(position, rows).clone()
        noise[:, self.digits] += self.pays * (position in self.places)
        return noise


def steered(folder: Path, dtype: str, pays: float, monkeypatch: pytest.MonkeyPatch) -> Iterator[Completions]:
    """Group after group, of each of PROMPTS in turn; the k-th has seed SEED + k."""
    policy = model.load_policy(folder, dtype=dtype)
    engine = HfEngine(policy, tokenization.load(folder), weights.load_into, 6)
    monkeypatch.setattr(hf, "GroupNoise", Steering)
    for number in itertools.count(step=len(PROMPTS)):
        Steering.pays = pays
        yield from engine.sample(PROMPTS, GROUP, seeds(SEED + number, PROMPTS))


def audited(folder: Path, groups: list[Completions]) -> tuple[list[Finding], Suspension | None]:
    """What one learner finds in a sampler's groups, and the first consequence."""
    again, audits, found = replayer(folder), Audits(), list[Finding]()
    for number, group in enumerate(groups):
        replayed = again.replay(PROMPTS[number % len(PROMPTS)], rows(group), SEED + number)
        finding, suspension = audits.take(
            PeerId("sampler"), weigh(replayed, group.logprobs, again.allowed), 0.0
        )
        found.append(finding)
        if suspension is not None:
            return found, suspension
    return found, None


def first(groups: Iterator[Completions], count: int) -> list[Completions]:
    return list(itertools.islice(groups, count))


def liked(groups: list[Completions]) -> float:
    """The share of liked digits where it steers."""
    there = [token for group in groups for row in rows(group) for token in row[1:4]]
    return float(np.isin(there, Steering.digits).mean())


@pytest.mark.parametrize("honest", [0, 24])
def test_who_steers_within_what_is_allowed_of_a_token_is_suspended(
    folder: Path, honest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = first(steered(folder, "float32", 0.0, monkeypatch), honest)
    false = first(steered(folder, "float32", 0.45, monkeypatch), honest + 60)[honest:]
    true = first(steered(folder, "float32", 0.0, monkeypatch), honest + 60)[honest:]
    assert liked(false) > liked(true) + 0.05
    findings, suspension = audited(folder, before + false)
    assert set(findings[:-1]) == {Finding.HONEST} and findings[-1] is Finding.DRIFTED
    assert honest < len(findings) < honest + 20
    assert suspension is not None and suspension.strikes == 0 and "does it choose them" in suspension.why


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_honest_groups_of_any_precision_and_of_another_one_after_a_restart_add_up_to_nothing(
    folder: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = first(steered(folder, "float32", 0.0, monkeypatch), 40)
    after = first(steered(folder, dtype, 0.0, monkeypatch), 80)[40:]
    findings, suspension = audited(folder, before + after)
    assert suspension is None and set(findings) == {Finding.HONEST}
