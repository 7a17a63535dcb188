"""The embedded policy: from nothing to a Hugging Face folder, and from there to the answer."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from nouns import seeds
from transformers import AutoModelForCausalLM, AutoTokenizer

from swarm import tasks
from swarm.learn.files import weights
from swarm.learn.learners.learner import Learner
from swarm.learn.models import embedded, model, tokenization
from swarm.learn.models.policy import LanguageModel
from swarm.learn.models.pretrained import load_tokenizer
from swarm.sample.hf import HfEngine
from swarm.settings.config import Optimizer, Run, TaskSettings
from swarm.types import Array, Digest, Group, PeerId, Times


def quiet(line: str) -> None:
    pass


def made(path: Path) -> Path:
    source = tasks.source(TaskSettings(name="digit-sums"), 1)
    embedded.make(path, 1, source.characters, source.example, quiet)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After a few steps of its warm start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "LAST_STEP", 20)
        return made(tmp_path_factory.mktemp("policies") / "one")


def engine_of(folder: Path) -> HfEngine:
    return HfEngine(model.load_policy(folder), tokenization.load(folder), weights.load_into, 6)


def accuracy(engine: HfEngine, source: tasks.TaskSource, n: int = 512) -> float:
    held_out = source.held_out(n)
    answers = engine.greedy([task.prompt for task in held_out])
    return float(np.mean([source.reward(task, text) for task, text in zip(held_out, answers, strict=True)]))


@pytest.mark.nightly
def test_the_warm_start_answers_about_a_third(tmp_path: Path) -> None:
    folder = made(tmp_path / "policy")
    assert 0.25 < accuracy(engine_of(folder), tasks.source(TaskSettings(name="digit-sums"), 1)) < 0.5


@pytest.mark.nightly
def test_one_seed_makes_the_same_bytes_and_another_does_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "LAST_STEP", 20)
    source = tasks.source(TaskSettings(name="digit-sums"), 1)
    files = []
    for name, seed in [("a", 1), ("b", 1), ("c", 2)]:
        torch.manual_seed(len(files))  # the caller's generator must not matter
        embedded.make(folder.parent / name, seed, source.characters, source.example, quiet)
        files.append({file.name: file.read_bytes() for file in (folder.parent / name).iterdir()})
    assert files[0] == files[1] and files[0]["model.safetensors"] != files[2]["model.safetensors"]


def test_it_is_a_folder_that_transformers_loads_by_itself(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    policy = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert 90_000 < sum(p.numel() for p in policy.parameters()) < 110_000
    assert tokenizer.decode(tokenizer("52318=").input_ids) == "52318="
    ids = policy.generate(torch.tensor([tokenizer("52318=").input_ids]), max_new_tokens=6, do_sample=False)
    text = tokenizer.decode(ids[0, 6:], skip_special_tokens=True)
    assert text == engine_of(folder).greedy(["52318="])[0]


def test_weights_as_bytes_make_the_same_policy_as_the_folder(folder: Path) -> None:
    whole = model.load_policy(folder)
    data = (folder / "model.safetensors").read_bytes()
    assert weights.to_bytes(whole.state_dict()) == data
    bare = folder.parent / "bare"
    bare.mkdir()
    for file in folder.iterdir():
        if file.suffix == ".json":
            (bare / file.name).write_bytes(file.read_bytes())
    joined = model.load_policy(bare, data=data)
    assert weights.to_bytes(joined.state_dict()) == data
    assert next(joined.parameters()).dtype is torch.float32


@pytest.mark.parametrize("name", ["digit-sums", "sorting", "brackets"])
def test_every_character_of_a_task_is_a_token_of_its_policy(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "LAST_STEP", 1)
    source = tasks.source(TaskSettings(name=name), 1)
    embedded.make(tmp_path / name, 1, source.characters, source.example, quiet)
    tokenizer = load_tokenizer(tmp_path / name)
    ids = tokenizer(source.characters).input_ids
    assert len(set(ids)) == len(source.characters) and tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == source.characters


def test_a_character_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="each has to be there once"):
        embedded.make(
            tmp_path / "policy", 1, "()(", tasks.source(TaskSettings(name="brackets"), 1).example, quiet
        )


def test_of_two_that_make_one_policy_at_once_both_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two `swarm up` of one machine that start together."""
    monkeypatch.setattr(embedded, "LAST_STEP", 1)
    source, folder = tasks.source(TaskSettings(name="digit-sums"), 1), tmp_path / "policy"
    files = list[dict[str, bytes]]()

    def make(progress: Callable[[str], None]) -> None:
        embedded.make(folder, 1, source.characters, source.example, progress)
        files.append({file.name: file.read_bytes() for file in folder.iterdir()})

    make(lambda line: make(quiet) if not files else None)  # the other one is done first
    assert len(files) == 2 and files[0] == files[1] and list(tmp_path.iterdir()) == [folder]
    (tmp_path / "full").write_text("a file")
    with pytest.raises(NotADirectoryError):
        embedded.make(tmp_path / "full", 1, source.characters, source.example, quiet)


def test_an_interrupted_warm_start_leaves_no_folder(tmp_path: Path) -> None:
    def interrupted(line: str) -> None:
        raise KeyboardInterrupt

    source = tasks.source(TaskSettings(name="digit-sums"), 1)
    with pytest.raises(KeyboardInterrupt):
        embedded.make(tmp_path / "policy", 1, source.characters, source.example, interrupted)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
@pytest.mark.timeout(900)  # 30 seconds of CPU, on a machine that may be shared by ten
@pytest.mark.parametrize(("lag", "seed"), [(0, 1), (8, 2)])
def test_a_closed_loop_learns_the_demo_task(tmp_path: Path, lag: int, seed: int) -> None:
    """Sample, score, learn, step, one after the other; with `lag`, each eight groups use one of the last
    policies at random."""
    run = Run(optimizer=Optimizer(lr=0.001))  # the demo's
    source = tasks.source(TaskSettings(name="digit-sums"), seed)
    embedded.make(tmp_path / "policy", seed, source.characters, source.example, quiet)
    learner = Learner(
        LanguageModel(model.load_policy(tmp_path / "policy"), tokenization.load(tmp_path / "policy")), run
    )
    engine, rng = engine_of(tmp_path / "policy"), np.random.default_rng(seed)
    released = deque([learner.weights()], maxlen=lag + 1)
    before, began, figures = accuracy(engine, source), time.process_time(), {}
    for step in range(300):
        groups, prompts, rewards = [], [], []
        for first in range(step * 32, step * 32 + 32, 8):
            behind = int(rng.integers(len(released)))
            engine.load(released[-1 - behind])
            drawn = [source.task(first + i) for i in range(8)]
            asked = [task.prompt for task in drawn]
            for task, c in zip(drawn, engine.sample(asked, 8, seeds(first, asked)), strict=True):
                rewards.append(tuple(source.reward(task, text) for text in c.texts))
                prompts.append(task.prompt)
                groups.append(
                    Group(
                        id=str(task.index),
                        sampler=PeerId("s"),
                        task=task.index,
                        version=learner.version - behind,
                        weights=Digest(""),
                        draw=0,
                        seed=task.index,
                        lengths=c.lengths,
                        tokens=Array(dtype="int32", shape=c.tokens.shape, data=c.tokens.tobytes()),
                        logprobs=Array(dtype="float32", shape=c.logprobs.shape, data=c.logprobs.tobytes()),
                        rewards=rewards[-1],
                        times=Times(released=0, fetched=0, used=0, finished=0, sent=0),
                    )
                )
        learner.step(learner.gradient(groups, prompts, rewards, 0.0).vector)
        released.append(learner.weights())
        if step + 1 in (150, 300):
            engine.load(released[-1])
            figures[step + 1] = accuracy(engine, source)
    print(
        f"lag up to {lag}: held out {before:.2f} -> {figures}, {time.process_time() - began:.0f} CPU seconds"
    )
    assert figures[300] >= 0.90
