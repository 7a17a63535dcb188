"""A task source: a seed and an index go in, the same exercise comes out on every peer; completions go in,
rewards come out.

    name              source                                           whose rewards
    digit-sums, ...   built in                                         its own, or those of `run.task.rewards`
    data:PATH|ID      rows of a data set (swarm.tasks.dataset)         those that are named, else `exact`
    gym:NAME          exercises of reasoning-gym (swarm.tasks.gym)     as the built-in ones
    verifiers:NAME    an environment (swarm.tasks.verifier)            as the built-in ones
    anything else     an installed `swarm.tasks` entry point           as the built-in ones

Training draws indices from 0 upwards; held-out tasks have negative indices and, by content, never occur in
training: every source splits its exercises in two before it draws. Rewards are functions of (task, texts), so
that a learner can recompute what a sampler claims; whoever calls them is told by RewardError when they could
not be computed, and goes on without that group.
"""

from __future__ import annotations

import abc
import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Literal, Protocol, TypeVar, cast

from swarm import config
from swarm.types import Task

Options = Mapping[str, int | float | str | bool]
Say = Callable[[str], None]
Code = Literal["sandbox", "trust", "refuse"]
"""What is done with reward code that came with a run: see `config.Rewards`."""


class TaskError(ValueError):
    """There is no such source, or it cannot be made from these options or this data. The message says what to
    do."""


class RewardError(Exception):
    """The rewards of these completions could not be computed: a function raised, hung, or returned what is no
    reward. The message names the function and says why. Another group may fare better."""


class Course(Protocol):
    """A source of exercises, without rewards."""

    environment: str
    """The name under which `source` finds it."""

    def task(self, index: int) -> Task:
        """Training task of `index` >= 0; a pure function of (run seed, index)."""
        ...

    def held_out(self, n: int) -> list[Task]:
        """The first n held-out tasks, or all when there are fewer; none of them is ever a training task."""
        ...

    def close(self) -> None:
        """Free what outlives the object: processes, files."""
        ...


class TaskSource(Course, Protocol):
    slow: bool
    """Tasks or rewards are slow, or come from a process of their own: they are asked for outside of the event
    loop, one at a time."""

    def rewards(self, task: Task, completions: Sequence[str]) -> list[float]:
        """One finite reward for each completion. Raises RewardError."""
        ...


class Startable(Protocol):
    def check(self) -> None:
        """Start what is needed. Raises ValueError."""
        ...

    def close(self) -> None: ...


Started = TypeVar("Started", bound=Startable)


class WarmStart(TaskSource, Protocol):
    """A source from which the embedded policy can be made and warmed up."""

    characters: str
    """All that prompts and answers are made of, each once: the embedded policy's tokens, in this order."""

    def example(self, index: int) -> tuple[str, str]:
        """(prompt, answer) for a supervised warm start; never a held-out task."""
        ...


class Exercises(abc.ABC):
    """Base of sources whose reward is a quick function of one completion."""

    slow = False

    @abc.abstractmethod
    def reward(self, task: Task, completion: str) -> float:
        """The completion's reward, 0 to 1."""

    def rewards(self, task: Task, completions: Sequence[str]) -> list[float]:
        return [self.reward(task, completion) for completion in completions]

    def close(self) -> None:  # noqa: B027 (a default, not a duty)
        """Nothing to free."""


BUILT_IN = {
    "brackets": "swarm.tasks.brackets:Brackets",
    "digit-sums": "swarm.tasks.digit_sums:DigitSums",
    "sorting": "swarm.tasks.sorting:Sorting",
    "toy": "swarm.tasks.toy:Toy",
}
"""Name -> a factory that takes (seed, options), as those of `swarm.tasks` entry points do."""

PREFIXED = {
    "data": "swarm.tasks.dataset:make",
    "gym": "swarm.tasks.gym:make",
    "verifiers": "swarm.tasks.verifier:make",
}
"""Word before the colon -> a factory that takes (what stands after it, seed, options, seconds for the rewards
of a group)."""


def source(
    settings: config.TaskSettings,
    seed: int,
    *,
    folder: Path | None = None,
    code: Code = "trust",
    say: Say = lambda line: None,
) -> TaskSource:
    """The task source of a run. Raises TaskError.

    `folder` has the run's own task files (swarm.tasks.files), `code` says how reward code from there is run,
    and `say` is told what a person should know, such as how many rows are of no use.
    """
    from swarm.tasks import dataset, scored

    word, colon, rest = settings.name.partition(":")
    named = named_rewards(settings)
    if colon and word == "data":
        return scored.make(
            dataset.make(rest, seed, settings.options, folder=folder, say=say), named, settings, folder, code
        )
    if colon and word in PREFIXED:
        if not rest:
            raise TaskError(f"task source {settings.name!r} names nothing: write {word}:NAME")
        found: TaskSource = _load(PREFIXED[word])(rest, seed, settings.options, settings.timeout)
    else:
        found = _factory(settings.name)(seed, settings.options)
    return scored.make(found, named, settings, folder, code) if named else found


def named_rewards(settings: config.TaskSettings) -> tuple[str, ...]:
    """The reward functions that score completions; none where the source scores them itself."""
    return settings.rewards or (("exact",) if settings.name.startswith("data:") else ())


def warm_start(settings: config.TaskSettings, seed: int) -> WarmStart:
    """The source from which the embedded policy is made. Raises TaskError for a source without a fixed set of
    characters."""
    word, colon, _ = settings.name.partition(":")
    found: object = None if colon and word in PREFIXED else _factory(settings.name)(seed, settings.options)
    if found is None or not hasattr(found, "characters"):
        raise TaskError(
            f"the embedded model is made for one of {', '.join(sorted(BUILT_IN))} and knows no words: for"
            f" {settings.name} name a model, such as --model Qwen/Qwen3-0.6B or a folder"
        )
    return cast(WarmStart, found)


def about(settings: config.TaskSettings) -> str:
    """The options of a source, from its docstring, in one line. Raises TaskError."""
    word, colon, _ = settings.name.partition(":")
    factory: object = _load(PREFIXED[word]) if colon and word in PREFIXED else _factory(settings.name)
    return " ".join((inspect.getdoc(factory) or "").split()).removesuffix(" Raises TaskError.")


def _factory(name: str) -> Callable[..., TaskSource]:
    if name in BUILT_IN:
        return _load(BUILT_IN[name])
    installed = {point.name: point for point in entry_points(group="swarm.tasks")}
    if name in installed:
        return _installed(installed[name])
    known = [*BUILT_IN, *installed, *(f"{word}:" for word in PREFIXED)]
    raise TaskError(
        f"there is no task source {name!r}{nearest(name, known)}; known: {', '.join(sorted(known))}"
    )


def _installed(point: EntryPoint) -> Callable[..., TaskSource]:
    try:
        make: Callable[..., TaskSource] = point.load()
    except (ImportError, AttributeError) as error:
        why = f"is installed as {point.value} but cannot be imported: {error}"
        raise TaskError(f"the task source {point.name!r} {why}") from error
    return make


def _load(place: str) -> Callable[..., TaskSource]:
    module, _, attribute = place.partition(":")
    make: Callable[..., TaskSource] = getattr(import_module(module), attribute)
    return make


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


def nearest(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
