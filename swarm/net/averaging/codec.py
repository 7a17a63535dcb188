"""Codec of tensor parts in averaging: float32, float16 with a scale, or 8-bit integers with a scale a row.

    float32 part -> [scale: float32 | values]                         none, float16
                 -> [scale of each row of 64: float32 | int8 values]  int8          -> float32 part

float16 holds 6e-8 to 65504 (IEEE 754 binary16): gradients of large models lie below, and one value may lie
above. So each part has a scale of its own, as loss scaling does for a whole model (Micikevicius et al. 2018,
arXiv 1710.03740): the largest value comes to lie in [2^14, 2^15), which keeps all eleven bits of values down
to 5e-9 of it and makes zero of nothing above 2e-12 of it. The scale is a power of two: dividing and
multiplying by it round nothing.

int8 has half the bytes: a row's values are multiples of a 127th of its largest (blockwise quantization,
Dettmers et al. 2022, arXiv 2110.02861, with linear steps), so an error is at most a 254th of that, and
smaller values become zero. The error of normal values is 0.6 % of their norm, of Student's t with three
degrees 1 %.

Sizes are compared before anything is allocated; a scale that is no such number is refused.
"""

from __future__ import annotations

import math
import struct
import warnings
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
import torch.nn.functional as F
from hivemind.compression import CompressionBase, CompressionInfo
from hivemind.proto import runtime_pb2

TOP = 15
"""The largest value is below 2^15: rounding it up leaves it below the 65504 of float16."""

LOWEST, HIGHEST = -126, 127
"""Exponents of the scales that float32 can multiply and divide by exactly."""

SCALE = struct.Struct("<f")

ROW = 64
"""Values that share a scale: its four bytes are a sixteenth of theirs."""

STEPS = 127
"""Steps of 8 bits on each side of zero."""


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    # torch warns once a process that bytes cannot be written to: they are not written to here.
    torch.frombuffer(bytes(1), dtype=torch.uint8)


class PartError(Exception):
    """A part has another size, shape or encoding than agreed, or a value that is not finite."""


class Encoding(Protocol):
    """The format of a part's values on the wire."""

    kind: int
    """hivemind's number of a similar compression: parts of two encodings are not mistaken for each other."""

    item: float
    """Bytes of a value, its share of a row's scale included."""

    def size(self, values: int) -> int:
        """Bytes of a part."""
        ...

    def encode(self, tensor: torch.Tensor) -> tuple[bytes, Callable[[], torch.Tensor]]:
        """The bytes, and what makes the values that `decode` gives of them. Raises PartError when a value is
        not finite."""
        ...

    def decode(self, data: bytes, values: int) -> torch.Tensor:
        """(values,) float32 of `size(values)` bytes. Raises PartError."""
        ...


class Scaled:
    """One scale, then the values divided by it; float32 values are not scaled."""

    def __init__(self, dtype: torch.dtype, kind: int) -> None:
        self._dtype, self.kind, self.item = dtype, kind, float(dtype.itemsize)

    def size(self, values: int) -> int:
        return SCALE.size + values * int(self._dtype.itemsize)

    def encode(self, tensor: torch.Tensor) -> tuple[bytes, Callable[[], torch.Tensor]]:
        scale, values = self._encoded(tensor)
        return b"".join((SCALE.pack(scale), values.numpy().data)), lambda: self._decoded(scale, values)

    def decode(self, data: bytes, values: int) -> torch.Tensor:
        (scale,) = SCALE.unpack_from(data)
        if not 2.0**LOWEST <= scale <= 2.0**HIGHEST or math.frexp(scale)[0] != 0.5:
            raise PartError(
                f"a part came with the scale {scale}, which is no power of two that float32 holds"
            )
        return self._decoded(scale, _values(data, self._dtype, SCALE.size, values))

    def _encoded(self, tensor: torch.Tensor) -> tuple[float, torch.Tensor]:
        if self._dtype is torch.float32:
            return 1.0, tensor.contiguous()
        scale = 2.0 ** min(max(math.frexp(_largest(tensor))[1] - TOP, LOWEST), HIGHEST)
        return scale, (tensor * (1.0 / scale)).to(self._dtype)

    def _decoded(self, scale: float, values: torch.Tensor) -> torch.Tensor:
        part = values.to(torch.float32, copy=True)
        return part if scale == 1.0 else part.mul_(scale)


class Rows:
    """A scale for each row of values, then the values as multiples of it."""

    kind = runtime_pb2.CompressionType.BLOCKWISE_8BIT
    item = 1 + SCALE.size / ROW

    def size(self, values: int) -> int:
        return SCALE.size * -(-values // ROW) + values

    def encode(self, tensor: torch.Tensor) -> tuple[bytes, Callable[[], torch.Tensor]]:
        scales, steps = self._encoded(tensor)
        data = b"".join((scales.numpy().data, steps.reshape(-1)[: tensor.numel()].numpy().data))
        return data, lambda: self._decoded(scales, steps)[: tensor.numel()].view(tensor.shape)

    def decode(self, data: bytes, values: int) -> torch.Tensor:
        count = -(-values // ROW)
        scales = _values(data, torch.float32, 0, count)
        if not bool(((scales >= 0) & (scales <= torch.finfo(torch.float32).max / STEPS)).all()):
            raise PartError("a part came with a scale that is negative, not finite or too large")
        steps = _values(data, torch.int8, SCALE.size * count, values)
        return self._decoded(scales, F.pad(steps, (0, count * ROW - values)).view(count, ROW))[:values]

    def _encoded(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(rows,) float32 scales, (rows, ROW) int8 steps."""
        _largest(tensor)
        flat = tensor.reshape(-1)
        rows = F.pad(flat, (0, -len(flat) % ROW)).view(-1, ROW)
        low, high = rows.aminmax(dim=1)
        scales = torch.maximum(high, -low).div_(STEPS)
        # Below the smallest normal number a scale would be rounded: such a row becomes zeros.
        scales[scales < torch.finfo(torch.float32).tiny] = 0
        steps = rows * scales.reciprocal().nan_to_num_(posinf=0.0)[:, None]
        return scales, steps.round_().to(torch.int8)

    def _decoded(self, scales: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        return (steps.float() * scales[:, None]).reshape(-1)


ENCODINGS: Mapping[str, Encoding] = {
    "none": Scaled(torch.float32, runtime_pb2.CompressionType.NONE),
    "float16": Scaled(torch.float16, runtime_pb2.CompressionType.FLOAT16),
    "int8": Rows(),
}
"""By the names of `run.averaging.compression`."""


class Codec(CompressionBase):  # type: ignore[misc]
    """Encodes and decodes parts; a CompressionBase of hivemind."""

    def __init__(self, name: str) -> None:
        """`name`: a key of ENCODINGS."""
        self._encoding = ENCODINGS[name]

    def size(self, values: int) -> int:
        """Bytes of a part."""
        return self._encoding.size(values)

    def compress(
        self, tensor: torch.Tensor, info: CompressionInfo | None = None, allow_inplace: bool = False
    ) -> runtime_pb2.Tensor:
        """Raises PartError when a value is not finite."""
        return self._packed(tensor, self._encoding.encode(tensor.detach())[0])

    def as_sent(self, tensor: torch.Tensor) -> tuple[runtime_pb2.Tensor, torch.Tensor]:
        """A part, and its values as receivers decode them. Raises PartError when a value is not finite."""
        buffer, decoded = self._encoding.encode(tensor.detach())
        return self._packed(tensor, buffer), decoded()

    def _packed(self, tensor: torch.Tensor, buffer: bytes) -> runtime_pb2.Tensor:
        return runtime_pb2.Tensor(
            buffer=buffer, size=tensor.shape, dtype="float32", compression=self._encoding.kind
        )

    def extract(self, packed: runtime_pb2.Tensor) -> torch.Tensor:
        """For hivemind: as `read`, with the shape that the part itself announces."""
        return self.read(packed, torch.Size(packed.size))

    def read(self, packed: runtime_pb2.Tensor, shape: torch.Size) -> torch.Tensor:
        """Raises PartError."""
        return self.decoded(self.data(packed, shape), shape)

    def data(self, packed: runtime_pb2.Tensor, shape: torch.Size) -> bytes:
        """The bytes of a part of this shape, a copy. Raises PartError."""
        data, size = packed.buffer, self.size(math.prod(shape))
        if (
            packed.compression != self._encoding.kind
            or tuple(packed.size) != tuple(shape)
            or len(data) != size
        ):
            raise PartError(f"a part of {len(data)} bytes came where {size} of shape {tuple(shape)} belong")
        return bytes(data)

    def decoded(self, data: bytes, shape: torch.Size) -> torch.Tensor:
        """Its values. Raises PartError."""
        return self._encoding.decode(data, math.prod(shape)).reshape(shape)

    def estimate_compression_ratio(self, info: CompressionInfo) -> float:
        return self._encoding.item / torch.float32.itemsize


def _values(data: bytes, dtype: torch.dtype, offset: int, count: int) -> torch.Tensor:
    """To be read only."""
    return torch.frombuffer(data, dtype=dtype, offset=offset, count=count)


def _largest(tensor: torch.Tensor) -> float:
    """The largest absolute value. Raises PartError when it is not finite."""
    ends = [abs(float(end)) for end in torch.aminmax(tensor)]
    if not all(map(math.isfinite, ends)):
        raise PartError("a part of my own is not finite")
    return max(ends)
