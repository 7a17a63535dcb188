"""Task `brackets`: close what is open; several answers of different lengths are right.

`{()<` asks for any continuation that closes what is open, each bracket by its like, in at most `limit`
characters: `>}` is right, so are `>[]}` and `<>>}`. At most `limit` - 2 brackets are open, so that there is
always room for an extra pair: every task has right answers of two lengths or more. A parser decides whether
an answer is right, so the reward is 0 or 1, and a policy has to track a stack through what is already closed.
A tenth of all prefixes, chosen by a hash of the prefix alone, is held out. Not handled: telling a short right
answer from a long one, they are worth the same.
"""

from __future__ import annotations

import random
import zlib

from swarm.tasks.base import Exercises, Options, TaskError, check_options
from swarm.types import Task

PAIRS = ("()", "[]", "{}", "<>")
CLOSES = {pair[0]: pair[1] for pair in PAIRS}
HELD_OUT = 10
SPARE = 0.2
"""Share of the warm start's examples with an extra pair, so that the policy knows more than one right answer.
The warm start ends by the share of examples that are answered as given, which says little about the share
answered right when many have an extra pair."""


class Brackets(Exercises):
    """Prefixes of `shortest` (3) to `longest` (8) characters, `depth` (3) open brackets or fewer, of `kinds`
    (4) kinds.

    Further options: `limit` (5), characters that the answer may have; `partial` (false): credit for brackets
    closed before the first mistake.
    """

    environment = "brackets"
    characters = "".join(PAIRS)

    def __init__(self, seed: int, options: Options) -> None:
        defaults = {"shortest": 3, "longest": 8, "depth": 3, "kinds": 4, "limit": 5, "partial": False}
        chosen = check_options(self.environment, options, defaults)
        self.shortest, self.longest, self.depth = (
            int(chosen["shortest"]),
            int(chosen["longest"]),
            int(chosen["depth"]),
        )
        self.kinds, self.limit = int(chosen["kinds"]), int(chosen["limit"])
        self.partial = bool(chosen["partial"])
        self._check("shortest", self.shortest, 2, self.longest)
        # Six characters: fewer, and one of the two halves may have no prefix at all.
        self._check("longest", self.longest, max(6, self.shortest), 80)
        self._check("limit", self.limit, 4, 40)
        self._check("depth", self.depth, 2, min(self.limit - 2, self.shortest))
        self._check("kinds", self.kinds, 2, len(PAIRS))
        self._seed = seed

    def task(self, index: int) -> Task:
        if index < 0:
            raise ValueError(f"training tasks have indices from 0, not {index}")
        return self._exercise(index, self._prefix(f"task:{index}", held_out=False))

    def held_out(self, n: int) -> list[Task]:
        return [self._exercise(-1 - i, self._prefix(f"held-out:{i}", held_out=True)) for i in range(n)]

    def reward(self, task: Task, completion: str) -> float:
        closed, right = _close(task.answer, completion)
        if right and len(completion) <= self.limit:
            return 1.0
        # The whole of the answer counts one more than its brackets: stopping in time is a part of it.
        return closed / (len(task.answer) + 1) if self.partial else 0.0

    def example(self, index: int) -> tuple[str, str]:
        prefix = self._prefix(f"example:{index}", held_out=False)
        answer = _closing(prefix)
        rng = random.Random(f"{self._seed}:spare:{index}")
        if rng.random() < SPARE:
            place = rng.randrange(len(answer) + 1)
            answer = answer[:place] + PAIRS[rng.randrange(self.kinds)] + answer[place:]
        return prefix, answer

    def _exercise(self, index: int, prefix: str) -> Task:
        return Task(environment=self.environment, index=index, prompt=prefix, answer=_closing(prefix))

    def _prefix(self, salt: str, held_out: bool) -> str:
        rng = random.Random(f"{self._seed}:{salt}")
        while True:
            length = rng.randint(self.shortest, self.longest)
            # Depth and length have the same parity: every closed pair takes two characters.
            depth = rng.choice([d for d in range(1, self.depth + 1) if (length - d) % 2 == 0])
            prefix = self._walk(rng, length, depth)
            if (zlib.crc32(prefix.encode()) % HELD_OUT == 0) == held_out:
                return prefix

    def _walk(self, rng: random.Random, length: int, depth: int) -> str:
        """A prefix of `length` characters with `depth` open brackets: fair coins wherever both ways still
        lead there."""
        prefix, owed = "", ""
        for left in range(length, 0, -1):
            must_open = not owed or left == depth - len(owed)
            must_close = left == len(owed) - depth
            if must_open or (not must_close and rng.random() < 0.5):
                pair = PAIRS[rng.randrange(self.kinds)]
                prefix, owed = prefix + pair[0], pair[1] + owed
            else:
                prefix, owed = prefix + owed[0], owed[1:]
        return prefix

    def _check(self, name: str, value: int, least: int, most: int) -> None:
        if not least <= value <= most:
            raise TaskError(
                f"option {name} of task {self.environment} is {value}, it has to be {least} to {most}"
            )


def _closing(prefix: str) -> str:
    """The shortest right answer."""
    owed = ""
    for character in prefix:
        owed = CLOSES[character] + owed if character in CLOSES else owed[1:]
    return owed


def _close(owed: str, completion: str) -> tuple[int, bool]:
    """How many of the brackets `owed` the completion closes before its first mistake, and whether it is right
    to the end."""
    asked, stack = len(owed), owed
    closed = 0
    for character in completion:
        if character in CLOSES:
            stack = CLOSES[character] + stack
        elif stack.startswith(character):
            stack = stack[1:]
            closed = max(closed, asked - len(stack))
        else:
            return closed, False
    return closed, not stack
