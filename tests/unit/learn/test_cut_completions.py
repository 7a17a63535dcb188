"""Completions that were cut at the limit, where a run leaves them out of its gradients."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from learner_batches import batch, gradient, learner, model, settings

from swarm.draws.replays import rows_of
from swarm.learn.learners.learner import Learner
from swarm.settings.config import ObjectiveSettings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model(tmp_path_factory.mktemp("models"), "qwen3")


def begun(folder: Path, overlong: str) -> Learner:
    # without a baseline a completion of reward 0 has no gradient
    objective = ObjectiveSettings(name="reinforce", overlong=overlong)  # type: ignore[arg-type]
    return learner(folder, msgspec.structs.replace(settings(), objective=objective))


def test_a_cut_completion_has_no_gradient_and_stays_in_the_divisor(folder: Path) -> None:
    plain, masked = begun(folder, "plain"), begun(folder, "mask")
    made = batch(plain.policy, 3)  # type: ignore[arg-type]
    groups, prompts, rewards = made
    ended = [[k != 1 for k, _ in enumerate(group.lengths)] for group in groups]
    lasts = {
        row[-1]
        for group, kept in zip(groups, ended, strict=True)
        for row, it in zip(rows_of(group), kept, strict=True)
        if it
    }
    assert not lasts & {rows_of(group)[1][-1] for group in groups}
    masked.policy.ends = tuple(lasts)
    worthless = [
        tuple(r if it else 0.0 for r, it in zip(of_group, kept, strict=True))
        for of_group, kept in zip(rewards, ended, strict=True)
    ]
    found, all_of_them = gradient(masked, made), gradient(plain, made)
    assert torch.equal(found.vector, gradient(plain, (groups, prompts, worthless)).vector)
    assert not torch.allclose(found.vector, all_of_them.vector, rtol=1e-2)
    assert found.weight == all_of_them.weight and found.metrics["reward"] == all_of_them.metrics["reward"]


def test_where_all_were_cut_nothing_is_left(folder: Path) -> None:
    masked = begun(folder, "mask")
    found = gradient(masked, batch(masked.policy, 2))  # type: ignore[arg-type]
    assert not found.vector.any()


def test_a_policy_tells_the_end_tokens_of_its_tokenizer(folder: Path) -> None:
    policy = begun(folder, "plain").policy
    assert policy.ends == policy._tokenization.ends and policy.ends  # type: ignore[attr-defined]
