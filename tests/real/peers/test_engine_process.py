"""Engines in processes of their own, over transformers and over vLLM (fake_vllm.py): they answer what an
engine answers here, and their processes may die at any time. Most are forks of this process
(engine_workers.py); the first one over transformers is the program."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
from engine_workers import FAKE_VLLM, fork_workers
from nouns import seeds

from peers.build.model import engine_process, factory
from peers.build.model.engine_process import NAMES, EngineProcess
from peers.build.model.engine_worker import CallFailed, EngineWorker, GreedyCall
from peers.errors import UserError
from peers.runtime.watching import long_work
from peers.runtime.watching.long_work import StageCounts
from peers.runtime.watching.status import PeerStatus
from peers.runtime.watching.status_line import sentence
from swarm.learn.files.weights import to_bytes
from swarm.learn.models import model, tiny
from swarm.processes import process
from swarm.processes.process import Ended
from swarm.protocol import Phase, Role, WorkStage
from swarm.sample.base import Completions, EngineError, NoRoom, StaleWeights
from swarm.settings.config import Config, EngineSettings, Peer, Run, Sampling
from swarm.storage.blocks import Blocks, Damaged
from swarm.storage.image import Draft, Image, ReadOnly
from swarm.storage.weights import Weights
from swarm.tasks.base import RewardError
from swarm.types import Message, Task

PROMPTS = ["52318=", "1=", "777+12345="]
ON_CPU = EngineSettings(device="cpu")
"""A fork of a process that has used a GPU cannot."""

CONFIG = Config(run=Run(sampling=Sampling(heads=4)), peer=Peer(engine=ON_CPU))
MANY = 2048
"""Completions of a prompt in a call that is stopped."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without a chat template."""
    folder = tiny.make(tmp_path_factory.mktemp("tiny") / "llama", "llama")
    (folder / "chat_template.jinja").unlink()
    return folder


def release(folder: Path, version: int) -> Weights:
    policy = model.load_policy(folder)
    return Weights.of(
        to_bytes({name: version / 2 * value for name, value in policy.state_dict().items()}), version
    )


@pytest.fixture(scope="module")
def weights(folder: Path) -> Weights:
    return release(folder, 3)


@pytest.fixture(scope="module", params=["hf", "fake vllm", pytest.param("real vllm", marks=pytest.mark.vllm)])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def started(folder: Path, weights: Weights, kind: str) -> Iterator[EngineProcess]:
    """One of each kind for all tests: it takes seconds to start."""
    settings = EngineSettings(timeout=60, length=256, device="auto" if kind == "real vllm" else "cpu")
    with closing(EngineProcess(settings, kind.split()[-1])) as engine:
        with pytest.MonkeyPatch.context() as patch:
            if kind == "fake vllm":
                fork_workers(patch, FAKE_VLLM)
            engine.set_up(folder, msgspec.structs.replace(CONFIG, peer=Peer(engine=settings)))
            engine.load(weights)
        yield engine


@pytest.fixture
def engine(started: EngineProcess, kind: str, monkeypatch: pytest.MonkeyPatch) -> EngineProcess:
    """A process that has to start again is a fork."""
    if kind != "real vllm":
        fork_workers(monkeypatch, FAKE_VLLM if kind == "fake vllm" else "pass")
    return started


def in_a_file(weights: Weights, path: Path) -> Weights:
    draft = Draft(Image(weights.blocks.size, path))
    draft.write(weights.data)
    draft.image.want(True)
    return Weights(weights.version, draft.done())


def too_many_open_files(*_: object, **__: object) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def told(groups: list[Completions]) -> list[tuple[object, ...]]:
    return [(group.lengths, group.tokens.tolist(), group.texts, group.noise) for group in groups]


def test_it_answers_what_the_engine_answers_in_this_process(
    engine: EngineProcess, folder: Path, weights: Weights
) -> None:
    here = factory.hf(folder, CONFIG)
    here.load(weights)
    before = engine.statistics()["tokens"]
    asked = PROMPTS, 8, seeds(5, PROMPTS)
    made, expected = engine.sample(*asked), here.sample(*asked)
    assert told(made) == told(expected)
    for mine, its in zip(made, expected, strict=True):
        assert mine.tokens.dtype == np.int32 and mine.logprobs.dtype == np.float32
        np.testing.assert_allclose(mine.logprobs, its.logprobs, atol=1e-4)
        assert mine.heads is not None and its.heads is not None and mine.heads.tokens == its.heads.tokens
    assert engine.greedy(PROMPTS) == here.greedy(PROMPTS)
    assert engine.statistics()["tokens"] - before == here.statistics()["tokens"]
    assert engine.statistics()["version"] == 3
    assert told(engine.sample(PROMPTS[1:2], 8, [6])) == told(made[1:2]), "a group can be replayed alone"


def test_tasks_are_rendered_there(engine: EngineProcess) -> None:
    task = Task(environment="digit-sums", index=1, prompt="12=", answer="3")
    assert engine.render_all([task, task]) == ["12=", "12="]
    with pytest.raises(ValueError, match="is a conversation"):
        engine.render_all([task, msgspec.structs.replace(task, messages=(Message("user", "1"),))])


def test_a_release_that_cannot_be_loaded_leaves_the_one_before(
    engine: EngineProcess, folder: Path, weights: Weights, tmp_path: Path
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


def test_a_killed_process_costs_a_call_and_comes_back_with_its_policy(engine: EngineProcess) -> None:
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
    fork_workers(monkeypatch)
    left = [times]

    def killed_first(child: process.Child, frame: bytes) -> None:
        if left[0]:
            left[0] -= 1
            child.kill()
        send(child, frame)

    send = process.Child.send
    monkeypatch.setattr(process.Child, "send", killed_first)
    with closing(EngineProcess(EngineSettings(timeout=30))) as engine:
        if times == process.STARTS:
            with pytest.raises(UserError, match=r"signal SIGKILL .*peer\.engine\.name chooses another"):
                engine.set_up(folder, CONFIG)
        else:
            engine.set_up(folder, CONFIG)
            engine.load(weights)
            assert len(engine.greedy(PROMPTS)) == len(PROMPTS)
        assert engine.statistics()["starts"] == min(times + 1, process.STARTS)


def test_a_call_that_is_stopped_ends_at_its_next_token_and_the_next_one_is_whole(
    folder: Path, weights: Weights
) -> None:
    steps = list[int]()

    def alive(done: int) -> None:
        steps.append(done)
        if len(steps) == 2:
            engine.stop()

    engine = factory.hf(folder, CONFIG, alive)
    engine.load(weights)
    with pytest.raises(EngineError, match="of no use"):
        engine.sample(PROMPTS, 8, seeds(1, PROMPTS))
    assert len(steps) == 2 and len(engine.sample(PROMPTS, 8, seeds(1, PROMPTS))) == len(PROMPTS)


def test_a_call_is_stopped_in_its_process_which_goes_on(engine: EngineProcess) -> None:
    pid, over = engine.pid, threading.Event()

    def stops() -> None:
        while not over.wait(0.01):
            engine.stop()

    before = told(engine.sample(PROMPTS, 2, seeds(1, PROMPTS)))
    thread = threading.Thread(target=stops)
    thread.start()
    try:
        with pytest.raises(EngineError, match="of no use"):
            engine.sample(PROMPTS, MANY, seeds(1, PROMPTS))
    finally:
        over.set()
        thread.join()
    assert told(engine.sample(PROMPTS, 2, seeds(1, PROMPTS))) == before and engine.pid == pid


WARNS = "(MainProcess pid=7) WARNING 11-28 07:22:11 [base.py:380] ValueError: Tokenizer not available"


KILLED = "signal SIGKILL (the kernel does that when the machine's memory runs out: see dmesg)"


@pytest.mark.parametrize(
    ("code", "tail", "said"),
    [
        (1, f"MemoryError: no room\n{WARNS}", "exit code 1: MemoryError: no room"),
        (3, WARNS, "exit code 3"),
        (1, "temporarily unavailable", "exit code 1, after printing: temporarily unavailable"),
        (-9, "OSError: before", KILLED),
    ],
)
def test_a_death_is_explained_by_the_last_error_and_by_no_warning(code: int, tail: str, said: str) -> None:
    assert engine_process._why(Ended(code, tail)) == f"ended its process with {said}"


@pytest.mark.parametrize("name", NAMES)
def test_a_process_that_does_not_start_says_how_it_ended(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeps = (sys.executable, "-c", "import time; time.sleep(600)")
    monkeypatch.setattr(engine_process, "COMMAND", sleeps)
    monkeypatch.setattr(engine_process, "START", 1.0)
    with closing(EngineProcess(EngineSettings(), name)) as engine:
        signs = engine.statistics()["signs"]
        assert engine.statistics()["signs"] > signs, "one that starts is not missed"
        with pytest.raises(UserError, match=rf"engine {name} did not answer within 1 s .*peer\.engine\.name"):
            engine.set_up(folder, CONFIG)


def test_a_load_that_ends_the_process_leaves_no_files_and_a_machine_without_vllm_says_what_to_install(
    folder: Path, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork_workers(
        monkeypatch, "import sys; sys.modules['vllm'] = None"
    )  # what Python puts there for a missing one
    with closing(EngineProcess(EngineSettings(), "vllm")) as engine:
        engine.set_up(folder, CONFIG)
        with pytest.raises(EngineError, match=r"vLLM cannot be imported .*pip install 'gepo-swarm\[vllm\]'"):
            engine.load(weights)
        assert engine.statistics()["version"] == -1 and not [*engine.scratch.iterdir()]
        assert engine._child is None, "it has no policy"


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (ValueError("not of this model"), CallFailed("value", "not of this model")),
        (NoRoom("too long"), CallFailed("room", "too long")),
        (StaleWeights("kept"), CallFailed("stale", "kept")),
        (RuntimeError("shapes"), CallFailed("broken", "RuntimeError: shapes")),
        (MemoryError(), CallFailed("broken", "MemoryError: no reason given")),
    ],
)
def test_an_error_that_is_no_answer_of_an_engine_breaks_it(error: Exception, failed: CallFailed) -> None:
    def greedy(prompts: object) -> Any:
        raise error

    worker = EngineWorker(Path(), lambda done: None)
    worker._engine = SimpleNamespace(greedy=greedy)  # type: ignore[assignment]
    assert worker.answer(GreedyCall(["1"])) == failed


def test_the_process_ends_with_its_peer_and_takes_the_weights_along(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "model.safetensors").write_bytes(b"weights")
    command = [sys.executable, "-m", "peers.build.model.engine_worker", str(scratch)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=60) == -9 and not scratch.exists()


def test_ctrl_c_is_left_to_the_peer_and_a_prompt_without_room_costs_a_call(engine: EngineProcess) -> None:
    before, pid = told(engine.sample(PROMPTS, 2, seeds(1, PROMPTS))), engine.pid
    os.killpg(pid, signal.SIGINT)
    with pytest.raises(NoRoom, match="do not fit into"):
        engine.sample(["1" * 5000], 2, [1])
    assert engine.greedy(["1" * 5000, "1="]) == ["", *engine.greedy(["1="])]
    assert told(engine.sample(PROMPTS, 2, seeds(1, PROMPTS))) == before and engine.pid == pid


CONVERSATION = Task(environment="x", index=1, prompt="", answer="", messages=(Message("user", "1"),))


@contextmanager
def sampling(engine: EngineProcess, group_size: int) -> Iterator[Future[list[Completions]]]:
    """A call of another thread, which samples when the body begins."""
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(engine.sample, PROMPTS, group_size, seeds(1, PROMPTS))
        while engine._sampling is None:
            time.sleep(0.001)
        yield call


def test_tasks_that_another_thread_asks_for_are_rendered_beside_the_call(engine: EngineProcess) -> None:
    before, signs = told(engine.sample(PROMPTS, 2, seeds(1, PROMPTS))), engine.statistics()["signs"]
    with sampling(engine, MANY) as call:
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


OFTEN = "from peers.build.model import engine_worker; engine_worker.ALIVE = 0.0"


def test_the_status_line_says_how_far_a_slow_call_is(
    folder: Path, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork_workers(monkeypatch, OFTEN)
    monkeypatch.setattr(long_work, "LONG", 0.0)
    config = Config(run=Run(sampling=Sampling(max_tokens=128)), peer=Peer(engine=ON_CPU))
    status, said, total = PeerStatus(phase=Phase.SAMPLING), dict[int, str](), 64 * len(PROMPTS)
    with closing(EngineProcess(ON_CPU)) as engine:
        engine.set_up(folder, config)
        engine.load(weights)

        def counted() -> StageCounts:
            return StageCounts(int(engine.statistics()["done"]), total)

        with status.work.within(WorkStage.SAMPLING, time.monotonic, counted), sampling(engine, 64) as call:
            while not call.done():
                before, line = counted().done, sentence(status, Role.SAMPLER, time.monotonic())
                if counted().done == before:
                    said[before] = line
        assert len(call.result()) == len(PROMPTS) and counted().done == total
    part = [done for done in said if 0 < done < total]
    assert len(part) > 2 and part == sorted(part)
    assert all(f"sampling {done} of {total} completions" in said[done] for done in part)
    assert re.search(r" completions \([\d.,]+/(s|min), about [\d.]+ (s|min) left\)", said[part[0]])


def test_whoever_asks_for_tasks_beside_a_call_hears_that_the_process_died(engine: EngineProcess) -> None:
    before = told(engine.sample(PROMPTS, 2, seeds(1, PROMPTS)))
    with sampling(engine, 512) as call, ThreadPoolExecutor(1) as pool:
        os.kill(engine.pid, signal.SIGSTOP)
        while psutil.Process(engine.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.001)
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
    folder: Path, weights: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork_workers(monkeypatch)
    slow = shutil.copytree(folder, tmp_path / "slow")
    (slow / "chat_template.jinja").write_text(
        "{% for i in range(90000) %}{% set x = i * i %}{% endfor %}{{ messages[0].content }}"
    )
    with closing(EngineProcess(EngineSettings())) as engine, ThreadPoolExecutor(1) as pool:
        engine.set_up(slow, CONFIG)
        engine.load(weights)
        before = told(engine.sample(PROMPTS, 1, seeds(1, PROMPTS)))
        with sampling(engine, 1) as call:
            asked = pool.submit(engine.render_all, 4 * [CONVERSATION])
        assert asked.result() == 4 * ["1"] and told(call.result()) == before


@pytest.mark.nightly
def test_a_release_whose_file_is_gone_when_the_process_starts_again_is_no_bug(
    folder: Path, weights: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork_workers(monkeypatch)
    engine = EngineProcess(EngineSettings())
    try:
        engine.set_up(folder, CONFIG)
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
    monkeypatch.setattr(engine_process, "COMMAND", ("sleep", "600", "#"))
    engine = EngineProcess(EngineSettings())
    try:
        monkeypatch.setattr(engine, "_answered", lambda *_: None)
        monkeypatch.setattr(engine, "_setup", CONFIG)
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
            patch.setattr(engine_process, "Child", too_many_open_files)
            with pytest.raises(EngineError, match="cannot start again: Too many open files"):
                engine._ready()
        engine._ready()
    finally:
        engine.close()
    assert not engine.scratch.exists()


@pytest.mark.nightly
def test_a_process_that_stands_still_is_ended(folder: Path, weights: Weights) -> None:
    engine = EngineProcess(EngineSettings(timeout=2))
    try:
        engine.set_up(folder, CONFIG)
        engine.load(weights)
        os.kill(engine.pid, signal.SIGSTOP)
        with pytest.raises(EngineError, match=r"peer\.engine\.timeout"):
            engine.greedy(PROMPTS)
        assert len(engine.greedy(PROMPTS)) == len(PROMPTS)
    finally:
        engine.close()


@pytest.mark.nightly
def test_what_a_person_can_mend_is_said_before_there_is_a_policy(folder: Path, tmp_path: Path) -> None:
    engine = EngineProcess(EngineSettings())
    try:
        with pytest.raises(UserError, match=r"no config\.json"):
            engine.set_up(tmp_path, CONFIG)
        with pytest.raises(UserError, match="does not allow sampling with nf4"):
            engine.set_up(
                folder, msgspec.structs.replace(CONFIG, peer=Peer(engine=EngineSettings(quantize="nf4")))
            )
        assert engine.fit(folder, CONFIG, Role.SAMPLER, [Role.SAMPLER]).role is Role.SAMPLER
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
