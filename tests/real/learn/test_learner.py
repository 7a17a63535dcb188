"""The torch side of a learner on the tabular policy, and on the embedded one where a real model is what is
tested."""

from __future__ import annotations

import json
import math
import random
import resource
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nouns import seeds

from swarm import tasks
from swarm.learn import objectives
from swarm.learn.files import checkpoint, weights
from swarm.learn.learners.base_learner import Gradient, GradientWork
from swarm.learn.learners.learner import Learner
from swarm.learn.models.tabular import Tabular
from swarm.processes.process import Child, Pipe
from swarm.sample.base import Completions
from swarm.sample.toy import ToyEngine
from swarm.settings.config import BatchSize, ObjectiveSettings, Optimizer, Run, TaskSettings
from swarm.storage.weights import Weights
from swarm.types import Array, Digest, Group, PeerId, Task, Times

RATE = Optimizer(lr=1e-3)


def sealed(task: Task, c: Completions, version: int, rewards: tuple[float, ...]) -> Group:
    return Group(
        id=f"{task.index}",
        sampler=PeerId("s"),
        task=task.index,
        version=version,
        weights=Digest(""),
        draw=0,
        seed=task.index,
        lengths=c.lengths,
        tokens=Array(dtype="int32", shape=c.tokens.shape, data=c.tokens.tobytes()),
        logprobs=Array(dtype="float32", shape=c.logprobs.shape, data=c.logprobs.tobytes()),
        rewards=rewards,
        times=Times(released=100.0, fetched=100.0, used=100.0, finished=101.0, sent=101.0),
    )


Sampled = tuple[list[Group], list[str], list[tuple[float, ...]]]


def sampled(source: tasks.TaskSource, engine: ToyEngine, indices: Sequence[int], version: int = 0) -> Sampled:
    drawn = [source.task(i) for i in indices]
    asked = [task.prompt for task in drawn]
    out: Sampled = ([], [], [])
    for task, c in zip(drawn, engine.sample(asked, 8, seeds(indices[0], asked)), strict=True):
        rewards = tuple(source.rewards(task, c.texts))
        out[0].append(sealed(task, c, version, rewards))
        out[1].append(task.prompt)
        out[2].append(rewards)
    return out


def toy(run: Run | None = None, spread: float = 0.5) -> tuple[Learner, ToyEngine, tasks.TaskSource]:
    learner = Learner(Tabular(), run or Run(optimizer=RATE))
    with torch.no_grad():
        for parameter in learner.policy.module.parameters():
            parameter.copy_(spread * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(7)))
    engine = ToyEngine(weights.from_bytes)
    engine.load(learner.weights())
    return learner, engine, tasks.source(TaskSettings(name="toy"), 1)


def gradient(learner: Learner, batch: Sampled, part: slice = slice(None)) -> Gradient:
    return learner.gradient(batch[0][part], batch[1][part], batch[2][part], 105.0)


@pytest.mark.parametrize("name", ["gepo", "gepo_paper", "gspo", "dr_grpo"])
def test_two_learners_weighted_mean_is_one_learners_gradient_on_the_union(name: str) -> None:
    learner, engine, source = toy(
        Run(optimizer=RATE, objective=ObjectiveSettings(name=name, options={"kl": 0.01}))
    )
    learner.step(torch.randn(learner.size))  # the learner has moved on: ratios are not 1
    batch = sampled(source, engine, range(12))
    union, first, second = (
        gradient(learner, batch),
        gradient(learner, batch, slice(0, 5)),
        gradient(learner, batch, slice(5, 12)),
    )
    mean = (first.vector * first.groups + second.vector * second.groups) / 12
    assert union.vector.abs().max() > 1e-4
    torch.testing.assert_close(mean, union.vector, rtol=1e-4, atol=1e-8)


def test_micro_batches_do_not_change_the_gradient() -> None:
    batch = sampled(toy()[2], toy()[1], range(10))
    whole = gradient(toy(Run(optimizer=RATE, batch=BatchSize(micro=32)))[0], batch)
    pieces = gradient(toy(Run(optimizer=RATE, batch=BatchSize(micro=3)))[0], batch)
    torch.testing.assert_close(whole.vector, pieces.vector, rtol=1e-4, atol=1e-8)
    assert whole.metrics == pytest.approx(pieces.metrics, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", ["gepo", "grpo", "ppo_clip", "cispo"])
def test_a_gradient_tells_the_advantages_and_weights_of_its_first_group(name: str) -> None:
    learner, engine, source = toy(
        Run(optimizer=RATE, objective=ObjectiveSettings(name=name), batch=BatchSize(micro=3))
    )
    learner.step(torch.randn(learner.size))
    groups, prompts, rewards = batch = sampled(source, engine, range(7))
    told = gradient(learner, batch)
    whole, _ = learner._batch(
        GradientWork(
            groups, prompts, rewards, objectives.Total.of([group.lengths for group in groups], rewards)
        )
    )
    advantage, phi = objectives.weights(learner.objective, whole)
    assert told.advantages == pytest.approx(advantage[:8].tolist(), rel=1e-4, abs=1e-6)
    assert told.weights == pytest.approx((phi.sum(-1) / whole.mask.sum(-1))[:8].tolist(), rel=1e-4, abs=1e-6)
    assert len(set(told.weights)) > 1


def test_the_gradient_of_no_groups_takes_part_in_a_round_and_adds_nothing() -> None:
    learner, _, _ = toy()
    nothing = learner.nothing()
    assert (nothing.groups, nothing.weight, nothing.version) == (0, 0.0, learner.version)
    assert nothing.vector.shape == (learner.size,) and not nothing.vector.any()


def test_lag_is_reported_in_versions_and_seconds() -> None:
    learner, engine, source = toy()
    learner.version = 6
    metrics = gradient(learner, sampled(source, engine, range(4), version=2)).metrics
    assert metrics["lag_versions"] == 4 and metrics["lag_seconds"] == pytest.approx(5.0)


def test_a_toy_swarm_learns_within_a_hundred_steps() -> None:
    learner, engine, source = toy(Run(optimizer=Optimizer(lr=0.05)), spread=0.0)
    rewards = []
    for step in range(100):
        engine.load(learner.weights())
        outcome = gradient(
            learner, sampled(source, engine, range(step * 16, step * 16 + 16), learner.version)
        )
        learner.step(outcome.vector)
        rewards.append(outcome.metrics["reward"])
    assert np.mean(rewards[:5]) < 0.25 and np.mean(rewards[-5:]) > 0.8
    held_out = source.held_out(32)
    answers = engine.greedy([task.prompt for task in held_out])
    assert np.mean([source.rewards(task, [text]) for task, text in zip(held_out, answers, strict=True)]) > 0.9


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_refused_and_changes_nothing(poison: float) -> None:
    learner, _, _ = toy()
    before, vector = learner.weights(), torch.zeros(learner.size)
    vector[3] = poison
    with pytest.raises(ValueError, match="not finite"):
        learner.step(vector)
    assert learner.weights() == before and learner.version == 0
    with pytest.raises(ValueError, match="shape"):
        learner.step(torch.zeros(learner.size + 1))


def test_steps_are_clipped_and_warmed_up() -> None:
    learner, _, _ = toy(Run(optimizer=Optimizer(lr=0.1, warmup=4, grad_clip=1.0)))
    rates = [learner.step(torch.full((learner.size,), 10.0))["lr"] for _ in range(5)]
    assert rates == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1])
    learner.load(Weights.of(learner.weights().data, 9))
    assert learner.step(torch.ones(learner.size))["lr"] == pytest.approx(0.1)
    learner.load(Weights.of(learner.weights().data, 9), fresh=True)
    assert learner.step(torch.ones(learner.size))["lr"] == pytest.approx(0.025)
    assert learner.version == 10


def test_a_gradient_shorter_than_the_clip_is_not_made_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, _, _ = toy(Run(optimizer=Optimizer(lr=0.1, grad_clip=1.0)))
    clips: list[float] = []
    monkeypatch.setattr(learner, "_descend", lambda vector, clip, rate: clips.append(clip))
    for length in (0.5, 4.0):
        learner.step(torch.full((learner.size,), length / learner.size**0.5))
    assert clips == [1.0, pytest.approx(0.25, rel=1e-4)]


def test_learners_that_step_by_the_same_vector_have_the_same_bytes() -> None:
    (one, _, _), (two, _, _) = toy(), toy()
    for seed in range(3):
        vector = torch.randn(one.size, generator=torch.Generator().manual_seed(seed))
        one.step(vector)
        two.step(vector.clone())
    assert one.weights() == two.weights()


def test_a_snapshot_is_of_its_version_whatever_the_learner_does_until_it_is_packed() -> None:
    learner = Learner(Tabular(), Run(optimizer=RATE))
    before, snapshot = learner.weights(), learner.snapshot()
    learner.step(torch.ones(learner.size))
    packed = snapshot.packed()
    assert (packed.version, packed.data) == (0, before.data) and learner.weights() != before


def test_loading_a_release_snaps_the_master_weights_to_it() -> None:
    learner, _, _ = toy()
    other, _, _ = toy(spread=0.9)
    learner.load(Weights.of(other.weights().data, 41))
    assert learner.version == 41 and learner.weights() == other.weights()
    with pytest.raises(ValueError, match="cannot be read"):
        learner.load(Weights.of(b"not weights", 42))
    assert learner.version == 41 and learner.weights() == other.weights()


def test_a_restored_learner_goes_on_exactly_where_it_was(tmp_path: Path) -> None:
    one, _, _ = toy()
    vectors = [torch.randn(one.size, generator=torch.Generator().manual_seed(s)) for s in range(4)]
    for vector in vectors[:2]:
        one.step(vector)
    one.save(tmp_path / "here", {"consumed": ["a", "b"], "position": 7})
    drawn = torch.rand(3)
    two, _, _ = toy(spread=0.1)
    assert two.restore(tmp_path / "here") == {"consumed": ["a", "b"], "position": 7}
    assert torch.equal(torch.rand(3), drawn)
    for vector in vectors[2:]:
        assert one.step(vector) == two.step(vector)
    assert one.version == two.version == 4
    assert all(
        torch.equal(a, b)
        for a, b in zip(one.policy.module.parameters(), two.policy.module.parameters(), strict=True)
    )


def test_a_checkpoint_may_be_written_beside_a_gradient(tmp_path: Path) -> None:
    """Its numbers are those of when it was begun, also the random ones."""
    learner, engine, source = toy()
    learner.step(torch.ones(learner.size))
    batch = sampled(source, engine, range(12))
    write, drawn = learner.checkpoint({"n": 1}), torch.rand(3)
    with ThreadPoolExecutor(1) as thread:
        written = thread.submit(write, tmp_path)
        gradient(learner, batch)
        written.result()
    other, _, _ = toy(spread=0.1)
    assert other.restore(tmp_path) == {"n": 1}
    assert torch.equal(torch.rand(3), drawn) and other.state() == learner.state()


def test_a_checkpoint_that_cannot_be_finished_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, _, _ = toy()
    learner.save(tmp_path, {"n": 1})

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("swarm.storage.durable.os.fsync", full)
    learner.step(torch.ones(learner.size))
    with pytest.raises(OSError, match="No space left"):
        learner.save(tmp_path, {"n": 2})
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.NAME]
    assert toy()[0].restore(tmp_path) == {"n": 1}


@pytest.mark.parametrize("seed", range(5))
def test_a_damaged_checkpoint_is_a_sentence_or_harmless_but_never_a_crash(tmp_path: Path, seed: int) -> None:
    learner, _, _ = toy()
    learner.save(tmp_path)
    path = tmp_path / checkpoint.NAME
    path.write_bytes(path.read_bytes()[: random.Random(seed).randrange(path.stat().st_size)])
    with pytest.raises(ValueError, match="cannot be read"):
        learner.restore(tmp_path)


def test_a_missing_checkpoint_and_one_of_another_model_say_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        toy()[0].restore(tmp_path)
    Learner(Tabular(buckets=3), Run(optimizer=RATE)).save(tmp_path)
    with pytest.raises(ValueError, match="another model"):
        toy()[0].restore(tmp_path)


def test_no_bit_of_a_checkpoint_can_flip_unseen(tmp_path: Path) -> None:
    learner, _, _ = toy()
    learner.step(torch.ones(learner.size))
    learner.save(tmp_path)
    path = tmp_path / checkpoint.NAME
    content = path.read_bytes()
    for place in random.Random(1).sample(range(len(content)), 200):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])
        fresh, _, _ = toy()
        with pytest.raises(ValueError, match=r"checksum|cannot be read"):
            fresh.restore(tmp_path)
        assert fresh.version == 0


@pytest.mark.parametrize("lacking", ["version", "steps", "extra"])
def test_a_checkpoint_that_lacks_a_fact_says_so_and_changes_nothing(tmp_path: Path, lacking: str) -> None:
    learner, _, _ = toy()
    learner.step(torch.ones(learner.size))
    tensors, facts = checkpoint.unpack(learner.state(checkpoint.with_rng_state({"n": 1})))
    del facts[lacking]
    checkpoint.write(tmp_path, tensors, facts)
    fresh, _, _ = toy()
    with pytest.raises(ValueError, match=r"cannot be read: .*(rng|version|steps)"):
        fresh.restore(tmp_path)
    assert fresh.version == 0


def test_a_checkpoint_has_the_bytes_of_a_state(tmp_path: Path) -> None:
    """Values of all sizes, the largest first: a file is mapped where it is aligned."""
    kinds = (torch.uint8, torch.float64, torch.bfloat16, torch.float32, torch.int64, torch.bool)
    tensors = {f"{k}/å": torch.arange(9).reshape(3, 3).to(kind).T for k, kind in enumerate(kinds)}
    tensors |= {"scalar": torch.tensor(2.0), "empty": torch.empty(0, 3)}
    facts = {"version": 3, "extra": {"text": 'a "quoted" line\n'}}
    checkpoint.write(tmp_path, tensors, facts)
    found = checkpoint.read(tmp_path)
    again, told = checkpoint.unpack(found)
    assert told == facts and again.keys() == tensors.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())
    assert found == checkpoint.pack(tensors, facts)


def test_a_checkpoint_is_written_without_a_copy_of_its_tensors(tmp_path: Path) -> None:
    def peak() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def writes() -> None:
        pipe = Pipe()
        tensors = {str(k): torch.ones(1 << 22) for k in range(16)}  # 256 MiB
        checkpoint.write(tmp_path, {"warm": torch.ones(8)}, {})
        before = peak()
        checkpoint.write(tmp_path, tensors, {})
        pipe.send(str(peak() - before).encode())

    child = Child(writes)
    used = int(child.receive(60))
    child.end()
    assert used < 32 << 10, f"{used} KiB"


def test_a_checkpoint_whose_reader_refuses_it_changes_nothing(tmp_path: Path) -> None:
    learner, _, _ = toy()
    learner.step(torch.ones(learner.size))
    learner.save(tmp_path, {"n": 1})

    def refuse(own: dict[str, object]) -> None:
        raise ValueError(f"{own} is of another program")

    fresh, _, _ = toy()
    with pytest.raises(ValueError, match="'n': 1} is of another program"):
        fresh.restore(tmp_path, refuse)
    assert fresh.version == 0


def retold(state: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """The state with another header."""
    size = int.from_bytes(state[:8], "little")
    header = json.loads(state[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + state[8 + size :]


def facts_of(**told: object) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        metadata = header["__metadata__"]
        metadata["facts"] = json.dumps(json.loads(metadata["facts"]) | told)

    return change


def nested(header: dict[str, Any]) -> None:
    header["__metadata__"]["facts"] = "[" * 100_000 + "]" * 100_000


def of_no_type(header: dict[str, Any]) -> None:
    name = next(
        name for name, told in header.items() if name.startswith("weight/") and "F32" in told["dtype"]
    )
    shape = header[name]["shape"]
    header[name] |= {"dtype": "F4", "shape": [*shape[:-1], 8 * shape[-1]]}


def of_no_shape(header: dict[str, Any]) -> None:
    end = max(told["data_offsets"][1] for name, told in header.items() if name != "__metadata__")
    header["more"] = {"dtype": "F32", "shape": [0, 1 << 63], "data_offsets": [end, end]}


LIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "a version without end": facts_of(version=math.inf),
    "no version": facts_of(version=None),
    "a version below none": facts_of(version=-2),
    "a version above all": facts_of(version=(1 << 53) + 1),
    "steps without end": facts_of(steps=math.inf),
    "more steps than a float has": facts_of(steps=10**400),
    "steps back": facts_of(steps=-5),
    "half a step": facts_of(steps=0.5),
    "facts in lists without end": nested,
    "more that is none": facts_of(extra=[[1, 2]]),
    "values of a type that torch lacks": of_no_type,
    "values of a shape that torch lacks": of_no_shape,
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_state_that_lies_is_refused_and_changes_nothing(lie: Callable[[dict[str, Any]], None]) -> None:
    other, mine = toy()[0], toy()[0]
    other.step(torch.ones(other.size))
    before = mine.state()
    with pytest.raises(ValueError, match="cannot be read"):
        mine.load_state(retold(other.state(), lie))
    assert mine.state() == before
    mine.load_state(other.state())
    assert mine.version == 1


@pytest.mark.parametrize("steps", [-1.0, -2000.0, math.nan, math.inf])
def test_a_state_whose_moments_lie_about_their_steps_is_refused(steps: float) -> None:
    other, mine = toy()[0], toy()[0]
    other.step(torch.ones(other.size))
    tensors, facts = checkpoint.unpack(other.state())
    (name,) = (name for name in tensors if name.startswith("step/"))
    tensors[name] = torch.tensor(steps)
    before = mine.state()
    with pytest.raises(ValueError, match="has stepped"):
        mine.load_state(checkpoint.pack(tensors, facts))
    assert mine.state() == before


def test_a_learner_without_a_policy_can_be_set_back_to_that() -> None:
    learner = toy()[0]
    learner.version = -1
    restore = learner.restorer()
    learner.version = 4
    restore()
    assert learner.version == -1
