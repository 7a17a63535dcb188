"""Task sources: the same on every peer, training and held-out tasks apart."""

from __future__ import annotations

import csv
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm import tasks
from swarm.settings.config import TaskSettings
from swarm.tasks import catalog
from swarm.tasks.base import DRAWS, RewardError, TaskError, distinct, too_few
from swarm.tasks.builtin import sentiment
from swarm.tasks.toy import Toy
from swarm.types import Message, Task


@pytest.mark.parametrize("name", sorted(catalog.BUILT_IN))
def test_a_task_is_a_function_of_seed_and_index(name: str) -> None:
    one, two, other = (tasks.source(TaskSettings(name=name), seed) for seed in (5, 5, 6))
    assert [one.task(i) for i in range(50)] == [two.task(i) for i in reversed(range(50))][::-1]
    assert one.held_out(9) == two.held_out(20)[:9]
    assert [one.task(i) for i in range(50)] != [other.task(i) for i in range(50)]


@pytest.mark.parametrize("name", sorted(catalog.BUILT_IN))
def test_held_out_prompts_never_occur_in_training_or_in_the_warm_start(name: str) -> None:
    source = tasks.source(TaskSettings(name=name), 1)
    seen = {source.task(i).prompt for i in range(5000)}
    if name in catalog.EMBEDDED:
        seen |= {source.example(i)[0] for i in range(5000)}
    assert not seen & {task.prompt for task in source.held_out(500)}
    assert all(task.index < 0 for task in source.held_out(5))


@pytest.mark.parametrize("name", ["brackets", "digit-sums", "sorting"])
def test_an_evaluation_has_no_exercise_twice_and_the_first_ones_are_those_of_the_source(name: str) -> None:
    source = tasks.source(TaskSettings(name=name), 1)
    drawn, some, more = source.held_out(256), distinct(source, 256), distinct(source, 400)
    assert len({task.prompt for task in drawn}) < 256 == len({task.prompt for task in some})
    assert some == more[:256] and some[:9] == drawn[:9]
    assert len({task.index for task in some}) == 256 and not too_few(len(some), 256)


def test_of_a_source_with_few_exercises_all_are_found_and_a_sentence_says_how_many() -> None:
    source = tasks.source(TaskSettings(name="digit-sums", options={"digits": 3}), 1)
    there = {f"{n:03}=" for n in range(1000) if zlib.crc32(b"%03d" % n) % 10 == 0}
    assert {task.prompt for task in distinct(source, 256)} == there
    assert f"{len(there)} different held-out exercises, and run.evaluation.tasks asks for 256" in too_few(
        len(there), 256
    )


def test_a_source_without_end_or_change_is_not_looked_through_for_ever() -> None:
    asked = []

    class Same(Toy):
        def held_out(self, n: int) -> list[Task]:
            asked.append(n)
            return [Task(environment="same", index=-1 - i, prompt="7", answer="") for i in range(n)]

    assert [task.index for task in distinct(Same(1, {}), 10)] == [-1]
    assert asked == [10, 20, 40, 80, 10 * DRAWS]


def test_two_conversations_that_end_alike_are_two_exercises() -> None:
    turns = [(Message(role="user", content=f"{i}"), Message(role="user", content="so?")) for i in (1, 2, 1)]

    class Talks(Toy):
        def held_out(self, n: int) -> list[Task]:
            made = [
                Task(environment="t", index=-1 - i, prompt="so?", answer="", messages=each)
                for i, each in enumerate(turns)
            ]
            return made[:n]

    assert [task.index for task in distinct(Talks(1, {}), 3)] == [-1, -2]


@pytest.mark.parametrize("name", sorted(catalog.BUILT_IN))
def test_the_right_answer_is_worth_one_and_nothing_is_worth_nothing(name: str) -> None:
    source = tasks.source(TaskSettings(name=name), 2)
    for task in [source.task(3), *source.held_out(3)]:
        assert source.reward(task, task.answer) == 1.0
        assert source.reward(task, "") == 0.0


@pytest.mark.parametrize("name", catalog.EMBEDDED)
def test_prompts_and_answers_are_made_of_the_sources_characters(name: str) -> None:
    source = tasks.source(TaskSettings(name=name), 3)
    exercises = [*map(source.task, range(300)), *source.held_out(100)]
    words = [
        *(task.prompt + task.answer for task in exercises),
        *("".join(source.example(i)) for i in range(300)),
    ]
    assert len(set(source.characters)) == len(source.characters)
    assert set("".join(words)) <= set(source.characters)


def test_every_text_has_one_sentiment_and_half_of_them_are_positive() -> None:
    with open(sentiment.TEXTS, encoding="utf-8", newline="") as file:
        rows = [(row["text"], row["sentiment"]) for row in csv.DictReader(file)]
    assert len(rows) == len(dict(rows)) > 500
    assert Counter(kind for _, kind in rows) == {kind: len(rows) / 2 for kind in ("positive", "negative")}
    source = tasks.source(TaskSettings(name="sentiment"), 1)
    held_out = source.held_out(len(rows))
    trained = {source.task(i).prompt for i in range(5000)}
    assert trained | {task.prompt for task in held_out} == set(dict(rows))
    assert abs(Counter(task.answer for task in held_out)["positive"] / len(held_out) - 0.5) < 0.1
    assert source.rewards(held_out[0], [held_out[0].answer.title(), f"{held_out[0].answer}\n"]) == [0.0, 1.0]


def test_the_embedded_model_is_not_made_for_words() -> None:
    with pytest.raises(TaskError, match="knows no words: for sentiment name a model"):
        catalog.warm_start(TaskSettings(name="sentiment"), 1)


def test_digit_sums_are_running_sums_modulo_ten() -> None:
    task = next(
        t
        for t in map(tasks.source(TaskSettings(name="digit-sums"), 1).task, range(100))
        if len(set(t.prompt)) == 6
    )
    digits = [int(c) for c in task.prompt[:-1]]
    assert task.answer == "".join(str(sum(digits[: k + 1]) % 10) for k in range(5))


@given(st.text(max_size=8))
def test_only_the_exact_answer_is_worth_anything(text: str) -> None:
    source = tasks.source(TaskSettings(name="digit-sums"), 1)
    task = source.task(0)
    assert source.reward(task, text) == float(text == task.answer)


def test_partial_credit_is_an_option() -> None:
    source = tasks.source(TaskSettings(name="digit-sums", options={"partial": True}), 1)
    task = source.task(0)
    assert source.reward(task, task.answer[:4] + "x") == 0.8
    assert source.reward(task, task.answer + "00000") == 0.5


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("digit-sum", {}, "did you mean 'digit-sums'"),
        ("digit-sums", {"digit": 3}, "did you mean 'digits'"),
        ("digit-sums", {"digits": "3"}, "has to be of type int"),
        ("digit-sums", {"digits": 1}, "2 to 64"),
        ("sorting", {"digits": 65}, "option digits of task sorting is 65, it has to be 2 to"),
        ("brackets", {"kinds": 0}, "option kinds of task brackets is 0, it has to be 2 to 4"),
        ("toy", {"alphabet": 27}, "an alphabet of at most 26"),
    ],
)
def test_a_wrong_source_or_option_is_refused_with_the_nearest_right_one(
    name: str, options: dict, says: str
) -> None:
    for made in (tasks.source, tasks.warm_start):
        with pytest.raises(TaskError, match=says):
            made(TaskSettings(name=name, options=options), 1)


class Mine(Toy):
    """What an installed package may bring: a factory of (seed, options)."""

    environment = "mine"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("mine", f"{__name__}:Mine", "swarm.tasks"),
        EntryPoint("broken", "no_such_package:Source", "swarm.tasks"),
    ]
    monkeypatch.setattr(
        catalog, "entry_points", lambda group: [point for point in points if point.group == group]
    )
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or SimpleNamespace(Mine=Mine))


@pytest.mark.usefixtures("installed")
def test_an_installed_source_is_found_by_its_name_and_among_the_nearest() -> None:
    assert tasks.source(TaskSettings(name="mine", options={"letters": 2}), 1).task(0).answer
    with pytest.raises(ValueError, match=r"did you mean 'mine'.*known:.*data:, .*mine"):
        tasks.source(TaskSettings(name="mines"), 1)
    with pytest.raises(ValueError, match=r"installed as no_such_package:Source but cannot be imported"):
        tasks.source(TaskSettings(name="broken"), 1)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e30])
def test_a_reward_that_no_learner_can_compute_with_is_refused_of_any_source(value: float) -> None:
    class Odd(Toy):
        environment = "odd"

        def reward(self, task: Task, completion: str) -> float:
            return value if completion else 1e15

    source = Odd(1, {})
    assert source.rewards(source.task(0), [""]) == [1e15]
    with pytest.raises(
        RewardError, match=r"task odd returned .* as reward 1: a reward is finite and at most"
    ):
        source.rewards(source.task(0), ["", "x"])


FAULTY = """import json
from swarm.tasks.base import TaskError

def divides(seed, options):
    return 1 / 0

def parses(seed, options):
    return json.loads("{")

def exits(seed, options):
    raise TaskError("option size is 9, it has to be 1 to 8")

from swarm.tasks.base import Exercises
from swarm.types import Message, Task

class Lame(Exercises):
    environment = "lame"
    characters = "ab"

    def __init__(self, seed, options):
        self.rows = iter(["aba", "bab"])

    def task(self, index):
        return Task(environment="lame", index=index, prompt=self.word(), answer="b")

    def word(self):
        return next(self.rows)

    def held_out(self, n):
        yield self.task(-1)
        raise KeyError("row 1")

    def reward(self, task, completion):
        return len(completion) / 0 if completion else None

    def example(self, index):
        return self.task(index).prompt

    def close(self):
        raise SystemExit(3)

class Odd(Lame):
    def task(self, index):
        half = Task(environment="odd", index=9, prompt="\\ud83d", answer="b")
        return {7: None, 8: Task(environment="odd", index=8, prompt=5, answer="b"), 9: half}.get(
            index, Task(environment="odd", index=0, prompt="a", answer="b")
        )

    def held_out(self, n):
        return [self.task(0)] * 2

    def rewards(self, task, completions):
        if completions[0] == "file":
            raise FileNotFoundError("\\udcff.txt")
        return {"b": "1", "a": [1.0]}.get(completions[0])

    def close(self):
        pass

def nothing(seed, options):
    return None

class Twice(Lame):
    characters = "aa"
"""


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An author's module whose factories raise; another one that cannot be imported."""
    (tmp_path / "faulty_tasks.py").write_text(FAULTY)
    (tmp_path / "unfinished_tasks.py").write_text("import os\nMAKE = Reversl\n")
    monkeypatch.syspath_prepend(tmp_path)
    points = [
        EntryPoint(name, f"faulty_tasks:{name}", "swarm.tasks")
        for name in ("divides", "parses", "exits", "Lame", "Odd", "nothing", "Twice")
    ]
    points.append(EntryPoint("unfinished", "unfinished_tasks:MAKE", "swarm.tasks"))
    monkeypatch.setattr(catalog, "entry_points", lambda group: points)
    yield tmp_path
    sys.modules.pop("faulty_tasks", None)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "divides",
            "the task source 'divides' raises ZeroDivisionError: division by zero (FOLDER/faulty_tasks.py"
            " line 5): mend it, or change run.task.options",
        ),
        ("parses", "(FOLDER/faulty_tasks.py line 8): mend it"),
        ("exits", "option size is 9, it has to be 1 to 8"),
        (
            "unfinished",
            "imported: NameError: name 'Reversl' is not defined (FOLDER/unfinished_tasks.py line 2)",
        ),
    ],
)
def test_an_authors_factory_that_raises_is_named_with_its_file_and_line(
    name: str, says: str, faulty: Path
) -> None:
    for made in (tasks.source, tasks.warm_start):
        with pytest.raises(TaskError, match=re.escape(says.replace("FOLDER", str(faulty)))):
            made(TaskSettings(name=name), 1)


def test_a_factory_that_makes_no_source_is_told_with_what_is_lacking(faulty: Path) -> None:
    with pytest.raises(TaskError, match="'nothing' makes nothing without environment, task, held_out, close"):
        tasks.source(TaskSettings(name="nothing"), 1)
    with pytest.raises(TaskError, match="characters of the task source 'Twice' are 'aa'"):
        tasks.warm_start(TaskSettings(name="Twice"), 1)


def told(kind: type[Exception], call: Callable[..., object], *args: object) -> str:
    with pytest.raises(kind) as caught:
        call(*args)
    return str(caught.value)


def test_what_an_authors_source_raises_is_told_with_its_lines_wherever_it_raises(faulty: Path) -> None:
    def place(text: str) -> str:
        number = next(i for i, line in enumerate(FAULTY.splitlines(), start=1) if text in line)
        return f"line {number}"

    def raises(method: str, error: str, *lines: str) -> str:
        where = f" ({faulty}/faulty_tasks.py {', called from '.join(map(place, lines))})" if lines else ""
        return (
            f"`{method}` of the task source 'Lame' raises {error}{where}: mend it, or change run.task.options"
        )

    source = tasks.source(TaskSettings(name="Lame"), 1)
    good = source.task(0)
    ended = "StopIteration", "next(", "index=index"
    assert told(TaskError, source.held_out, 2) == raises("held_out", "KeyError: 'row 1'", "row 1")
    assert told(TaskError, source.task, 5) == raises("task", *ended)
    assert told(TaskError, source.tasks, [5]) == raises("tasks", *ended)
    zero = raises("rewards", "ZeroDivisionError: division by zero", "/ 0 if")
    assert told(RewardError, source.rewards, good, ["a"]) == zero
    none = "task lame returned None as reward 0, which is not a number"
    assert told(RewardError, source.rewards, good, [""]) == none
    warm = tasks.warm_start(TaskSettings(name="Lame"), 1)
    pair = "ValueError: too many values to unpack (expected 2)"
    assert told(TaskError, warm.example, 0) == raises("example", pair)
    assert told(TaskError, source.close) == raises("close", "SystemExit: 3", "SystemExit(3)")


def test_what_an_authors_source_returns_that_is_no_task_or_reward_is_told(faulty: Path) -> None:
    source = tasks.source(TaskSettings(name="Odd"), 1)
    good = source.task(0)
    assert "returns nothing: make it a swarm.types.Task, whose prompt" in told(TaskError, source.task, 7)
    assert "Expected `str`, got `int` - at `$.prompt`" in told(TaskError, source.tasks, [0, 8])
    assert "a Task that is none: 'utf-8' codec can't encode" in told(TaskError, source.task, 9)
    assert "raises FileNotFoundError: \\udcff.txt (" in told(RewardError, source.rewards, good, ["file"])
    assert "returns tasks with the indices 0 for 3: give each Task" in told(TaskError, source.task, 3)
    assert "with the indices 0, 0: give each a negative one" in told(TaskError, source.held_out, 2)
    assert "returned '1' as reward 0, which is not a number" in told(RewardError, source.rewards, good, ["b"])
    assert "returned 1 for 2 completions" in told(RewardError, source.rewards, good, ["a", "a"])
    assert "'Odd' raises TypeError: 'NoneType'" in told(RewardError, source.rewards, good, ["c"])


@pytest.mark.parametrize("name", ["data:x.jsonl", "gym:leg_counting"])
def test_the_embedded_model_is_made_for_built_in_tasks_alone(name: str) -> None:
    with pytest.raises(ValueError, match="name a model"):
        tasks.warm_start(TaskSettings(name=name), 1)
