"""Named rewards on a source: functions written for TRL, unchanged, in their process."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import datasets
import pytest

from swarm.settings.config import TaskSettings
from swarm.tasks import catalog as tasks
from swarm.tasks.base import RewardError, TaskError, TaskSource

FUNCTIONS = """
import asyncio
import re


# As in TRL's documentation: completions alone, columns by name, keyword arguments that nobody asked for.
def reward_len(completions, **kwargs):
    return [-abs(20 - len(completion)) for completion in completions]


def reward_func(completions, ground_truth, **kwargs):
    matches = [re.search(r"\\\\boxed\\{(.*?)\\}", completion) for completion in completions]
    contents = [match.group(1) if match else "" for match in matches]
    return [1.0 if content == truth else 0.0 for content, truth in zip(contents, ground_truth)]


def format_reward_func(completions, **kwargs):
    pattern = r"^<think>.*?</think><answer>.*?</answer>$"
    completion_contents = [completion[0]["content"] for completion in completions]
    matches = [re.match(pattern, content) for content in completion_contents]
    return [1.0 if match else 0.0 for match in matches]


def easy_only(prompts, completions, level, **kwargs):
    return [None if grade > 1 else 1.0 for grade in level]


async def slow_judge(prompts, completions, **kwargs):
    await asyncio.sleep(0)
    return [float(len(prompt)) for prompt in prompts]


def what_it_was_given(prompts, completions, answer, level, **columns):
    assert isinstance(prompts[0], list) and prompts[0][-1]["role"] == "user", prompts
    assert completions[0] == [{"role": "assistant", "content": "a"}], completions
    assert len(prompts) == len(completions) == len(answer) == len(level) == 2
    assert not {"prompt", "completion"} & set(columns), columns
    return [float(value) for value in level]


def raises(completions, **kwargs):
    return [1.0 / (len(completion) - 3) for completion in completions]


def hangs(completions, **kwargs):
    while "hang" in completions[0]:
        pass
    return [0.5] * len(completions)


def nan(completions, **kwargs):
    return [float("nan")] * len(completions)


def short(completions, **kwargs):
    return [1.0]


def nothing(completions, **kwargs):
    return [None] * len(completions)


def words(completions, **kwargs):
    return ["good"] * len(completions)
"""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("rewards")
    (path / "mine.py").write_text(textwrap.dedent(FUNCTIONS))
    lines = [{"prompt": f"q{i}", "answer": str(i), "ground_truth": str(i), "level": i % 4} for i in range(12)]
    (path / "plain.jsonl").write_text("\n".join(map(json.dumps, lines)))
    chats = [line | {"prompt": [{"role": "user", "content": line["prompt"]}]} for line in lines]
    (path / "chat.jsonl").write_text("\n".join(map(json.dumps, chats)))
    before = datasets.config.HF_DATASETS_CACHE
    datasets.config.HF_DATASETS_CACHE = path / "cache"
    yield path
    datasets.config.HF_DATASETS_CACHE = before


def source(
    here: Path,
    *names: str,
    data: str = "plain",
    weights: tuple[float, ...] = (),
    timeout: float = 20.0,
    **options: Any,
) -> TaskSource:
    rewards = tuple(f"{here}/mine.py:{name}" if name not in ("exact", "math") else name for name in names)
    return tasks.source(
        TaskSettings(
            name=f"data:{here}/{data}.jsonl",
            rewards=rewards,
            weights=weights,
            timeout=timeout,
            options=options,
        ),
        1,
    )


def at_level(source: TaskSource, wanted: Mapping[int, bool]) -> Any:
    return next(task for task in map(source.task, range(40)) if wanted.get(int(task.answer) % 4))


def test_trls_own_examples_run_as_they_are_and_are_added_up_with_their_weights(here: Path) -> None:
    scored = source(here, "reward_len", "reward_func", weights=(0.1, 2.0))
    task = scored.task(0)
    right = f"\\boxed{{{task.answer}}}"
    assert scored.rewards(task, [right, "x" * 20]) == pytest.approx([-0.1 * (20 - len(right)) + 2.0, 0.0])
    scored.close()


def test_conversations_are_given_as_messages_with_every_column_of_the_row(here: Path) -> None:
    scored = source(here, "format_reward_func", "what_it_was_given", data="chat")
    task = scored.task(3)
    level = float(int(task.answer) % 4)
    assert scored.rewards(task, ["a", "<think>1</think><answer>2</answer>"]) == [level, level + 1.0]
    scored.close()


def test_a_function_that_does_not_apply_adds_nothing_and_a_coroutine_is_awaited(here: Path) -> None:
    scored = source(here, "easy_only", "slow_judge")
    easy, hard = at_level(scored, {0: True, 1: True}), at_level(scored, {2: True, 3: True})
    assert scored.rewards(easy, ["a", "b"]) == [1.0 + len(easy.prompt)] * 2
    assert scored.rewards(hard, ["a", "b"]) == [float(len(hard.prompt))] * 2
    scored.close()


def test_the_default_reward_of_data_is_exact(here: Path) -> None:
    scored = source(here)
    task = scored.task(0)
    assert scored.rewards(task, [task.answer, f" {task.answer}\n", "x"]) == [1.0, 1.0, 0.0]
    assert scored.slow
    scored.close()


def test_a_built_in_task_can_have_other_rewards_than_its_own(here: Path) -> None:
    scored = tasks.source(
        TaskSettings(name="digit-sums", rewards=("exact", f"{here}/mine.py:reward_len"), weights=(1.0, 0.0)),
        1,
    )
    task = scored.task(0)
    assert scored.rewards(task, [task.answer, "0"]) == [1.0, 0.0]
    scored.close()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", "mine.py:raises raised ZeroDivisionError.*line"),
        ("nan", "mine.py:nan returned nan"),
        ("short", "mine.py:short returned 1 rewards for 2 completions"),
        ("nothing", "none of .*mine.py:nothing applies to this task"),
        ("words", "mine.py:words returned 'good'"),
    ],
)
def test_what_is_no_reward_is_told_with_the_functions_name(name: str, says: str, here: Path) -> None:
    scored = source(here, name)
    with pytest.raises(RewardError, match=says):
        scored.rewards(scored.task(0), ["abc", "abc"])
    scored.close()


def test_a_function_that_hangs_costs_its_group_and_not_the_next(here: Path) -> None:
    scored = source(here, "hangs", timeout=1.0)
    with pytest.raises(RewardError, match=r"mine.py:hangs did not answer within 1 s"):
        scored.rewards(scored.task(0), ["hang", "x"])
    assert scored.rewards(scored.task(1), ["a", "b"]) == [0.5, 0.5]
    scored.close()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (TaskSettings(name="digit-sums", rewards=("exat",)), "no reward 'exat' .did you mean 'exact'"),
        (TaskSettings(name="digit-sums", rewards=("no_such_file.py:f",)), "no_such_file.py"),
        (TaskSettings(name="digit-sums", rewards=("exact",), weights=(1.0, 2.0)), "1 rewards and 2 weights"),
        (
            TaskSettings(name="digit-sums", rewards=("swarm.tasks.rewards.rewards:exacty",)),
            "no function 'exacty'",
        ),
    ],
)
def test_rewards_that_cannot_be_had_are_refused_before_anything_begins(
    settings: TaskSettings, says: str
) -> None:
    with pytest.raises(TaskError, match=says):
        tasks.source(settings, 1)


def test_data_without_an_answer_needs_a_reward_that_asks_for_none(here: Path, tmp_path: Path) -> None:
    (tmp_path / "bare.jsonl").write_text('{"prompt": "write a poem"}\n')
    settings = TaskSettings(name=f"data:{tmp_path}/bare.jsonl")
    with pytest.raises(TaskError, match=r"exact compares with an answer.*run\.task\.options\.answer"):
        tasks.source(settings, 1)
    free = tasks.source(TaskSettings(name=settings.name, rewards=(f"{here}/mine.py:reward_len",)), 1)
    assert free.rewards(free.task(0), ["x" * 20]) == [0.0]
    free.close()
