"""Running digit sums modulo 10: the demo's exercise.

`52318=` asks for `57019`: digit k of the answer is the sum of the first k digits of the question, modulo 10. Exactly
verifiable, 100 000 exercises at five digits, easy to half-learn and hard to guess (1 in 100 000). A tenth of all exercises,
chosen by a hash of the question alone, is held out: the split is the same for every seed.
"""

from __future__ import annotations

import random
import zlib
from itertools import accumulate

from swarm.tasks.base import Options, check_options
from swarm.types import Task

HELD_OUT = 10
# One exercise in ten: 10 000 at five digits, more than any evaluation draws.


class DigitSums:
    """Options: `digits` (5), `partial` (false): credit per right digit instead of all or nothing."""

    environment = "digit-sums"
    characters = "0123456789=+-*, "  # more than the exercise needs: its embedded policy keeps the tokens it has always had

    def __init__(self, seed: int, options: Options) -> None:
        chosen = check_options(self.environment, options, {"digits": 5, "partial": False})
        self.digits = int(chosen["digits"])
        self.partial = bool(chosen["partial"])
        if not 2 <= self.digits <= 64:
            raise ValueError(f"option digits of task {self.environment} is {self.digits}, it has to be 2 to 64")
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
        return question + "=", _running_sums(question)

    def _exercise(self, index: int, question: str) -> Task:
        return Task(environment=self.environment, index=index, prompt=question + "=", answer=_running_sums(question))

    def _question(self, salt: str, held_out: bool) -> str:
        rng = random.Random(f"{self._seed}:{salt}")
        while True:
            question = f"{rng.randrange(10**self.digits):0{self.digits}d}"
            if (zlib.crc32(question.encode()) % HELD_OUT == 0) == held_out:
                return question


def _running_sums(question: str) -> str:
    return "".join(str(total % 10) for total in accumulate(map(int, question)))
