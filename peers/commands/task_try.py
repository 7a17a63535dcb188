"""`swarm task try`: shows exercises of a task, the rewards of a right and a wrong answer to each, and the
time that scoring takes.

The argument is a name such as `digit-sums` or `data:./problems.jsonl`, or a config file. Exercises are drawn
as a peer of that run would draw them, and prompts are rendered for the model where one is named. Reward code
runs without a sandbox, as on its author's machine, and so does gym:, which scores its own answers here. When
a reward raises, hangs, returns NaN or the wrong number of values, the sentence that a peer would emit is
shown, and the exit code is 2. Not handled here: how good the rewards are.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from peers.console import Listing
from peers.errors import DONE, USAGE, CannotHere, WrongUsage
from swarm.config import Run
from swarm.tasks import catalog as tasks
from swarm.tasks.base import RewardError, TaskSource
from swarm.tasks.worker import START_SECONDS
from swarm.types import Task

WIDE = 100
"""Most columns of the output."""

LONG, LINES = 1200, 16
"""Most characters and lines of a prompt or answer that are shown; JSON has all of them."""

OTHERS = 3
"""Number of following exercises whose answers are tried on this one; the one with the least reward is shown
as the wrong answer."""


@dataclass(frozen=True)
class Attempt:
    completion: str
    reward: float | None
    """None when the rewards could not be computed."""


@dataclass(frozen=True)
class Trial:
    """One exercise with its right and wrong answer."""

    index: int
    prompt: str
    answer: str
    right: Attempt
    wrong: Attempt
    seconds: float
    """Seconds to score all completions that were tried."""
    scored: int
    """Number of these completions."""
    problem: str
    """The sentence that a peer would emit; empty when nothing is wrong."""


def main(run: Run, count: int, modelled: bool, as_json: bool) -> int:
    """Try `count` exercises; `modelled`: the run names a model, and its tokenizer renders the prompts.
    Returns an exit code."""
    if count < 1:
        raise WrongUsage(f"-n {count}: there is nothing to try; give 1 or more")
    say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731 (a value, not a name)
    render = _render(run) if modelled else None
    if imported := [name for name in tasks.named_rewards(run.task) if ":" in name]:
        say(f"waiting for the imports of {', '.join(imported)}, {START_SECONDS:.0f} s at most")
    source = tasks.source(run.task, run.seed, texts="trust", say=say)
    try:
        trials = [_tried(source, index, render) for index in range(count)]
    finally:
        source.close()
    if as_json:
        about = {"environment": source.environment, "rewards": list(tasks.named_rewards(run.task))}
        print(
            json.dumps(about | {"tasks": [asdict(trial) for trial in trials]}, indent=2, ensure_ascii=False)
        )
    else:
        console = Listing(highlight=False)
        console.print(_page(run, trials), width=min(console.width, WIDE))
    return USAGE if any(trial.problem for trial in trials) else DONE


def _tried(source: TaskSource, index: int, render: Callable[[Task], str] | None) -> Trial:
    task = source.task(index)
    others = dict.fromkeys(source.task(index + 1 + k).answer for k in range(OTHERS))
    wrong = [answer for answer in others if answer != task.answer] or [task.answer[::-1] + "?"]
    completions, start = [task.answer, *wrong], time.perf_counter()
    rewards: Sequence[float | None]
    try:
        rewards, problem = source.rewards(task, completions), ""
    except RewardError as error:
        rewards, problem = [None] * len(completions), str(error)
    seconds = time.perf_counter() - start
    pairs = sorted(zip(wrong, rewards[1:], strict=True), key=lambda pair: pair[1] or 0.0)
    return Trial(
        index=index,
        prompt=render(task) if render else _plain(task),
        answer=task.answer,
        right=Attempt(task.answer, rewards[0]),
        wrong=Attempt(*pairs[0]),
        seconds=round(seconds, 6),
        scored=len(completions),
        problem=problem,
    )


def _render(run: Run) -> Callable[[Task], str]:
    """The function that renders prompts for the run's model. Raises CannotHere or WrongUsage when there is no
    tokenizer."""
    from swarm.learn import tokenization

    folder = Path(run.model.name).expanduser()
    if not folder.is_dir():
        folder = _downloaded(run.model.name, run.model.revision)
    try:
        return tokenization.of_run(folder, run).render
    except ValueError as error:
        raise WrongUsage(str(error)) from error


def _downloaded(name: str, revision: str) -> Path:
    """A Hub model's folder without its weights."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        wanted = ["*.json", "*.jinja", "*.model", "*.txt"]
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=wanted))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise CannotHere(
            f"the tokenizer of {name} is not on this disk and cannot be downloaded ({type(error).__name__}):"
            " check the network and `hf auth whoami`, or leave the model out to see prompts without it"
        ) from error


def _plain(task: Task) -> str:
    return "\n".join(f"{turn.role}: {turn.content}" for turn in task.messages) or task.prompt


# --- the page -----------------------------------------------------------------------------------------------


def _page(run: Run, trials: Sequence[Trial]) -> RenderableType:
    parts: list[RenderableType] = [_head(run)]
    for trial in trials:
        parts += [Text(), _exercise(trial)]
    return Group(*parts, Text(), _summary(trials))


def _head(run: Run) -> RenderableType:
    table = _grid()
    table.add_row("task", Text(run.task.name, style="bold"))
    names = tasks.named_rewards(run.task)
    weights = run.task.weights or (1.0,) * len(names)
    named = [
        f"{name} × {weight:g}" if weight != 1.0 else name
        for name, weight in zip(names, weights, strict=False)
    ]
    table.add_row("rewards", Text(" + ".join(named) or "the task's own"))
    table.add_row("options", Text(tasks.about(run.task), style="dim"))
    return table


def _exercise(trial: Trial) -> RenderableType:
    table = _grid()
    table.add_row("prompt", _shown(trial.prompt))
    for label, attempt in (("right", trial.right), ("wrong", trial.wrong)):
        table.add_row(label, _worth(attempt, trial.problem == ""))
    if trial.problem:
        table.add_row("problem", Text(trial.problem, style="red"))
    took = f"{1000 * trial.seconds:.1f} ms" if trial.seconds < 1 else f"{trial.seconds:.1f} s"
    return Group(
        Text(f"task {trial.index}, {trial.scored} answers scored in {took}", style="cyan"),
        Padding(table, (0, 0, 0, 2)),
    )


def _worth(attempt: Attempt, scored: bool) -> Text:
    text = _shown(attempt.completion)
    reward = f"{attempt.reward:g}" if scored and attempt.reward is not None else "no reward"
    return text.append("\n" if "\n" in text.plain else "  ").append(f"→ {reward}", style="bold")


def _shown(text: str) -> Text:
    """The text, cut to LONG characters and LINES lines, with the number of characters left out."""
    part = "\n".join(text[:LONG].splitlines()[:LINES])
    shown = Text(part or "(empty)", style="" if part else "dim", overflow="fold")
    return (
        shown.append(f" … and {len(text) - len(part):,} characters", style="dim")
        if len(part) < len(text.rstrip())
        else shown
    )


def _summary(trials: Sequence[Trial]) -> Text:
    failed = [trial for trial in trials if trial.problem]
    if failed:
        return Text(
            f"{len(failed)} of {len(trials)} exercises could not be scored: a peer would drop their groups.",
            style="red",
        )
    pairs = [(trial.right.reward or 0.0, trial.wrong.reward or 0.0) for trial in trials]
    better = sum(right > wrong for right, wrong in pairs)
    mean = [sum(column) / len(pairs) for column in zip(*pairs, strict=True)]
    said = Text(f"Right answers earn {mean[0]:.3g} on average, wrong ones {mean[1]:.3g}.")
    if better < len(trials):
        said.append(
            f" In {len(trials) - better} of {len(trials)} the right one earns no more: do the rewards expect"
            " another form?"
        )
    return said


def _grid() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True, width=7)
    table.add_column(overflow="fold")
    return table
