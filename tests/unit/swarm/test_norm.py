"""The norm of gradients of any size: right, the same everywhere, and a guard against what is not finite."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarm.norm import PART, norm


@given(st.lists(st.floats(width=32) | st.sampled_from([math.inf, math.nan, 3.4e38]), max_size=40))
def test_a_norm_is_finite_only_where_all_values_are(values: list[float]) -> None:
    tensor = torch.tensor(values, dtype=torch.float32)
    assert not math.isfinite(norm(tensor)) or bool(torch.isfinite(tensor).all())
    small = tensor.clamp(-1e15, 1e15)
    assert math.isfinite(norm(small)) == bool(torch.isfinite(small).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_norm_counts_every_value_of_a_tensor_of_any_size_shape_and_type(dtype: torch.dtype) -> None:
    tensor = torch.full((3, PART + 7), 2.0**-10, dtype=dtype)
    tensor[2, 5] = 64.0
    exact = math.sqrt((tensor.numel() - 1) * 2.0**-20 + 64.0**2)
    assert norm(tensor) == pytest.approx(exact, rel=1e-5)
    assert norm(tensor.t()) == pytest.approx(exact, rel=1e-5)
    assert norm(torch.empty(0)) == 0.0


def test_the_norm_of_many_values_is_right_to_eight_digits_with_any_number_of_threads() -> None:
    values = torch.randn(16_000_000, generator=torch.Generator().manual_seed(1))
    exact = math.sqrt(float(values.double().square().sum()))
    threads, found = torch.get_num_threads(), set()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found.add(norm(values))
    finally:
        torch.set_num_threads(threads)
    assert len(found) == 1 and found.pop() == pytest.approx(exact, rel=1e-8)
