"""The protocol of task sources: (seed, index) to a task, the same on every peer; completions to rewards.

    (seed, index) --task, held_out--> Task            (Task, completions) --rewards--> a number for each

Training draws indices from 0 upwards; held-out tasks have negative indices and, by content, never occur in
training: every source splits its exercises in two before it draws. Rewards are functions of (task, texts), so
that a learner can recompute what a sampler claims; RewardError says that they could not be computed, and the
caller goes on without that group. Not handled here: which sources there are (swarm.tasks.catalog).
"""

from __future__ import annotations

import abc
import contextlib
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol, SupportsFloat, TypeVar

from swarm.frames.grammar import nearest, some
from swarm.types import Task

Options = Mapping[str, int | float | str | bool]
Say = Callable[[str], None]
CodePolicy = Literal["sandbox", "trust", "refuse"]
"""Treatment of reward code that came with a run, and of texts that are run as code: see `config.Rewards`."""


LARGEST = 1e15
"""Largest absolute value of a reward: learners compute in float32, where the squares of a group's rewards,
and of the gradient that they make, still have a finite sum."""


class TaskError(ValueError):
    """The source does not exist, or cannot be built from these options or this data. The message suggests a
    remedy."""


class NotInstalled(TaskError):
    """The source needs a package that is not installed here. The message says how to install it."""


class RewardError(Exception):
    """The rewards of a group could not be computed: a function raised, hung, or returned something that is no
    reward. The message names the function and the reason. Another group may succeed."""


class Abstained(RewardError):
    """No function applies to any completion of a group: the task's columns may be for others."""


class UnscoredSource(Protocol):
    """A source of tasks, without rewards."""

    environment: str
    """The name under which `swarm.tasks.source` finds it."""

    def task(self, index: int) -> Task:
        """Training task of `index` >= 0; a pure function of (run seed, index)."""
        ...

    def held_out(self, n: int) -> list[Task]:
        """The first n held-out tasks, or all when there are fewer; none of them is ever a training task. One
        may be there twice: `distinct` leaves it out."""
        ...

    def close(self) -> None:
        """Free what outlives the object: processes, files."""
        ...


class TaskSource(UnscoredSource, Protocol):
    """A source of tasks and their rewards."""

    slow: bool
    """Whether rewards are slow or come from another process: they are then requested outside of the event
    loop, a group at a time."""
    slow_tasks: bool
    """The same of tasks."""

    def tasks(self, indices: Sequence[int]) -> list[Task]:
        """The training tasks of these indices, at less cost than one by one where a process makes them."""
        ...

    def rewards(self, task: Task, completions: Sequence[str]) -> list[float]:
        """One reward for each completion, at most LARGEST in absolute value. Raises RewardError."""
        ...


class Startable(Protocol):
    """A source with a process of its own."""

    def check(self) -> None:
        """Start the process. Raises ValueError."""
        ...

    def close(self) -> None: ...


Started = TypeVar("Started", bound=Startable)


class WarmStart(TaskSource, Protocol):
    """A source from which the embedded policy can be created and warm-started."""

    characters: str
    """All characters of prompts and answers, each once: the embedded policy's tokens, in this order."""

    def example(self, index: int) -> tuple[str, str]:
        """(prompt, answer) for a supervised warm start; never a held-out task."""
        ...


class OneByOne(abc.ABC):
    """Base of sources that make their tasks one by one."""

    @abc.abstractmethod
    def task(self, index: int) -> Task: ...

    def tasks(self, indices: Sequence[int]) -> list[Task]:
        return [self.task(index) for index in indices]


class Exercises(OneByOne):
    """Base of sources whose reward is a quick function of one completion."""

    slow = slow_tasks = False

    @abc.abstractmethod
    def reward(self, task: Task, completion: str) -> float:
        """The completion's reward, 0 to 1."""

    def rewards(self, task: Task, completions: Sequence[str]) -> list[float]:
        return checked_rewards(
            f"task {task.environment}", [self.reward(task, completion) for completion in completions]
        )

    def close(self) -> None:
        """Nothing to free."""


DRAWS = 16
"""Times as many held-out tasks as are asked for are looked through for different ones: enough to find all of
as many (n log n draws are expected), with thousands left over."""


def distinct(source: UnscoredSource, n: int) -> list[Task]:
    """The first `n` held-out tasks without those that repeat an earlier one's prompt; fewer where the first
    DRAWS x n have no more. Sources draw at random, and the number of right answers has to be one of different
    tasks."""
    asked = n
    while True:
        made = source.held_out(asked)
        found = different(made)
        if len(found) >= n or len(made) < asked or asked == DRAWS * n:
            return found[:n]
        asked *= 2


def different(tasks: Sequence[Task]) -> list[Task]:
    """The tasks without those that repeat an earlier one's prompt."""
    found: dict[object, Task] = {}
    for task in tasks:
        found.setdefault((task.prompt, task.messages), task)
    return [*found.values()]


def too_few(found: int, n: int, name: str = "") -> str:
    """A sentence about a source that has `found` different held-out tasks where `n` are asked for; empty
    where that is enough, or there are none. `name`: of the evaluation set that it is."""
    if not 0 < found < n:
        return ""
    if name:
        return f"evaluation set {name} has {some(found, 'different task')}, and {n} are asked for"
    return (
        f"the task has {some(found, 'different held-out exercise')}, and run.evaluation.tasks asks for {n}:"
        f" each evaluation has {found}"
    )


def checked_rewards(name: str, values: Sequence[SupportsFloat]) -> list[float]:
    """The rewards that `name` returned. Raises RewardError for one that a learner cannot compute with."""
    found = [_number(name, i, value) for i, value in enumerate(values)]
    for i, value in enumerate(found):
        if not abs(value) <= LARGEST:
            raise RewardError(
                f"{name} returned {value} as reward {i}: a reward is finite and at most {LARGEST:g} in"
                " absolute value, or None where it does not apply"
            )
    return found


def _number(name: str, place: int, value: SupportsFloat) -> float:
    if hasattr(value, "__float__"):  # isinstance(value, SupportsFloat) takes a hundred times as long
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            return float(value)
    raise RewardError(f"{name} returned {reprlib.repr(value)} as reward {place}, which is not a number")


def checked(it: Started) -> Started:
    """The source, once its `check` has passed; closed when that raises."""
    try:
        it.check()
    except ValueError:
        it.close()
        raise
    return it


def check_options(
    environment: str, options: Options, defaults: Options
) -> dict[str, int | float | str | bool]:
    """`defaults` overlaid with `options`. Raises TaskError for an option that is unknown or of another
    type."""
    for name, value in options.items():
        if name not in defaults:
            raise TaskError(f"task {environment} has no option {name!r}{nearest(name, defaults)}")
        whole = isinstance(defaults[name], float) and type(value) is int  # 0 is a number, too
        if type(value) is not type(defaults[name]) and not whole:
            kind = type(defaults[name]).__name__
            raise TaskError(f"option {name} of task {environment} is {value!r}, it has to be of type {kind}")
    return {**defaults, **options}
