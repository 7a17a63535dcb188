"""`swarm task try`: shows exercises of a task, the reward of a right answer, a wrong one and none (the prompt
itself, nothing, a refusal), and the time that scoring takes. `--say` scores a text of the user.

The argument is a name such as `digit-sums` or `data:./problems.jsonl`, or a config file. Exercises are drawn
as a peer of that run would draw them, and prompts are rendered for the model where one is named. Reward code
runs without a sandbox, as on its author's machine; gym:, which scores its own answers, runs here. When a
reward raises, hangs, returns NaN, the wrong number of values, or different values for the same answer, the
sentence that a peer would emit is shown, and the exit code is 2. Not handled here: which answers are tried
(swarm.tasks.rewards.probes).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from peers.console import Listing
from peers.errors import DONE, USAGE, CannotHere, WrongUsage
from swarm.settings.config import Run
from swarm.tasks import catalog as tasks
from swarm.tasks.base import TaskSource
from swarm.tasks.rewards import probes
from swarm.tasks.workers.worker import START_SECONDS
from swarm.types import Task

WIDE = 100
"""Most columns of the output."""

LONG, LINES = 1200, 16
"""Most characters and lines of a prompt or answer that are shown; JSON has all of them."""


@dataclass(frozen=True)
class TaskTrial(probes.Tried):
    """One exercise, and what answers to it earn."""

    index: int
    prompt: str
    """As the model reads it, where one is named."""
    answer: str


def main(run: Run, count: int, modelled: bool, as_json: bool, text: str | None = None) -> int:
    """Try `count` exercises; `modelled`: the run names a model, and its tokenizer renders the prompts;
    `text`: a completion to score, too. Returns an exit code."""
    if count < 1:
        raise WrongUsage(f"-n {count}: there is nothing to try; give 1 or more")
    say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731 (a value, not a name)
    render = _render(run) if modelled else None
    if imported := [name for name in tasks.named_rewards(run.task) if ":" in name]:
        say(f"waiting for the imports of {', '.join(imported)}, {START_SECONDS:.0f} s at most")
    source = tasks.source(run.task, run.seed, texts="trust", say=say)
    try:
        trials = [_tried(source, index, render, text) for index in range(count)]
    finally:
        source.close()
    if as_json:
        print(json.dumps(_as_json(run, source.environment, trials, text), indent=2, ensure_ascii=False))
    else:
        console = Listing(highlight=False)
        console.print(_page(run, trials), width=min(console.width, WIDE))
    return USAGE if any(trial.problem for trial in trials) else DONE


def _as_json(run: Run, environment: str, trials: Sequence[TaskTrial], text: str | None) -> dict[str, object]:
    """The JSON output: `said` is the reward of the text on the first exercise."""
    said = {"said": trials[0].said.reward} if text is not None and trials[0].said else {}
    return {
        "environment": environment,
        "rewards": list(tasks.named_rewards(run.task)),
        **said,
        "warnings": probes.warnings(trials),
        "tasks": [asdict(trial) for trial in trials],
    }


def _tried(
    source: TaskSource, index: int, render: Callable[[Task], str] | None, text: str | None
) -> TaskTrial:
    task = source.task(index)
    found = probes.tried(source, task, text)
    return TaskTrial(
        **vars(found), index=index, prompt=render(task) if render else _plain(task), answer=task.answer
    )


def _render(run: Run) -> Callable[[Task], str]:
    """The function that renders prompts for the run's model. Raises CannotHere or WrongUsage when there is no
    tokenizer; the function raises WrongUsage for a task that it cannot render."""
    from peers.build.model import base_model
    from swarm.learn.models import tokenization

    if base_model.from_hub(run):
        folder = _downloaded(run.model.name, run.model.revision)
    else:
        folder = base_model.folder(run)
    try:
        tokens = tokenization.of_run(folder, run)
    except ValueError as error:
        raise WrongUsage(str(error)) from error

    def render(task: Task) -> str:
        try:
            tokens.fits([task], sys.maxsize)
            return tokens.render(task)
        except ValueError as error:
            raise WrongUsage(str(error)) from error

    return render


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


# --- the text view ------------------------------------------------------------------------------------------


def _page(run: Run, trials: Sequence[TaskTrial]) -> RenderableType:
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


def _exercise(trial: TaskTrial) -> RenderableType:
    table = _grid()
    table.add_row("prompt", _shown(trial.prompt))
    for label, attempt in (("right", trial.right), ("wrong", trial.wrong), ("said", trial.said)):
        if attempt is not None:
            table.add_row(label, _worth(attempt, trial.problem == ""))
    if trial.problem == "":
        none = [f"{probe.what} → {_number(probe.reward)}" for probe in trial.probes]
        table.add_row("none", Text(", ".join(none)))
    if trial.problem:
        table.add_row("problem", Text(trial.problem, style="red"))
    took = f"{1000 * trial.seconds:.1f} ms" if trial.seconds < 1 else f"{trial.seconds:.1f} s"
    return Group(
        Text(f"task {trial.index}, {trial.scored} answers scored in {took}", style="cyan"),
        Padding(table, (0, 0, 0, 2)),
    )


def _number(reward: float | None) -> str:
    return "no reward" if reward is None else f"{reward:g}"


def _worth(attempt: probes.Attempt, scored: bool) -> Text:
    text = _shown(attempt.completion)
    reward = _number(attempt.reward if scored else None)
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


def _summary(trials: Sequence[TaskTrial]) -> Text:
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
    for line in probes.warnings(trials):
        said.append(f"\n{line}", style="yellow")
    return said


def _grid() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True, width=7)
    table.add_column(overflow="fold")
    return table
