"""How far a release is from the one that its round made, in steps of the round."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from peers.learner.agreement.other_bytes import FAR
from swarm.learn.files.release_distance import apart
from swarm.learn.files.weights import to_bytes
from swarm.storage.blocks import Blocks


def release(**values: float) -> Blocks:
    """Tensors of 64 equal values."""
    return Blocks.of(to_bytes({name: torch.full((8, 8), value) for name, value in values.items()}))


def test_a_distance_is_counted_in_steps() -> None:
    before, mine = release(a=1.0, b=2.0), release(a=1.5, b=2.0)
    assert apart(mine, mine, before) == 0
    assert apart(mine, before, before) == 1
    assert apart(mine, release(a=1.5, b=3.0), before) == 2


def test_whatever_differs_from_a_version_that_did_not_move_is_infinitely_far() -> None:
    before = release(a=1.0)
    assert apart(before, before, before) == 0
    assert apart(before, release(a=1.5), before) == math.inf


@pytest.mark.parametrize("other", [release(a=1.0), release(a=1.5, c=2.0), release(a=math.inf, b=2.0)])
def test_a_release_of_another_model_or_not_finite_has_no_distance(other: Blocks) -> None:
    with pytest.raises(ValueError, match="weights"):
        apart(release(a=1.5, b=2.0), other, release(a=1.0, b=2.0))


@pytest.mark.parametrize("rate", [10.0**-power for power in range(2, 8)])
def test_rounding_alone_leaves_two_versions_near(rate: float) -> None:
    draws = torch.Generator().manual_seed(1)
    start = (0.02 * torch.randn(1 << 18, generator=draws)).bfloat16().float()
    master = nn.Parameter(start.clone())
    optimizer = torch.optim.AdamW([master], lr=rate, weight_decay=0.0)
    for _ in range(3):
        before = master.detach().clone()
        master.grad = torch.randn(len(start), generator=draws)
        optimizer.step()
    mine = master.detach()
    lot = torch.rand(len(mine), generator=draws)
    off = torch.nextafter(mine, mine + torch.where(lot < 0.25, 1.0, -1.0))
    theirs = torch.where(lot < 0.5, off, mine)  # one unit in the last place, up or down, of every second
    found = apart(*(Blocks.of(to_bytes({"a": each})) for each in (mine, theirs, before)))
    assert 2 * found < FAR or (mine.bfloat16() == before.bfloat16()).all()
