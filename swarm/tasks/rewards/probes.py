"""Tries a task's rewards before a run begins: right and wrong answers, and texts that are no answer at all.

    right, wrong            in one call, as a group        -> rewards
    prompt, nothing, "I do not know."    one call each     -> rewards, or None where no function applies
    all of it once more                                    -> the same numbers, or the task is at fault

In comes a source and a task, out come the answers and their rewards (Tried); `warnings` reports defects over
several of them: a reward that pays for no answer, or is the same for all. A function that raises on one of
these is at fault as it is in a run. Not handled: whether a reward is fair, and one that depends on the
machine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from swarm.frames.grammar import some
from swarm.tasks.base import Abstained, RewardError, TaskError, TaskSource
from swarm.types import Task

OTHERS = 3
"""Following exercises whose answers are tried on this one."""

REFUSAL = "I do not know."

UNLIKE = "the rewards are not the same number twice"

SECONDS = 10.0
"""Seconds after which no further exercise of a new run is tried."""

FIRST = 3
"""Exercises of a new run that are tried."""

SAME = 1e-6
"""Difference from which on a learner takes a claimed reward for another."""


@dataclass(frozen=True)
class Attempt:
    completion: str
    reward: float | None
    """None when it could not be computed, or no function applies."""


@dataclass(frozen=True)
class Probe(Attempt):
    what: str


@dataclass(frozen=True)
class Tried:
    """One exercise, and the answers that were tried on it."""

    right: Attempt
    wrong: Attempt
    """That of the wrong ones which earns least."""
    probes: tuple[Probe, ...]
    said: Attempt | None
    """A text of the author's."""
    seconds: float
    """Seconds to score all of it."""
    scored: int
    """Number of texts that were scored."""
    problem: str
    """The sentence that a peer would emit; empty when nothing is wrong."""


def of_new_run(source: TaskSource) -> list[str]:
    """Warnings for the author of a new run's rewards. Raises TaskError for rewards that are not the same
    number twice, and for those that score none of the first tasks."""
    trials: list[Tried] = []
    end = time.monotonic() + SECONDS
    while len(trials) < FIRST and (not trials or time.monotonic() < end):
        trials.append(tried(source, source.task(len(trials))))
    faults = [trial.problem for trial in trials if trial.problem]
    if len(faults) == len(trials) or any(problem.startswith(UNLIKE) for problem in faults):
        raise TaskError(next((problem for problem in faults if problem.startswith(UNLIKE)), faults[0]))
    lost = [f"{len(faults)} of the first {len(trials)} tasks cannot be scored: {faults[0]}"] if faults else []
    return lost + warnings(trials)


def tried(source: TaskSource, task: Task, say: str | None = None) -> Tried:
    """The rewards of answers to this task; `say`: a text of the user. Raises TaskError."""
    others = dict.fromkeys(source.task(max(task.index, 0) + 1 + k).answer for k in range(OTHERS))
    wrong = [answer for answer in others if answer != task.answer] or [task.answer[::-1] + "?"]
    texts = _no_answers(task)
    asked = [
        [task.answer, *wrong],
        *([text] for text in texts.values()),
        *([[say]] if say is not None else []),
    ]
    problem, start = "", time.perf_counter()
    first: list[list[float | None]] = [[None] * len(group) for group in asked]
    try:
        first = [_rewards(source, task, group) for group in asked]
        again = [_rewards(source, task, group) for group in asked]
        problem = _unlike(asked, first, again)
    except RewardError as error:
        problem = str(error)
    seconds = time.perf_counter() - start
    pairs = sorted(zip(wrong, first[0][1:], strict=True), key=lambda pair: pair[1] or 0.0)
    single = [rewards[0] for rewards in first[1:]]
    return Tried(
        right=Attempt(task.answer, first[0][0]),
        wrong=Attempt(*pairs[0]),
        probes=tuple(
            Probe(text, reward, what) for (what, text), reward in zip(texts.items(), single, strict=False)
        ),
        said=Attempt(say, single[-1]) if say is not None else None,
        seconds=round(seconds, 6),
        scored=sum(map(len, asked)),
        problem=problem,
    )


def _no_answers(task: Task) -> dict[str, str]:
    """Texts that are no answer to it."""
    texts = {"the prompt itself": task.prompt, "an empty answer": "", f'a refusal ("{REFUSAL}")': REFUSAL}
    return {what: text for what, text in texts.items() if text.strip() != task.answer.strip()}


def _rewards(source: TaskSource, task: Task, texts: Sequence[str]) -> list[float | None]:
    try:
        return list(source.rewards(task, texts))
    except Abstained:
        if len(texts) > 1:
            raise
        return [None]


def _unlike(
    asked: Sequence[Sequence[str]],
    first: Sequence[Sequence[float | None]],
    again: Sequence[Sequence[float | None]],
) -> str:
    for texts, before, after in zip(asked, first, again, strict=True):
        for text, one, two in zip(texts, before, after, strict=True):
            if (one is None) is not (two is None) or abs((one or 0.0) - (two or 0.0)) > SAME:
                shown = text if len(text) <= 40 else text[:37] + "..."
                return (
                    f"{UNLIKE}: {shown!r} earned {_number(one)}, then"
                    f" {_number(two)}. Learners compute every reward themselves, and would trust no sampler:"
                    " take chance, the clock and the network out of the reward"
                )
    return ""


def _number(reward: float | None) -> str:
    return "nothing" if reward is None else f"{reward:g}"


def warnings(trials: Sequence[Tried]) -> list[str]:
    """Sentences about the rewards; none where they distinguish answers from other texts."""
    scored = [trial for trial in trials if not trial.problem]
    attempts = [attempt for trial in scored for attempt in (trial.right, trial.wrong, *trial.probes)]
    earned = {attempt.reward for attempt in attempts if attempt.reward is not None}
    if len(earned) == 1:
        return [
            f"Every answer that was tried earns {earned.pop():g}, right, wrong or none: the reward tells"
            " nothing apart, and a policy learns nothing from it."
        ]
    paid: dict[str, list[float]] = {}
    for trial in scored:
        for probe in trial.probes:
            if probe.reward is not None and _pays(trial, probe.reward):
                paid.setdefault(probe.what, []).append(probe.reward)
    if not paid:
        return []
    exercises = some(len(scored), "exercise")
    told = ", ".join(f"{what} earns {max(got):g} in {len(got)} of {exercises}" for what, got in paid.items())
    return [
        f"{told[0].upper()}{told[1:]}: the reward pays for what is no answer, and a policy learns to give"
        " none."
    ]


def _pays(trial: Tried, reward: float) -> bool:
    right, wrong = trial.right.reward, trial.wrong.reward
    return reward > 0 or (right is not None and wrong is not None and right > wrong and reward >= right)
