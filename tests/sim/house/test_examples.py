"""The examples run: through the names that their first lines give, and on what a run really writes."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
from pathlib import Path

import msgspec
import pytest
import torch
import two_digit_sums
import watch_a_run
from own_task import Reversal
from places import ROOT

import swarm
from peers import cli
from peers.commands.sim import spawn
from swarm import tasks
from swarm.events import Left, Released
from swarm.journal import Journal, parts, read_journal
from swarm.learn.objectives import Batch, loss, objective, weights
from swarm.learn.trust_region import TRUSTS
from swarm.protocol import Role
from swarm.settings import loading
from swarm.settings.config import TaskSettings
from swarm.sim import scenario
from swarm.sim.world import World

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example's package, as pip leaves it."""
    about = tmp_path / "reversal-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: reversal\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[swarm.tasks]\nreversal = own_task:Reversal\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_commands_of_an_example_are_understood(path: Path) -> None:
    commands = re.findall(r"^    .*?\bswarm (.+)$", path.read_text(), re.MULTILINE)
    assert commands or path.stem == "watch_a_run"
    for command in commands:
        cli.parser().parse_args(shlex.split(command))


def test_the_public_names_are_there() -> None:
    public = re.findall(r"^    ((?:swarm|dashboard)[.\w]+) +(\w.*)$", swarm.__doc__ or "", re.MULTILINE)
    assert len(public) > 10
    for module, names in public:
        found = importlib.import_module(module)
        assert not [name for name in names.split(", ") if not hasattr(found, name)], module


def test_the_objective_weighs_less_what_has_moved_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRUSTS, "bell", TRUSTS["band"])  # the module sets its own; other tests do not see it
    logq = torch.full((4, 3), -1.0)
    logp = logq + torch.tensor([[0.0], [0.1], [-0.5], [1.0]])
    reward, group = torch.tensor([1.0, 0, 1, 0]), torch.zeros(4, dtype=torch.long)
    batch = Batch(logp, logq, torch.ones(4, 3), reward, group, horizon=3.0)
    mine = objective("own_objective:BELL")
    free = objective("gepo_noclip")
    shares = (weights(mine, batch)[1] / weights(free, batch)[1])[:, 0]
    torch.testing.assert_close(shares, (-0.5 * (torch.tensor([0.0, 0.1, 0.5, 1.0]) / 0.5) ** 2).exp())
    assert mine.name == "bell" and torch.isfinite(loss(mine, batch).value)


@pytest.mark.usefixtures("installed")
def test_the_task_is_tried_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["task", "try", "reversal", "-n", "3"]) == 0
    assert "Right answers earn 1 on average" in capsys.readouterr().out
    assert cli.main(["task", "try", "reversal", "--set", "task.options.letters=2"]) == 2
    assert "option letters of task reversal is 2, it has to be 3 to 16" in capsys.readouterr().err


@pytest.mark.usefixtures("installed")
def test_the_task_keeps_what_is_held_out_out_of_training_and_the_warm_start() -> None:
    source = tasks.source(TaskSettings(name="reversal"), 3)
    assert isinstance(source, Reversal)
    assert source.task(4) == tasks.source(TaskSettings(name="reversal"), 3).task(4)
    seen = {source.task(i).prompt for i in range(3000)} | {source.example(i)[0] for i in range(3000)}
    assert not seen & {task.prompt for task in source.held_out(300)}
    assert set("".join(seen)) == set(source.characters)


def test_the_rewards_are_those_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    named = ("examples/own_reward.py:nearness", "examples/own_reward.py:brevity")
    source = tasks.source(TaskSettings(name="digit-sums", rewards=named), 1)
    try:
        task = source.task(0)
        short, long = task.answer[:2], task.answer * 3
        assert source.rewards(task, [task.answer, short, long]) == pytest.approx([1.0, 0.4, 0.0])
    finally:
        source.close()


def test_an_exercises_answer_earns_all_and_its_digits_at_their_place_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    rows = [
        {"prompt": f"{asked} = ", "answer": str(value)}
        for asked, value in two_digit_sums.exercises(40).items()
    ]
    Path("sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = loading.load(ROOT / "examples" / "two_digit_sums.toml").config
    source = tasks.source(config.run.task, 1)
    try:
        task = next(task for task in map(source.task, range(40)) if len(task.answer) == 2)
        tens, ones = right = task.answer
        said = [right, f" {right}\n70", f"{tens}{9 - int(ones)}", ones, f"1{right}", f"it is {right}", ""]
        found = source.rewards(task, said)
    finally:
        source.close()
    assert found == pytest.approx([1.0, 1.0, 0.125, 0.125, 0.25 * 2 / 3, 0.0, 0.0])


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of three virtual minutes of the roles that ship."""
    path = tmp_path_factory.mktemp("run") / "journal.jsonl"
    quick = scenario.load(ROOT / "configs" / "scenarios" / "quick.toml")
    small = msgspec.structs.replace(quick, hours=0.05, peers={"seed": 1, "learner": 1, "sampler": 2})
    World(small, spawn, journal=path).run()
    return path


def test_a_run_is_watched_to_its_newest_version(journal: Path) -> None:
    said: list[str] = []
    state = watch_a_run.watch(read_journal(journal), said.append)
    released = {event.release.version for event in read_journal(journal) if isinstance(event, Released)}
    assert max(released) == state.version > 1
    assert {
        int(version) for version in re.findall(r"^version (\d+)", "\n".join(said), re.MULTILINE)
    } == released


@pytest.mark.parametrize("size", [1 << 24, 20_000])
def test_a_run_is_followed_while_it_is_written_until_its_seed_leaves(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Also where its journal goes on in other files meanwhile."""
    monkeypatch.setattr("swarm.journal.FILE", size)
    events = list(read_journal(journal))
    (seed,) = {event.peer for event in events if getattr(event, "role", None) is Role.SEED}
    rest = iter([*events, Left(at=events[-1].at, peer=seed, name="seed", reason="done")])
    written = Journal(tmp_path / "journal.jsonl")
    state = watch_a_run.watch(
        watch_a_run.follow(written.path, lambda: written(next(rest))), lambda line: None
    )
    assert state.version > 1 and next(rest, None) is None
    assert (len(parts(written.path)) > 1) is (size == 20_000)
