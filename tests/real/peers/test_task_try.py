"""`swarm task try`: what an author sees of a task and its rewards, as a real command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import NamedTuple

import pytest
from places import ROOT
from transformers import AutoTokenizer

from peers import cli
from swarm.learn.models import tiny
from swarm.tasks import catalog

REWARDS = """
import random


def number(completions, answer, **kwargs):
    return [1.0 if text.strip() == str(gold) else -0.5 for text, gold in zip(completions, answer)]


def talks(completions, answer, **kwargs):
    return [float(len(text) > 16 or text == str(gold)) for text, gold in zip(completions, answer)]


def chance(completions, **kwargs):
    return [random.random() for _ in completions]


def hangs(completions, **kwargs):
    while True:
        pass


def short(completions, **kwargs):
    return [1.0]
"""

STEPS = """
from swarm.tasks.base import Exercises
from swarm.types import Task


class Steps(Exercises):
    environment = "steps"

    def __init__(self, seed, options):
        self.last = 8 if seed else 2

    def task(self, index):
        assert index < self.last, f"there is no step {index}"
        return Task(environment="steps", index=index, prompt=f"{index} + 1 =", answer=str(index + 1))

    def held_out(self, n):
        return []

    def reward(self, task, completion):
        return 1 / (int(completion) - 1)
"""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a data set, rewards, a config and a model with a chat template."""
    path = tmp_path_factory.mktemp("trial")
    lines = [
        {"question": f"How much is {i} and {i}?", "answer": f"{i} + {i} = {2 * i}\n#### {2 * i}"}
        for i in range(40)
    ]
    (path / "sums.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (path / "mine.py").write_text(REWARDS)
    (path / "mine.toml").write_text(
        f'[run.model]\nname = "{path}/model"\n[run.task]\nname = "data:sums.jsonl"\nrewards ='
        ' ["mine.py:number", "exact"]\nweights = [2.0, 1.0]\nsystem = "Answer'
        ' briefly."\n[run.task.options]\nanswer_after = "####"\n'
    )
    tiny.make(path / "model", "qwen3")
    return path


class Ran(NamedTuple):
    code: int
    out: str
    err: str


Try = Callable[..., Ran]


@pytest.fixture
def tried(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Try:
    """`swarm task try` in that folder, on 80 columns."""
    monkeypatch.chdir(here)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", here / "cache")

    def run(*words: str) -> Ran:
        code = cli.main(["task", "try", *words])
        return Ran(code, *capsys.readouterr())

    return run


def test_a_built_in_task_is_shown_with_a_right_and_a_wrong_answer_and_their_rewards(tried: Try) -> None:
    ran = tried("digit-sums", "-n", "3", "--json")
    told = json.loads(ran.out)
    assert ran.code == 0 and told["environment"] == "digit-sums" and len(told["tasks"]) == 3
    for task in told["tasks"]:
        assert task["prompt"].endswith("=") and task["right"] == {"completion": task["answer"], "reward": 1.0}
        assert (
            task["wrong"]["reward"] == 0.0
            and task["wrong"]["completion"] != task["answer"]
            and task["seconds"] < 1
        )


def test_a_config_shows_prompts_as_its_model_reads_them_and_its_weighted_rewards(tried: Try) -> None:
    ran = tried("mine.toml", "-n", "2", "--json")
    told = json.loads(ran.out)
    assert ran.code == 0 and told["rewards"] == ["mine.py:number", "exact"], ran.err
    assert "waiting for the imports of mine.py:number, 120 s at most" in ran.err
    for task in told["tasks"]:
        assert "Answer briefly." in task["prompt"] and "How much is" in task["prompt"]
        assert task["prompt"] not in ("", task["answer"]) and task["prompt"].rstrip().endswith("assistant")
        assert (task["right"]["reward"], task["wrong"]["reward"]) == (3.0, -1.0)


def test_what_is_no_answer_is_tried_and_an_author_hears_where_it_earns(tried: Try) -> None:
    for reward, warned in (
        ("exact", []),
        ("mine.py:talks", ["The prompt itself earns 1 in 2 of 2 exercises"]),
    ):
        chosen = ("data:sums.jsonl", "--set", f"task.rewards={reward}", "-n", "2")
        told = json.loads(tried(*chosen, "--json").out)
        assert [
            line[: len("The prompt itself earns 1 in 2 of 2 exercises")] for line in told["warnings"]
        ] == warned
        whats = [probe["what"] for probe in told["tasks"][0]["probes"]]
        assert whats == ["the prompt itself", "an empty answer", 'a refusal ("I do not know.")']
        assert (told["tasks"][0]["probes"][0]["reward"] == 1.0) is bool(warned)
        page = " ".join(tried(*chosen).out.split())
        assert ("the reward pays for what is no answer" in page) is bool(warned)
        assert "an empty answer → 0" in page


def test_a_text_of_ones_own_is_scored(tried: Try) -> None:
    chosen = ("data:sums.jsonl", "-n", "1", "--set")
    asked = json.loads(tried(*chosen, "task.rewards=mine.py:number", "--json").out)
    assert "said" not in asked
    answer = asked["tasks"][0]["answer"]
    for text, reward, worth in (
        (answer, "math", 1.0),
        (f"{answer}\n", "mine.py:number", 1.0),
        ("I do not know.", "mine.py:number", -0.5),
        (asked["tasks"][0]["prompt"], "mine.py:number", -0.5),
    ):
        ran = tried(*chosen, f"task.rewards={reward}", "--say", text, "--json")
        told = json.loads(ran.out)
        assert (ran.code, told["said"]) == (0, worth)
        assert told["tasks"][0]["said"] == {"completion": text, "reward": worth}
    page = tried(*chosen, "task.rewards=mine.py:number", "--say", "I do not know.").out
    assert "said I do not know. → -0.5" in " ".join(page.split())


def test_a_reward_with_chance_is_at_fault(tried: Try) -> None:
    ran = tried("data:sums.jsonl", "--set", "task.rewards=mine.py:chance", "-n", "1")
    assert ran.code == 2 and "the rewards are not the same number twice" in " ".join(ran.out.split())


@pytest.mark.nightly
def test_the_page_fits_a_narrow_terminal_and_has_no_colour_in_a_pipe(here: Path) -> None:
    environ = {
        **os.environ,
        "HF_HOME": str(here / "hub"),
        "COLUMNS": "80",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    command = [
        sys.executable,
        "-m",
        "peers.cli",
        "task",
        "try",
        "mine.toml",
        "-n",
        "1",
        "--model",
        "embedded",
    ]
    ran = subprocess.run(
        command, cwd=here, env=environ, capture_output=True, text=True, timeout=100, check=False
    )
    assert max(map(len, ran.stdout.splitlines())) <= 80 and "\x1b" not in ran.stdout
    page = " ".join(ran.stdout.split())
    for words in (
        "rewards mine.py:number × 2 + exact",
        "right",
        "→ 3",
        "wrong",
        "→ -1",
        "Right answers earn 3 on average",
    ):
        assert words in page


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("hangs", "mine.py:hangs did not answer within 1 s"),
        ("short", "mine.py:short returned 1 rewards for 4 completions"),
    ],
)
def test_what_is_wrong_with_a_reward_is_said_and_is_exit_code_2(name: str, says: str, tried: Try) -> None:
    chosen = ["--set", f"task.rewards=mine.py:{name}", "--set", "task.timeout=1"]
    ran = tried("data:sums.jsonl", *chosen, "-n", "1")
    page = " ".join(ran.out.split())
    assert ran.code == 2 and says in page and "a peer would drop their groups" in page


def test_what_an_authors_own_source_raises_is_told_with_its_line_and_is_exit_code_2(
    tried: Try, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "steps_of_mine.py").write_text(STEPS)
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("steps", "steps_of_mine:Steps", "swarm.tasks")
    monkeypatch.setattr(catalog, "entry_points", lambda group: [point] if group == "swarm.tasks" else [])
    page = tried("steps", "-n", "1", "--set", "run.seed=1", "--json")
    (trial,) = json.loads(page.out)["tasks"]
    assert page.code == 2 and trial["right"]["reward"] is None
    assert "ZeroDivisionError: division by zero (" in trial["problem"] and "line 20)" in trial["problem"]
    ran = tried("steps", "-n", "1", "--set", "run.seed=0")
    (line,) = ran.err.splitlines()
    assert (ran.code, ran.out) == (2, "") and line.startswith("swarm: `task` of the task source 'steps'")
    assert f"AssertionError: there is no step 2 ({tmp_path}/steps_of_mine.py line 13): mend it" in line


def test_words_that_name_no_task_are_a_usage_error_with_the_nearest(tried: Try) -> None:
    ran = tried("digit-sum")
    assert (ran.code, ran.out) == (2, "") and "did you mean 'digit-sums'" in ran.err
    missing = tried("data:nothing.jsonl")
    assert missing.code == 2 and "no file or folder nothing.jsonl" in missing.err
    assert tried("digit-sums", "-n", "0").code == 2


def test_a_prompt_with_a_special_token_that_the_model_has_no_row_for_is_no_prompt(
    here: Path, tried: Try
) -> None:
    model = shutil.copytree(here / "model", here / "without-rows")
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<x{i}>" for i in range(40)] + ["<answer>"]})
    tokenizer.save_pretrained(model)
    (here / "tokens.jsonl").write_text('{"prompt": "Write <answer>4", "answer": "4"}\n')
    ran = tried("data:tokens.jsonl", "--model", str(model), "-n", "1")
    assert ran.code == 2 and "a prompt has the special token '<answer>'" in ran.err
