"""The engine in a process of its own: it answers what the engine answers here, and its process may die at any
time."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import undecided_policy
from nouns import seeds

from peers.build.model import factory, process_engine
from peers.build.model.process_engine import ProcessEngine
from peers.errors import UserError
from swarm.learn.files.weights import to_bytes
from swarm.learn.models import model
from swarm.processes import process
from swarm.protocol import Role
from swarm.sample.base import Completions, EngineError
from swarm.settings.config import Config, EngineSettings, Peer
from swarm.storage.blocks import Blocks, Damaged
from swarm.storage.image import Draft, Image, ReadOnly
from swarm.storage.weights import Weights
from swarm.tasks.base import RewardError
from swarm.types import Message, Task

PROMPTS = ["52318=", "1=", "777+12345="]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return undecided_policy.make(tmp_path_factory.mktemp("policy") / "embedded")


def release(folder: Path, version: int) -> Weights:
    policy = model.load_policy(folder)
    return Weights.of(
        to_bytes({name: version / 2 * value for name, value in policy.state_dict().items()}), version
    )


@pytest.fixture(scope="module")
def weights(folder: Path) -> Weights:
    return release(folder, 3)


@pytest.fixture(scope="module")
def engine(folder: Path, weights: Weights) -> Iterator[ProcessEngine]:
    """One for all tests: it takes seconds to start."""
    engine = ProcessEngine(EngineSettings(timeout=30))
    engine.set_up(folder, Config())
    engine.load(weights)
    yield engine
    engine.close()


def in_a_file(weights: Weights, path: Path) -> Weights:
    draft = Draft(Image(weights.blocks.size, path))
    draft.write(weights.data)
    draft.image.want(True)
    return Weights(weights.version, draft.done())


def too_many_open_files(*_: object, **__: object) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def told(groups: list[Completions]) -> list[tuple[object, ...]]:
    return [
        (group.lengths, group.tokens.tolist(), group.logprobs.tolist(), group.texts, group.noise)
        for group in groups
    ]


def test_it_answers_what_the_engine_answers_in_this_process(
    engine: ProcessEngine, folder: Path, weights: Weights
) -> None:
    here = factory.hf(folder, Config())
    here.load(weights)
    before = engine.statistics()["tokens"]
    asked = PROMPTS, 8, seeds(5, PROMPTS)
    made = engine.sample(*asked)
    assert told(made) == told(here.sample(*asked))
    assert made[0].tokens.dtype == np.int32 and made[0].logprobs.dtype == np.float32
    assert engine.greedy(PROMPTS) == here.greedy(PROMPTS)
    assert engine.statistics()["tokens"] - before == here.statistics()["tokens"]
    assert engine.statistics()["version"] == 3


def test_tasks_are_rendered_there(engine: ProcessEngine) -> None:
    task = Task(environment="digit-sums", index=1, prompt="12=", answer="3")
    assert engine.render_all([task, task]) == ["12=", "12="]
    with pytest.raises(ValueError, match="is a conversation"):  # the embedded model has no chat template
        engine.render_all([task, msgspec.structs.replace(task, messages=(Message("user", "1"),))])


def test_a_release_that_cannot_be_loaded_leaves_the_one_before(
    engine: ProcessEngine, folder: Path, weights: Weights, tmp_path: Path
) -> None:
    before = told(engine.sample(PROMPTS, 2, seeds(1, PROMPTS)))
    with pytest.raises(ValueError, match="cannot be read"):
        engine.load(Weights.of(b"no release", 4))
    damaged = in_a_file(release(folder, 4), tmp_path / "image")
    with open(tmp_path / "image", "r+b") as file:
        file.seek(damaged.blocks.size - 2)
        file.write(b"\0\0")
    with pytest.raises(Damaged, match="block 0"):
        engine.load(damaged)
    assert told(engine.sample(PROMPTS, 2, seeds(1, PROMPTS))) == before
    engine.load(in_a_file(release(folder, 4), tmp_path / "whole"))
    assert told(engine.sample(PROMPTS, 2, seeds(1, PROMPTS))) != before
    engine.load(weights)
    assert told(engine.sample(PROMPTS, 2, seeds(1, PROMPTS))) == before


def test_a_killed_process_costs_a_call_and_comes_back_with_its_policy(engine: ProcessEngine) -> None:
    before, starts = told(engine.sample(PROMPTS, 2, seeds(1, PROMPTS))), engine.statistics()["starts"]
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(EngineError, match=r"signal SIGKILL \(.* memory runs out: see dmesg\)"):
        engine.sample(PROMPTS, 2, seeds(1, PROMPTS))
    assert told(engine.sample(PROMPTS, 2, seeds(1, PROMPTS))) == before
    assert engine.statistics()["starts"] == starts + 1


@pytest.mark.parametrize("times", [1, process.STARTS])
def test_a_process_that_is_killed_while_the_engine_loads_is_started_again_and_not_for_ever(
    folder: Path, weights: Weights, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    left = [times]

    def killed_first(child: process.Child, frame: bytes) -> None:
        if left[0]:
            left[0] -= 1
            child.kill()
        send(child, frame)

    send = process.Child.send
    monkeypatch.setattr(process.Child, "send", killed_first)
    with closing(ProcessEngine(EngineSettings(timeout=30))) as engine:
        if times == process.STARTS:
            with pytest.raises(UserError, match=r"signal SIGKILL .*peer\.engine\.name chooses another"):
                engine.set_up(folder, Config())
        else:
            engine.set_up(folder, Config())
            engine.load(weights)
            assert len(engine.greedy(PROMPTS)) == len(PROMPTS)
        assert engine.statistics()["starts"] == min(times + 1, process.STARTS)


def test_a_call_that_is_stopped_ends_at_its_next_token_and_the_next_one_is_whole(
    folder: Path, weights: Weights
) -> None:
    steps = list[int]()

    def alive() -> None:
        steps.append(1)
        if len(steps) == 2:
            engine.stop()

    engine = factory.hf(folder, Config(), alive)
    engine.load(weights)
    with pytest.raises(EngineError, match="of no use"):
        engine.sample(PROMPTS, 8, seeds(1, PROMPTS))
    assert len(steps) == 2 and len(engine.sample(PROMPTS, 8, seeds(1, PROMPTS))) == len(PROMPTS)


def test_a_call_is_stopped_in_its_process_which_goes_on(engine: ProcessEngine) -> None:
    pid, over = engine.pid, threading.Event()

    def stops() -> None:
        while not over.wait(0.01):
            engine.stop()

    before = told(engine.sample(PROMPTS, 2, seeds(1, PROMPTS)))
    thread = threading.Thread(target=stops)
    thread.start()
    try:
        with pytest.raises(EngineError, match="of no use"):
            engine.sample(PROMPTS, 4096, seeds(1, PROMPTS))
    finally:
        over.set()
        thread.join()
    assert told(engine.sample(PROMPTS, 2, seeds(1, PROMPTS))) == before and engine.pid == pid


CONVERSATION = Task(environment="x", index=1, prompt="", answer="", messages=(Message("user", "1"),))


@contextmanager
def sampling(engine: ProcessEngine, group_size: int) -> Iterator[Future[list[Completions]]]:
    """A call of another thread, which samples when the body begins."""
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(engine.sample, PROMPTS, group_size, seeds(1, PROMPTS))
        while engine._sampling is None:
            time.sleep(0.001)
        yield call


def test_tasks_that_another_thread_asks_for_are_rendered_beside_the_call(engine: ProcessEngine) -> None:
    before, signs = told(engine.sample(PROMPTS, 2, seeds(1, PROMPTS))), engine.statistics()["signs"]
    with sampling(engine, 4096) as call:
        for _ in range(3):
            with pytest.raises(ValueError, match="is a conversation"):
                engine.render_all([CONVERSATION])
        assert not call.done() and engine.statistics()["signs"] >= signs + 2
        while not call.done():  # a stop that comes before it samples stops nothing
            engine.stop()
            time.sleep(0.01)
        with pytest.raises(EngineError, match="of no use"):
            call.result()
    assert told(engine.sample(PROMPTS, 2, seeds(1, PROMPTS))) == before


def test_whoever_asks_for_tasks_beside_a_call_hears_that_the_process_died(engine: ProcessEngine) -> None:
    before = told(engine.sample(PROMPTS, 2, seeds(1, PROMPTS)))
    with sampling(engine, 512) as call, ThreadPoolExecutor(1) as pool:
        os.kill(engine.pid, signal.SIGSTOP)
        asked = pool.submit(engine.render_all, [CONVERSATION])
        while engine._beside is None:
            time.sleep(0.001)
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="SIGKILL"):
            call.result()
        with pytest.raises(RewardError, match="ended before it answered"):
            asked.result()
    assert told(engine.sample(PROMPTS, 2, seeds(1, PROMPTS))) == before


def test_a_call_waits_for_the_tasks_that_are_rendered_beside_it(
    engine: ProcessEngine, folder: Path, weights: Weights, tmp_path: Path
) -> None:
    slow = shutil.copytree(folder, tmp_path / "slow")
    (slow / "chat_template.jinja").write_text(
        "{% for i in range(90000) %}{% set x = i * i %}{% endfor %}{{ messages[0].content }}"
    )
    before = told(engine.sample(PROMPTS, 1, seeds(1, PROMPTS)))
    engine.set_up(slow, Config())
    engine.load(weights)
    try:
        with ThreadPoolExecutor(1) as pool:
            with sampling(engine, 1) as call:
                asked = pool.submit(engine.render_all, 4 * [CONVERSATION])
            assert asked.result() == 4 * ["1"] and told(call.result()) == before
        assert told(engine.sample(PROMPTS, 1, seeds(1, PROMPTS))) == before
    finally:
        engine.set_up(folder, Config())
        engine.load(weights)


@pytest.mark.nightly
def test_a_release_whose_file_is_gone_when_the_process_starts_again_is_no_bug(
    folder: Path, weights: Weights, tmp_path: Path
) -> None:
    engine = ProcessEngine(EngineSettings())
    try:
        engine.set_up(folder, Config())
        engine.load(in_a_file(weights, tmp_path / "image"))
        for path in (*engine.scratch.iterdir(), tmp_path / "image"):
            path.unlink()
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="signal SIGKILL"):
            engine.greedy(PROMPTS)
        with pytest.raises(EngineError, match=r"cannot start again: .*not readable"):
            engine.greedy(PROMPTS)
        engine.load(weights)
        assert len(engine.greedy(PROMPTS)) == len(PROMPTS)
    finally:
        engine.close()


def test_a_folder_that_a_cleaner_removed_is_made_again(
    weights: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_engine, "COMMAND", ("sleep", "600", "#"))
    engine = ProcessEngine(EngineSettings())
    try:
        monkeypatch.setattr(engine, "_answered", lambda *_: None)
        monkeypatch.setattr(engine, "_setup", Config())
        shutil.rmtree(engine.scratch)
        engine.load(in_a_file(weights, tmp_path / "image"))
        [held] = engine.scratch.iterdir()
        assert held.read_bytes() == weights.data and engine.scratch.stat().st_mode & 0o777 == 0o700
        shutil.rmtree(engine.scratch)
        engine._end()
        engine._ready()
        assert held.read_bytes() == weights.data and engine.scratch.stat().st_mode & 0o777 == 0o700
        engine._end()
        with monkeypatch.context() as patch:
            patch.setattr(process_engine, "Child", too_many_open_files)
            with pytest.raises(EngineError, match="cannot start again: Too many open files"):
                engine._ready()
        engine._ready()
    finally:
        engine.close()
    assert not engine.scratch.exists()


@pytest.mark.nightly
def test_a_process_that_stands_still_is_ended(folder: Path, weights: Weights) -> None:
    engine = ProcessEngine(EngineSettings(timeout=2))
    try:
        engine.set_up(folder, Config())
        engine.load(weights)
        os.kill(engine.pid, signal.SIGSTOP)
        with pytest.raises(EngineError, match=r"peer\.engine\.timeout"):
            engine.greedy(PROMPTS)
        assert len(engine.greedy(PROMPTS)) == len(PROMPTS)
    finally:
        engine.close()


@pytest.mark.nightly
def test_what_a_person_can_mend_is_said_before_there_is_a_policy(folder: Path, tmp_path: Path) -> None:
    engine = ProcessEngine(EngineSettings())
    try:
        with pytest.raises(UserError, match=r"no config\.json"):
            engine.set_up(tmp_path, Config())
        with pytest.raises(UserError, match="does not allow sampling with nf4"):
            engine.set_up(folder, Config(peer=Peer(engine=EngineSettings(quantize="nf4"))))
        assert engine.fit(folder, Config(), Role.SAMPLER, [Role.SAMPLER]).role is Role.SAMPLER
    finally:
        engine.close()


def test_a_file_that_is_gone_or_shorter_is_damaged(weights: Weights, tmp_path: Path) -> None:
    blocks = weights.blocks
    path = tmp_path / "v3"
    here = Blocks(ReadOnly(path, blocks.size), blocks.leaves, blocks.root, blocks.step)
    with pytest.raises(Damaged, match="not readable"):
        here.whole  # noqa: B018 (it reads)
    path.write_bytes(weights.data[:-1])
    with pytest.raises(Damaged, match="it ends at byte"):
        here.whole  # noqa: B018
    assert not here.is_intact()
