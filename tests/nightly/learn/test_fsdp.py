"""A learner on several devices is the one-process learner: two ranks over gloo on a tiny model, real
processes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
import tiny_families
import torch
from process_tree import ended

from swarm.core.intake.claimed_logprobs import objection
from swarm.learn.fsdp.driver import RankLost
from swarm.learn.fsdp.learner import ShardedLearner
from swarm.learn.fsdp.messages import Share
from swarm.learn.learners.base_learner import Gradient
from swarm.learn.learners.learner import Learner
from swarm.learn.learners.microbatch import OutOfMemory
from swarm.learn.models import tiny, tokenization
from swarm.learn.models.model import load_policy
from swarm.learn.models.policy import LanguageModel
from swarm.settings.config import BatchSize, Model, ObjectiveSettings, Optimizer, Run, Training
from swarm.storage.weights import Weights
from swarm.types import Array, BatchRewards, Digest, Group, Moments, PeerId, Times

pytestmark = pytest.mark.timeout(900)
# Ranks import torch: seconds on a quiet machine, minutes on one that runs everything else at the same time.
RUN = Run(batch=BatchSize(micro=2), optimizer=Optimizer(lr=1e-3))
Batch = tuple[list[Group], list[str], list[tuple[float, ...]]]


def batch(groups: int, seed: int = 0, members: int = 3) -> Batch:
    """Completions of different lengths, prompts too: padding is part of every pass."""
    draw = random.Random(seed)
    out: Batch = ([], [], [])
    for task in range(groups):
        lengths = tuple(draw.randint(1, 6) for _ in range(members))
        tokens = np.array([draw.randrange(250) for _ in range(sum(lengths))], np.int32)
        logprobs = np.array([-draw.uniform(3, 7) for _ in range(sum(lengths))], np.float32)
        rewards = tuple(draw.random() for _ in range(members))
        out[0].append(
            Group(
                id=f"{seed}-{task}",
                sampler=PeerId("s"),
                task=task,
                version=0,
                weights=Digest(""),
                draw=0,
                seed=task,
                lengths=lengths,
                tokens=Array(dtype="int32", shape=tokens.shape, data=tokens.tobytes()),
                logprobs=Array(dtype="float32", shape=logprobs.shape, data=logprobs.tobytes()),
                rewards=rewards,
                times=Times(released=100.0, fetched=100.0, used=100.0, finished=101.0, sent=101.0),
            )
        )
        out[1].append("one" * draw.randint(1, 3))
        out[2].append(rewards)
    return out


def alone(folder: Path, run: Run = RUN) -> Learner:
    lora = run.lora if run.model.training == "lora" else None
    return Learner(LanguageModel(load_policy(folder, lora=lora), tokenization.load(folder)), run)


def assert_alike(mine: Gradient, wanted: Gradient) -> None:
    assert wanted.vector.abs().max() > 1e-4
    torch.testing.assert_close(
        mine.vector, wanted.vector, rtol=1e-4, atol=1e-5 * float(wanted.vector.abs().max())
    )
    assert mine.metrics == pytest.approx(wanted.metrics, rel=1e-4, abs=1e-6)
    assert (mine.groups, mine.weight) == (wanted.groups, wanted.weight)
    assert mine.advantages == pytest.approx(wanted.advantages, rel=1e-4, abs=1e-6)
    assert mine.weights == pytest.approx(wanted.weights, rel=1e-4, abs=1e-6)


def ranks_of(learner: ShardedLearner) -> list[int]:
    assert learner._ranks is not None
    return [child.pid for child in learner._ranks._children]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tied embeddings, and an odd number of rows: neither split is even."""
    return tiny.make(tmp_path_factory.mktemp("model") / "qwen3", "qwen3")


@pytest.fixture(scope="module")
def pair(folder: Path) -> Iterator[ShardedLearner]:
    learner = ShardedLearner(folder, RUN, ["cpu", "cpu"])
    yield learner
    learner.close()


@pytest.fixture
def both(pair: ShardedLearner, folder: Path) -> tuple[ShardedLearner, Learner]:
    """At the same weights, without moments."""
    one = alone(folder)
    pair.load(Weights.of(one.weights().data, 0), fresh=True)
    one.load(Weights.of(one.weights().data, 0))
    return pair, one


@pytest.mark.parametrize("flat", [{0}, {0, 1, 3}, {0, 1, 2, 3}])
def test_groups_that_teach_nothing_go_through_no_rank(
    both: tuple[ShardedLearner, Learner], flat: set[int]
) -> None:
    groups, prompts, rewards = batch(4)
    level = [(0.5,) * len(each) if i in flat else each for i, each in enumerate(rewards)]
    mine, wanted = (of.gradient(groups, prompts, level, 105.0) for of in both)
    assert mine.metrics["flat"] == len(flat) / 4 and mine.weights == ()
    if len(flat) == 4:
        assert not mine.vector.any()
    else:
        assert_alike(mine, wanted)


@pytest.mark.parametrize("groups", [1, 2, 7])
def test_the_gradient_is_that_of_one_process_however_the_groups_fall(
    both: tuple[ShardedLearner, Learner], groups: int
) -> None:
    pair, one = both
    assert_alike(pair.gradient(*batch(groups), 105.0), one.gradient(*batch(groups), 105.0))
    assert pair.padded == "", "groups are packed"


def test_what_is_not_believed_is_left_out_as_in_one_process(both: tuple[ShardedLearner, Learner]) -> None:
    groups, prompts, rewards = batch(5)
    for i in (0, 3):
        data = np.full(sum(groups[i].lengths), -20.0, "<f4").tobytes()
        claimed = msgspec.structs.replace(groups[i].logprobs, data=data)
        groups[i] = msgspec.structs.replace(groups[i], logprobs=claimed)
    mine, wanted = (learner.gradient(groups, prompts, rewards, 105.0) for learner in both)
    assert_alike(mine, wanted)
    told = [[objection(check, RUN.window.drift) is None for check in each.checks] for each in (mine, wanted)]
    assert told[0] == told[1] == [False, True, True, False, True]


def test_ranks_take_in_the_batches_of_other_learners(folder: Path) -> None:
    run = msgspec.structs.replace(RUN, objective=ObjectiveSettings(name="ppo_clip"))
    completions, means = Moments(count=9, mean=3.0, square=70.0), Moments(count=3, mean=3.0, square=20.0)
    others = (BatchRewards(live=9, completions=completions, groups=means),)
    pair, one = ShardedLearner(folder, run, ["cpu", "cpu"]), alone(folder, run)
    try:
        pair.load(Weights.of(one.weights().data, 0), fresh=True)
        one.load(Weights.of(one.weights().data, 0))
        wanted = one.gradient(*batch(4), 105.0, others)
        assert_alike(pair.gradient(*batch(4), 105.0, others), wanted)
        assert wanted.advantages != pytest.approx(one.gradient(*batch(4), 105.0).advantages, rel=0.1)
    finally:
        pair.close()


def test_three_steps_are_those_of_one_process(both: tuple[ShardedLearner, Learner]) -> None:
    pair, one = both
    for seed in range(3):
        wanted = one.gradient(*batch(5, seed), 105.0)
        assert_alike(pair.gradient(*batch(5, seed), 105.0), wanted)
        assert pair.step(wanted.vector) == one.step(wanted.vector)
    assert pair.version == one.version == 3
    assert pair.weights() == one.weights()


def test_a_checkpoint_goes_on_in_one_process_and_back(
    both: tuple[ShardedLearner, Learner], folder: Path, tmp_path: Path
) -> None:
    pair, _ = both
    vectors = [torch.randn(pair.size, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    pair.step(vectors[0])
    pair.save(tmp_path, {"seen": ["a"]})
    later = alone(folder)
    assert later.restore(tmp_path) == {"seen": ["a"]}
    assert later.version == 1 and later.weights() == pair.weights()
    for learner in (pair, later):
        learner.step(vectors[1])
    assert later.state() == pair.state()
    later.step(vectors[2])
    pair.load_state(later.state())
    for learner in (pair, later):
        learner.step(vectors[3])
    assert pair.version == 4 and later.weights() == pair.weights()


def test_a_state_without_moments_takes_the_moments_away(both: tuple[ShardedLearner, Learner]) -> None:
    pair, one = both
    vector = torch.ones(pair.size)
    pair.step(torch.randn(pair.size))
    pair.load_state(one.state())
    for learner in (pair, one):
        learner.step(vector)
    assert pair.weights() == one.weights()


def test_what_is_of_another_model_is_refused_and_changes_nothing(
    both: tuple[ShardedLearner, Learner], tmp_path: Path
) -> None:
    pair, _ = both
    before = pair.weights()
    other = alone(tiny.make(tmp_path / "llama", "llama"))
    for refused in (
        lambda: pair.load(Weights.of(other.weights().data, 5)),
        lambda: pair.load_state(other.state()),
    ):
        with pytest.raises(ValueError, match="of another model"):
            refused()
    with pytest.raises(ValueError, match="shape"):
        pair.step(torch.zeros(3))
    with pytest.raises(ValueError, match="not finite"):
        pair.step(torch.full((pair.size,), torch.nan))
    assert pair.version == 0 and pair.weights() == before


@pytest.mark.parametrize("groups", range(1, 10))
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_group_is_somebodys_and_all_ranks_make_equally_many_passes(groups: int, ranks: int) -> None:
    learner = ShardedLearner.__new__(ShardedLearner)
    learner._devices, learner._micro = ("cpu",) * ranks, 2
    whole = Share(groups=tuple(batch(groups)[0]), prompts=("",) * groups, rewards=((0.0,),) * groups)
    shares = learner._shares(whole, 0, groups)
    assert [group for each in shares for share in each for group in share.groups] == list(whole.groups)
    assert (
        len({len(each) for each in shares}) == 1
        and max(len(share.groups) for each in shares for share in each) <= 2
    )
    assert shares[0][0].groups[0] is whole.groups[0]


@pytest.mark.parametrize(
    "run", [Run(model=Model(training="qlora")), Run(optimizer=Optimizer(name="adamw8bit"))]
)
def test_what_cannot_be_split_is_refused_before_anything_starts(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"peer\.learner\.gpus"):
        ShardedLearner(tmp_path, run, ["cpu", "cpu"])


def test_a_killed_rank_is_named_leaves_nothing_behind_and_the_learner_goes_on_from_a_release(
    folder: Path,
) -> None:
    learner, one = ShardedLearner(folder, RUN, ["cpu", "cpu"]), alone(folder)
    learner.step(torch.ones(learner.size))
    pids, shm = ranks_of(learner), set(os.listdir("/dev/shm"))
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(RankLost, match=r"rank 1 of 2 \(cpu\) ended its process with signal SIGKILL"):
        learner.gradient(*batch(4), 105.0)
    assert (
        learner.version == -1 and not any(map(psutil.pid_exists, pids)) and set(os.listdir("/dev/shm")) <= shm
    )
    with pytest.raises(RankLost, match="no weights before a release is loaded"):
        learner.gradient(*batch(4), 105.0)
    learner.load(Weights.of(one.weights().data, 7))
    one.load(Weights.of(one.weights().data, 7))
    assert learner.version == 7
    assert_alike(learner.gradient(*batch(4), 105.0), one.gradient(*batch(4), 105.0))
    learner.close()


def test_a_rank_that_hangs_ends_the_call_at_its_deadline(folder: Path) -> None:
    learner = ShardedLearner(folder, RUN, ["cpu", "cpu"])
    pids = ranks_of(learner)
    learner._ranks._timeout = 3.0  # type: ignore[union-attr]
    os.kill(pids[0], signal.SIGSTOP)
    with pytest.raises(RankLost, match=r"rank 0 of 2 .*did not answer within 3 s"):
        learner.gradient(*batch(4), 105.0)
    assert not any(map(psutil.pid_exists, pids))


def test_a_rank_without_memory_is_told_of_and_the_next_ranks_take_fewer_groups_at_a_time(
    folder: Path,
) -> None:
    run = Run(optimizer=Optimizer(lr=1e-3), batch=BatchSize(micro=64))
    learner, one = ShardedLearner(folder, run, ["cpu", "cpu"]), alone(folder, run)
    rank = psutil.Process(ranks_of(learner)[1])
    rank.rlimit(psutil.RLIMIT_AS, (rank.memory_info().vms + (8 << 20),) * 2)
    with pytest.raises(
        OutOfMemory, match=r"rank 1 of 2 \(cpu\): .*memory.*; 32 groups at a time from now on"
    ):
        learner.gradient(*batch(64, members=16), 105.0)
    assert learner.version == -1 and learner.statistics()["micro"] == 32
    learner.load(Weights.of(one.weights().data, 3))
    assert learner.gradient(*batch(8), 105.0).groups == 8
    learner.close()


def test_ranks_end_when_their_driver_is_killed(folder: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from swarm.settings.config import Optimizer, Run
from swarm.learn.fsdp.learner import ShardedLearner
learner = ShardedLearner(Path({str(folder)!r}), Run(optimizer=Optimizer(lr=1e-3)), ["cpu", "cpu"])
print(*[child.pid for child in learner._ranks._children], flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as driver:
        assert driver.stdout is not None
        pids = [int(word) for word in driver.stdout.readline().split()]
        driver.kill()
    assert len(pids) == 2 and ended(*pids)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_other_architectures_are_split_alike_with_three_ranks_and_recomputed_activations(
    family: str, tmp_path: Path
) -> None:
    folder = tiny.make(tmp_path / family, family)
    one = alone(folder)
    learner = ShardedLearner(folder, RUN, ["cpu"] * 3, Training(checkpointing="on"))
    learner.load(Weights.of(one.weights().data, 0))
    one.load(Weights.of(one.weights().data, 0))
    assert_alike(learner.gradient(*batch(5), 105.0), one.gradient(*batch(5), 105.0))
    assert learner.weights() == one.weights()
    learner.close()


def test_groups_of_a_model_with_convolutions_are_padded_and_all_ranks_find_that(tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "lfm2", "qwen3")
    kinds = {"layer_types": ["conv", "full_attention"], "initializer_range": 0.5}
    model = tiny_families.tiny("Lfm2", 2, vocab_size=tokenization.load(folder).vocabulary, **kinds)
    model.to(torch.bfloat16).save_pretrained(folder)
    one, learner = alone(folder), ShardedLearner(folder, RUN, ["cpu", "cpu"])
    learner.load(Weights.of(one.weights().data, 0))
    one.load(Weights.of(one.weights().data, 0))
    for groups in (1, 5):
        assert_alike(learner.gradient(*batch(groups), 105.0), one.gradient(*batch(groups), 105.0))
    assert "depend on the ones before" in learner.padded and learner.padded[:40] == one.padded[:40]
    learner.close()


def test_an_adapter_is_trained_and_released_as_in_one_process(folder: Path) -> None:
    run = Run(model=Model(training="lora"), batch=BatchSize(micro=2), optimizer=Optimizer(lr=1e-3))
    one, learner = alone(folder, run), ShardedLearner(folder, run, ["cpu", "cpu"])
    assert learner.size == one.size
    noise = torch.randn(one.size, generator=torch.Generator().manual_seed(1))
    one.step(noise)  # the adapter changes something, in both of its factors
    learner.load(Weights.of(one.weights().data, 1), fresh=True)
    one.load(Weights.of(one.weights().data, 1), fresh=True)
    wanted = one.gradient(*batch(5), 105.0)
    assert_alike(learner.gradient(*batch(5), 105.0), wanted)
    for each in (learner, one):
        each.step(wanted.vector)
    assert learner.weights() == one.weights()
    one.load_state(learner.state())
    assert learner.weights() == one.weights()
    learner.close()


@pytest.mark.gpu
@pytest.mark.parametrize("gpus", [1, 2])
def test_gpus_over_nccl_are_one_process(folder: Path, gpus: int) -> None:
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"needs {gpus} GPUs")
    one, learner = (
        alone(folder),
        ShardedLearner(folder, RUN, [f"cuda:{i}" for i in range(gpus)], Training(dtype="float32")),
    )
    learner.load(Weights.of(one.weights().data, 0))
    one.load(Weights.of(one.weights().data, 0))
    mine, wanted = learner.gradient(*batch(5), 105.0), one.gradient(*batch(5), 105.0)
    torch.testing.assert_close(
        mine.vector, wanted.vector, rtol=1e-3, atol=1e-3 * float(wanted.vector.abs().max())
    )
    for each in (learner, one):
        each.step(wanted.vector)
    assert learner.weights() == one.weights()
    learner.close()
