"""Task `sentiment`: whether a word or a short phrase is `positive` or `negative`, for models that know words.

`delightful` asks for `positive`, `waste of money` for `negative`; the answer is that word and nothing else. A
small chat model knows most of it, and hardly ever answers in one word: it learns that in minutes. The texts
are in sentiment.csv beside this file, as many of one kind as of the other; a quarter of them, chosen by a
hash of the text alone, is held out.
"""

from __future__ import annotations

import csv
import functools
import random
import zlib
from pathlib import Path

from swarm.tasks.base import Exercises, Options, check_options
from swarm.types import Task

TEXTS = Path(__file__).with_suffix(".csv")
HELD_OUT = 4
"""One text in four: 3 % is the standard error of an accuracy of 90 % on them."""


class Sentiment(Exercises):
    """No options; set run.task.system to what is asked, such as `Answer with one word: positive or
    negative.`"""

    environment = "sentiment"

    def __init__(self, seed: int, options: Options) -> None:
        check_options(self.environment, options, {})
        self._seed = seed
        self._training, held_out = _texts()
        self._held_out = random.Random(f"{seed}:held-out").sample(held_out, len(held_out))

    def task(self, index: int) -> Task:
        if index < 0:
            raise ValueError(f"training tasks have indices from 0, not {index}")
        return self._exercise(index, *random.Random(f"{self._seed}:task:{index}").choice(self._training))

    def held_out(self, n: int) -> list[Task]:
        return [self._exercise(-1 - i, *each) for i, each in enumerate(self._held_out[:n])]

    def reward(self, task: Task, completion: str) -> float:
        return float(completion.strip() == task.answer)

    def _exercise(self, index: int, text: str, answer: str) -> Task:
        return Task(environment=self.environment, index=index, prompt=text, answer=answer)


@functools.cache
def _texts() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(text, sentiment) of training, and those held out."""
    training, held_out = list[tuple[str, str]](), list[tuple[str, str]]()
    with open(TEXTS, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            apart = zlib.crc32(row["text"].encode()) % HELD_OUT == 0
            (held_out if apart else training).append((row["text"], row["sentiment"]))
    return training, held_out
