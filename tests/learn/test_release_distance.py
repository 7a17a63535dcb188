"""How far a release is from the one that its round made, in steps of the round."""

from __future__ import annotations

import math

import pytest
import torch

from swarm.blocks import Blocks
from swarm.learn.release_distance import apart
from swarm.learn.weights import to_bytes


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
