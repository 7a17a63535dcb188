"""A gradient that another learner computes again, in other numbers and in other chunks."""

from __future__ import annotations

from pathlib import Path

import pytest
from learner_batches import batch, learner, model, settings
from rows import nightly

from peers.learner.agreement.rechecks import compared
from swarm.core.gradient_checks.recomputed import AGREE, AGREE_OTHERWISE
from swarm.learn.models import tiny
from swarm.net.averaging.sketch import Sketches


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
    assert 1 - cosine < (1 - AGREE_OTHERWISE) / 10 and abs(times - 1) < 0.05
    cosine, times = compared(sketched("bfloat16", 1), mine)
    assert 1 - cosine < (1 - AGREE) / 10 and abs(times - 1) < 0.05
