"""The catalog of task sources: builds the source that a run's settings name.

    name              source                                           whose rewards
    digit-sums, ...   built in                                         its own, or those of `run.task.rewards`
    data:PATH|ID      rows of a data set (swarm.tasks.data.dataset)         those that are named, else `exact`
    gym:NAME          exercises of reasoning-gym (swarm.tasks.workers.gym)     as the built-in ones
    verifiers:NAME    an environment (swarm.tasks.workers.verifier)            as the built-in ones
    anything else     an installed `swarm.tasks` entry point           as the built-in ones

    run.task --source--> TaskSource            run.task --warm_start--> WarmStart, for the embedded policy

A source's own module is imported when it is named. Errors name the closest known source. An exception of an
installed source, or a return value that is no task or reward, is its author's fault and is reported so
(`Authored`). Not handled here: the protocol of sources (swarm.tasks.base).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import inspect
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from swarm.frames.grammar import nearest
from swarm.settings import config
from swarm.tasks.base import (
    CodePolicy,
    Options,
    RewardError,
    Say,
    TaskError,
    TaskSource,
    WarmStart,
    checked_rewards,
)
from swarm.tasks.workers.sandbox import NoSandbox
from swarm.tasks.workers.worker_process import error_summary
from swarm.types import Task

if TYPE_CHECKING:
    from swarm.tasks.data.dataset import DataSet

BUILT_IN = {
    "brackets": "swarm.tasks.builtin.brackets:Brackets",
    "digit-sums": "swarm.tasks.builtin.digit_sums:DigitSums",
    "sentiment": "swarm.tasks.builtin.sentiment:Sentiment",
    "sorting": "swarm.tasks.builtin.sorting:Sorting",
    "toy": "swarm.tasks.toy:Toy",
}
"""Name -> a factory that takes (seed, options), as those of `swarm.tasks` entry points do."""

EMBEDDED = ("brackets", "digit-sums", "sorting", "toy")
"""Those that the embedded model is made for."""

PREFIXED = {
    "data": "swarm.tasks.data.dataset:make",
    "gym": "swarm.tasks.workers.gym:make",
    "verifiers": "swarm.tasks.workers.verifier:make",
}
"""Part before the colon -> a factory that takes (the part after it, seed, options, seconds for the rewards of
a group); that of gym: takes `texts`, too."""

UNSCORED = ("environment", "task", "held_out", "close")
SCORED = (*UNSCORED, "slow", "slow_tasks", "tasks", "rewards")
"""Attributes of a source with the rewards of the run, and of one that scores its tasks itself."""

MEND = "mend it, or change run.task.options"

OURS = (
    f"{Path(__file__).parent}{os.sep}",
    contextlib.__file__,
    importlib.__file__,
    importlib.metadata.__file__,
    "<frozen",
)
"""Files between a call and an author's code."""

FRAMES = 3
"""Lines of an author's code that are named, the innermost first."""


def source(
    settings: config.TaskSettings,
    seed: int,
    *,
    folder: Path | None = None,
    code: CodePolicy = "trust",
    texts: CodePolicy = "sandbox",
    say: Say = lambda line: None,
    scores: bool = True,
) -> TaskSource:
    """The task source of a run. Raises TaskError, and NoSandbox where bubblewrap is needed and does not work.

    `folder` has the run's own task files (swarm.tasks.data.task_files), `code` says how reward code from
    there is run, `texts` how completions are that a source runs as code (gym), and `say` gets lines for
    people, such as how many rows are unusable. Without `scores` no reward is made: a source that does not
    score itself then raises RewardError where it is asked for one.
    """
    from swarm.tasks.rewards import scored

    word, colon, rest = settings.name.partition(":")
    named = named_rewards(settings) if scores else ()
    if not scores:
        settings = msgspec.structs.replace(settings, rewards=(), weights=())
    if colon and word == "data":
        return scored.make(data(settings, seed, folder, say), named, settings, folder, code)
    if colon and word in PREFIXED:
        if not rest:
            raise TaskError(f"task source {settings.name!r} names nothing: write {word}:NAME")
        own = {"texts": texts} if word == "gym" else {}
        found: TaskSource = _load(PREFIXED[word])(rest, seed, settings.options, settings.timeout, **own)
    else:
        found = _made(settings.name, seed, settings.options, UNSCORED if named or not scores else SCORED)
    return scored.make(found, named, settings, folder, code) if named or not scores else found


def data(
    settings: config.TaskSettings, seed: int, folder: Path | None = None, say: Say = lambda line: None
) -> DataSet:
    """The rows of a `data:` source, without rewards. Raises TaskError."""
    from swarm.tasks.data import dataset
    from swarm.tasks.rewards import scored

    compared = any(name in scored.COMPARES for name in named_rewards(settings))
    name = settings.name.partition(":")[2]
    return dataset.make(name, seed, settings.options, folder=folder, say=say, compared=compared)


def named_rewards(settings: config.TaskSettings) -> tuple[str, ...]:
    """The reward functions that score completions; none where the source scores them itself."""
    return settings.rewards or (("exact",) if settings.name.startswith("data:") else ())


def warm_start(settings: config.TaskSettings, seed: int) -> WarmStart:
    """The source from which the embedded policy is made. Raises TaskError for a source without a fixed set of
    characters."""
    word, colon, _ = settings.name.partition(":")
    found: object = (
        None if colon and word in PREFIXED else _made(settings.name, seed, settings.options, UNSCORED)
    )
    if found is None or not hasattr(found, "characters"):
        raise TaskError(
            f"the embedded model is made for one of {', '.join(EMBEDDED)} and knows no words: for"
            f" {settings.name} name a model, such as --model Qwen/Qwen3-0.6B or a folder"
        )
    characters = found.characters
    if not isinstance(characters, str) or len(set(characters)) < len(characters):
        raise TaskError(
            f"the characters of the task source {settings.name!r} are {characters!r}: they are the tokens of"
            " the embedded model, a text in which each is once"
        )
    return cast(WarmStart, found)


def about(settings: config.TaskSettings) -> str:
    """The options of a source, from its docstring, in one line. Raises TaskError."""
    word, colon, _ = settings.name.partition(":")
    factory: object = _load(PREFIXED[word]) if colon and word in PREFIXED else _factory(settings.name)
    return " ".join((inspect.getdoc(factory) or "").split()).removesuffix(" Raises TaskError.")


def _made(name: str, seed: int, options: Options, wanted: Sequence[str]) -> TaskSource:
    """The source of an own factory, with the attributes `wanted`. Raises TaskError, also for whatever an
    installed one raises."""
    factory = _factory(name)
    if name in BUILT_IN:
        return factory(seed, options)
    try:
        found = factory(seed, options)
        lacking = [attribute for attribute in wanted if not hasattr(found, attribute)]
    except (TaskError, NoSandbox):
        raise
    except (Exception, SystemExit) as error:
        raise TaskError(f"the task source {name!r} raises {_described(error)}: {MEND}") from error
    if lacking:
        raise TaskError(
            f"the task source {name!r} makes {_kind(found)} without {', '.join(lacking)}: give it what"
            " swarm.tasks.base.TaskSource has, such as by its base Exercises"
        )
    return cast(TaskSource, Authored(name, found))


class Authored:
    """An installed source. An exception of its code, or a return value that is no task or reward, becomes a
    TaskError or, of its rewards, a RewardError, which names the lines of that code."""

    def __init__(self, name: str, source: TaskSource) -> None:
        self._name, self._source = name, source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    @property
    def __class__(self) -> Any:
        """The author's class, for `isinstance`."""
        return type(self._source)

    def task(self, index: int) -> Task:
        with self._telling("task", TaskError):
            made = self._source.task(index)
        return self._training("task", [made], [index])[0]

    def tasks(self, indices: Sequence[int]) -> list[Task]:
        with self._telling("tasks", TaskError):
            made = list(self._source.tasks(indices))
        return self._training("tasks", made, indices)

    def held_out(self, n: int) -> list[Task]:
        with self._telling("held_out", TaskError):
            made = list(self._source.held_out(n))
        found = [self._a_task("held_out", task) for task in made]
        indices = [task.index for task in found]
        if len({index for index in indices if index < 0}) < len(indices):
            raise TaskError(
                f"{self._of('held_out')} returns tasks with the indices {', '.join(map(str, indices[:8]))}:"
                " give each a negative one of its own, such as -1 and -2"
            )
        return found

    def rewards(self, task: Task, completions: Sequence[str]) -> list[float]:
        with self._telling("rewards", RewardError):
            made = list(self._source.rewards(task, completions))
        if len(made) != len(completions):
            raise RewardError(
                f"{self._of('rewards')} returned {len(made)} for {len(completions)} completions: return one"
                " for each"
            )
        return checked_rewards(self._of("rewards"), made)

    def example(self, index: int) -> tuple[str, str]:
        with self._telling("example", TaskError):
            prompt, answer = cast(WarmStart, self._source).example(index)
            return str(prompt), str(answer)

    def close(self) -> None:
        with self._telling("close", TaskError):
            self._source.close()

    @contextlib.contextmanager
    def _telling(self, method: str, kind: type[TaskError | RewardError]) -> Iterator[None]:
        """Whatever the body raises is of this kind, or a TaskError."""
        try:
            yield
        except (TaskError, kind, NoSandbox):
            raise
        except RewardError as error:
            raise kind(str(error)) from error
        except (Exception, SystemExit) as error:
            raise kind(f"{self._of(method)} raises {_described(error)}: {MEND}") from error

    def _of(self, method: str) -> str:
        return f"`{method}` of the task source {self._name!r}"

    def _training(self, method: str, made: Sequence[object], indices: Sequence[int]) -> list[Task]:
        found = [self._a_task(method, task) for task in made]
        if [task.index for task in found] != [*indices]:
            raise TaskError(
                f"{self._of(method)} returns tasks with the indices"
                f" {', '.join(str(task.index) for task in found) or 'of none'} for"
                f" {', '.join(map(str, indices))}: give each Task the index that is asked for"
            )
        return found

    def _a_task(self, method: str, made: object) -> Task:
        why = _kind(made)
        if isinstance(made, Task):
            try:
                fields = {name: getattr(made, name) for name in Task.__struct_fields__}
                msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=Task)
                return made
            except (msgspec.ValidationError, TypeError, ValueError, OverflowError) as error:
                why = f"a Task that is none: {error}"
        raise TaskError(
            f"{self._of(method)} returns {why}: make it a swarm.types.Task, whose prompt and answer are text"
        )


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
    except (Exception, SystemExit) as error:  # a module may do anything
        why = f"is installed as {point.value} but cannot be imported: {_described(error)}"
        raise TaskError(f"the task source {point.name!r} {why}") from error
    return make


def _described(error: BaseException) -> str:
    """Type and message, with the innermost line of the author's file."""
    summary = error_summary(error, str(error))
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename} line {error.lineno})"
    trace = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in trace if not frame.filename.startswith(OURS)]
    if not frames:
        return summary
    return f"{summary} ({_lines([frame for frame in frames if _is_beside(frame, frames[0])][-FRAMES:])})"


def _is_beside(frame: traceback.FrameSummary, first: traceback.FrameSummary) -> bool:
    """Whether it is of the first one's file, or of the package that has that file."""
    folder = Path(first.filename).parent
    own = (folder / "__init__.py").exists() and Path(frame.filename).is_relative_to(folder)
    return own or frame.filename == first.filename


def _lines(frames: Sequence[traceback.FrameSummary]) -> str:
    """Files and lines, the innermost first."""
    *callers, last = frames
    said, file = f"{last.filename} line {last.lineno}", last.filename
    for frame in reversed(callers):
        place = "" if frame.filename == file else f"{frame.filename} "
        said, file = f"{said}, called from {place}line {frame.lineno}", frame.filename
    return said


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _load(place: str) -> Callable[..., TaskSource]:
    module, _, attribute = place.partition(":")
    make: Callable[..., TaskSource] = getattr(import_module(module), attribute)
    return make
