"""A task that takes an hour: SmolLM2-135M-Instruct learns sums and differences of two digits (docs/real.md).

    python examples/two_digit_sums.py > sums.jsonl; swarm up examples/two_digit_sums.toml

Asked in a chat ("What is 23 + 45?"), the model has at most 2 % right and hardly a group teaches. Without its
chat template it goes on with a text, which begins with a solved exercise: 22 %. A number with some right
digits earns a part.
"""

import json
import random
from typing import Any


def digits(completions: list[str], answer: list[str], **row: Any) -> list[float]:
    """1 for the answer, alone on the first line; a quarter of the share of digits at their place for another
    number, and 0 for anything else."""
    rewards = []
    for completion, right in zip(completions, answer, strict=True):
        said = completion.split("\n")[0].strip()
        same = sum(a == b for a, b in zip(reversed(said), reversed(right), strict=False))
        part = 0.25 * same / max(len(said), len(right)) if said.isdigit() else 0.0
        rewards.append(1.0 if said == right else part)
    return rewards


def exercises(count: int = 3000) -> dict[str, int]:
    """Different exercises and their answers, of which none is negative."""
    chance, made = random.Random(1), dict[str, int]()
    while len(made) < count:
        a, b = chance.randint(10, 99), chance.randint(10, 99)
        if chance.random() < 0.5:
            made[f"{a} + {b}"] = a + b
        elif a >= b:
            made[f"{a} - {b}"] = a - b
    return made


if __name__ == "__main__":
    for question, answer in exercises().items():
        print(json.dumps({"prompt": f"23 + 45 = 68\n{question} = ", "answer": str(answer)}))
