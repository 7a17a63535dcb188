"""Task source `gym:`: exercises of reasoning-gym, such as `gym:chain_sum`.

    this process                           worker
    task(index) --- training(index) --->   swarm.tasks.workers.gym_worker: the exercise of that index
    rewards(task, texts) --- scores --->   the same exercise again -> its own score_answer

Invariant: an index gives the same exercise on every peer with the same reasoning-gym, and no question is both
trained on and held out. Importing reasoning-gym takes seconds, and some of its exercises take tenths to make
or score: so the worker does all of that. Some of them call `eval` with an answer, the text of a model or
another peer: so the worker runs in a sandbox (`peer.rewards.code`), and its answers are checked. Not handled:
exercises whose options are lists, `composite`, and a text that changes the worker itself, which then makes
other exercises and rewards on this peer than on others until it ends.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import msgspec

from swarm import extras
from swarm.tasks.base import (
    LARGEST,
    CodePolicy,
    NotInstalled,
    OneByOne,
    Options,
    RewardError,
    TaskError,
    checked,
)
from swarm.tasks.workers.worker import Worker
from swarm.types import Task

CALL_SECONDS = 120.0
"""Seconds for the worker to make some exercises: held-out ones cost four draws each, and the slowest take
half a second."""

HELD_OUT_A_CALL = 16
"""Held-out exercises made in one call."""

CACHED_TASKS = 4096
"""Tasks that are cached: a learner's buffer of groups, and the evaluation's tasks."""

FUNCTIONS = "swarm.tasks.workers.gym_worker"

NO_ANSWER = "answered with something that is not an answer"

Words = tuple[str, str]
"""Question and answer of an exercise."""


def make(name: str, seed: int, options: Options, timeout: float, texts: CodePolicy = "sandbox") -> Gym:
    """Exercises of reasoning-gym. Options:

    `tag` (none): the answer is the content of the last <tag> of a completion, for example "answer"; `size`
    (0): number of different training exercises, 0 for no end; all others are the exercise's own. Raises
    TaskError.
    """
    return checked(Gym(name, seed, options, timeout, texts))


class Gym(OneByOne):
    """The task source of one reasoning-gym exercise; see the module."""

    slow = slow_tasks = True

    def __init__(
        self, name: str, seed: int, options: Options, timeout: float, texts: CodePolicy = "sandbox"
    ) -> None:
        """`timeout`: seconds to score a group. `texts`: how completions are scored, which some authors run as
        code. Starts nothing. Raises TaskError, and NoSandbox where bubblewrap does not work."""
        if importlib.util.find_spec("reasoning_gym") is None:
            raise NotInstalled(
                f"task gym:{name} needs reasoning-gym, which is not installed: {extras.install('gym')}"
            )
        self.environment = f"gym:{name}"
        if texts == "refuse":
            raise TaskError(
                f"task gym:{name} runs completions as code to score them, and peer.rewards.code = refuse says"
                " not to run it"
            )
        tag, size = options.get("tag", ""), options.get("size", 0)
        if not isinstance(tag, str) or not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise TaskError(
                f"task gym:{name}: tag is a word and size a number from 0, not {tag!r} and {size!r}"
            )
        self._tag, self._size = tag, size
        own = {key: value for key, value in options.items() if key not in ("tag", "size")}
        self._spec = {"name": name, "seed": seed, "options": own}
        functions = {
            "training": f"{FUNCTIONS}:training",
            "held out": f"{FUNCTIONS}:held_out",
            "problem": f"{FUNCTIONS}:problem",
        }
        functions[self.environment] = f"{FUNCTIONS}:scores"
        self._worker = Worker(functions, {}, texts == "sandbox", timeout)
        self._held: list[Task] = []
        self._known: dict[int, Task] = {}

    def check(self) -> None:
        """Start the worker. Raises TaskError for an exercise or options that reasoning-gym does not have."""
        if problem := self._asked(str, "problem"):
            raise TaskError(f"task {self.environment}: {problem}")

    def task(self, index: int) -> Task:
        if index < 0:
            raise ValueError(f"training tasks have indices from 0, not {index}")
        place = index % self._size if self._size else index
        if index not in self._known:
            question, answer = self._asked(Words, "training", index=place)
            if len(self._known) > CACHED_TASKS:
                self._known.clear()
            self._known[index] = Task(
                environment=self.environment, index=index, prompt=question, answer=answer
            )
        return self._known[index]

    def held_out(self, n: int) -> list[Task]:
        while len(self._held) < n:
            found = self._asked(list[Words], "held out", first=len(self._held), n=HELD_OUT_A_CALL)
            for question, answer in found:
                index = -1 - len(self._held)
                self._held.append(
                    Task(environment=self.environment, index=index, prompt=question, answer=answer)
                )
            if len(found) < HELD_OUT_A_CALL:
                break
        return self._held[:n]

    def rewards(self, task: Task, completions: Sequence[str]) -> list[float]:
        index = task.index if task.index < 0 or not self._size else task.index % self._size
        arguments = {**self._spec, "index": index, "tag": self._tag, "completions": list(completions)}
        try:
            values = msgspec.convert(self._worker.ask(self.environment, arguments), list[float])
        except msgspec.ValidationError as error:
            raise RewardError(f"{self.environment} {NO_ANSWER} ({error})") from error
        if len(values) != len(completions) or not all(abs(value) <= LARGEST for value in values):
            raise RewardError(f"{self.environment} {NO_ANSWER}: no row of {len(completions)} rewards")
        return values

    def close(self) -> None:
        self._worker.close()

    def _asked(self, kind: Any, function: str, **arguments: Any) -> Any:
        """A function's answer, which is of this type. Raises TaskError."""
        try:
            return msgspec.convert(
                self._worker.ask(function, {**self._spec, **arguments}, CALL_SECONDS), kind
            )
        except RewardError as error:
            raise TaskError(f"task {self.environment}: {error}") from error
        except msgspec.ValidationError as error:
            raise TaskError(f"task {self.environment}: {function} {NO_ANSWER} ({error})") from error
