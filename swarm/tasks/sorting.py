"""Digits in order: an exercise of counting, not of arithmetic.

`5231=` asks for `1235`. No digit of the answer follows from the digits before it alone: the policy has to find the smallest
digit that is still owed, repetitions included. A tenth of all exercises is held out, chosen by a hash of the answer: not one
arrangement of a held-out collection of digits occurs in training, so the answers themselves cannot be learned by heart.
"""

from __future__ import annotations

import random
import zlib

from swarm.tasks.base import Options, check_options
from swarm.types import Task

HELD_OUT = 10
# One collection of digits in ten: about 70 of 715 at four digits, in about 1000 arrangements.


class Sorting:
    """Options: `digits` (4), `partial` (false): credit per digit in its right place instead of all or nothing."""

    environment = "sorting"
    characters = "0123456789="

    def __init__(self, seed: int, options: Options) -> None:
        chosen = check_options(self.environment, options, {"digits": 4, "partial": False})
        self.digits = int(chosen["digits"])
        self.partial = bool(chosen["partial"])
        if not 2 <= self.digits <= 60:
            raise ValueError(f"option digits of task {self.environment} is {self.digits}, it has to be 2 to 60")
        self._seed = seed

    def task(self, index: int) -> Task:
        if index < 0:
            raise ValueError(f"training tasks have indices from 0, not {index}")
        return self._exercise(index, self._question(f"task:{index}", held_out=False))

    def held_out(self, n: int) -> list[Task]:
        return [self._exercise(-1 - i, self._question(f"held-out:{i}", held_out=True)) for i in range(n)]

    def reward(self, task: Task, completion: str) -> float:
        if not self.partial:
            return float(completion == task.answer)
        right = sum(a == b for a, b in zip(completion, task.answer, strict=False))
        return right / max(len(task.answer), len(completion))

    def example(self, index: int) -> tuple[str, str]:
        question = self._question(f"example:{index}", held_out=False)
        return question + "=", _in_order(question)

    def _exercise(self, index: int, question: str) -> Task:
        return Task(environment=self.environment, index=index, prompt=question + "=", answer=_in_order(question))

    def _question(self, salt: str, held_out: bool) -> str:
        rng = random.Random(f"{self._seed}:{salt}")
        while True:
            question = f"{rng.randrange(10**self.digits):0{self.digits}d}"
            if (zlib.crc32(_in_order(question).encode()) % HELD_OUT == 0) == held_out:
                return question


def _in_order(question: str) -> str:
    return "".join(sorted(question))
