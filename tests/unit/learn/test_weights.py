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

from swarm.learn.files import release_file, weights
from swarm.storage.blocks import Blocks


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
    weights.load_into(two, Blocks.of(data))
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
            weights.load_into(module, Blocks.of(weights.to_bytes(state)))
    assert torch.equal(module.first.weight, before)


def test_an_unknown_element_type_is_refused() -> None:
    header = json.dumps({"a": {"dtype": "Q7", "shape": [1], "data_offsets": [0, 1]}}).encode()
    with pytest.raises(ValueError, match="cannot be read"):
        weights.from_bytes(struct.pack("<Q", len(header)) + header + b"\0")


VALUES = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**127), max_value=2.0**127)


@settings(max_examples=200, deadline=None)
@given(pairs=st.lists(st.tuples(VALUES, st.one_of(st.none(), VALUES)), max_size=20))
def test_a_master_that_follows_would_be_released_as_what_it_follows_and_moves_only_where_it_must(
    pairs: list[tuple[float, float | None]],
) -> None:
    before = torch.tensor([mine for mine, _ in pairs])
    released = torch.tensor([mine if told is None else told for mine, told in pairs]).bfloat16()
    master = before.clone()
    weights.follow(master, released)
    assert weights.to_bytes({"a": master}) == weights.to_bytes({"a": released})
    moved = master.view(torch.int32) != before.view(torch.int32)
    assert torch.equal(
        moved & (before.bfloat16().view(torch.int16) == released.view(torch.int16)), torch.zeros_like(moved)
    )


def test_a_zero_follows_its_sign_or_its_release_would_be_another() -> None:
    master = torch.tensor([0.0, -0.0, -1e-45])
    weights.follow(master, torch.tensor([-0.0, 0.0, 0.0], dtype=torch.bfloat16))
    assert torch.equal(torch.signbit(master), torch.tensor([True, False, False]))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (7, 3), (5, 2, 2)])
def test_weights_of_every_shape_are_loaded_piece_by_piece(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release_file, "PIECE", 4)
    module = torch.nn.ParameterDict({"a": torch.zeros(shape)})
    weights.load_into(module, Blocks.of(weights.to_bytes({"a": torch.ones(shape)})))
    assert torch.equal(module["a"], torch.ones(shape))


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
