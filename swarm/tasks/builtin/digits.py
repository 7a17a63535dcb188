"""Base class of tasks on a string of digits: `52318=` asks for an answer that follows from the digits.

A subclass defines the answer, and decides whether an exercise is held out: one in ten, by a hash of `split`,
the same for every seed.
"""

from __future__ import annotations

import abc
import random
import zlib

from swarm.tasks.base import Exercises, Options, TaskError, check_options
from swarm.types import Task

HELD_OUT = 10
"""One exercise in ten: far more than any evaluation draws."""


class Digits(Exercises):
    """Options: `digits`, `partial` (false): credit per right digit instead of all or nothing."""

    environment: str
    characters: str
    digits = 5
    most = 64
    """Digits that an exercise may have."""

    def __init__(self, seed: int, options: Options) -> None:
        chosen = check_options(self.environment, options, {"digits": self.digits, "partial": False})
        self.digits = int(chosen["digits"])
        self.partial = bool(chosen["partial"])
        if not 2 <= self.digits <= self.most:
            raise TaskError(
                f"option digits of task {self.environment} is {self.digits}, it has to be 2 to {self.most}"
            )
        self._seed = seed

    @abc.abstractmethod
    def answer(self, question: str) -> str:
        """The only right answer."""

    def split(self, question: str) -> str:
        """The key of the split: exercises with the same key are in the same half."""
        return question

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
        return question + "=", self.answer(question)

    def _exercise(self, index: int, question: str) -> Task:
        return Task(
            environment=self.environment, index=index, prompt=question + "=", answer=self.answer(question)
        )

    def _question(self, salt: str, held_out: bool) -> str:
        rng = random.Random(f"{self._seed}:{salt}")
        while True:
            question = f"{rng.randrange(10**self.digits):0{self.digits}d}"
            if (zlib.crc32(self.split(question).encode()) % HELD_OUT == 0) == held_out:
                return question
