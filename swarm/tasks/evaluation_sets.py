"""Evaluation sets: what evaluators answer beside the held-out tasks of `run.task`.

    run.task, run.evaluation.sets --settings--> name -> TaskSettings, complete
    a `data:` set --rows--> as many rows as an evaluation takes: those that the run carries
    its source --drawn--> its tasks

No row of a set is a row that is trained: where `run.task` is `data:`, too, rows of one prompt are left out
when the run is made, before some are chosen. Built-in exercises are split by their content, whatever their
options. Not handled here: an exercise of another kind of source that happens to be a trained row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from swarm.settings import config
from swarm.tasks import catalog
from swarm.tasks.base import Options, Say, TaskError, TaskSource, different, distinct
from swarm.tasks.data import dataset
from swarm.types import Task

KEY = "run.evaluation.sets"
DATA = "data:"

WHOLE: Options = {"held_out": 0.0, "held_out_split": ""}
"""Options of a data set whose rows are all tasks."""


def settings(run: config.Run) -> dict[str, config.TaskSettings]:
    """Name -> settings of each set, as `completed` has them. Raises TaskError."""
    return {name: completed(run, name) for name in run.evaluation.sets}


def completed(run: config.Run, name: str) -> config.TaskSettings:
    """Settings of a set, completed from those of `run.task`. Raises TaskError for an option that would be
    ignored."""
    task, one = run.task, run.evaluation.sets[name]
    source = one.name or task.name
    same, rows = source == task.name, source.startswith(DATA)
    alike = same or (rows and task.name.startswith(DATA))
    if rows and (ignored := [option for option in WHOLE if option in one.options]):
        raise TaskError(
            f"{KEY}.{name}.options.{ignored[0]} would hold rows of {source} out, and all rows of an"
            " evaluation set are its tasks: leave it out"
        )
    kept = {key: value for key, value in task.options.items() if same or key in dataset.COLUMNS}
    return replace(
        task,
        name=source,
        options={**(kept if alike else {}), **one.options, **(WHOLE if rows else {})},
        rewards=one.rewards or (task.rewards if alike else ()),
        weights=one.weights or (task.weights if alike and not one.rewards else ()),
        system=one.system or task.system,
    )


def number(run: config.Run, name: str) -> int:
    """Tasks of a set in one evaluation, where it has as many."""
    return run.evaluation.sets[name].tasks or run.evaluation.tasks


def rows(
    settings: config.TaskSettings,
    seed: int,
    n: int,
    trained: Set[int],
    fits: Callable[[Sequence[Task]], Sequence[bool]],
    say: Say,
) -> Any:
    """The table of `n` rows of a `data:` set with different prompts, or of all there are: those that come
    first by the run's seed, without the prompts of `trained` (DataSet.prompts) and those that do not fit.
    `say` gets their numbers. Raises TaskError where none is left."""
    data = catalog.data(settings, seed, say=say)
    known, _ = data.rows_without(lambda tasks: [dataset.content(task) not in trained for task in tasks])
    long, _ = data.rows_without(fits)
    left = len(known | long)
    if known:
        say(f"{len(known)} of {data.usable} rows are left out: their prompts are trained")
    if long - known:
        say(
            f"{len(long - known)} of {data.usable} rows are left out: the model has no room for their prompts"
        )
    if left == data.usable:
        raise TaskError(f"no row of {settings.name} is left: name other data in {KEY}, or leave this set out")
    return data.first(n, known | long)


def drawn(source: TaskSource, settings: config.TaskSettings, n: int) -> list[Task]:
    """The first `n` different tasks of a set, or all there are; all rows of a data set are its tasks."""
    if settings.name.startswith(DATA):
        return different(source.tasks(range(n)))
    return distinct(source, n)


@contextmanager
def telling(name: str) -> Iterator[None]:
    """A TaskError of the body names the set and its settings instead of those of `run.task`."""
    try:
        yield
    except TaskError as error:
        told = str(error).replace("run.task.", f"{KEY}.{name}.")
        raise type(error)(f"evaluation set {name}: {told}") from error
