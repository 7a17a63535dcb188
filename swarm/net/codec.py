"""Codec of tensor parts in averaging: a scale, then the values divided by it, as float16 or float32.

    float32 part -> [scale: float32 | values] -> float32 part

float16 holds 6e-8 to 65504 (IEEE 754 binary16): gradients of large models lie below, and one value may lie
above. So each part has a scale of its own, as loss scaling does for a whole model (Micikevicius et al. 2018,
arXiv 1710.03740): the largest value comes to lie in [2^14, 2^15), which keeps all eleven bits of whatever is
5e-9 of it or more and makes zero of nothing above 2e-12 of it. The scale is a power of two: dividing and
multiplying by it round nothing. Sizes are compared before anything is allocated; a scale that is no such
number is refused.
"""

from __future__ import annotations

import math
import struct

import torch
from hivemind.compression import CompressionBase, CompressionInfo
from hivemind.proto import runtime_pb2

DTYPES = {"float16": torch.float16, "none": torch.float32}
TOP = 15
"""The largest value is below 2^15: rounding it up leaves it below the 65504 of float16."""

LOWEST, HIGHEST = -126, 127
"""Exponents of the scales that float32 can multiply and divide by exactly."""

SCALE = struct.Struct("<f")


class PartError(Exception):
    """A part has another size, shape or encoding than agreed, or a value that is not finite."""


class Codec(CompressionBase):  # type: ignore[misc]
    """Encodes and decodes parts; a CompressionBase of hivemind."""

    def __init__(self, name: str) -> None:
        """`name`: a key of DTYPES; values of `none` are not scaled."""
        self._dtype = DTYPES[name]
        self._kind = (
            runtime_pb2.CompressionType.FLOAT16 if name == "float16" else runtime_pb2.CompressionType.NONE
        )

    def size(self, values: int) -> int:
        """Bytes of a part."""
        return SCALE.size + values * int(self._dtype.itemsize)

    def compress(
        self, tensor: torch.Tensor, info: CompressionInfo | None = None, allow_inplace: bool = False
    ) -> runtime_pb2.Tensor:
        """Raises PartError when a value is not finite."""
        scale, values = self._encoded(tensor.detach())
        buffer = b"".join((SCALE.pack(scale), values.numpy().data))
        return runtime_pb2.Tensor(buffer=buffer, size=tensor.shape, dtype="float32", compression=self._kind)

    def extract(self, packed: runtime_pb2.Tensor) -> torch.Tensor:
        """For hivemind: as `read`, with the shape that the part itself announces."""
        return self.read(packed, torch.Size(packed.size))

    def read(self, packed: runtime_pb2.Tensor, shape: torch.Size) -> torch.Tensor:
        """Raises PartError."""
        values = math.prod(shape)
        size = self.size(values)
        if (
            packed.compression != self._kind
            or tuple(packed.size) != tuple(shape)
            or len(packed.buffer) != size
        ):
            raise PartError(
                f"a part of {len(packed.buffer)} bytes came where {size} of shape {tuple(shape)} belong"
            )
        (scale,) = SCALE.unpack_from(packed.buffer)
        if not 2.0**LOWEST <= scale <= 2.0**HIGHEST or math.frexp(scale)[0] != 0.5:
            raise PartError(
                f"a part came with the scale {scale}, which is no power of two that float32 holds"
            )
        part = torch.frombuffer(bytearray(packed.buffer), dtype=self._dtype, offset=SCALE.size, count=values)
        return self._decoded(scale, part).reshape(shape)

    def as_received(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values as receivers decode them, without encoding bytes."""
        return self._decoded(*self._encoded(tensor))

    def estimate_compression_ratio(self, info: CompressionInfo) -> float:
        return float(self._dtype.itemsize / torch.float32.itemsize)

    def _encoded(self, tensor: torch.Tensor) -> tuple[float, torch.Tensor]:
        if self._dtype is torch.float32:
            return 1.0, tensor.contiguous()
        ends = [abs(float(end)) for end in torch.aminmax(tensor)]
        if not all(map(math.isfinite, ends)):
            raise PartError("a part of my own is not finite")
        scale = 2.0 ** min(max(math.frexp(max(ends))[1] - TOP, LOWEST), HIGHEST)
        return scale, (tensor * (1.0 / scale)).to(self._dtype)

    def _decoded(self, scale: float, values: torch.Tensor) -> torch.Tensor:
        part = values.float()
        return part if scale == 1.0 else part.mul_(scale)
