"""The penalty of long completions, by DAPO's formula, and which completions were cut."""

from __future__ import annotations

import pytest

from swarm.core.intake.overlong import is_cut, penalized
from swarm.settings.config import ObjectiveSettings, Run, Sampling


def run(overlong: str, share: float = 0.2) -> Run:
    settings = ObjectiveSettings(overlong=overlong, overlong_share=share)  # type: ignore[arg-type]
    return Run(objective=settings, sampling=Sampling(max_tokens=20480))


def punishment(length: int, most: int, cache: int) -> float:
    """arXiv 2503.14476, eq. 13."""
    if length <= most - cache:
        return 0.0
    return (most - cache - length) / cache if length <= most else -1.0


def test_the_penalty_is_that_of_dapo_with_the_sizes_of_its_authors_by_default() -> None:
    lengths = (1, 16383, 16384, 16385, 18432, 20479, 20480)
    rewards = tuple(k / 7 for k in range(7))
    wanted = [
        reward + punishment(length, 20480, 4096) for reward, length in zip(rewards, lengths, strict=True)
    ]
    assert penalized(run("penalty"), lengths, rewards) == pytest.approx(wanted, abs=1e-12)
    half = penalized(run("penalty", 0.5), lengths, rewards)
    assert half[3] == pytest.approx(3 / 7 + punishment(16385, 20480, 10240))


@pytest.mark.parametrize("overlong", ["plain", "mask"])
def test_without_it_rewards_are_those_of_the_task(overlong: str) -> None:
    assert penalized(run(overlong), (4, 20480), (0.25, 1.0)) == (0.25, 1.0)


def test_a_completion_without_an_end_token_was_cut_where_there_are_end_tokens() -> None:
    assert is_cut([5, 6], (2, 3)) and not is_cut([5, 3], (2, 3)) and not is_cut([5, 6], ())
