"""A gradient that another learner computes again, in other numbers and in other chunks."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from learner_batches import batch, learner, model, settings
from rows import nightly

from peers.learner.agreement.rechecks import compared
from swarm.core.gradient_checks.recomputed import AGREE, UNSURE, Rechecks
from swarm.learn.models import tiny
from swarm.net.averaging.sketch import Sketches
from swarm.types import PeerId


@pytest.mark.parametrize("family", ["qwen3", *nightly(sorted({*tiny.FAMILIES} - {"qwen3"}))])
def test_what_rounds_its_values_is_far_from_a_strike(family: str, tmp_path: Path) -> None:
    folder = model(tmp_path, family)
    theirs = learner(folder, settings())
    groups = batch(theirs.policy, 4, completions=8, longest=24)

    def sketched(dtype: str, micro: int) -> list[float]:
        vector = learner(folder, settings(micro=micro), dtype=dtype).gradient(*groups, 101.0).vector
        return Sketches(7, [(0, vector.numel())], {}).of(vector.float()).tolist()

    mine = sketched("bfloat16", 32)
    cosine, times = compared(sketched("float32", 32), mine)
    assert cosine > 0.995 and abs(times - 1) < 0.05
    cosine, times = compared(sketched("bfloat16", 1), mine)
    assert 1 - cosine < (1 - AGREE) / 10 and abs(times - 1) < 0.05


def test_numbers_of_another_kind_are_no_way_out_for_a_lie(tmp_path: Path) -> None:
    one = learner(model(tmp_path, "qwen3"), settings())
    batches = [batch(one.policy, 4, seed, completions=8, longest=24) for seed in (0, 1)]
    true, another = (one.gradient(*each, 101.0).vector for each in batches)
    its = Sketches(7, [(0, true.numel())], {})
    random_one = torch.randn(true.numel(), generator=torch.Generator().manual_seed(1)) * true.std()
    lies = [-true, another, random_one, torch.zeros_like(true), 10 * true, true + 3 * random_one, 1e-3 * true]
    for lie in lies:
        found = compared(its.of(lie).tolist(), its.of(true).tolist())
        checks = Rechecks(random.Random(1), 0.05)
        assert [checks.found(PeerId("a"), *found, False, 0.0) for _ in range(UNSURE)][-1] is not None
