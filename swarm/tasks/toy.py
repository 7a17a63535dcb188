"""Task `toy`, for the simulator: a number asks for a fixed word; the reward is the share of right letters.

There is one word per number below `buckets`, the same at all peers of a seed. The policy is a table and
cannot generalise: training draws the numbers below `buckets`, and a held-out task is one of the next
`buckets` numbers with the same word as that number modulo `buckets`, which is how a tabular policy reads it.
"""

from __future__ import annotations

import random
import string
from functools import lru_cache

from swarm.tasks.base import Exercises, Options, TaskError, check_options
from swarm.types import Task


class Toy(Exercises):
    """Options: `buckets` (16), `letters` (4) per word, `alphabet` (8) letters to choose from."""

    environment = "toy"
    characters = string.digits + string.ascii_lowercase

    def __init__(self, seed: int, options: Options) -> None:
        chosen = check_options(self.environment, options, {"buckets": 16, "letters": 4, "alphabet": 8})
        self.buckets, self.letters, self.alphabet = (
            int(chosen["buckets"]),
            int(chosen["letters"]),
            int(chosen["alphabet"]),
        )
        if min(self.buckets, self.letters, self.alphabet) < 1 or self.alphabet > 26:
            raise TaskError(
                "task toy needs buckets, letters and alphabet of at least 1, and an alphabet of at most 26"
            )
        self._seed = seed
        self._words = _words(seed, self.buckets, self.letters, self.alphabet)

    def task(self, index: int) -> Task:
        if index < 0:
            raise ValueError(f"training tasks have indices from 0, not {index}")
        bucket = random.Random(f"{self._seed}:{index}").randrange(self.buckets)
        return Task(environment=self.environment, index=index, prompt=str(bucket), answer=self._words[bucket])

    def held_out(self, n: int) -> list[Task]:
        return [
            Task(
                environment=self.environment,
                index=-1 - i,
                prompt=str(self.buckets + i % self.buckets),
                answer=self._words[i % self.buckets],
            )
            for i in range(n)
        ]

    def reward(self, task: Task, completion: str) -> float:
        return sum(a == b for a, b in zip(completion, task.answer, strict=False)) / self.letters

    def example(self, index: int) -> tuple[str, str]:
        bucket = index % self.buckets
        return str(bucket), self._words[bucket]


@lru_cache(maxsize=4)
def _words(seed: int, buckets: int, letters: int, alphabet: int) -> tuple[str, ...]:
    """The words of a run: a thousand simulated peers of one process share them."""
    rng = random.Random(f"{seed}:words")
    return tuple("".join(_letter(rng.randrange(alphabet)) for _ in range(letters)) for _ in range(buckets))


def _letter(token: int) -> str:
    return chr(ord("a") + token)
