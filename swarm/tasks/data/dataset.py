"""Task source `data:`: the rows of a data set, such as `data:./problems.jsonl` or `data:openai/gsm8k`.

    rows -> good rows -> split by a hash of the prompt
        -> training, in a new order each epoch | held out, in its own order

Held-out rows never train: rows with one prompt are in one half, whichever file or split they come from.
Training walks epochs: index i is row `permutation(i mod n)` of epoch `i div n`, a function of (seed, index)
alone. A row needs a prompt (swarm.tasks.data.prompts), and an answer in text where a reward compares with it;
others are left out, and reported once with their defect. Invariant: the same bytes give the same tasks on
every peer. Not handled here: rewards (swarm.tasks.rewards.scored), reading rows (swarm.tasks.data.rows).
"""

from __future__ import annotations

import datetime
import hashlib
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from swarm.frames.grammar import nearest
from swarm.tasks.base import Options, Say, TaskError, check_options
from swarm.tasks.builtin.permutation import permuted
from swarm.tasks.data import rows
from swarm.tasks.data.prompts import Unusable, kind_of, prompt_of
from swarm.tasks.rewards import spelling
from swarm.types import Message, Task

INSTRUCTION, INPUT = "instruction", "input"
PROMPTS = ("prompt", "question", "problem", INSTRUCTION, INPUT)
ANSWERS = ("answer", "solution", "target", "label")
"""Columns that are taken for the prompt and the answer where the options name none, the first that is
there. Of a file that has `instruction` and `input`, as Alpaca's, both are the prompt."""

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
COLUMNS = ("prompt", "answer", "answer_after")
"""Options that say how a row is read; the others say which rows."""

DATA, HELD_OUT = "data.parquet", "held-out.parquet"
"""Files of the task folder in which a run carries a data set."""

TASK = "task"
"""Name of that folder; an evaluation set has a folder in it."""

WRITTEN = "answer_as_written"
"""Column that rewards get where the answer is a number whose text is another: 2.50, 0.00001."""

EXACT = 1 << 53
"""Up to here a float has all whole numbers."""

HASHES = 1 << 64
BLOCK = 1000
"""Rows read at a time while they are checked: some megabytes."""


REASONS = 5
"""Most reported reasons why rows are left out, the commonest first."""

SHARED = 0.1
"""Share of the rows whose prompt has several answers, above which a column of the prompt may be missing."""


def make(
    name: str,
    seed: int,
    options: Options,
    *,
    folder: Path | None = None,
    say: Say = lambda line: None,
    compared: bool = True,
) -> DataSet:
    """The source `data:name`. Options:

    `split` (train, or the only one), `subset` and `revision` of a Hub data set; `prompt`, `answer`: columns,
    or `column.field` inside of one; `answer_after`: the answer is what follows the last of it, such as
    "####"; `held_out` (0.05): share of the prompts, or `held_out_split`: a split of its own; `shuffle`
    (true): in an order of the run's seed. Raises TaskError.
    """
    chosen = check_options("data", options, DEFAULTS)
    if not 0.0 <= float(chosen["held_out"]) < 1.0:
        raise TaskError(
            f"option held_out of task data is {chosen['held_out']}, it has to be at least 0 and below 1"
        )
    training, held = tables(name, chosen, folder)
    return DataSet(f"data:{name}", seed, chosen, training, held, say, compared)


def tables(name: str, options: Options, folder: Path | None) -> tuple[Any, Any]:
    """(rows, rows of the held-out split or None): those that the run carries, else from the file, folder or
    Hub."""
    if folder is not None and (folder / DATA).exists():
        cache = (folder if folder.name == TASK else folder.parent).parent / "cache"
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
    training = rows.read(place, str(options.get("split", "")), texts=texts)
    held = rows.read(place, held_split, texts=texts) if held_split else None
    if options.get("prompt"):
        return training, held
    return _instructed(training), None if held is None else _instructed(held)


def leave_out(folder: Path, training: set[int], held: set[int]) -> None:
    """Take these rows out of the data that a run carries."""
    for file, numbers in ((DATA, training), (HELD_OUT, held)):
        if numbers:
            table = rows.read(rows.DatasetLocation(str(folder / file), cache=folder.parent / "cache"), "")
            kept = table.select([number for number in range(len(table)) if number not in numbers])
            kept.to_parquet(str(folder / f"{file}.new"))
            (folder / f"{file}.new").replace(folder / file)


def _instructed(table: Any) -> Any:
    """The rows; where their prompt is `instruction`, the first of PROMPTS that is there, and `input` is
    beside it, with a column `prompt` of both."""
    if next((name for name in PROMPTS if name in table.column_names), "") != INSTRUCTION:
        return table
    if any(str(getattr(table.features.get(name), "dtype", "")) != "string" for name in (INSTRUCTION, INPUT)):
        return table
    pairs = zip(table[INSTRUCTION], table[INPUT], strict=True)
    both = [f"{told}\n{given}" if told and given and given.strip() else told for told, given in pairs]
    return table.add_column("prompt", both)


class UsableRow(NamedTuple):
    """A usable row: its number, and the hash of its prompt."""

    row: int
    prompt: int


class DataSet:
    """The task source of a data set; see the module."""

    def __init__(
        self,
        environment: str,
        seed: int,
        options: Options,
        training: Any,
        held: Any,
        say: Say,
        compared: bool = True,
    ) -> None:
        """`compared`: whether a reward compares with the answer, so that a row needs one in text."""
        self.environment = environment
        self._seed, self._after, self._shuffle = seed, str(options["answer_after"]), bool(options["shuffle"])
        self._prompt = self._column(training, str(options["prompt"]), "prompt", PROMPTS)
        self._answer = self._column(training, str(options["answer"]), "answer", ANSWERS)
        self._needs = bool(self._answer) and (compared or bool(self._after))
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

    @property
    def usable(self) -> int:
        """Rows that are a task, held out or not."""
        return len(self._train_rows) + len(self._held_rows)

    def __len__(self) -> int:
        """Training tasks of an epoch."""
        return len(self._train_rows)

    def task(self, index: int) -> Task:
        if index < 0:
            raise ValueError(f"training tasks have indices from 0, not {index}")
        return self._task(index)

    def held_out(self, n: int) -> list[Task]:
        return [self._task(-1 - i) for i in range(min(n, len(self._held_rows)))]

    def prompts(self) -> set[int]:
        """The prompts that are trained, as `content` has them."""
        found = set[int]()
        for _, tasks in self._blocks(self._training, self._train_rows):
            found.update(map(content, tasks))
        return found

    def first(self, n: int, without: Set[int]) -> Any:
        """The table of the rows of the first `n` training tasks with different prompts, of all where they are
        fewer. `without`: numbers of rows to leave out."""
        found: dict[int, int] = {}
        for index in range(len(self)):
            if len(found) == n:
                break
            if (number := self._number(index)) not in without:
                found.setdefault(content(self._task(index)), number)
        return self._training.select([*found.values()])

    def columns(self, task: Task) -> dict[str, Any]:
        """Every column of the task's row as it is in the data, and its answer also under the name
        `answer`."""
        row = self._row(task.index)
        if self._answer:
            value = _at(row, self._answer)
            whole = isinstance(value, float) and value.is_integer() and abs(value) <= EXACT
            row["answer"] = task.answer if self._after else int(value) if whole else value
            if self._answer in row:
                row[self._answer] = row["answer"]
            if task.answer and str(row["answer"]) != task.answer:
                row[WRITTEN] = task.answer
        row.pop(self._answer + spelling.AS_WRITTEN, None)
        return row

    def rows_without(self, fits: Callable[[Sequence[Task]], Sequence[bool]]) -> tuple[set[int], set[int]]:
        """Numbers of the rows, in the training table and in that of held-out rows, whose tasks do not fit."""
        training = self._unfit(self._training, self._train_rows, fits)
        held = self._unfit(self._held, self._held_rows, fits)
        return (training | held, set()) if self._held is self._training else (training, held)

    def _unfit(
        self, table: Any, numbers: Sequence[int], fits: Callable[[Sequence[Task]], Sequence[bool]]
    ) -> set[int]:
        found = set[int]()
        for some, tasks in self._blocks(table, numbers):
            found |= {number for number, good in zip(some, fits(tasks), strict=True) if not good}
        return found

    def _blocks(self, table: Any, numbers: Sequence[int]) -> Iterator[tuple[Sequence[int], list[Task]]]:
        """The numbers of rows, some at a time, and their tasks."""
        for start in range(0, len(numbers), BLOCK):
            some = numbers[start : start + BLOCK]
            yield some, [self._of_row(0, dict(row)) for row in table.select(some)]

    def close(self) -> None:
        """Nothing to free."""

    def _number(self, index: int) -> int:
        """The number of a task's row in its table."""
        held = index < 0
        among, place = (self._held_rows, -1 - index) if held else (self._train_rows, index)
        epoch, position = divmod(place, len(among))
        if self._shuffle:
            position = permuted(position, len(among), f"{self._seed}/{'held-out' if held else epoch}")
        return among[position]

    def _row(self, index: int) -> dict[str, Any]:
        table = self._held if index < 0 else self._training
        row = dict(table[self._number(index)])
        if self._answer in row:
            kind = str(getattr(table.features[self._answer], "dtype", ""))
            row[self._answer] = _shortest(row[self._answer], kind)
        return row

    def _task(self, index: int) -> Task:
        return self._of_row(index, self._row(index))

    def _of_row(self, index: int, row: dict[str, Any]) -> Task:
        prompt = prompt_of(_at(row, self._prompt), self._prompt)
        value = _at(row, self._answer) if self._answer else None
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
        """The column that is the prompt or the answer, or a path into one; "" for no answer. Raises
        TaskError."""
        paths = [path for path in _paths(table.features) if not path.endswith(spelling.AS_WRITTEN)]
        if named and named not in paths:
            raise TaskError(
                f"{self.environment} has no column {named!r} for the {what}{nearest(named, paths)}; it has"
                f" {', '.join(paths)}: set run.task.options.{what}"
            )
        found = named or next((name for name in guesses if name in paths), "")
        if not found and what == "prompt":
            raise TaskError(
                f"{self.environment} has none of the columns {', '.join(guesses)}; it has {', '.join(paths)}:"
                " set run.task.options.prompt"
            )
        return found

    def _good(self, table: Any, say: Say) -> Iterator[UsableRow]:
        """The usable rows; reports how many are not, and why. Raises TaskError when there are none."""
        lost, answers = _Lost(), _Answers()
        number = 0
        for row in _cells(table, [name for name in (self._prompt, self._answer) if name]):
            number += 1
            try:
                prompt = prompt_of(_at(row, self._prompt), self._prompt)
                answer = _at(row, self._answer) if self._answer else None
                answer = self._compared(answer) if self._needs else answer
            except Unusable as why:
                lost.add(number, why)
                continue
            hashed = _content(prompt)
            if answer is not None:
                answers.add(hashed, str(answer))
            yield UsableRow(number - 1, hashed)
        if lost.rows == number:
            raise TaskError(f"{self.environment} has no row that can be used: {lost.summary(number)}")
        if lost.rows:
            say(f"{self.environment}: left out are {lost.summary(number)}")
        if answers.contradicted >= SHARED * number:
            say(
                f"{self.environment}: {answers.contradicted} of {number} rows have the prompt of another row,"
                f" with another answer: is {self._prompt!r} the whole of it? See run.task.options.prompt"
            )

    def _compared(self, value: object) -> str:
        """The answer that a completion is compared with. Raises Unusable."""
        if (right := self._right(value)) is not None:
            return right
        if isinstance(value, list | dict):
            raise Unusable(f"whose {self._answer!r} is {kind_of(value)}, with which nothing can be compared")
        after = f" after {self._after!r}" if self._after else ""
        raise Unusable(f"without text in {self._answer!r}{after}")


class _Lost:
    """Rows that are left out, by their defect."""

    def __init__(self) -> None:
        self.rows = 0
        self._counts = Counter[str]()
        self._first: dict[str, str] = {}

    def add(self, row: int, why: Unusable) -> None:
        self.rows += 1
        self._counts[str(why)] += 1
        self._first.setdefault(str(why), f"row {row}" + (f", {why.where}" if why.where else ""))

    def summary(self, of: int) -> str:
        """`7 of 107 rows: 7 without text in 'answer' (the first is row 3)`."""
        told = self._counts.most_common(REASONS)
        whys = ", ".join(f"{count} {why} (the first is {self._first[why]})" for why, count in told)
        return f"{self.rows} of {of} rows: {whys}"


class _Answers:
    """Which prompts have several answers."""

    def __init__(self) -> None:
        self._first: dict[int, int] = {}
        self._rows = Counter[int]()
        self._several = set[int]()

    def add(self, prompt: int, answer: str) -> None:
        self._rows[prompt] += 1
        if self._first.setdefault(prompt, hash(answer)) != hash(answer):
            self._several.add(prompt)

    @property
    def contradicted(self) -> int:
        """Rows with such a prompt."""
        return sum(self._rows[prompt] for prompt in self._several)


def _paths(features: Mapping[str, Any], above: str = "") -> list[str]:
    """Columns, and fields of structs in them, with dots between."""
    found = []
    for name, kind in features.items():
        found += [f"{above}{name}", *(_paths(kind, f"{above}{name}.") if isinstance(kind, dict) else ())]
    return found


def _at(row: Mapping[str, Any], path: str) -> Any:
    """A cell, or a value inside of one; None where the row has none. The name of a column may have dots."""
    if path in row:
        return row[path]
    first, _, rest = path.partition(".")
    inner = row.get(first)
    return _at(inner, rest) if rest and isinstance(inner, Mapping) else None


def _cells(table: Any, paths: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows with those columns in which the paths are."""
    heads = [next(name for name in table.column_names if f"{path}.".startswith(f"{name}.")) for path in paths]
    for block in table.select_columns(list(dict.fromkeys(heads))).iter(batch_size=BLOCK):
        yield from (dict(zip(block, cells, strict=True)) for cells in zip(*block.values(), strict=True))


def _held_out(prompts: set[int], share: float) -> set[int]:
    """Prompts that are held out: those with the smallest hashes, at least one and never all where there are
    several."""
    if share == 0.0 or len(prompts) < 2:
        return set()
    held = {prompt for prompt in prompts if prompt < share * HASHES}
    if len(held) == len(prompts):
        held.discard(max(held))
    return held or {min(prompts)}


def content(task: Task) -> int:
    """A hash of the words of a row's prompt, 0 to HASHES - 1: white space makes no difference."""
    return _content(task.messages or task.prompt)


def _content(prompt: str | tuple[Message, ...]) -> int:
    """A hash of the words of a prompt, 0 to HASHES - 1: white space makes no difference."""
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
