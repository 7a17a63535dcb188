"""A task of one's own: a word goes in, the word backwards comes out.

    swarm task try reversal -n 3
    swarm up demo --set task.name=reversal

A run finds it by an entry point, so that it has to be installed wherever the run is: put this file into a
package whose `pyproject.toml` says

    [project.entry-points."swarm.tasks"]
    reversal = "own_task:Reversal"

A task follows from the run's seed and an index alone: learners regenerate it and believe no sampler's. What
is held out never occurs in training: here a word belongs to either half by a hash of it. `characters` and
`example` are for the embedded model alone, which is made for a task and warmed up on it.
"""

import random
import zlib

from swarm.tasks.base import Exercises, Options, TaskError, check_options
from swarm.types import Task

LETTERS = "abcdefgh"


class Reversal(Exercises):
    """Options: `letters` (4), the length of a word, 3 to 16."""

    environment = "reversal"
    characters = LETTERS + "="

    def __init__(self, seed: int, options: Options) -> None:
        self.seed, self.letters = seed, int(check_options("reversal", options, {"letters": 4})["letters"])
        if not 3 <= self.letters <= 16:
            raise TaskError(f"option letters of task reversal is {self.letters}, it has to be 3 to 16")

    def task(self, index: int) -> Task:
        return self._about(index, self._word(f"train/{index}", held_out=False))

    def held_out(self, n: int) -> list[Task]:
        return [self._about(-1 - i, self._word(f"held out/{i}", held_out=True)) for i in range(n)]

    def reward(self, task: Task, completion: str) -> float:
        return float(completion == task.answer)

    def example(self, index: int) -> tuple[str, str]:
        shown = self._about(index, self._word(f"example/{index}", held_out=False))
        return shown.prompt, shown.answer

    def _about(self, index: int, word: str) -> Task:
        return Task(environment=self.environment, index=index, prompt=f"{word}=", answer=word[::-1])

    def _word(self, stream: str, held_out: bool) -> str:
        rng = random.Random(f"{self.seed}/{stream}")
        while True:
            word = "".join(rng.choices(LETTERS, k=self.letters))
            if (zlib.crc32(word.encode()) % 10 == 0) == held_out:
                return word
