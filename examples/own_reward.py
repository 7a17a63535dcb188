"""Rewards of one's own, as TRL's GRPOTrainer calls them: once for each group, with keywords.

    swarm task try digit-sums --set task.rewards=examples/own_reward.py:nearness -n 2
    swarm up demo --set task.rewards=exact,examples/own_reward.py:nearness --set 'task.weights=[1, 0.2]'

`completions` and every column of the row are lists with one value a completion; what comes back is one number
a completion, or None where the function does not apply. Learners compute every reward themselves: the same
arguments have to give the same number on every machine.
"""

from typing import Any


def nearness(completions: list[str], answer: list[str], **row: Any) -> list[float]:
    """The share of the answer's characters that are at the right position, 0 to 1."""
    return [
        sum(given == wanted for given, wanted in zip(completion, right, strict=False)) / max(len(right), 1)
        for completion, right in zip(completions, answer, strict=True)
    ]


def brevity(completions: list[str], answer: list[str], **row: Any) -> list[float | None]:
    """-1 for a completion more than twice as long as the answer, None (not applicable) for others."""
    return [
        -1.0 if len(completion) > 2 * len(right) else None
        for completion, right in zip(completions, answer, strict=True)
    ]
