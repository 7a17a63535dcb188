"""Functions in the worker process of `gym:NAME`: reasoning-gym's exercises by (name, seed, options, index).

The generators are endless: training exercise i is number i mod 500 of chunk i div 500, whose seed follows
from the run's. One in four questions, by a hash of its text, is held out: training draws again when it meets
one, from another chunk at the same place, and the evaluation walks chunks of its own and takes those alone,
each question once. Held-out exercise k has the index -1 - k.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Mapping
from typing import Any

import reasoning_gym
from reasoning_gym.factory import DATASETS
from reasoning_gym.utils import extract_answer

from swarm.frames.grammar import nearest
from swarm.tasks.base import Options

CHUNK = 500
"""Exercises of one seed: reasoning-gym's own default; some generators make all of them at once."""

HELD_OUT = 4
"""One in so many questions is held out: each half costs draws of the other one, and the slowest exercises
take half a second."""

TRIES = 200
"""Draws until an exercise may be trained on: all miss with probability 1e-120, unless there are hardly any
different ones."""

BARREN = 2000
"""Draws in a row without a new held-out question, after which there are no more."""

CACHED = 64
"""Chunks that are cached."""

Exercise = Mapping[str, Any]


def problem(name: str, seed: int, options: Options) -> str:
    """What is wrong with the name or the options; empty when nothing is."""
    if name not in DATASETS:
        return f"reasoning-gym has no exercise {name!r}{nearest(name, DATASETS)}"
    fields = {
        field.name: field
        for field in dataclasses.fields(DATASETS[name][1])
        if field.name not in ("seed", "size")
    }
    for key, value in options.items():
        if key not in fields:
            return f"{name} has no option {key!r}{nearest(key, fields)}; it has {', '.join(fields) or 'none'}"
        default = fields[key].default
        whole = isinstance(default, float) and type(value) is int
        if isinstance(default, bool | int | float | str) and type(value) is not type(default) and not whole:
            return f"option {key} is {value!r}, it has to be of type {type(default).__name__}"
    try:
        training(name, seed, options, 0)
    except (AssertionError, ValueError, TypeError) as error:
        return f"reasoning-gym refuses these options: {error}"
    return ""


def training(name: str, seed: int, options: Options, index: int) -> tuple[str, str]:
    """(question, answer)"""
    return _question_and_answer(_exercise(name, seed, options, index))


def held_out(name: str, seed: int, options: Options, first: int, n: int) -> list[tuple[str, str]]:
    """Held-out ones from `first` to `first` + n, or as far as there are any."""
    return [
        _question_and_answer(exercise)
        for exercise in _walked(name, seed, _frozen(options)).first(first + n)[first:]
    ]


def scores(
    name: str, seed: int, options: Options, index: int, tag: str, completions: list[str]
) -> list[float]:
    """The score of each completion by the exercise's own `score_answer`."""
    exercise = _exercise(name, seed, options, index)
    scored = _chunk(name, _frozen(options), _seed(seed, "training", 0, 0))
    values = []
    for completion in completions:
        answer = extract_answer(completion, tag) if tag else completion.strip()
        try:
            values.append(float(scored.score_answer(answer, exercise)))
        except Exception as error:  # some parse the answer carelessly: text that breaks them is not right
            print(f"{name} could not score {completion[:200]!r}: {error!r}")
            values.append(0.0)
    return values


def _exercise(name: str, seed: int, options: Options, index: int) -> Exercise:
    frozen = _frozen(options)
    if index < 0:
        return _walked(name, seed, frozen).first(-index)[-1 - index]
    chunk, place = divmod(index, CHUNK)
    for draw in range(TRIES):
        exercise: Exercise = _chunk(name, frozen, _seed(seed, "training", chunk, draw))[place]
        if not _is_held_out(exercise):
            return exercise
    raise ValueError(f"{name} has too few different exercises with these options to hold some out")


class _Walk:
    """Held-out exercises, one after the other: each question once."""

    def __init__(self, name: str, seed: int, options: tuple[tuple[str, Any], ...]) -> None:
        self._found: list[Exercise] = []
        self._seen: set[str] = set()
        self._barren = 0
        chunks = (_chunk(name, options, _seed(seed, "held out", chunk, 0)) for chunk in itertools.count())
        self._drawn = (chunk[place] for chunk in chunks for place in range(CHUNK))

    def first(self, n: int) -> list[Exercise]:
        while len(self._found) < n and self._barren < BARREN:
            exercise = next(self._drawn)
            self._barren += 1
            if _is_held_out(exercise) and exercise["question"] not in self._seen:
                self._found.append(exercise)
                self._seen.add(exercise["question"])
                self._barren = 0
        return self._found[:n]


@functools.lru_cache(CACHED)
def _walked(name: str, seed: int, options: tuple[tuple[str, Any], ...]) -> _Walk:
    return _Walk(name, seed, options)


@functools.lru_cache(CACHED)
def _chunk(name: str, options: tuple[tuple[str, Any], ...], seed: int) -> Any:
    return reasoning_gym.create_dataset(name, **dict(options), seed=seed, size=CHUNK)


def _frozen(options: Options) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(options.items()))


def _seed(seed: int, half: str, chunk: int, draw: int) -> int:
    """31 bits: generators add an index to it, and numpy's take 32."""
    return (
        int.from_bytes(
            hashlib.blake2b(f"{seed}/{half}/{chunk}/{draw}".encode(), digest_size=4).digest(), "big"
        )
        >> 1
    )


def _is_held_out(exercise: Exercise) -> bool:
    return hashlib.blake2b(str(exercise["question"]).encode(), digest_size=1).digest()[0] % HELD_OUT == 0


def _question_and_answer(exercise: Exercise) -> tuple[str, str]:
    return str(exercise["question"]), str(exercise["answer"] if exercise["answer"] is not None else "")
