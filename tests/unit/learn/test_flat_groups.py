"""A group without advantage has no gradient, by each method's parts, and leaves that of others as it is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from learner_batches import Batch as Groups
from learner_batches import batch, learner, model, policy, settings
from msgspec.structs import replace as replace_in
from torch import Tensor

from swarm.core.intake.claimed_logprobs import NOT_COMPARED, ClaimCheck
from swarm.learn.learners.base_learner import GradientResult, GradientWork
from swarm.learn.learners.batch import total_of
from swarm.learn.learners.learner import Learner
from swarm.learn.objectives import OBJECTIVES, Batch, Objective, loss, objective
from swarm.learn.parts import CENTRES, SCALES, Advantage
from swarm.settings.config import ObjectiveSettings

GROUPS, SIZE, TOKENS = 6, 4, 7
FLAT = {1: 1.0, 2: 0.0, 4: 0.3}
"""Group -> the reward of all its completions."""

METHODS = {**OBJECTIVES} | {
    f"{centre} {scale}": replace(OBJECTIVES["gepo"], advantage=Advantage(centre, scale))
    for centre in CENTRES
    for scale in SCALES
}


def drawn() -> Batch:
    """Groups far from their samplers; those of FLAT have equal rewards."""
    random = torch.Generator().manual_seed(4)
    rows = GROUPS * SIZE
    logp, logq, prox, ref = (-3 * torch.rand(rows, TOKENS, generator=random) - 0.01 for _ in range(4))
    reward = torch.rand(GROUPS, SIZE, generator=random)
    for group, level in FLAT.items():
        reward[group] = level
    lengths = torch.randint(1, TOKENS + 1, (rows, 1), generator=random)
    logq[SIZE] = -torch.inf  # a completion that its sampler cannot have drawn
    return Batch(
        logp,
        logq,
        mask=(torch.arange(TOKENS) < lengths).float(),
        reward=reward.flatten(),
        group=torch.arange(GROUPS).repeat_interleave(SIZE),
        prox=prox,
        ref=ref,
        lag=torch.randint(0, 5, (rows,), generator=random),
        horizon=8.0,
    )


def gradient(method: Objective, of: Batch) -> Tensor:
    logp = of.logp.clone().requires_grad_(True)
    loss(method, replace(of, logp=logp)).value.backward()
    assert logp.grad is not None
    return logp.grad


def without(of: Batch, left_out: Tensor) -> Batch:
    """The other completions of a batch, as a part of it."""
    cut: dict[str, Any] = {
        field.name: value[~left_out]
        for field in fields(of)
        if isinstance(value := getattr(of, field.name), Tensor)
    }
    return replace(of, **cut, total=total_of(of))


def test_a_learner_says_how_many_of_the_groups_that_teach_went_through_its_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, seen = learner(model(tmp_path, "llama"), settings(micro=1)), list[tuple[int, int]]()
    groups, prompts, rewards = batch(own.policy, 4)
    attempt = own._attempt

    def look(chunk: GradientWork) -> Any:
        seen.append((own.passed, own.to_pass))
        return attempt(chunk)

    monkeypatch.setattr(own, "_attempt", look)
    for flat in (0, 1):
        seen.clear()
        own.gradient(groups, prompts, [(1.0,) * 4] * flat + rewards[flat:], 105.0)
        teach = 4 - flat
        assert seen[-teach:] == [(done, teach) for done in range(teach)]
        assert (own.passed, own.to_pass) == (teach, teach)


@pytest.mark.parametrize("name", METHODS)
def test_the_gradient_without_the_groups_that_teach_nothing_is_the_same_to_the_last_bits(name: str) -> None:
    method, whole_batch = METHODS[name], drawn()
    idle = torch.tensor(
        [not method.teaches(group.tolist()) for group in whole_batch.reward.view(GROUPS, SIZE)]
    )
    rows = idle.repeat_interleave(SIZE)
    whole, alone = gradient(method, whole_batch), gradient(method, without(whole_batch, rows))
    # not bit for bit: on some CPUs an exponential's last bit depends on its place in a vector
    torch.testing.assert_close(whole[~rows], alone, rtol=1e-6, atol=0.0)
    assert whole[~rows].any() and not whole[rows].any()


def test_all_groups_of_equal_rewards_teach_nothing_where_they_have_neither_advantage_nor_kl() -> None:
    without_baseline = [name for name, method in OBJECTIVES.items() if method.advantage.centre == "none"]
    with_kl = [name for name, method in OBJECTIVES.items() if method.kl.weight > 0]
    for name, method in OBJECTIVES.items():
        assert method.teaches([0.3] * 8) == (name in [*without_baseline, *with_kl]), name
        assert method.teaches([0.0] * 8) == (name in with_kl), name
        assert method.is_flat([0.0] * 8) and method.teaches([0.0, 1.0]), name


def test_a_kl_term_teaches_a_group_that_has_no_advantage() -> None:
    pulled = objective("gepo", {"kl": 0.005})
    assert pulled.is_flat([1.0, 1.0]) and pulled.teaches([1.0, 1.0])
    assert gradient(pulled, drawn()).view(GROUPS, -1)[4].any()


def test_rewards_are_equal_as_exactly_as_a_batch_has_them() -> None:
    gepo = OBJECTIVES["gepo"]
    assert gepo.is_flat([0.1 + 0.2, 0.3]) and not gepo.is_flat([0.3, 0.3 + 1e-6])
    assert not gepo.is_flat([float("inf")] * 2)  # their distances from the mean are no numbers


def test_an_advantage_of_ones_own_may_teach_with_equal_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CENTRES, "half", lambda view, w: view.reward - 0.5)
    monkeypatch.setitem(SCALES, "shifted", lambda advantage, view: advantage + 1)
    for own in (Advantage("half"), Advantage("group-mean", "shifted")):
        assert replace(OBJECTIVES["gepo"], advantage=own).teaches([1.0, 1.0])


# --- a learner ----------------------------------------------------------------------------------------------


class Watched(Learner):
    """Counts the completions that go through the model."""

    seen = 0

    def _batch(self, work: GradientWork) -> tuple[Batch, list[ClaimCheck]]:
        self.seen += sum(len(group.lengths) for group in work.groups)
        return super()._batch(work)


class Unspared(Watched):
    """All groups go through the model."""

    def _learn_teaching(self, work: GradientWork) -> GradientResult:
        return self._learn(work)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model(tmp_path_factory.mktemp("model"), "llama")


def levelled(made: Groups, flat: Collection[int]) -> Groups:
    """The same groups; all completions of those in `flat` are right."""
    return *made[:2], [(1.0,) * len(each) if i in flat else each for i, each in enumerate(made[2])]


@pytest.mark.parametrize("training", ["full", "lora"])
@pytest.mark.parametrize("name", ["gepo", "dapo", "gpg", "ppo_clip", "bnpo_beta", "reinforce", "disco"])
def test_a_learner_has_the_same_gradient_metrics_and_weight_without_passes_of_flat_groups(
    folder: Path, name: str, training: str
) -> None:
    run = replace_in(settings(training, micro=1), objective=ObjectiveSettings(name=name))
    spared, unspared = (kind(policy(folder, run), run) for kind in (Watched, Unspared))
    made = levelled(batch(spared.policy, 6, completions=4), {0, 2, 3})
    mine, wanted = spared.gradient(*made, 105.0), unspared.gradient(*made, 105.0)
    assert torch.equal(mine.vector, wanted.vector) and mine.vector.any()
    assert (mine.weight, mine.groups) == (wanted.weight, 6)
    over_all = ("reward", "flat", "length", "lag_versions", "lag_seconds")
    assert [mine.metrics[each] for each in over_all] == pytest.approx(
        [wanted.metrics[each] for each in over_all]
    )
    teaches = name in ("reinforce", "disco")
    assert (spared.seen, unspared.seen) == (24 if teaches else 12, 24)
    assert mine.arithmetic.chunks == (1,) * (6 if teaches else 3)


def test_metrics_of_weights_are_those_of_the_groups_that_teach(folder: Path) -> None:
    run = settings(micro=1)
    spared, unspared = (kind(policy(folder, run), run) for kind in (Watched, Unspared))
    made = batch(spared.policy, 4)
    mine = spared.gradient(*levelled(made, {1, 3}), 105.0)
    some = unspared.gradient(*([each[i] for i in (0, 2)] for each in made), 105.0)
    for name in ("kl", "ess", "weight_var", "weight_max", "zero", "entropy"):
        assert mine.metrics[name] == pytest.approx(some.metrics[name]), name


def test_claims_of_a_flat_group_are_not_compared_and_its_place_stays(folder: Path) -> None:
    run = settings()
    one = Watched(policy(folder, run), run)
    told = one.gradient(*levelled(batch(one.policy, 3), {0, 2}), 105.0)
    assert [check == NOT_COMPARED for check in told.checks] == [True, False, True]
    assert told.advantages == (0.0,) * 4 and told.weights == ()


def test_a_batch_of_flat_groups_alone_takes_no_pass_and_a_step_of_its_moments(folder: Path) -> None:
    run = settings()
    spared, unspared = (kind(policy(folder, run), run) for kind in (Watched, Unspared))
    made = batch(spared.policy, 3)
    for one in (spared, unspared):
        one.step(one.gradient(*made, 105.0).vector)
        told = one.gradient(*levelled(made, {0, 1, 2}), 105.0)
        assert not told.vector.any() and told.metrics["flat"] == 1.0
        one.step(told.vector)
    assert (spared.seen, unspared.seen) == (12, 24)
    assert spared.digest() == unspared.digest()
    assert told.weight == spared.gradient(*levelled(made, {0, 1, 2}), 105.0).weight
    said = spared.gradient(*levelled(made, {0, 1, 2}), 105.0).arithmetic
    assert (said.chunks, said.dtype, said.threads) == ((), "float32", torch.get_num_threads())


def test_a_gradient_with_flat_groups_is_made_again_by_its_chunks(folder: Path) -> None:
    first, again = (learner(folder, settings(micro=most)) for most in (2, 32))
    made = levelled(batch(first.policy, 6), {1})
    told = first.gradient(*made, 105.0)
    assert told.arithmetic.chunks == (2, 1, 2) and first.passed == first.to_pass == 5
    assert torch.equal(again.gradient(*made, 105.0, chunks=told.arithmetic.chunks).vector, told.vector)
