"""Long completions (`run.objective.overlong`): the rewards that learners train on, and which tokens they
leave out.

    rewards of the task, lengths --penalized--> rewards that a gradient is made of
    tokens of a completion --is_cut--> whether it ended at the limit

Samplers claim the rewards of the task, and evaluators count them: both are without a penalty. Every peer that
computes a gradient, for the first time or again, applies the same one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from swarm.settings.config import Run


def penalized(run: Run, lengths: Sequence[int], rewards: Sequence[float]) -> tuple[float, ...]:
    """Rewards (G,) of completions of `lengths` tokens, with DAPO's soft overlong punishment (arXiv
    2503.14476, eq. 13) where the run has it: 0 to L_max - L_cache, then in a straight line to -1 at L_max."""
    if run.objective.overlong != "penalty":
        return tuple(rewards)
    most = run.sampling.max_tokens
    cache = run.objective.overlong_share * most
    return tuple(
        reward - min(1.0, max(0.0, (length - (most - cache)) / cache))
        for length, reward in zip(lengths, rewards, strict=True)
    )


def is_cut(tokens: Sequence[int], ends: Collection[int]) -> bool:
    """Whether a completion does not end with an end token; False for a policy without any."""
    return bool(ends) and tokens[-1] not in ends
