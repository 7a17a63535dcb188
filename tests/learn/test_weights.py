"""Policies as bytes."""

from __future__ import annotations

import json
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import nn

from swarm.learn import weights


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.last = nn.Linear(3, 3, bias=False)
        self.last.weight = self.first.weight


def test_bytes_do_not_depend_on_the_order_of_names() -> None:
    a, b = torch.randn(2, 3), torch.randn(4)
    assert weights.to_bytes({"a": a, "b": b}) == weights.to_bytes({"b": b, "a": a})


def test_weights_come_back_as_bfloat16() -> None:
    a = torch.randn(5, 7)
    assert torch.equal(weights.from_bytes(weights.to_bytes({"a": a}))["a"], a.bfloat16())


def test_tied_weights_travel_once_and_load_into_both_names() -> None:
    one, two = Tied(), Tied()
    data = weights.to_bytes(one.state_dict())
    assert list(weights.from_bytes(data)) == ["last.weight"]
    weights.load_into(two, data)
    assert two.last.weight is two.first.weight
    assert torch.equal(two.last.weight, one.first.weight.bfloat16().float())


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "cannot be read"),
        (b"\xff" * 100, "cannot be read"),
        (struct.pack("<Q", 1 << 60) + b"{}", "cannot be read"),
        (struct.pack("<Q", 8) + b"not json", "cannot be read"),
        (save({"a": torch.zeros(2)}), "travels as bfloat16"),
        (weights.to_bytes({"a": torch.tensor([1.0, float("nan")])}), "not finite"),
    ],
)
def test_bad_bytes_are_refused_with_the_reason(data: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        weights.from_bytes(data)


def test_weights_of_another_model_are_refused_and_change_nothing() -> None:
    module = Tied()
    before = module.first.weight.clone()
    for state in ({"first.weight": torch.zeros(3, 4)}, {"second.weight": torch.zeros(3, 3)}, {}):
        with pytest.raises(ValueError, match="another model"):
            weights.load_into(module, weights.to_bytes(state))
    assert torch.equal(module.first.weight, before)


def test_an_unknown_element_type_is_refused() -> None:
    header = json.dumps({"a": {"dtype": "Q7", "shape": [1], "data_offsets": [0, 1]}}).encode()
    with pytest.raises(ValueError, match="cannot be read"):
        weights.from_bytes(struct.pack("<Q", len(header)) + header + b"\0")


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, 10_000), value=st.integers(0, 255))
def test_a_flipped_byte_is_refused_or_decoded_but_never_crashes(at: int, value: int) -> None:
    data = bytearray(weights.to_bytes({"a": torch.ones(3, 3), "b": torch.ones(5)}))
    data[at % len(data)] = value
    try:
        tensors = weights.from_bytes(bytes(data))
    except ValueError:
        return
    assert all(torch.isfinite(t).all() for t in tensors.values())
