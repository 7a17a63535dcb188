"""Row `ragged`: what the engine `hf` loses where completions have 1 to 512 tokens, and what there is to win.

    in turn        a call's rows leave as their completions end; the next call begins after the longest one
    all full       as many tokens, and every completion as long as the mean: no row ever waits for another
    continuous     the next prompts enter where completions have ended, once an eighth of the rows is free

The first two are run with a tiny random Llama, the third is counted from the lengths: forwards, and cells of
the cache, columns times rows. A cache of tensors has as many columns as its longest row, which with rows of
all ages is nearly the longest completion there is. Not handled here: a cache of pages, as vLLM has.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lab.figures.table import Figure
from lab.swarms.partner import Answer, Partner

if TYPE_CHECKING:
    from lab.figures.table import Say

TASKS = (2, 8, 32)
"""In one call."""

GROUP, LONGEST = 8, 512
COUNTED, TURNS = 32, 3
"""Tasks of a turn, and how many turns."""

PROMPT = 16
"""Columns of a prompt, where cells are counted."""

FRACTION = 8
"""Part of the rows that is free when prompts enter: a prefill takes as long as a step."""


def measure(say: Say, counted: int = COUNTED, longest: int = LONGEST, turns: int = TURNS) -> Iterator[Figure]:
    from swarm.learn.models import tiny

    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder:
        model = tiny.make(Path(folder) / "llama", "llama")
        setup = {"model": str(model), "group": GROUP, "longest": longest, "counted": counted}
        with Partner("lab.processes.ragged_calls", setup) as partner:
            partner.hear()
            for tasks in TASKS:
                say(f"{tasks * GROUP} completions at once")
                told = [partner.ask(tasks=tasks, turn=turn) for turn in range(turns)]
                yield from _figures(tasks * GROUP, tasks, told)


def _figures(rows: int, tasks: int, told: Sequence[Answer]) -> Iterator[Figure]:
    lengths = np.concatenate([np.array(one["lengths"]) for one in told])
    mine, bound = ([one[side] for one in told] for side in ("in_turn", "all_full"))
    turn, on = in_turn(lengths, tasks), continuous(lengths, tasks)
    yield Figure.of_turns(
        mine,
        bound,
        row="ragged",
        what=f"hf, {rows} completions a call, tokens of a CPU",
        unit="tokens a CPU second",
        against="all rows full, a bound",
        note=f"lengths of {lengths.min()} to {lengths.max()}, median {np.median(lengths):.0f}",
    )
    yield Figure(
        row="ragged",
        what=f"hf, {rows} completions a call, tokens of a forward",
        value=turn.tokens / turn.forwards,
        unit="tokens",
        against="continuous, counted",
        other=on.tokens / on.forwards,
        note=f"{turn.forwards} forwards, {on.forwards}",
    )
    yield Figure(
        row="ragged",
        what=f"hf, {rows} completions a call, cells of its cache",
        value=turn.cells,
        unit="cells",
        against="continuous, counted",
        other=on.cells,
        note=f"with prompts of {PROMPT} tokens",
    )


class Count(NamedTuple):
    tokens: int
    forwards: int
    """A prefill is one."""
    cells: int
    """Of the largest cache."""


def in_turn(lengths: NDArray[np.int64], tasks: int) -> Count:
    """Completions of `lengths` (all tasks, G) in calls of so many tasks."""
    forwards, cells = 0, 0
    for first in range(0, len(lengths), tasks):
        flat = lengths[first : first + tasks].ravel()
        positions = np.arange(flat.max())
        forwards += len(positions)
        cells = max(cells, int(((flat > positions[:, None]).sum(1) * (PROMPT + positions)).max()))
    return Count(int(lengths.sum()), forwards, cells)


def continuous(lengths: NDArray[np.int64], tasks: int) -> Count:
    """The same with room for so many tasks at once, where the next ones enter as soon as there is room for an
    eighth of them: by a prefill of their own."""
    waiting, forwards, cells = [*lengths], 0, 0
    left = age = np.zeros(0, np.int64)
    while waiting or len(left):
        free = tasks - -(-len(left) // lengths.shape[1])
        if waiting and free >= max(1, min(len(waiting), tasks // FRACTION)):
            entering, waiting = waiting[:free], waiting[free:]
            left, age = np.concatenate([left, *entering]), np.pad(age, (0, sum(map(len, entering))))
            forwards += 1
        cells = max(cells, len(left) * (PROMPT + int(age.max())))
        left, age = left - 1, age + 1
        left, age = left[left > 0], age[left > 0]
        forwards += len(left) > 0
    return Count(int(lengths.sum()), forwards, cells)
