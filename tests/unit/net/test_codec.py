"""Parts on the wire: small gradients stay, large ones stay finite, what cannot be a part is refused."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from hivemind.compression import CompressionInfo
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.net.averaging.codec import Codec, PartError
from swarm.norm import norm

HALVES, BYTES = Codec("float16"), Codec("int8")
HEAD = struct.Struct("<f")


def heavy_tailed(values: int, size: float) -> torch.Tensor:
    """A gradient of `values` elements in all and the L2 norm `size`, of which this is a part: Student's t
    with three degrees."""
    torch.manual_seed(3)
    part = torch.distributions.StudentT(3.0).sample((262_144,))
    return part * (size / norm(part) * math.sqrt(part.numel() / values))


@pytest.mark.parametrize("values", [600_000_000, 8_000_000_000])
@pytest.mark.parametrize("size", [1.0, 0.01, 1e-4])
def test_gradients_of_large_models_survive_float16(values: int, size: float) -> None:
    part = heavy_tailed(values, size)
    read = HALVES.extract(HALVES.compress(part))
    assert float((read != 0).float().mean()) > 0.999
    assert norm(read - part) / norm(part) < 1e-3
    assert float(((read - part).abs() / part.abs()).quantile(0.999)) < 1e-3


@pytest.mark.parametrize("largest", [7e4, 1e9, 3e38])
def test_values_above_what_float16_holds_stay_finite(largest: float) -> None:
    part = torch.tensor([largest, -largest, largest / 1000, 0.0])
    torch.testing.assert_close(HALVES.extract(HALVES.compress(part)), part, rtol=1e-3, atol=0)


@given(st.lists(st.floats(-1e38, 1e38), min_size=1, max_size=30))
@settings(max_examples=200, deadline=None)
def test_any_finite_part_comes_back_finite_and_as_its_sender_keeps_it(values: list[float]) -> None:
    part = torch.tensor(values, dtype=torch.float32)
    read = HALVES.extract(HALVES.compress(part))
    assert bool(torch.isfinite(read).all())
    assert read.numpy().tobytes() == HALVES.as_sent(part)[1].numpy().tobytes()
    largest = float(part.abs().max())
    torch.testing.assert_close(read, part, rtol=5e-4, atol=max(2e-12 * largest, 1e-45))


@pytest.mark.parametrize("largest", [3e38, 1.0, 65504.0, 2.0**-20, 1e-30])
def test_the_largest_value_takes_the_upper_end_of_what_float16_holds(largest: float) -> None:
    packed = HALVES.compress(torch.tensor([largest / 3, -largest]))
    values = torch.frombuffer(bytearray(packed.buffer[HEAD.size :]), dtype=torch.float16)
    assert 2.0**14 <= float(values.abs().max()) < 2.0**15


def test_zeros_and_the_smallest_values_of_float32_travel() -> None:
    for value in (0.0, 1e-45, 2.0**-126):
        part = torch.tensor([value, -value, 0.0])
        assert torch.equal(HALVES.extract(HALVES.compress(part)), part)


@pytest.mark.parametrize(("name", "item"), [("float16", 2), ("none", 4)])
def test_a_part_costs_its_scale_and_its_values(name: str, item: int) -> None:
    codec, part = Codec(name), torch.randn(3, 5)
    packed = codec.compress(part)
    assert len(packed.buffer) == codec.size(15) == HEAD.size + 15 * item
    assert codec.extract(packed).shape == part.shape
    info = CompressionInfo.from_tensor(part)
    assert codec.estimate_compression_ratio(info) == item / 4


def test_a_part_of_another_kind_is_refused_though_its_size_fits() -> None:
    packed = HALVES.compress(torch.ones(4))
    packed.compression = Codec("none").compress(torch.ones(4)).compression
    with pytest.raises(PartError, match="bytes came where"):
        HALVES.read(packed, torch.Size([4]))


def test_float32_travels_as_it_is() -> None:
    part = torch.randn(100)
    assert torch.equal(Codec("none").extract(Codec("none").compress(part)), part)


@pytest.mark.parametrize("scale", [0.0, -1.0, 3.0, 1e-40, 2.0**-127, float("inf"), float("nan")])
def test_a_scale_that_is_none_is_refused(scale: float) -> None:
    packed = HALVES.compress(torch.ones(4))
    packed.buffer = HEAD.pack(scale) + packed.buffer[HEAD.size :]
    with pytest.raises(PartError, match="scale"):
        HALVES.read(packed, torch.Size([4]))


def test_a_part_of_another_size_is_refused_before_anything_is_allocated() -> None:
    packed = HALVES.compress(torch.ones(4))
    with pytest.raises(PartError, match="bytes came where 14"):
        HALVES.read(packed, torch.Size([5]))
    packed.size[0] = 1 << 30
    with pytest.raises(PartError, match="of shape"):
        HALVES.read(packed, torch.Size([4]))


@pytest.mark.parametrize("size", [0, 3, 11, 13])
def test_a_part_without_exactly_the_bytes_of_its_shape_is_refused(size: int) -> None:
    packed = HALVES.compress(torch.ones(4))
    packed.buffer = bytes(packed.buffer + b"\0")[:size]
    with pytest.raises(PartError, match=f"a part of {size} bytes came where 12 "):
        HALVES.extract(packed)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_not_sent(bad: float) -> None:
    with pytest.raises(PartError, match="not finite"):
        HALVES.compress(torch.tensor([1.0, bad]))


def test_8_bits_have_half_the_bytes_of_float16_and_lose_a_hundredth() -> None:
    part = heavy_tailed(600_000_000, 1e-4)
    packed = BYTES.compress(part)
    assert len(packed.buffer) < 0.54 * len(HALVES.compress(part).buffer)
    assert norm(BYTES.extract(packed) - part) < 0.015 * norm(part)


@given(
    st.lists(st.floats(-(2.0**126), 2.0**126, width=32), min_size=1, max_size=200),
    st.sampled_from([1.0, 1e-20, 1e-38, 1e-45]),
)
@settings(max_examples=200, deadline=None)
def test_an_8_bit_value_is_off_by_half_a_step_of_its_row_and_as_its_sender_keeps_it(
    values: list[float], unit: float
) -> None:
    part = torch.tensor(values, dtype=torch.float32) * unit
    packed = BYTES.compress(part)
    read = BYTES.extract(packed)
    assert len(packed.buffer) == BYTES.size(len(values))
    assert read.numpy().tobytes() == BYTES.as_sent(part)[1].numpy().tobytes()
    for row, found in zip(part.split(64), read.split(64), strict=True):
        step = float(row.abs().max()) / 127
        assert float((row.double() - found.double()).abs().max()) <= max(0.5001 * step, 127 * 2.0**-126)


@pytest.mark.parametrize("scale", [-1.0, 3e38, float("inf"), float("nan")])
def test_a_rows_scale_that_is_none_is_refused(scale: float) -> None:
    packed = BYTES.compress(torch.ones(100))
    packed.buffer = packed.buffer[:4] + HEAD.pack(scale) + packed.buffer[8:]
    with pytest.raises(PartError, match="scale"):
        BYTES.read(packed, torch.Size([100]))


@pytest.mark.parametrize("shape", [(64,), (65,), (1,), (3, 5)])
def test_rows_that_are_not_full_keep_shape_and_size(shape: tuple[int, ...]) -> None:
    part = torch.randn(shape)
    packed = BYTES.compress(part)
    assert BYTES.read(packed, part.shape).shape == BYTES.as_sent(part)[1].shape == part.shape
    packed.buffer = packed.buffer[:-1]
    with pytest.raises(PartError, match="bytes came where"):
        BYTES.read(packed, part.shape)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_not_sent_in_8_bits(bad: float) -> None:
    with pytest.raises(PartError, match="not finite"):
        BYTES.compress(torch.tensor([1.0, bad]))
