"""Learners on slow lines: steps of their own, and the same bytes at all of them after every list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from learner_batches import model, policy, settings
from rows import nightly

from swarm.learn.files import checkpoint
from swarm.learn.learners import contribution, site_learner
from swarm.learn.learners.microbatch import OutOfMemory
from swarm.learn.learners.optimizers import MasterOptimizer
from swarm.learn.learners.site_learner import CountedContribution, SiteLearner
from swarm.learn.models import adapters
from swarm.settings.config import Averaging
from swarm.storage.image import Draft
from swarm.storage.weights import Weights

KINDS = [("full", "float32"), ("qlora", "bfloat16"), *nightly([("full", "bfloat16"), ("lora", "float32")])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model(tmp_path_factory.mktemp("models"), "qwen3")


def begun(folder: Path, training: Any = "full", dtype: str = "float32", **averaging: Any) -> SiteLearner:
    """A learner at version 0."""
    run = settings(training, lr=1e-3)
    run = msgspec.structs.replace(run, averaging=Averaging(mode="sites", **averaging))
    one = SiteLearner(policy(folder, run, dtype), run)
    first = one.weights().data if training == "full" else adapters.genesis(folder, run.lora, 1)
    one.load(Weights.of(first, 0), fresh=True)
    return one


def stepped(one: SiteLearner, seed: int, steps: int = 3) -> bytes:
    """Local steps along random gradients, and the contribution that comes of them."""
    noise = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        one.step_locally(torch.randn(one.size, generator=noise))
    return one.contribution()


def stepped_once(one: SiteLearner, seed: int) -> None:
    one.step_locally(torch.randn(one.size, generator=torch.Generator().manual_seed(seed)))


def masters(one: SiteLearner) -> torch.Tensor:
    return one._optimizer.gather()


@pytest.mark.parametrize(("training", "dtype"), KINDS)
def test_all_learners_have_the_same_bytes_after_every_list(folder: Path, training: str, dtype: str) -> None:
    both = [begun(folder, training, dtype) for _ in range(2)]
    for version in range(3):
        counted = [CountedContribution(stepped(one, 10 * version + k), 0.5) for k, one in enumerate(both)]
        before = both[0].weights().digest
        for one in both:
            one.outer_step(counted, mine=True)
        assert both[0].version == version + 1
        assert both[0].weights().digest == both[1].weights().digest != before
        assert torch.equal(masters(both[0]), masters(both[1]))


def test_local_steps_change_neither_version_nor_weights(folder: Path) -> None:
    one = begun(folder)
    before, mine = one.weights().digest, masters(one)
    stepped(one, 1)
    local = masters(one)
    assert not torch.equal(local, mine)
    assert (one.version, one.weights().digest) == (0, before)
    assert torch.equal(masters(one), local)  # looking at them left them where they were


def test_a_release_that_could_not_be_written_takes_no_local_step(folder: Path) -> None:
    def refused(size: int) -> Draft:
        raise MemoryError(f"no room for {size} bytes")

    one = begun(folder)
    stepped(one, 1)
    local = masters(one)
    with pytest.raises(MemoryError):
        one.snapshot(refused)
    assert torch.equal(masters(one), local)


def test_a_list_of_one_with_all_values_and_no_momentum_is_the_local_step_in_8_bits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_learner, "OUTER_RATE", 1.0)
    one = begun(folder, density=1.0, outer_momentum=0.0)
    start = masters(one)
    data = stepped(one, 1)
    local = masters(one) - start
    one.outer_step([CountedContribution(data, 1.0)], mine=True)
    assert torch.linalg.vector_norm(masters(one) - start - local) < 0.02 * torch.linalg.vector_norm(local)


def test_the_outer_step_is_that_of_nesterov(folder: Path) -> None:
    one = begun(folder, outer_momentum=0.8)
    weight = torch.nn.Parameter(masters(one))
    nesterov = torch.optim.SGD([weight], lr=site_learner.OUTER_RATE, momentum=0.8, nesterov=True)
    for seed in range(3):
        data = stepped(one, seed)
        weight.grad = torch.zeros(one.size)
        contribution.add(weight.grad.numpy(), data, 0.25, one.run.averaging.density)
        nesterov.step()
        one.outer_step([CountedContribution(data, 0.25)], mine=True)
        torch.testing.assert_close(masters(one), weight.detach(), rtol=1e-6, atol=1e-8)


def test_what_a_contribution_leaves_out_comes_with_later_ones(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_learner, "OUTER_RATE", 1.0)
    one = begun(folder, density=0.25, outer_momentum=0.0)
    start = masters(one)
    data = stepped(one, 1)
    goal = masters(one)
    for _ in range(12):
        one.outer_step([CountedContribution(data, 1.0)], mine=True)
        data = one.contribution()
    assert torch.linalg.vector_norm(masters(one) - goal) < 0.01 * torch.linalg.vector_norm(goal - start)


def test_what_was_trained_for_a_list_without_it_goes_on_from_the_next_version(folder: Path) -> None:
    late, other = begun(folder), begun(folder)
    start = masters(late)
    stepped(late, 1)
    trained = masters(late) - start
    theirs = CountedContribution(stepped(other, 2), 1.0)
    late.outer_step([theirs], mine=False)
    other.outer_step([theirs], mine=True)
    assert late.weights().digest == other.weights().digest
    torch.testing.assert_close(masters(late) - masters(other), trained, rtol=0, atol=1e-7)
    data = late.contribution()
    assert late.norm(data) > 0


def test_steps_that_are_undone_leave_the_version_and_what_was_not_carried(folder: Path) -> None:
    one = begun(folder)
    one.outer_step([CountedContribution(stepped(one, 1), 1.0)], mine=True)
    version, owed = masters(one), one._residual.clone()
    for seed in (2, 3):
        one.step_locally(torch.randn(one.size, generator=torch.Generator().manual_seed(seed)))
    assert not torch.equal(masters(one), version)
    one.undo_steps()
    assert torch.equal(masters(one), version) and torch.equal(one._residual, owed)
    assert one.norm(one.contribution()) > 0  # what was owed before


def test_a_learner_that_missed_a_list_follows_the_release_and_keeps_its_local_steps(folder: Path) -> None:
    late, other = begun(folder), begun(folder)
    start = masters(late)
    noise = torch.Generator().manual_seed(1)
    for _ in range(3):
        late.step_locally(torch.randn(late.size, generator=noise))
    trained = masters(late) - start
    other.outer_step([CountedContribution(stepped(other, 2), 1.0)], mine=True)
    late.load(other.weights())
    assert (late.version, late.weights().digest) == (1, other.weights().digest)
    torch.testing.assert_close(masters(late) - late._anchor, trained, rtol=0, atol=1e-6)


def test_a_contribution_of_a_list_that_was_missed_counts_as_part_of_the_release(folder: Path) -> None:
    missed, other = begun(folder), begun(folder)
    mine, theirs = stepped(missed, 1), stepped(other, 2)
    other.outer_step([CountedContribution(mine, 0.5), CountedContribution(theirs, 0.5)], mine=True)
    residual = missed._residual.clone()
    missed.load(other.weights())
    assert missed.weights().digest == other.weights().digest
    again = missed.contribution()
    sent = torch.zeros(missed.size)
    contribution.add(sent.numpy(), mine, 1.0, missed.run.averaging.density)
    carried = torch.zeros(missed.size)
    contribution.add(carried.numpy(), again, 1.0, missed.run.averaging.density)
    assert not torch.equal(missed._residual, residual)
    assert float((sent != 0).logical_and(carried != 0).float().mean()) < 0.01


@pytest.mark.parametrize(("training", "dtype"), KINDS)
def test_a_learner_goes_on_from_anothers_state_bit_by_bit(folder: Path, training: str, dtype: str) -> None:
    old, new = begun(folder, training, dtype), begun(folder, training, dtype)
    old.outer_step([CountedContribution(stepped(old, 1), 1.0)], mine=True)
    stepped(old, 2)  # the state is that of the version, whatever was stepped since
    new.load_state(old.state())
    assert new.weights().digest == old.weights().digest
    counted = [CountedContribution(old.contribution(), 1.0)]
    old.outer_step(counted, mine=True)
    new.outer_step(counted, mine=False)
    assert torch.equal(masters(new), masters(old))


def test_a_learner_that_takes_anothers_state_keeps_its_local_steps(folder: Path) -> None:
    late, other = begun(folder), begun(folder)
    start = masters(late)
    stepped_once(late, 1)
    trained = masters(late) - start
    other.outer_step([CountedContribution(stepped(other, 2), 1.0)], mine=True)
    late.load_state(other.state())
    assert (late.version, late.weights().digest) == (1, other.weights().digest)
    torch.testing.assert_close(masters(late) - late._anchor, trained, rtol=0, atol=1e-7)
    assert late.has_steps


def test_a_contribution_that_was_sent_counts_as_part_of_anothers_state(folder: Path) -> None:
    missed, other = begun(folder), begun(folder)
    mine = stepped(missed, 1)
    owed = missed._anchor - masters(missed)
    contribution.subtract(owed.numpy(), mine, missed.run.averaging.density)
    other.outer_step([CountedContribution(mine, 0.5), CountedContribution(stepped(other, 2), 0.5)], mine=True)
    missed.load_state(other.state())
    assert torch.equal(masters(missed), other._anchor) and torch.equal(missed._residual, owed)
    assert not missed.has_steps


def test_a_learner_is_set_back_with_its_local_steps_and_what_it_sent(folder: Path) -> None:
    one, again, other = (begun(folder) for _ in range(3))
    for each in (one, again):
        data = stepped(each, 1)
        stepped_once(each, 2)
    restore = one.restorer()
    other.outer_step([CountedContribution(stepped(other, 3), 1.0)], mine=True)
    one.load(other.weights())
    one.load_state(other.state())
    restore()
    assert one.state() == again.state() and torch.equal(masters(one), masters(again))
    for each in (one, again):
        each.outer_step([CountedContribution(data, 1.0)], mine=True)
    assert one.contribution() == again.contribution()


@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("whole", [False, True], ids=["a release", "a state"])
def test_memory_that_ends_in_the_middle_of_a_step_takes_the_steps_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, sent: bool, whole: bool
) -> None:
    def fails(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    one = begun(folder)
    one.outer_step([CountedContribution(stepped(one, 1), 1.0)], mine=True)
    release, state, owed = one.weights(), one.state(), one._residual.clone()
    stepped_once(one, 2)
    if sent:
        one.contribution()
    with monkeypatch.context() as patched:
        patched.setattr(MasterOptimizer, "step", fails)
        with pytest.raises(OutOfMemory):
            stepped_once(one, 3)
    if whole:
        one.load_state(state)
    else:
        one.load(release)
    # what a contribution carried that may count is not sent again
    assert torch.equal(one._residual, torch.zeros(one.size) if sent else owed) and owed.any()
    assert one.version == 1 and not one.has_steps and torch.equal(masters(one), one._anchor)


def test_a_checkpoint_keeps_what_was_not_carried_and_leaves_out_steps_whose_groups_come_again(
    folder: Path, tmp_path: Path
) -> None:
    one, again = begun(folder), begun(folder)
    one.outer_step([CountedContribution(stepped(one, 1), 1.0)], mine=True)
    residual = one._residual.clone()
    one.step_locally(torch.randn(one.size, generator=torch.Generator().manual_seed(2)))
    one.save(tmp_path)
    again.restore(tmp_path)
    assert (again.version, again.weights().digest) == (1, one.weights().digest)
    assert torch.equal(again._residual, residual) and residual.any()
    assert torch.equal(masters(again), one._anchor)


def test_a_checkpoint_leaves_out_what_was_sent(folder: Path, tmp_path: Path) -> None:
    one, again = begun(folder), begun(folder)
    data = stepped(one, 1)
    one.save(tmp_path)
    again.restore(tmp_path)
    one.outer_step([CountedContribution(data, 1.0)], mine=True)
    assert again.contribution() == one.contribution()


def test_a_state_without_momentum_is_refused_and_changes_nothing(folder: Path) -> None:
    one = begun(folder)
    stepped(one, 1)
    before = masters(one)
    tensors, facts = checkpoint.unpack(one.state())
    del tensors["outer/momentum"]
    with pytest.raises(ValueError, match="outer/momentum"):
        one.load_state(checkpoint.pack(tensors, facts))
    assert torch.equal(masters(one), before)


def test_damaged_weights_change_nothing(folder: Path) -> None:
    one = begun(folder)
    stepped(one, 1)
    before, sent = masters(one), one._sent
    with pytest.raises(ValueError, match="cannot be read"):
        one.load(Weights.of(b"no weights", 5))
    assert torch.equal(masters(one), before)
    assert (one.version, one._sent) == (0, sent)
