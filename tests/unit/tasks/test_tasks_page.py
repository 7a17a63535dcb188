"""What docs/tasks.md says is so: its code runs, its commands and settings are understood, its names exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from places import ROOT

from peers.cli import parser
from swarm.settings.config import TaskSettings
from swarm.tasks import base, catalog
from swarm.tasks.data.dataset import ANSWERS, DEFAULTS, PROMPTS
from swarm.tasks.data.rows import KINDS
from swarm.tasks.data.task_files import LARGEST
from swarm.tasks.rewards import rewards
from swarm.tasks.workers.worker import START_SECONDS

TEXT = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
PYTHON, TOML = (
    re.findall(rf"^```{kind}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL) for kind in ("python", "toml")
)


def test_the_rewards_of_the_page_are_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_rewards.py").write_text(PYTHON[0])
    monkeypatch.chdir(tmp_path)
    source = catalog.source(
        TaskSettings(name="digit-sums", rewards=("my_rewards.py:short", "my_rewards.py:boxed")), 1
    )
    task = source.task(0)
    assert source.rewards(task, [f"\\boxed{{{task.answer}}}", "no"]) == pytest.approx([1.0 - 0.013, -0.002])
    source.close()


def test_the_source_of_the_page_is_one() -> None:
    space: dict[str, Any] = {}
    exec(PYTHON[1], space)
    source: base.TaskSource = space["Doubling"](1, {"most": 99})
    task = source.task(7)
    assert source.rewards(task, [task.answer, "x"]) == [1.0, 0.0] and not source.slow
    assert not {source.task(i).prompt for i in range(200)} & {held.prompt for held in source.held_out(200)}


def test_the_pages_settings_are_settings() -> None:
    for block in TOML:
        settings = tomllib.loads(block)
        if "run" in settings:
            chosen = msgspec.convert(settings["run"]["task"], TaskSettings)
            base.check_options("data", chosen.options, DEFAULTS)
            assert len(chosen.weights) in (0, len(chosen.rewards))


def test_the_pages_commands_are_understood() -> None:
    commands = [
        *re.findall(r"`swarm ([a-z]+ [^`]*)`", TEXT),
        *re.findall(r"^\.venv/bin/swarm (.*)$", TEXT, re.MULTILINE),
    ]
    assert len(commands) >= 4
    for command in commands:
        parser().parse_args(shlex.split(command))


def test_the_pages_names_and_numbers_are_the_programs() -> None:
    table = TEXT[TEXT.index("| option of") :].partition("\n\n")[0]
    options = {
        name
        for row in re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert options == set(DEFAULTS)
    assert all(f"`{name}`" in TEXT for name in (*PROMPTS, *ANSWERS, *rewards.BUILT_IN, *catalog.BUILT_IN))
    assert all(f"`{suffix}`" in TEXT for suffix in KINDS if suffix != ".ndjson")
    assert f"{LARGEST >> 20} MiB" in " ".join(TEXT.split())


def test_the_page_says_how_long_an_import_may_take_and_how_large_a_reward_may_be() -> None:
    words = " ".join(TEXT.split())
    assert f"{START_SECONDS:.0f} seconds" in words
    assert f"{base.LARGEST:g}".replace("e+", "e") in words
