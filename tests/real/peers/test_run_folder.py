"""The run folder: one run for ever, one process a folder."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
import safetensors.torch
import torch
from made_packages import package
from nouns import NOW, beat
from small_disks import fill, small_memory_disk
from transformers import AutoModelForCausalLM, AutoTokenizer

from peers.build import new_run, run_folder, run_sources
from peers.build.model import base_model, task_source
from peers.build.run_folder import RunFolder
from peers.commands.policies import export
from peers.commands.runs import status
from peers.errors import CannotHere, Refusal, WrongUsage
from peers.runtime.frames import Frames
from peers.runtime.peer_folder import TAKE_EVERY, TAKES, PeerFolder, free_peer_folder, running
from swarm import events
from swarm.core.membership import Trust
from swarm.frames import wire
from swarm.journal import to_line
from swarm.learn.files import weights
from swarm.learn.models import adapters, tiny, tokenization
from swarm.learn.models.model import load_policy
from swarm.learn.models.pretrained import ModelError
from swarm.limits import RELEASE_LIMIT
from swarm.membership.identity import IdentityError, open_key, verify
from swarm.net.blobs.store import Blobs
from swarm.protocol import Role
from swarm.settings.config import (
    BatchSize,
    Config,
    Evaluation,
    EvaluationSet,
    Model,
    Pace,
    Run,
    Sampling,
    Stop,
    TaskSettings,
)
from swarm.storage.blocks import Blocks
from swarm.tasks import catalog
from swarm.tasks.base import NotInstalled, TaskError
from swarm.tasks.workers import sandbox
from swarm.types import Digest, Release, Task


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny.make(tmp_path_factory.mktemp("tiny") / "policy", "qwen3")
    (folder / "secrets.txt").write_text("mine")
    return folder


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, policy: Path) -> RunFolder:
    return new_run.create(tmp_path_factory.mktemp("begun") / "run", Run(), policy)


@pytest.fixture
def run(tmp_path: Path, begun: RunFolder) -> RunFolder:
    """A copy: it takes half a second to begin one."""
    return replace(begun, path=shutil.copytree(begun.path, tmp_path / "run"))


def test_a_run_that_was_created_is_read_back(run: RunFolder) -> None:
    assert run_folder.read(run.path) == run
    there = {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    }
    assert set(run.spec.files) == set(run.spec.sizes) == there, "only what a model needs travels"
    assert run.spec.sizes["config.json"] == (run.model / "config.json").stat().st_size


def test_the_same_settings_open_the_same_run_and_others_are_refused_by_their_names(run: RunFolder) -> None:
    assert (
        run_folder.existing_run(run.path, Run()) == run
        and run_folder.existing_run(run.path / "elsewhere", Run()) is None
    )
    with pytest.raises(Refusal, match=r"other settings \(seed\)"):
        run_folder.existing_run(run.path, Run(seed=2))


def test_somebody_who_wants_to_train_longer_is_told_the_way(run: RunFolder) -> None:
    longer = (
        rf"other settings \(stop\): .* `swarm export \./trained --folder {re.escape(str(run.path))}` and"
        r" begin a new run with `--set run\.model\.name=\./trained --folder OTHER`"
    )
    with pytest.raises(Refusal, match=longer):
        run_folder.existing_run(run.path, Run(stop=Stop(versions=6)))
    with pytest.raises(Refusal, match=r"other settings \(seed, stop\): restore them, .* with --folder$"):
        run_folder.existing_run(run.path, Run(seed=2, stop=Stop(versions=6)))


def test_a_folder_of_another_version_with_the_same_settings_goes_on_with_the_bytes_that_it_has(
    run: RunFolder, tmp_path: Path
) -> None:
    older = {name: table for name, table in run.spec.run.items() if name != "pace"}
    newer = run.spec.run | {"wisdom": {"level": 3}}
    for settings in (older, newer):
        content = wire.encode(msgspec.structs.replace(run.spec, run=settings))
        path = run_folder.digest_of(content)
        kept = run_folder.keep_spec(tmp_path / path, content)
        assert run_folder.existing_run(kept.path, Run()) == kept and kept.digest == path
        assert (kept.path / "spec").read_bytes() == content
        with pytest.raises(Refusal, match=r"other settings \(batch, pace\)"):
            run_folder.existing_run(kept.path, Run(pace=Pace(beat=1.0), batch=BatchSize(groups=9)))


def test_a_folder_belongs_to_one_run(run: RunFolder) -> None:
    content = (run.path / "spec").read_bytes()
    assert run_folder.keep_spec(run.path, content) == run
    with pytest.raises(Refusal, match="another folder"):
        run_folder.keep_spec(run.path, content.replace(b"demo", b"omed"))
    assert (run.path / "spec").read_bytes() == content


@pytest.mark.parametrize("file", [run_folder.SPEC, run_folder.COPY])
@pytest.mark.parametrize("damage", ["cut", "zeros", "flipped", "gone"])
def test_of_the_two_files_of_a_spec_one_may_be_damaged(
    run: RunFolder, file: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run.path / file
    whole = path.read_bytes()
    for place in (5, len(whole) // 2, len(whole) - 45, len(whole) - 3) if damage == "flipped" else (0,):
        damages = {
            "cut": whole[: len(whole) // 2],
            "zeros": bytes(len(whole)),
            "flipped": whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :],
            "gone": b"",
        }
        path.write_bytes(damages[damage])
        if damage == "gone":
            path.unlink()
        assert run_folder.read(run.path) == run
        assert run_folder.existing_run(run.path, Run()) == run
        assert path.read_bytes() == whole, "it is mended"
        assert damage == "gone" or f"{path} was damaged: it is written again" in capsys.readouterr().err


def test_a_spec_of_which_nothing_is_whole_says_what_to_do_and_is_taken_from_others(run: RunFolder) -> None:
    content = (run.path / run_folder.SPEC).read_bytes()
    for file in (run_folder.SPEC, run_folder.COPY):
        (run.path / file).write_bytes(b"\x00garbage")
    with pytest.raises(CannotHere, match=r"damaged.*an invite of the run fetches it again"):
        run_folder.read(run.path)
    assert run_folder.keep_spec(run.path, content) == run
    assert run_folder.read(run.path) == run


@pytest.mark.parametrize("training", ["full", "lora"])
def test_a_policy_without_weights_is_refused(tmp_path: Path, policy: Path, training: Any) -> None:
    empty = shutil.copytree(policy, tmp_path / "empty")
    (empty / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="safetensors"):
        new_run.create(tmp_path / "run", Run(model=Model(name=str(empty), training=training)), empty)
    assert run_folder.read(tmp_path / "run") is None


def test_a_run_whose_template_cannot_write_its_tasks_is_not_begun(tmp_path: Path, policy: Path) -> None:
    plain = shutil.copytree(policy, tmp_path / "plain")
    (plain / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="no chat template"):
        new_run.create(tmp_path / "run", Run(model=Model(name=str(plain), template="on")), plain)
    assert run_folder.read(tmp_path / "run") is None


@pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed")
def test_a_run_whose_tasks_run_texts_as_code_is_begun_as_the_peers_settings_say(
    tmp_path: Path, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "missing", lambda: "there is no bubblewrap")
    gym = Run(task=TaskSettings(name="gym:chain_sum"))
    with pytest.raises(sandbox.NoSandbox, match=r"no bubblewrap.*peer.rewards.code=trust"):
        new_run.create(tmp_path / "run", gym, policy)
    with pytest.raises(TaskError, match=r"peer.rewards.code = refuse"):
        new_run.create(tmp_path / "run", gym, policy, "refuse")
    assert run_folder.read(tmp_path / "run") is None
    assert new_run.create(tmp_path / "run", gym, policy, "trust").spec.task == {}


def test_a_run_whose_rewards_cannot_be_recomputed_is_not_begun_and_one_that_teaches_nothing_is_told(
    tmp_path: Path, policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(
        "import random\n"
        "def chance(completions, **row):\n    return [random.random() for _ in completions]\n"
        "def alike(completions, **row):\n    return [0.5 for _ in completions]\n"
    )
    chance, alike = (TaskSettings(rewards=(f"{tmp_path}/mine.py:{name}",)) for name in ("chance", "alike"))
    with pytest.raises(TaskError, match="not the same number twice"):
        new_run.create(tmp_path / "run", Run(task=chance), policy)
    assert run_folder.read(tmp_path / "run") is None
    new_run.create(tmp_path / "run", Run(task=alike), policy)
    assert "warning: Every answer that was tried earns 0.5" in capsys.readouterr().err


def test_version_0_of_a_full_run_is_the_policy(tmp_path: Path, policy: Path) -> None:
    run = new_run.create(tmp_path / "run", Run(model=Model(name=str(policy))), policy)
    genesis = (run.path / "genesis").read_bytes()
    assert Blocks.of(genesis).root == run.spec.genesis
    assert weights.release_bytes(load_policy(run.model, data=genesis)) == weights.release_bytes(
        load_policy(policy)
    )


def test_a_version_0_that_was_damaged_is_not_given_out(run: RunFolder, tmp_path: Path) -> None:
    genesis = run.path / "genesis"
    whole = genesis.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1])):
        genesis.write_bytes(content)
        with pytest.raises(CannotHere, match=r"damaged.*bring the file back"):
            run.genesis()
        with pytest.raises(CannotHere, match="damaged"):
            export.export(run.path, tmp_path / "out")
    genesis.unlink()
    assert run.genesis() is None


@pytest.mark.parametrize("peer", ["seed", "sampler-1"])
def test_the_best_release_that_is_whole_on_a_peers_disk_is_what_is_exported(
    run: RunFolder, peer: str, capsys: Any
) -> None:
    seed = run.path / "peers" / peer
    seed.mkdir(parents=True, exist_ok=True)
    key = open_key(seed / "key")
    frames, blobs = Frames(run.digest, key, None, None), Blobs(None, folder=seed / "blobs")  # type: ignore[arg-type]
    for version in (3, 20):
        data = b"weights of version %d" % version
        blocks = Blocks.of(data)
        blobs.hold(version, blocks)
        release = Release(
            version=version,
            weights=blocks.root,
            size=blocks.size,
            parent=Digest("0" * 64),
            publisher=key.me,
            learners=1,
            groups=1,
            released=0.0,
        )
        (seed / "releases").mkdir(exist_ok=True)
        (seed / "releases" / blocks.root).write_bytes(frames.seal(release, RELEASE_LIMIT))
    assert export.newest_weights(run.path, run) == (20, b"weights of version 20")
    (seed / "blobs" / Blocks.of(b"weights of version 20").root).write_bytes(b"weights of version 2?")
    assert export.newest_weights(run.path, run) == (3, b"weights of version 3")
    assert "release 20" in capsys.readouterr().err
    for word in (seed / "releases").iterdir():
        word.write_bytes(word.read_bytes()[:50])
    assert export.newest_weights(run.path, run)[0] == 0


def test_an_adapters_run_carries_the_local_base_and_begins_as_it_is(tmp_path: Path, policy: Path) -> None:
    settings = Run(model=Model(name=str(policy), training="lora"))
    run = new_run.create(tmp_path / "run", settings, policy)
    base = run.model / "model.safetensors"
    assert run.spec.files["model.safetensors"] == run_folder.digest_of(base.read_bytes()), (
        "it travels to joiners"
    )
    assert run.spec.sizes["model.safetensors"] == base.stat().st_size
    genesis = (run.path / "genesis").read_bytes()
    assert Blocks.of(genesis).root == run.spec.genesis and genesis == adapters.genesis(
        policy, settings.lora, settings.seed
    )
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        first = load_policy(run.model, lora=settings.lora, data=genesis)(ids).logits
        torch.testing.assert_close(first, load_policy(policy)(ids).logits)


def test_local_rewards_and_data_become_files_of_the_run(tmp_path: Path, policy: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def short(prompts, completions, **_):\n    return [1.0 for _ in completions]\n"
    )
    (tmp_path / "data.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n' * 8)
    task = TaskSettings(name=f"data:{tmp_path / 'data.jsonl'}", rewards=(f"{tmp_path / 'mine.py'}:short",))
    run = new_run.create(tmp_path / "run", Run(task=task), policy)
    assert set(run.spec.task) == {"data.parquet", "rewards-0.py"}
    for name, digest in run.spec.task.items():
        content = (run.path / "task" / name).read_bytes()
        assert run_folder.digest_of(content) == digest and run.spec.sizes[f"task/{name}"] == len(content)


def rows(path: Path, *prompts: str) -> str:
    path.write_text("".join(f'{{"prompt": "{prompt}", "answer": "{prompt}"}}\n' for prompt in prompts))
    return f"data:{path}"


def test_an_evaluation_set_travels_with_the_run_without_rows_that_are_trained(
    tmp_path: Path, policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = [f"{i}+1=" for i in range(30)]
    sets = {
        "test": EvaluationSet(name=rows(tmp_path / "test.jsonl", *trained, "50+1=", "51+1=", "x" * 9000)),
        "other": EvaluationSet(name="brackets", system="Close them.", tasks=4),
    }
    settings = Run(
        task=TaskSettings(name=rows(tmp_path / "train.jsonl", *trained), options={"held_out": 0.1}),
        evaluation=Evaluation(tasks=256, sets=sets),
        sampling=Sampling(max_tokens=8),
    )
    run = new_run.create(tmp_path / "run", settings, policy)
    assert set(run.spec.task) == {"data.parquet", "test/data.parquet"}
    assert run.spec.sizes["task/test/data.parquet"] == (run.path / "task/test/data.parquet").stat().st_size
    said = capsys.readouterr().err
    held = {task.prompt for task in catalog.data(run.settings.task, 1, run.path / "task").held_out(99)}
    assert (
        f"warning: evaluation set test: {30 - len(held)} of 33 rows are left out: their prompts are trained"
        in said
    )
    assert "evaluation set test: 1 of 33 rows are left out: the model has no room for their prompts" in said
    assert f"evaluation set test has {len(held) + 2} different tasks, and 256 are asked for" in said
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").unlink()
    config, asked = Config(run=run.settings), list[Any]()

    def render(tasks: Sequence[Task]) -> list[str]:
        asked.extend(tasks)
        return [task.prompt for task in tasks]

    source = task_source.source(run, config, render, print, of="test")
    assert {task.prompt for task in source.tasks(range(256))} == {*held, "50+1=", "51+1="}
    source.close()
    task_source.source(run, config, render, print, of="other").close()
    assert asked[-1].messages[0].content == "Close them."
    assert run_folder.existing_run(run.path, settings) == run


def test_prompts_of_an_evaluation_set_for_which_the_model_has_no_tokens_are_warned_of(
    tmp_path: Path, policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = tokenization.load(policy).tokenizer
    model = shutil.copytree(policy, tmp_path / "model")
    known.unk_token = "("  # as if it had no token for it
    known.save_pretrained(model)
    beside = Evaluation(tasks=8, sets={"other": EvaluationSet(name="brackets")})
    new_run.create(tmp_path / "run", Run(evaluation=beside), model)
    said = capsys.readouterr().err
    assert re.search(
        r"^warning: evaluation set other: .* no tokens for all .* [1-8] of 8 prompts", said, re.MULTILINE
    )


def test_the_folder_of_a_set_is_on_the_disk_when_the_run_begins(
    tmp_path: Path, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(new_run, "sync", synced.append)
    beside = Evaluation(sets={"other": EvaluationSet(name=rows(tmp_path / "test.jsonl", "a", "b"))})
    new_run.create(path := tmp_path / "one", Run(evaluation=beside), policy)
    task = path / "task"
    assert {task / "other" / "data.parquet", task / "other", task, path} <= {*synced}


def test_a_run_with_an_evaluation_set_that_cannot_be_made_does_not_begin(
    tmp_path: Path, policy: Path
) -> None:
    task = TaskSettings(name=rows(tmp_path / "train.jsonl", "a", "b", "c"), options={"held_out": 0.0})
    beside = Evaluation(sets={"other": EvaluationSet(name="brackets")})
    with pytest.raises(TaskError, match="no held-out tasks, and evaluation sets are judged beside them: set"):
        new_run.create(tmp_path / "one", Run(task=task, evaluation=beside), policy)
    strange = EvaluationSet(name=rows(tmp_path / "test.jsonl", "d"), options={"prompt": "q"})
    with pytest.raises(
        TaskError, match=r"^evaluation set odd: .*set run\.evaluation\.sets\.odd\.options\.prompt$"
    ):
        new_run.create(tmp_path / "two", Run(evaluation=Evaluation(sets={"odd": strange})), policy)


@pytest.fixture(scope="module")
def begun_of_files(tmp_path_factory: pytest.TempPathFactory, policy: Path) -> tuple[RunFolder, Run]:
    """A run of a model, data and a reward that lie beside it."""
    path = tmp_path_factory.mktemp("begun-of-files")
    shutil.copytree(policy, path / "model")
    (path / "data").mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        rows = (f'{{"prompt": "{name} {i}", "answer": "{i}"}}\n' for i in range(9))
        (path / "data" / name).write_text("".join(rows))
    (path / "mine.py").write_text("def one(completions, **columns): return [1.0] * len(completions)\n")
    settings = Run(
        model=Model(name="./model"), task=TaskSettings(name="data:./data", rewards=("./mine.py:one",))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        return new_run.create(path / "run", settings, path / "model"), settings


@pytest.fixture
def made_of_files(
    begun_of_files: tuple[RunFolder, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[RunFolder, Run]:
    """A copy of it, with all that lies beside it."""
    run, settings = begun_of_files
    shutil.copytree(run.path.parent, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return replace(run, path=tmp_path / "run"), settings


@pytest.mark.parametrize(
    "name", ["./mine.py", "./data/b.jsonl", "./model/chat_template.jinja", "./model/model.safetensors"]
)
def test_a_file_that_was_edited_is_not_ignored_when_its_run_is_started_again(
    made_of_files: tuple[RunFolder, Run], name: str
) -> None:
    run, settings = made_of_files
    content = Path(name).read_bytes()
    Path(name).write_bytes(content)
    run_sources.check(run, settings)  # it was written anew, and is the same
    Path(name).write_bytes(content[:-1] + b" ")
    digests = r"digest \w{12}, then \w{12}"
    says = rf"{re.escape(name)} is not what this run began with \({digests}\): restore it, or name another"
    with pytest.raises(Refusal, match=says):
        run_sources.check(run, settings)


def test_an_edited_file_keeps_no_seed_from_coming_back_to_its_peers(
    made_of_files: tuple[RunFolder, Run], capsys: pytest.CaptureFixture[str]
) -> None:
    run, settings = made_of_files
    Path("mine.py").write_text("def one(completions, **columns): return [2.0] * len(completions)\n")
    with run.peer_folder("up"):
        with pytest.raises(Refusal, match="not what this run began with"):
            run_sources.check(run, settings)
        with run.peer_folder("learner-1"):
            run_sources.check(run, settings)
    assert "its peers go on with what it began with" in capsys.readouterr().err


def test_files_that_came_or_went_are_told(
    made_of_files: tuple[RunFolder, Run], capsys: pytest.CaptureFixture[str]
) -> None:
    run, settings = made_of_files
    Path("data/more.jsonl").write_text('{"prompt": "more", "answer": "1"}\n')
    with pytest.raises(Refusal, match=r"\./data/more\.jsonl was not there when this run began: take it away"):
        run_sources.check(run, settings)
    Path("data/more.jsonl").unlink()
    shutil.rmtree("model")
    Path("mine.py").unlink()
    run_sources.check(run, settings)
    said = capsys.readouterr().err
    assert re.search(r"\./mine\.py and \d+ other files cannot be found from .*: the run goes on with", said)


def test_a_run_of_an_older_version_is_compared_with_its_specification(
    made_of_files: tuple[RunFolder, Run],
) -> None:
    run, settings = made_of_files
    (run.path / "sources").unlink()
    Path("data/more.jsonl").write_text('{"prompt": "more", "answer": "1"}\n')
    run_sources.check(run, settings)
    Path("mine.py").write_text("def one(completions, **columns): return [2.0] * len(completions)\n")
    with pytest.raises(Refusal, match=r"\./mine\.py is not what this run began with"):
        run_sources.check(run, settings)


@pytest.fixture
def short(policy: Path, tmp_path: Path) -> Path:
    """A model of 96 positions."""
    folder = shutil.copytree(policy, tmp_path / "short")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 96}))
    return folder


def rows_of(tmp_path: Path, prompts: list[str]) -> Run:
    lines = [json.dumps({"prompt": prompt, "answer": "1"}) for prompt in prompts]
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    return Run(task=TaskSettings(name=f"data:{tmp_path / 'data.jsonl'}"), sampling=Sampling(max_tokens=12))


def test_prompts_that_are_too_long_are_counted_and_left_out_of_the_data_at_the_start(
    tmp_path: Path, short: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = rows_of(tmp_path, [f"{i} + 1 =" + " word" * 99 * (i % 15 == 7) for i in range(60)])
    run = new_run.create(tmp_path / "run", settings, short)
    said = capsys.readouterr().err
    assert "4 of 60 prompts are longer than the 84 tokens for which the model has room" in said
    assert (
        "it reads 96, and run.sampling.max_tokens = 12 of these are the completion's. They are left" in said
    )
    assert "left out: rows 8, 23, 38, 53, counted from 1" in said
    data = catalog.data(settings.task, 1, run.path / "task")
    assert data.usable == 56 and run.spec.task.keys() == {"data.parquet"}
    assert all("word" not in task.prompt for task in [*map(data.task, range(200)), *data.held_out(9)])


def test_a_run_with_fewer_different_held_out_tasks_than_an_evaluation_asks_for_says_so_at_its_start(
    tmp_path: Path, policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for digits, held in ((2, 9), (5, 0)):
        task = TaskSettings(name="digit-sums", options={"digits": digits})
        new_run.create(tmp_path / f"{digits}", Run(task=task), policy)
        said = f"{held} different held-out exercises, and run.evaluation.tasks asks for 256"
        assert (said in capsys.readouterr().err) is (held > 0)


def test_a_run_fixes_the_version_of_its_tasks_package_and_another_one_is_refused(
    tmp_path: Path, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(package(tmp_path / "site", "1.2")))
    run = new_run.create(tmp_path / "run", Run(task=TaskSettings(name="mine")), policy)
    assert run.spec.packages == {"my-tasks": "1.2"}
    config, render = Config(run=run.settings), lambda tasks: [task.prompt for task in tasks]
    task_source.source(run, config, render, print).close()
    package(tmp_path / "site", "1.3")
    with pytest.raises(NotInstalled, match=r"pip install 'my-tasks==1\.2'"):
        task_source.source(run, config, render, print)
    older = replace(run, spec=msgspec.structs.replace(run.spec, packages={}))
    task_source.source(older, config, render, print).close()


def test_a_run_of_which_no_prompt_fits_is_refused(tmp_path: Path, short: Path) -> None:
    settings = rows_of(tmp_path, [f"{i}" + " word" * 99 for i in range(9)])
    with pytest.raises(ModelError, match=r"9 of 9 prompts are longer than .* Take a model that reads more"):
        new_run.create(tmp_path / "run", settings, short)


def test_a_run_with_a_token_in_a_prompt_that_the_model_has_no_row_for_is_refused(
    tmp_path: Path, short: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(short)
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<extra_{i}>" for i in range(40)]})
    tokenizer.save_pretrained(short)
    new_run.create(tmp_path / "one", rows_of(tmp_path, ["1", "2"]), short)
    with pytest.raises(ModelError, match=r"a prompt has the special token '<extra_39>'"):
        new_run.create(tmp_path / "run", rows_of(tmp_path, ["1", "2 <extra_39>"]), short)


def test_a_run_that_was_pinned_goes_on_from_settings_that_name_no_commit(
    tmp_path: Path, policy: Path
) -> None:
    commit = "a" * 40
    hub = Model(name="org/model", revision=commit)
    run = new_run.create(tmp_path / "run", Run(model=hub), policy)
    for revision in ("", "main", commit):
        assert run_folder.existing_run(run.path, Run(model=Model(name="org/model", revision=revision))) == run
    for other in (Model(name="org/model", revision="b" * 40), Model(name="org/other")):
        with pytest.raises(Refusal, match=r"other settings \(model\)"):
            run_folder.existing_run(run.path, Run(model=other))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.1])
def test_an_export_to_a_full_disk_says_so_and_what_to_do(
    run: RunFolder, tmp_path: Path, share: float
) -> None:
    """`share`: of the weights that there is room for; the tokenizer has none beside them."""
    with small_memory_disk(tmp_path / "disk") as disk:
        fill(disk)
        room = int(share * (run.path / "genesis").stat().st_size)
        os.truncate(disk / "ballast", (disk / "ballast").stat().st_size - room)
        says = f"cannot write {disk / 'out'}: No space left on device; .* free some space, or name another"
        with pytest.raises(CannotHere, match=says):
            export.write(run, disk / "out", portable=False)


@pytest.mark.parametrize("training", ["full", "lora"])
def test_what_is_exported_is_what_was_trained(
    tmp_path: Path, policy: Path, training: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Run(model=Model(name=str(policy), training=training))
    run = new_run.create(tmp_path / "run", settings, policy)
    lora = settings.lora if training == "lora" else None
    moved = load_policy(run.model, lora=lora, data=(run.path / "genesis").read_bytes())
    with torch.no_grad():
        for tensor in weights.state(moved).values():
            tensor += 0.02 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(len(tensor)))
    (run.path / "genesis").write_bytes(weights.release_bytes(moved))  # the newest that this machine holds
    begun = msgspec.structs.replace(run.spec, genesis=Blocks.of(weights.release_bytes(moved)).root)
    for file in (run_folder.SPEC, run_folder.COPY):
        (run.path / file).unlink()
    run_folder.keep_spec(run.path, wire.encode(begun))
    seed = open_key(tmp_path / "seed.key").me
    ahead = events.Heard(at=NOW, peer=seed, subject=seed, beat=beat(role=Role.SEED, version=7))
    (run.path / "peers" / "seed").mkdir(parents=True)
    (run.path / "peers" / "seed" / "journal.jsonl").write_bytes(to_line(ahead))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").write_text("of another model")
    with pytest.raises(WrongUsage, match=r"is not empty: name another folder, or .* --force"):
        export.export(run.path, tmp_path / "out")
    assert (tmp_path / "out" / "config.json").read_text() == "of another model"
    assert export.export(run.path, tmp_path / "out", force=True) == 0
    if training == "lora":
        adapter = json.loads((tmp_path / "out" / "adapter" / "adapter_config.json").read_text())
        assert adapter["base_model_name_or_path"] == str(policy), "the name that the settings have"
    assert "version 7 was made, and its bytes had not come" in capsys.readouterr().err
    ids = torch.tensor([AutoTokenizer.from_pretrained(tmp_path / "out")("What is 1+1?").input_ids])
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        expected = load_policy(run.model, lora=lora, data=weights.release_bytes(moved))(ids).logits
        torch.testing.assert_close(loaded(ids).logits.float(), expected, atol=0.05, rtol=0.05)
        assert not torch.allclose(load_policy(policy)(ids).logits, expected, atol=0.05), "it has moved"
        if lora is not None:
            from peft import PeftModel  # seconds, which other tests of this process need not wait

            base = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
            beside = PeftModel.from_pretrained(base, tmp_path / "out" / "adapter")
            torch.testing.assert_close(beside(ids).logits, expected, atol=1e-4, rtol=1e-4)
    assert loaded.generation_config.eos_token_id == [2, 0], "it ends as the original does"


def test_a_membership_made_here_is_signed_by_the_owner(run: RunFolder, tmp_path: Path) -> None:
    peer = open_key(tmp_path / "peer.key")
    membership = run.member(peer, Role.LEARNER)
    trust = Trust(str(run.spec.run["name"]), bytes.fromhex(run.spec.owner), False, verify)
    assert trust.objection(peer.me, Role.LEARNER, membership, 0.0) is None


def test_who_only_joined_cannot_invite(run: RunFolder) -> None:
    (run.path / "owner.key").unlink()
    with pytest.raises(Refusal, match="only the machine that started the run"):
        run.owner()


def test_an_owners_key_that_is_damaged_or_anothers_is_never_replaced(run: RunFolder) -> None:
    path = run.path / "owner.key"
    key, other = path.read_bytes(), run.path / "other.key"
    open_key(other)
    for damage in (b"", key[:-1], other.read_bytes()):
        path.write_bytes(damage)
        with pytest.raises(CannotHere, match="bring the file back from a copy"):
            run.owner()
        assert path.read_bytes() == damage
    path.write_bytes(key)
    assert run.owner().public.hex() == run.spec.owner


def test_a_corner_is_held_by_one_process(tmp_path: Path) -> None:
    with PeerFolder(tmp_path / "peers" / "x"):
        with (
            pytest.raises(CannotHere, match=f"in use by process {os.getpid()}"),
            PeerFolder(tmp_path / "peers" / "x"),
        ):
            pass
        assert running(tmp_path) == {"x": os.getpid()}
    assert running(tmp_path) == {}
    with PeerFolder(tmp_path / "peers" / "x"):
        pass


def test_a_peer_takes_the_first_free_corner_and_gets_its_own_back(tmp_path: Path) -> None:
    first, second = (free_peer_folder(tmp_path, Role.SAMPLER) for _ in range(2))
    assert [first.path.name, second.path.name] == ["sampler-1", "sampler-2"]
    first.release()
    third = free_peer_folder(tmp_path, Role.SAMPLER)
    assert third.path.name == "sampler-1"
    second.release()
    third.release()


@contextmanager
def slow_look(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Somebody looks meanwhile who runs here, and takes a fifth of a second for each peer."""
    flock, looks = fcntl.flock, threading.Event()

    def slow(lock: int, how: int) -> None:
        flock(lock, how)
        if threading.current_thread() is not threading.main_thread() and not looks.is_set():
            looks.set()
            time.sleep(0.2)

    monkeypatch.setattr(fcntl, "flock", slow)
    with ThreadPoolExecutor() as pool:
        found = pool.submit(running, folder)
        assert looks.wait(10)
        yield
        assert found.result() == {}


def test_who_looks_at_a_folder_keeps_no_peer_out_and_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_peer_folder(tmp_path, Role.SAMPLER).release()
    with slow_look(tmp_path, monkeypatch):
        assert running(tmp_path) == {}
        again = free_peer_folder(tmp_path, Role.SAMPLER)
    assert again.path.name == "sampler-1" and running(tmp_path) == {"sampler-1": os.getpid()}
    again.release()
    with slow_look(tmp_path, monkeypatch), PeerFolder(again.path):
        pass


def test_a_folder_that_a_peer_holds_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", pytest.fail)
    with PeerFolder(tmp_path / "peers" / "x"):
        assert not PeerFolder(tmp_path / "peers" / "x").take()


def test_a_folder_that_others_always_look_at_is_taken_for_one_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, tries, slept = fcntl.flock, list[int](), list[float]()

    def looked_at(lock: int, how: int) -> None:
        if how & fcntl.LOCK_EX:
            tries.append(how)
            raise BlockingIOError
        flock(lock, how)

    monkeypatch.setattr(fcntl, "flock", looked_at)
    monkeypatch.setattr(time, "sleep", slept.append)
    folder = PeerFolder(tmp_path / "peers" / "x")
    assert not folder.take() and len(tries) == TAKES and sum(slept) == pytest.approx(TAKES * TAKE_EVERY)
    folder.close()


def test_a_folder_is_free_again_though_a_child_of_its_peer_has_it_open(tmp_path: Path) -> None:
    first, second = PeerFolder(tmp_path / "peers" / "x"), PeerFolder(tmp_path / "peers" / "x")
    assert first.take() and not second.take()
    forked = os.dup(first._lock)
    first.release()
    assert second.take()
    second.release()
    os.close(forked)


def test_a_disk_that_refuses_the_pid_costs_that_and_no_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", refuse)
    with PeerFolder(tmp_path / "peers" / "x"):
        assert running(tmp_path) == {"x": 0}


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_folder_is_locked_on_a_disk_that_is_read_only_and_refused_where_it_may_not_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    PeerFolder(tmp_path / "peers" / "x").close()
    open_file = os.open

    def opened(path: Any, flags: int, *mode: int, **more: Any) -> int:
        if flags & os.O_RDWR and str(path).endswith("/pid"):
            raise OSError(number, os.strerror(number))
        return open_file(path, flags, *mode, **more)

    monkeypatch.setattr(os, "open", opened)
    if number == errno.EACCES:
        with pytest.raises(PermissionError):
            PeerFolder(tmp_path / "peers" / "x")
    else:
        with PeerFolder(tmp_path / "peers" / "x"):
            assert running(tmp_path) == {"x": 0}, "its pid is not on that disk"


def test_a_peer_that_looks_for_a_free_folder_keeps_none_of_the_others_open(tmp_path: Path) -> None:
    taken = [free_peer_folder(tmp_path, Role.SAMPLER) for _ in range(3)]
    before = {*os.listdir("/dev/fd")}
    free_peer_folder(tmp_path, Role.SAMPLER).release()
    assert {*os.listdir("/dev/fd")} == before
    for folder in taken:
        folder.release()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a process has open")
def test_a_process_that_a_pid_file_names_from_before_is_not_asked_to_leave(
    tmp_path: Path,
) -> None:
    with PeerFolder(tmp_path / "peers" / "x") as mine, subprocess.Popen(["sleep", "60"]) as other:
        (mine.path / "pid").write_text(str(other.pid))
        try:
            assert running(tmp_path) == {"x": 0}
            with pytest.raises(CannotHere, match="fuser"):
                status.leave(tmp_path)
            with pytest.raises(CannotHere, match="that its pid file does not name"):
                PeerFolder(mine.path).__enter__()
            assert other.poll() is None
        finally:
            other.kill()


def test_a_pid_that_is_read_while_a_longer_one_makes_room_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "peers" / "x").mkdir(parents=True)
    (tmp_path / "peers" / "x" / "pid").write_text("1234567890")
    monkeypatch.setattr(os, "ftruncate", lambda *_: None)
    with PeerFolder(tmp_path / "peers" / "x"):
        assert running(tmp_path) == {"x": os.getpid()}


def test_a_peer_that_ends_before_it_is_asked_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    looks = iter([{"sampler-1": ended.pid}, {}])
    monkeypatch.setattr(status.peer_folder, "running", lambda _: next(looks))
    assert status.leave(tmp_path) == 0
    assert "left: sampler-1" in capsys.readouterr().err


def modes(path: Path) -> dict[str, int]:
    return {str(one.relative_to(path)): one.lstat().st_mode & 0o777 for one in (path, *path.rglob("*"))}


@pytest.fixture
def umask() -> Iterator[None]:
    """That of most machines."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_folder_that_is_closed_is_its_users_alone_and_so_is_what_is_written_later(
    run: RunFolder, umask: None, tmp_path: Path
) -> None:
    log, aside = run.path / "logs" / "seed.log", run.path / "notes.txt"
    log.parent.mkdir()
    for path in (log, aside, tmp_path / "elsewhere"):
        path.write_text("a prompt\n")
        path.chmod(0o644)
    (run.path / "logs" / "link").symlink_to(tmp_path / "elsewhere")
    run.path.chmod(0o755)
    link = tmp_path / "link"
    link.symlink_to(run.path)
    assert run_folder.close(link) == 0o022
    subprocess.run([sys.executable, "-c", f"open({str(run.path / 'cache')!r}, 'w')"], check=True)
    (run.path / "peers" / "seed").mkdir(parents=True)
    found = modes(run.path)
    assert found.pop("notes.txt") == 0o644, "a file of somebody else, in a folder that nobody else enters"
    found.pop("logs/link")
    assert found.pop("cache") == 0o600 and found.pop("peers/seed") == 0o700
    assert not [name for name, mode in found.items() if mode & 0o077], found
    assert (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o644, "what a link points at is not the run's"


@pytest.mark.parametrize("private", [False, True])
def test_a_folder_is_closed_until_its_run_is_known_to_be_public(
    tmp_path: Path, policy: Path, umask: None, private: bool
) -> None:
    path = tmp_path / "new"
    before = run_folder.close_unless_public(path)
    assert before == 0o022
    run_folder.make_folder(path)
    (path / "peers").mkdir()
    assert set(modes(path).values()) == {0o700}
    run = new_run.create(path, Run(private=private), policy)
    run_folder.open_if_public(run, before)
    (path / "later").write_text("")
    assert modes(path)["later"] == (0o600 if private else 0o644)
    path.chmod(0o755)
    assert run_folder.close_unless_public(path) == (0o077 if private else 0o022)
    assert modes(path)["."] == (0o700 if private else 0o755), "who shares the folder of a public run may"


def test_a_key_that_others_could_read_is_not_made_to_look_as_if_none_could(
    run: RunFolder, umask: None
) -> None:
    keys = run.path / "owner.key", run.path / "peers" / "sampler-1" / "key"
    for key in keys:
        open_key(key)
        key.chmod(0o644)
    run_folder.close(run.path)
    for key in keys:
        with pytest.raises(IdentityError, match="can be read by others"):
            open_key(key)


def test_a_file_in_the_folders_place_keeps_its_mode(tmp_path: Path, umask: None) -> None:
    (tmp_path / "notes.txt").write_text("")
    run_folder.close(tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("training", ["lora", "qlora"])
def test_a_run_of_adapters_on_the_embedded_model_begins_with_an_adapter(
    tmp_path: Path, training: str
) -> None:
    settings = Run(model=Model(training=training))  # type: ignore[arg-type]
    run = new_run.create(tmp_path / "run", settings, base_model.folder(settings))
    genesis = safetensors.torch.load((run.path / "genesis").read_bytes())
    assert genesis and all("lora_" in name for name in genesis)
    assert (run.model / run_folder.BASE).exists(), "those who join fetch the base"
