"""The catalog of task sources: builds the source that a run's settings name.

    name              source                                           whose rewards
    digit-sums, ...   built in                                         its own, or those of `run.task.rewards`
    data:PATH|ID      rows of a data set (swarm.tasks.dataset)         those that are named, else `exact`
    gym:NAME          exercises of reasoning-gym (swarm.tasks.gym)     as the built-in ones
    verifiers:NAME    an environment (swarm.tasks.verifier)            as the built-in ones
    anything else     an installed `swarm.tasks` entry point           as the built-in ones

    run.task --source--> TaskSource            run.task --warm_start--> WarmStart, for the embedded policy

A source's own module is imported when it is named. Errors name the closest known source. Not handled here:
the protocol of sources (swarm.tasks.base).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import traceback
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import cast

from swarm import config
from swarm.tasks.base import CodePolicy, Options, Say, TaskError, TaskSource, WarmStart, nearest
from swarm.tasks.sandbox import NoSandbox

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
of a group); that of gym: takes `texts`, too."""


def source(
    settings: config.TaskSettings,
    seed: int,
    *,
    folder: Path | None = None,
    code: CodePolicy = "trust",
    texts: CodePolicy = "sandbox",
    say: Say = lambda line: None,
) -> TaskSource:
    """The task source of a run. Raises TaskError, and NoSandbox where bubblewrap is needed and does not work.

    `folder` has the run's own task files (swarm.tasks.task_files), `code` says how reward code from there is
    run, `texts` how completions are that a source runs as code (gym), and `say` gets lines for people, such
    as how many rows are unusable.
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
        own = {"texts": texts} if word == "gym" else {}
        found: TaskSource = _load(PREFIXED[word])(rest, seed, settings.options, settings.timeout, **own)
    else:
        found = _made(settings.name, seed, settings.options)
    return scored.make(found, named, settings, folder, code) if named else found


def named_rewards(settings: config.TaskSettings) -> tuple[str, ...]:
    """The reward functions that score completions; none where the source scores them itself."""
    return settings.rewards or (("exact",) if settings.name.startswith("data:") else ())


def warm_start(settings: config.TaskSettings, seed: int) -> WarmStart:
    """The source from which the embedded policy is made. Raises TaskError for a source without a fixed set of
    characters."""
    word, colon, _ = settings.name.partition(":")
    found: object = None if colon and word in PREFIXED else _made(settings.name, seed, settings.options)
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


def _made(name: str, seed: int, options: Options) -> TaskSource:
    """The source of an own factory. Raises TaskError, also for whatever an installed one raises."""
    factory = _factory(name)
    try:
        return factory(seed, options)
    except Exception as error:
        if name in BUILT_IN or isinstance(error, (TaskError, NoSandbox)):
            raise
        raise TaskError(
            f"the task source {name!r} raises {_described(error)}: mend it, or change run.task.options"
        ) from error


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
    said = f"{type(error).__name__}: {error}".rstrip(": ")
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename} line {error.lineno})"
    ours = (__file__, importlib.__file__, importlib.metadata.__file__)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in ours and not frame.filename.startswith("<frozen")
    ]
    theirs = [frame for frame in frames if frame.filename == frames[0].filename]
    return f"{said} ({theirs[-1].filename} line {theirs[-1].lineno})" if theirs else said


def _load(place: str) -> Callable[..., TaskSource]:
    module, _, attribute = place.partition(":")
    make: Callable[..., TaskSource] = getattr(import_module(module), attribute)
    return make
