"""Task source `data:`: the rows of a data set, such as `data:./problems.jsonl` or `data:openai/gsm8k`.

    rows -> good rows -> split by a hash of the prompt
        -> training, in a new order each epoch | held out, in its own order

Held-out rows never train: rows with one prompt are in one half, whichever file or split they come from.
Training walks epochs: index i is row `permutation(i mod n)` of epoch `i div n`, a function of (seed, index)
alone. Rows without a prompt or an answer in text are left out, and their number is reported once. A
prompt may be a conversation, a list of {role, content}. Invariant: the same bytes give the same tasks on
every peer. Not handled here: rewards (swarm.tasks.scored), how a row gets here (swarm.tasks.rows).
"""

from __future__ import annotations

import datetime
import hashlib
import math
from array import array
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from swarm.tasks import rows, spelling
from swarm.tasks.base import Options, Say, TaskError, check_options
from swarm.tasks.permutation import permuted
from swarm.types import Message, Task

PROMPTS = ("prompt", "question", "problem", "instruction", "input")
ANSWERS = ("answer", "solution", "target", "label")
"""Columns that are taken for the prompt and the answer where the options name none, the first that is
there."""

DEFAULTS: dict[str, int | float | str | bool] = {
    "split": "",
    "subset": "",
    "revision": "",
    "prompt": "",
    "answer": "",
    "answer_after": "",
    "held_out": 0.05,
    "held_out_split": "",
    "shuffle": True,
}
DATA, HELD_OUT = "data.parquet", "held-out.parquet"
"""Files of the task folder in which a run carries a data set."""

WRITTEN = "answer_as_written"
"""Column that rewards get where the answer is a number whose text is another: 2.50, 0.00001."""

EXACT = 1 << 53
"""Up to here a float has all whole numbers."""

HASHES = 1 << 64
BLOCK = 1000
"""Rows read at a time while they are checked: some megabytes."""


def make(
    name: str, seed: int, options: Options, *, folder: Path | None = None, say: Say = lambda line: None
) -> DataSet:
    """The source `data:name`. Options:

    `split` (train, or the only one), `subset` and `revision` of a Hub data set; `prompt`, `answer`: columns;
    `answer_after`: the answer is what follows the last of it, such as "####"; `held_out` (0.05): share of the
    prompts, or `held_out_split`: a split of its own; `shuffle` (true): in an order of the run's seed. Raises
    TaskError.
    """
    chosen = check_options("data", options, DEFAULTS)
    if not 0.0 <= float(chosen["held_out"]) < 1.0:
        raise TaskError(
            f"option held_out of task data is {chosen['held_out']}, it has to be at least 0 and below 1"
        )
    training, held = tables(name, chosen, folder)
    return DataSet(f"data:{name}", seed, chosen, training, held, say)


def tables(name: str, options: Options, folder: Path | None) -> tuple[Any, Any]:
    """(rows, rows of the held-out split or None): those that the run carries, else from the file, folder or
    Hub."""
    if folder is not None and (folder / DATA).exists():
        cache = folder.parent / "cache"
        held = (
            rows.read(rows.DatasetLocation(str(folder / HELD_OUT), cache=cache), "")
            if (folder / HELD_OUT).exists()
            else None
        )
        return rows.read(rows.DatasetLocation(str(folder / DATA), cache=cache), ""), held
    if not name:
        raise TaskError("task source 'data:' names no data: write data:FILE, data:FOLDER or data:HUB-ID")
    place = rows.DatasetLocation(name, str(options.get("subset", "")), str(options.get("revision", "")))
    held_split = str(options.get("held_out_split", ""))
    texts = [
        *PROMPTS,
        *ANSWERS,
        *filter(None, (str(options.get("prompt", "")), str(options.get("answer", "")))),
    ]
    return rows.read(place, str(options.get("split", "")), texts=texts), (
        rows.read(place, held_split, texts=texts) if held_split else None
    )


class UsableRow(NamedTuple):
    """A usable row: its number, and the hash of its prompt."""

    row: int
    prompt: int


class DataSet:
    """The task source of a data set; see the module."""

    def __init__(
        self, environment: str, seed: int, options: Options, training: Any, held: Any, say: Say
    ) -> None:
        self.environment = environment
        self._seed, self._after, self._shuffle = seed, str(options["answer_after"]), bool(options["shuffle"])
        self._prompt = self._column(training, str(options["prompt"]), "prompt", PROMPTS)
        self._answer = self._column(training, str(options["answer"]), "answer", ANSWERS)
        self._training, self._held = training, held if held is not None else training
        usable = list(self._good(training, say))
        if held is not None:
            self._column(held, self._prompt, "prompt", ())
            self._column(held, self._answer, "answer", ())
            reserved = list(self._good(held, say))
            prompts = {kept.prompt for kept in reserved}
        else:
            prompts = _held_out({kept.prompt for kept in usable}, float(options["held_out"]))
            reserved = [kept for kept in usable if kept.prompt in prompts]
        self._train_rows = array("q", (kept.row for kept in usable if kept.prompt not in prompts))
        self._held_rows = array("q", (kept.row for kept in reserved))
        if not self._train_rows:
            raise TaskError(
                f"{environment}: every row is held out, and none is left to train on: lower held_out"
            )

    @property
    def answers(self) -> bool:
        """Whether rows have an answer to compare with."""
        return bool(self._answer)

    def __len__(self) -> int:
        """Training tasks of an epoch."""
        return len(self._train_rows)

    def task(self, index: int) -> Task:
        if index < 0:
            raise ValueError(f"training tasks have indices from 0, not {index}")
        return self._task(index)

    def held_out(self, n: int) -> list[Task]:
        return [self._task(-1 - i) for i in range(min(n, len(self._held_rows)))]

    def columns(self, task: Task) -> dict[str, Any]:
        """Every column of the task's row as it is in the data, and its answer also under the name
        `answer`."""
        row = self._row(task.index)
        if self._answer:
            value = row[self._answer]
            whole = isinstance(value, float) and value.is_integer() and abs(value) <= EXACT
            row[self._answer] = row["answer"] = task.answer if self._after else int(value) if whole else value
            if str(row["answer"]) != task.answer:
                row[WRITTEN] = task.answer
        row.pop(self._answer + spelling.AS_WRITTEN, None)
        return row

    def close(self) -> None:
        """Nothing to free."""

    def _row(self, index: int) -> dict[str, Any]:
        held = index < 0
        among, place = (self._held_rows, -1 - index) if held else (self._train_rows, index)
        epoch, position = divmod(place, len(among))
        if self._shuffle:
            position = permuted(position, len(among), f"{self._seed}/{'held-out' if held else epoch}")
        table = self._held if held else self._training
        row = dict(table[among[position]])
        if self._answer:
            kind = str(getattr(table.features[self._answer], "dtype", ""))
            row[self._answer] = _shortest(row[self._answer], kind)
        return row

    def _task(self, index: int) -> Task:
        row = self._row(index)
        prompt = _prompt(row[self._prompt])
        assert prompt is not None, "only rows with a prompt are drawn"
        value = row.get(self._answer)
        answer = self._right(row.get(self._answer + spelling.AS_WRITTEN) or value) or ""
        messages = prompt if isinstance(prompt, tuple) else ()
        text = prompt if isinstance(prompt, str) else prompt[-1].content
        return Task(environment=self.environment, index=index, prompt=text, answer=answer, messages=messages)

    def _right(self, value: object) -> str | None:
        """The answer that a completion is compared with; None where the row has none."""
        text = _text(value)
        if text is None or not self._after:
            return text
        _, found, answer = text.rpartition(self._after)
        return answer.strip() or None if found else None

    def _column(self, table: Any, named: str, what: str, guesses: Sequence[str]) -> str:
        """The column that is the prompt or the answer; "" for no answer. Raises TaskError."""
        here = ", ".join(name for name in table.column_names if not name.endswith(spelling.AS_WRITTEN))
        if named and named not in table.column_names:
            raise TaskError(
                f"{self.environment} has no column {named!r} for the {what}; it has {here}: set"
                f" run.task.options.{what}"
            )
        found = named or next((name for name in guesses if name in table.column_names), "")
        if not found and what == "prompt":
            raise TaskError(
                f"{self.environment} has none of the columns {', '.join(guesses)}; it has {here}: set"
                " run.task.options.prompt"
            )
        return found

    def _good(self, table: Any, say: Say) -> Iterator[UsableRow]:
        """The usable rows; reports how many are not. Raises TaskError when there are none."""
        wanted = [name for name in dict.fromkeys((self._prompt, self._answer)) if name]
        number = good = 0
        for block in table.select_columns(wanted).iter(batch_size=BLOCK):
            prompts = block[self._prompt]
            for prompt, answer in zip(prompts, block.get(self._answer, prompts), strict=True):
                content = _content(_prompt(prompt))
                if content is not None and (not self._answer or self._right(answer) is not None):
                    good += 1
                    yield UsableRow(number, content)
                number += 1
        if good < number:
            also = f" or without text in {self._answer!r}" if self._answer else ""
            after = f" after {self._after!r}" if self._after else ""
            lost = f"{number - good} of {number} rows without text in {self._prompt!r}{also}{after}"
            if not good:
                raise TaskError(f"{self.environment} has no row that can be used: {lost}")
            say(f"{self.environment}: {lost} are left out")


def _held_out(prompts: set[int], share: float) -> set[int]:
    """Prompts that are held out: those with the smallest hashes, at least one and never all where there are
    several."""
    if share == 0.0 or len(prompts) < 2:
        return set()
    held = {prompt for prompt in prompts if prompt < share * HASHES}
    if len(held) == len(prompts):
        held.discard(max(held))
    return held or {min(prompts)}


def _prompt(value: object) -> str | tuple[Message, ...] | None:
    """Text, or a conversation; None for anything else."""
    if isinstance(value, str):
        return value if value.strip() else None
    if not isinstance(value, list) or not value:
        return None
    turns = [turn if isinstance(turn, dict) else {} for turn in value]
    turns = [(turn.get("role"), turn.get("content")) for turn in turns]
    if not all(isinstance(role, str) and role and isinstance(content, str) for role, content in turns):
        return None
    return (
        tuple(Message(role=str(role), content=str(content)) for role, content in turns)
        if turns[-1][1]
        else None
    )


def _content(prompt: str | tuple[Message, ...] | None) -> int | None:
    """A hash of the words of a prompt, 0 to HASHES - 1: white space makes no difference."""
    if prompt is None:
        return None
    text = prompt if isinstance(prompt, str) else "\0".join(f"{turn.role}\0{turn.content}" for turn in prompt)
    return int.from_bytes(hashlib.blake2b(" ".join(text.split()).encode(), digest_size=8).digest(), "big")


def _text(value: object) -> str | None:
    """An answer as text: a number in full, so that 42.0 of a column of fractions is 42 again."""
    if isinstance(value, float | Decimal):
        return spelling.in_full(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return value if value.strip() else None
    if isinstance(value, datetime.datetime) and value.time() == datetime.time() and value.tzinfo is None:
        return str(value.date())
    return str(value) if isinstance(value, int | datetime.date | datetime.time) else None


def _shortest(value: Any, kind: str) -> Any:
    """A number of a column of float32 or float16 with the digits that it was written with: 0.1, which is
    0.10000000149011612 as a float of Python."""
    if not isinstance(value, float) or kind not in ("float32", "float16"):
        return value
    import numpy

    return float(str(numpy.dtype(kind).type(value)))
