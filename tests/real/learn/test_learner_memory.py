"""A learner whose memory ends: smaller chunks of the same gradient, recomputed activations, a sentence, and
never half a step."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_batches import Batch, batch, gradient, learner, model, settings
from places import SUPPORT

from swarm.learn.learners import microbatch
from swarm.learn.learners.gradient_accumulator import GradientAccumulator
from swarm.learn.learners.learner import Learner
from swarm.learn.learners.microbatch import RAISE_AFTER, MicrobatchSize, OutOfMemory, PeakMemory
from swarm.learn.models import packing
from swarm.settings.config import Training
from swarm.storage.weights import Weights

COMPLETIONS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model(tmp_path_factory.mktemp("models"), "llama")


@pytest.fixture(scope="module")
def made(folder: Path) -> Batch:
    return batch(learner(folder, settings()).policy, 12, completions=COMPLETIONS)  # type: ignore[arg-type]


def small(
    of: Learner, groups: int, where: str = "forward", unless: Callable[[], bool] = lambda: False
) -> list[int]:
    """From now on the model's memory holds so many groups; returns a list that every try is entered in."""
    tries: list[int] = []
    network: Any = of.policy
    layer, score = network._base.layers[-1].mlp, network.logprobs

    def scored(prompts: list[str], rows: list[list[int]], temperature: float) -> Any:
        if not unless():
            tries.append(len(rows) // COMPLETIONS)
        return score(prompts, rows, temperature)

    def full(*_: object) -> None:
        if not unless() and tries[-1] > groups:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    network.logprobs = scored
    if where == "forward":
        layer.register_forward_pre_hook(full)
    else:  # the gradients of the layers above are there already
        layer.register_full_backward_hook(full)
    return tries


@pytest.mark.nightly
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("groups", [1, 2, 5])
def test_the_gradient_after_stepping_down_is_the_one_without(
    folder: Path, made: Batch, groups: int, where: str
) -> None:
    plain, tight = learner(folder, settings()), learner(folder, settings())
    tries = small(tight, groups, where)
    wanted, found = gradient(plain, made), gradient(tight, made)
    assert max(tries) > groups  # it did run out
    torch.testing.assert_close(found.vector, wanted.vector, rtol=1e-4, atol=1e-7)
    assert found.metrics == pytest.approx(wanted.metrics, rel=1e-3, abs=1e-5)
    assert found.groups == wanted.groups == 12


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_stepping_down_gives_the_very_bits_of_chunks_of_that_size(
    folder: Path, made: Batch, where: str
) -> None:
    plain, tight = learner(folder, settings()), learner(folder, settings(micro=6))
    tries = small(tight, 3, where)
    found = gradient(tight, made)
    assert tries[0] == 6 and max(chunks := found.arithmetic.chunks) <= 3 and sum(chunks) == 12
    assert torch.equal(plain.gradient(*made, 105.0, chunks=chunks).vector, found.vector)


@pytest.mark.nightly
def test_the_lower_number_is_remembered_and_a_larger_one_tried_much_later(folder: Path, made: Batch) -> None:
    tight = learner(folder, settings())
    tries = small(tight, 3)
    gradient(tight, made)
    tokens = tight.statistics()["tokens"]
    tries.clear()
    gradient(tight, made)
    assert max(tries) == 3
    tight._microbatch._good = RAISE_AFTER - 1
    gradient(tight, made)
    assert tight.statistics()["tokens"] == 2 * tokens
    tries.clear()
    gradient(tight, made)
    assert max(tries) > 3 and tight.statistics()["tokens"] < 2 * tokens


@pytest.mark.nightly
def test_activations_are_recomputed_when_single_groups_are_too_much(folder: Path, made: Batch) -> None:
    plain, tight = learner(folder, settings()), learner(folder, settings())
    tries = small(tight, 0, unless=lambda: tight._recomputed > 0)
    wanted, found = gradient(plain, made), gradient(tight, made)
    assert tries[0] == 6 and tries[-1] == 1 and len(tries) <= 4 and tight.statistics()["recomputed"] == 2
    torch.testing.assert_close(found.vector, wanted.vector, rtol=1e-4, atol=1e-7)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("checkpointing", "says"),
    [
        (
            "auto",
            (
                r"not even one group of 4 completions with \d+ tokens goes through the model:"
                r" peer.learner.dtype = 'bfloat16' or"
            ),
        ),
        (
            "off",
            (
                r": peer.learner.checkpointing = 'auto' or peer.learner.dtype = 'bfloat16' or another device"
                r" may do"
            ),
        ),
    ],
)
def test_when_nothing_is_left_to_give_up_a_sentence_says_what_to_change(
    folder: Path, made: Batch, checkpointing: Any, says: str
) -> None:
    tight = learner(folder, settings(), Training(checkpointing=checkpointing))
    before = tight.weights()
    small(tight, 0)
    with pytest.raises(OutOfMemory, match=says):
        gradient(tight, made)
    assert tight.weights() == before and all(
        parameter.grad is None for parameter in tight.policy.module.parameters()
    )


@pytest.mark.parametrize("what", ["add", "vector", "sketch"])
def test_a_gradient_whose_sums_or_copies_do_not_fit_is_one_that_does_not_fit(
    folder: Path, made: Batch, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tight = learner(folder, settings())

    def full(_: object) -> torch.Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.")

    with monkeypatch.context() as patch:
        patch.setattr(GradientAccumulator, what, full)
        with pytest.raises(OutOfMemory, match=f"a gradient of {tight.size} values does not fit"):
            gradient(tight, made)
    assert gradient(tight, made).groups == 12


def test_an_error_that_is_not_memorys_is_a_crash(folder: Path, made: Batch) -> None:
    broken = learner(folder, settings())
    network: Any = broken.policy

    def bug(*_: object) -> None:
        raise RuntimeError("shapes do not match")

    network._base.layers[0].register_forward_pre_hook(bug)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        gradient(broken, made)


@pytest.mark.nightly
@pytest.mark.parametrize("training", ["full", "lora", "qlora"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_recomputing_activations_does_not_change_the_gradient(
    family: str, training: str, tmp_path: Path
) -> None:
    where = model(tmp_path, family)
    keeps, recomputes = (
        learner(where, settings(training), Training(checkpointing=how)) for how in ("off", "on")
    )  # type: ignore[arg-type]
    first = keeps.weights().data
    for one in (keeps, recomputes):
        one.load(Weights.of(first, 0))
    some = batch(keeps.policy, 4)  # type: ignore[arg-type]
    wanted, found = gradient(keeps, some).vector, gradient(recomputes, some).vector
    assert recomputes.statistics()["recomputed"] == 2 and keeps.statistics()["recomputed"] == 0
    assert wanted.abs().max() > 0
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-8)


def test_recomputing_keeps_less(tmp_path: Path) -> None:
    where = model(tmp_path, "llama")
    kept = []
    for how in ("off", "on"):
        one = learner(where, settings(), Training(checkpointing=how))  # type: ignore[arg-type]
        some, total = batch(one.policy, 4), [0]  # type: ignore[arg-type]

        def saved(tensor: torch.Tensor, total: list[int] = total) -> torch.Tensor:
            total[0] += tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(saved, lambda tensor: tensor):
            one.policy.logprobs([some[1][0]] * 4, [[5, 6, 7]] * 4, 1.0)
        kept.append(total[0])
    assert kept[1] < 0.5 * kept[0]


def test_a_model_without_layers_to_recompute_says_so() -> None:
    from swarm.learn.models.tabular import Tabular

    with pytest.raises(ValueError, match="no layers that could be recomputed; use 'off'"):
        Learner(Tabular(), settings(), Training(checkpointing="on"))


# --- a step -------------------------------------------------------------------------------------------------


def test_moments_that_do_not_fit_change_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = learner(folder, settings())
    before = one.weights()

    def full(*_: object, **__: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "zeros_like", full)
        with pytest.raises(
            OutOfMemory, match=r"the moments of \d+ parameters do not fit .* Tried to allocate 2.00 GiB.\)$"
        ):
            one.step(torch.ones(one.size))
    assert one.weights() == before and one.version == 0
    assert one.step(torch.ones(one.size))["lr"] > 0 and one.version == 1


def test_memory_that_ends_in_the_middle_of_a_step_leaves_no_policy_until_a_release_is_loaded(
    folder: Path,
) -> None:
    one, other = learner(folder, settings()), learner(folder, settings())
    release = one.weights().data
    one.step(torch.ones(one.size))
    real, calls = one._optimizer._cast, []

    def scarce(name: str) -> None:
        calls.append(name)
        if len(calls) == 3:
            raise MemoryError
        real(name)

    one._optimizer._cast = scarce  # type: ignore[method-assign]
    with pytest.raises(OutOfMemory, match="in the middle of a step"):
        one.step(torch.ones(one.size))
    assert one.version == -1
    one._optimizer._cast = real  # type: ignore[method-assign]
    for each in (one, other):
        each.load(Weights.of(release, 7))
        each.step(torch.ones(one.size))
    assert one.version == 8 and one.weights() == other.weights()


# --- what is foretold ---------------------------------------------------------------------------------------


def test_a_microbatch_takes_what_fits_by_its_measure() -> None:
    size = MicrobatchSize(32, lambda: 1000)
    size.begin()
    assert size.unmeasured
    size.measured(10.0, 100)
    assert not size.unmeasured
    assert size.take([10.0] * 32) == 8  # 80 cells, 800 bytes, eight tenths of what is free
    assert size.take([10.0, 10.0, 40.0, 10.0, 10.0, 10.0]) == 5  # long and short ones
    assert size.take([1000.0] * 4) == 1 and not size.fits(1000.0)
    size.measured(80.0, 400)  # larger chunks need less in proportion
    assert size.take([10.0] * 32) == 16
    assert size.take([10.0] * 16 + [0.0] * 40) == 32


def test_a_microbatch_without_a_known_limit_takes_the_most() -> None:
    size = MicrobatchSize(32, lambda: None)
    size.begin()
    assert not size.unmeasured and size.take([1e12] * 40) == 32


def test_a_microbatch_that_fails_after_it_grew_waits_twice_as_long() -> None:
    size = MicrobatchSize(8, lambda: None)
    eight = [5.0] * 8
    assert size.failed(eight) and size.take(eight) == 4
    waits = []
    for _ in range(2):
        good = 0
        while size.take(eight) == 4:
            size.succeeded()
            good += 1
        waits.append(good)
        assert size.failed(eight)
    assert waits == [RAISE_AFTER, 2 * RAISE_AFTER]
    assert size.failed([5.0] * 2) and size.take(eight) == 1 and not size.failed([5.0])


@pytest.mark.parametrize("padded", ["", "its states pass on"])
def test_a_cpu_learner_measures_a_group_first_and_takes_as_many_as_fit(
    padded: str, folder: Path, made: Batch, monkeypatch: Any
) -> None:
    """Its first pass tells whether it pads."""
    monkeypatch.setattr(packing, "objection", lambda *_: padded)
    monkeypatch.setattr(PeakMemory, "rise", lambda self: 1000)
    plain, tight = learner(folder, settings()), learner(folder, settings(), ram=lambda: 4000)
    tries = small(tight, 100)
    torch.testing.assert_close(
        gradient(tight, made).vector, gradient(plain, made).vector, rtol=1e-4, atol=1e-7
    )
    assert tries[0] == 1 and sum(tries[1:]) == 12 and 2 <= max(tries[1:]) <= 4
    tries.clear()
    gradient(tight, made)
    assert sum(tries) == 12


@pytest.mark.nightly
def test_what_will_not_fit_a_cpu_is_recomputed_before_the_machine_kills_us(
    folder: Path, made: Batch, monkeypatch: Any
) -> None:
    monkeypatch.setattr(PeakMemory, "rise", lambda self: 1000)
    tight = learner(folder, settings(), ram=lambda: 1000)
    gradient(tight, made)
    assert tight.statistics()["recomputed"] == 2


def test_a_gauge_sees_a_peak_that_is_gone_again() -> None:
    gauge = PeakMemory(torch.device("cpu"))
    gauge.start()
    torch.ones(64 << 20, dtype=torch.uint8)
    assert (60 << 20) < gauge.rise() < (200 << 20)
    gauge.start()
    assert gauge.rise() < (60 << 20) and gauge.peak > (64 << 20)


@pytest.mark.parametrize(
    ("error", "memorys"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (MemoryError(), True),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory:"
                " you tried"
            ),
            True,
        ),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_errors_of_memory_are_told_from_others(error: Exception, memorys: bool) -> None:
    assert microbatch.ran_out(error) == memorys


REAL = """
import resource, sys, torch
sys.path[:0] = [{tests!r}]
from pathlib import Path
from learner_batches import batch, gradient, learner, settings
where = Path({folder!r})
made = batch(learner(where, settings()).policy, 8, completions=64, longest=60)
wanted = gradient(learner(where, settings(micro=1)), made)
tight = learner(where, settings(micro=8))
gradient(learner(where, settings(micro=1)), made)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + {spare}, used + {spare}))
found = gradient(tight, made)
torch.testing.assert_close(found.vector, wanted.vector, rtol=1e-3, atol=1e-6)
print(len(found.arithmetic.chunks))
"""


@pytest.mark.nightly
def test_torchs_own_allocator_that_runs_out_is_survived(folder: Path) -> None:
    script = REAL.format(tests=str(SUPPORT), folder=str(folder), spare=60 << 20)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 8
