"""Task source `verifiers:`: the tasks of an installed verifiers environment, such as `verifiers:gsm8k`.

    this process                              worker, under this interpreter or another one
    all rows, once        <--- rows ---       swarm.tasks.workers.verifier_worker: the taskset's load()
    rewards(task, texts)  --- scores --->     the task's own rewards

A part of the rows, by a hash of their text, is held out; the others are trained on in a new order each epoch,
a function of (run seed, index) alone. verifiers brings a hundred packages: where they do not fit beside a
peer's, SWARM_VERIFIERS_PYTHON names the interpreter of an environment that has them. It is a setting of the
peer and no option of the run: a run must not choose the programs that a peer executes. Not handled: tasks of
several turns, with tools or in containers (they are refused), environments for verifiers before 0.4, and an
installed package's use of the run's options: join such runs only of people that you trust.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
from collections.abc import Sequence
from typing import Any

from swarm import extras
from swarm.tasks.base import NotInstalled, OneByOne, Options, RewardError, TaskError, checked, checked_rewards
from swarm.tasks.builtin.permutation import permuted
from swarm.tasks.workers import sandbox
from swarm.tasks.workers.worker import Worker
from swarm.types import Message, Task

WORKER_FILE = "verifier_worker.py"
LOAD_SECONDS = 600.0
"""Seconds for the worker to load a taskset: many download a data set."""

DEFAULT_SIZE = 10_000
"""Tasks that are taken of a taskset: of one without an end, and enough of every other."""

ROWS_A_CALL = 500
"""Tasks sent at once: frames are bounded, prompts are long."""

OWN_OPTIONS = ("size", "held_out")
PYTHON = "SWARM_VERIFIERS_PYTHON"


def make(name: str, seed: int, options: Options, timeout: float) -> Verifier:
    """Tasks of one turn from an installed verifiers package. Options:

    `size` (10000): at most so many tasks; `held_out` (0.05): share of them that is not trained on; all others
    are the taskset's own. SWARM_VERIFIERS_PYTHON in the environment names another interpreter that has
    verifiers, the package and msgspec. Raises TaskError.
    """
    return checked(Verifier(name, seed, options, timeout))


class Verifier(OneByOne):
    """The task source of one verifiers environment; see the module."""

    slow = slow_tasks = True

    def __init__(self, name: str, seed: int, options: Options, timeout: float) -> None:
        self.environment, self._seed = f"verifiers:{name}", seed
        chosen = {"size": DEFAULT_SIZE, "held_out": 0.05, **options}
        size, share = chosen["size"], chosen["held_out"]
        if type(size) is not int or size < 2:
            raise TaskError(f"task {self.environment}: size is a number from 2, not {size!r}")
        if not isinstance(share, int | float) or not 0.0 < share < 1.0:
            raise TaskError(f"task {self.environment}: held_out is a share between 0 and 1, not {share!r}")
        if "system_prompt" in options:  # verifiers would read a file of the peer
            raise TaskError(
                f"task {self.environment}: system_prompt is not an option here: write the text to"
                " run.task.system"
            )
        python = self._interpreter()
        self._share = float(share)
        own = {key: value for key, value in options.items() if key not in OWN_OPTIONS}
        self._spec = {"name": name, "options": own, "size": size}
        functions = {
            "problem": f"{WORKER_FILE}:problem",
            "rows": f"{WORKER_FILE}:rows",
            self.environment: f"{WORKER_FILE}:scores",
        }
        place = {WORKER_FILE: sandbox.PACKAGE / "tasks" / "workers" / WORKER_FILE}
        # No limit of memory: a package may bring torch, which reserves more than it uses.
        self._worker = Worker(functions, place, False, timeout, 0, python)
        self._rows: list[tuple[tuple[Message, ...], str]] = []
        self._training: list[int] = []
        self._held: list[int] = []

    def check(self) -> None:
        """Start the worker and load the taskset. Raises TaskError."""
        if problem := self._asked("problem"):
            raise TaskError(f"task {self.environment}: {problem}")
        self._loaded()

    def task(self, index: int) -> Task:
        if index < 0:
            raise ValueError(f"training tasks have indices from 0, not {index}")
        return self._task(index)

    def held_out(self, n: int) -> list[Task]:
        self._loaded()
        return [self._task(-1 - i) for i in range(min(n, len(self._held)))]

    def rewards(self, task: Task, completions: Sequence[str]) -> list[float]:
        arguments = {**self._spec, "row": self._row(task.index), "completions": list(completions)}
        if not self._worker.running:
            # It hung or died. Loading the taskset again does not count in a group's seconds.
            self._worker.ask("problem", self._spec, LOAD_SECONDS)
        return checked_rewards(f"task {self.environment}", self._worker.ask(self.environment, arguments))

    def close(self) -> None:
        self._worker.close()

    def _interpreter(self) -> str:
        """Another interpreter than this one, or ""."""
        if named := os.environ.get(PYTHON, ""):
            if (found := shutil.which(named)) is None:
                raise TaskError(f"task {self.environment}: {PYTHON} is {named}, which is not a program")
            return found
        if importlib.util.find_spec("verifiers") is None:
            raise NotInstalled(
                f"task {self.environment} needs verifiers, which is not installed:"
                f" {extras.install('verifiers')}, or set {PYTHON} to the python of an environment that has it"
            )
        return ""

    def _row(self, index: int) -> int:
        self._loaded()
        if index < 0:
            return self._held[-1 - index]
        epoch, place = divmod(index, len(self._training))
        return self._training[permuted(place, len(self._training), f"{self._seed}/{epoch}")]

    def _task(self, index: int) -> Task:
        row = self._row(index)  # loads the rows first
        messages, answer = self._rows[row]
        # A conversation where there is more than one message; else the run's own system message can stand
        # before it.
        turns = messages if len(messages) > 1 else ()
        return Task(
            environment=self.environment,
            index=index,
            prompt=messages[-1].content,
            answer=answer,
            messages=turns,
        )

    def _loaded(self) -> None:
        if self._rows:
            return
        rows: list[tuple[tuple[Message, ...], str]] = []
        while found := self._asked("rows", first=len(rows), n=ROWS_A_CALL):
            rows += [
                (tuple(Message(role=role, content=text) for role, text in turns), answer)
                for turns, answer in found
            ]
        order = sorted(range(len(rows)), key=lambda i: _hash(rows[i][0]))
        # rows of one text stay together
        ends = {_hash(rows[i][0]) for i in order[: max(1, round(self._share * len(rows)))]}
        self._held = [i for i in order if _hash(rows[i][0]) in ends]
        self._training = [i for i in range(len(rows)) if _hash(rows[i][0]) not in ends]
        if not self._training:
            raise TaskError(
                f"task {self.environment} has {len(rows)} tasks, which is too few to hold some out"
            )
        self._rows = rows

    def _asked(self, function: str, **arguments: Any) -> Any:
        try:
            return self._worker.ask(function, {**self._spec, **arguments}, LOAD_SECONDS)
        except RewardError as error:
            advice = (
                f": {os.environ.get(PYTHON)} -m pip install msgspec"
                if "named 'msgspec'" in str(error)
                else ""
            )
            raise TaskError(f"task {self.environment}: {error}{advice}") from error


def _hash(messages: Sequence[Message]) -> bytes:
    words = "\0".join(f"{message.role}\0{message.content}" for message in messages)
    return hashlib.blake2b(words.encode(), digest_size=16).digest()
