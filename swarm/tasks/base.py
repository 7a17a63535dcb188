"""A task source: a seed and an index go in, the same exercise comes out on every peer; a completion goes in, a reward comes out.

Training draws indices from 0 upwards; held-out tasks have negative indices and, by content, never occur in training: every
source splits its space of exercises in two before it draws. Rewards are pure functions of (task, text), so that a learner can
recompute what a sampler claims. Not handled here: slow or unsafe rewards (those need a process of their own).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Protocol

from swarm.types import Task

Options = Mapping[str, int | float | str | bool]


class TaskSource(Protocol):
    environment: str
    """The name under which `source` finds it."""
    characters: str
    """All that prompts and answers are made of, each once: the embedded policy's tokens, in this order."""

    def task(self, index: int) -> Task:
        """Training task of `index` >= 0; a pure function of (run seed, index)."""
        ...

    def held_out(self, n: int) -> list[Task]:
        """The first n held-out tasks; none of them is ever a training task."""
        ...

    def reward(self, task: Task, completion: str) -> float:
        """What the completion is worth, 0 to 1."""
        ...

    def example(self, index: int) -> tuple[str, str]:
        """(prompt, answer) for a supervised warm start; never a held-out task."""
        ...


_SOURCES = {
    "brackets": "swarm.tasks.brackets:Brackets",
    "digit-sums": "swarm.tasks.digit_sums:DigitSums",
    "sorting": "swarm.tasks.sorting:Sorting",
    "toy": "swarm.tasks.toy:Toy",
}


def source(name: str, seed: int, options: Options | None = None) -> TaskSource:
    """The task source of a run. Raises ValueError for an unknown name or option, with the nearest known one."""
    if name not in _SOURCES:
        raise ValueError(f"there is no task source {name!r}{nearest(name, _SOURCES)}; known: {', '.join(sorted(_SOURCES))}")
    module, _, attribute = _SOURCES[name].partition(":")
    make: Callable[..., TaskSource] = getattr(import_module(module), attribute)
    return make(seed, options or {})


def check_options(environment: str, options: Options, defaults: Options) -> dict[str, int | float | str | bool]:
    """`defaults` overlaid with `options`. Raises ValueError for an option that is unknown or of another type."""
    for name, value in options.items():
        if name not in defaults:
            raise ValueError(f"task {environment} has no option {name!r}{nearest(name, defaults)}")
        if type(value) is not type(defaults[name]):
            kind = type(defaults[name]).__name__
            raise ValueError(f"option {name} of task {environment} is {value!r}, it has to be of type {kind}")
    return {**defaults, **options}


def nearest(word: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
