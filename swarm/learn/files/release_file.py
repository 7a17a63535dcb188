"""The bytes of a release as tensors in pieces: neither reader nor writer holds more than one piece.

    8 bytes: length of the header | header (JSON, names sorted): name -> dtype, shape, place | bf16 values

    name -> shape --header--> bytes, and after them the values in this order
    Blocks --ReleaseFile--> shapes, finite? -> pieces of a tensor, as rows

The format is safetensors' (https://huggingface.co/docs/safetensors), written bit for bit as its own library
writes it. A file comes from a stranger: the header is checked before anything is read by it, and bytes that
are no release of finite bf16 tensors, one after the other, are a ValueError. Not handled: which names and
shapes a model has (swarm.learn.files.weights).
"""

from __future__ import annotations

import errno
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor

from swarm.learn.files import safetensors_header
from swarm.storage.blocks import Blocks, Damaged

PIECE = 1 << 20
"""Values of a piece: 2 MiB as they are released, about 10 MB with intermediate results."""

_LENGTH = safetensors_header.LENGTH
_LONGEST = 100_000_000
"""Bytes of a header at most, as in safetensors."""

_INFINITE = np.uint16(0x7F80)
"""The exponent of a bfloat16 that is infinite or no number."""


class _Entry(msgspec.Struct):
    """Of a header."""

    dtype: str
    shape: list[Annotated[int, msgspec.Meta(ge=0)]]
    data_offsets: tuple[int, int]


class TensorSpan(NamedTuple):
    """A tensor's shape, and where its values begin and end."""

    shape: tuple[int, ...]
    start: int
    stop: int


class Contents(NamedTuple):
    """A release's header, without its values."""

    places: dict[str, TensorSpan]
    leaves: tuple[str, ...]


class ReleaseFile:
    """Reads a release. Raises ValueError when it is none."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks, self._room = blocks, bytearray()
        try:
            self.places = dict(_places(blocks))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ValueError(f"these weights cannot be read: {error}") from error

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: place.shape for name, place in self.places.items()}

    @property
    def contents(self) -> Contents:
        return Contents(self.places, self._blocks.leaves)

    def changed(self, before: Contents | None) -> set[str]:
        """Names of the tensors that may differ from those of `before`: all, where that is None or of another
        model."""
        if before is None or before.places != self.places:
            return set(self.places)
        return {name for name in self.places if self._numbers(name) & self._differing(before)}

    def _differing(self, before: Contents) -> set[int]:
        pairs = enumerate(zip(before.leaves, self._blocks.leaves, strict=True))
        return {number for number, (old, new) in pairs if old != new}

    def _numbers(self, name: str) -> set[int]:
        """Numbers of the blocks in which a tensor lies."""
        place, step = self.places[name], self._blocks.step
        return set(range(place.start // step, -(-place.stop // step)))

    def check(self, names: Collection[str]) -> None:
        """Read the blocks of these tensors. Raises ValueError for a value that is not finite, Damaged for a
        block that is not the release's."""
        begin = min((place.start for place in self.places.values()), default=0)
        room = bytearray(self._blocks.step)
        for number in sorted(set().union(*map(self._numbers, names))):
            at = number * self._blocks.step
            skip = max(0, begin - at)
            values = np.frombuffer(self._blocks.into(number, room), "<u2", offset=skip)
            infinite = np.flatnonzero((values & _INFINITE) == _INFINITE)
            if len(infinite):
                name = self._at(at + skip + 2 * int(infinite[0]))
                raise ValueError(f"these weights cannot be used: {name} holds values that are not finite")

    def _at(self, byte: int) -> str:
        """Name of the tensor that has this byte."""
        return next(name for name, place in self.places.items() if place.start <= byte < place.stop)

    def pieces(self, name: str) -> Iterator[tuple[slice, Tensor]]:
        """Rows of a tensor (of one row, where it has no dimension) and their values, bfloat16, in memory
        that the next piece takes."""
        shape, start, _ = self.places[name]
        rows, *rest = shape or (1,)
        of_row = math.prod(rest)
        step = max(1, PIECE // max(1, of_row))
        for row in range(0, rows, step):
            count = min(step, rows - row)
            begin = start + 2 * row * of_row
            data = self._read(begin, begin + 2 * count * of_row)
            values = torch.frombuffer(data, dtype=torch.bfloat16) if len(data) else torch.empty(0)
            yield slice(row, row + count), values.to(torch.bfloat16).view(count, *rest)

    def _read(self, start: int, stop: int) -> memoryview:
        """Bytes after `check`, when a module is changed already. Raises OSError."""
        if stop - start > len(self._room):
            self._room = bytearray(stop - start)
        room = memoryview(self._room)[: stop - start]
        try:
            self._blocks.source.fill(start, room)
        except Damaged as error:
            raise OSError(errno.EIO, str(error)) from error
        return room

    def tensor(self, name: str) -> Tensor:
        """The whole tensor, bfloat16."""
        out = torch.empty(self.places[name].shape, dtype=torch.bfloat16)
        for rows, piece in self.pieces(name):
            torch.atleast_1d(out)[rows] = piece
        return out


def header(shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    """The bytes before the values of these tensors, whose names are sorted."""
    tensors = {name: ("BF16", shape, 2 * math.prod(shape)) for name, shape in shapes.items()}
    # from_pretrained refuses a file without this entry.
    return safetensors_header.header(tensors, {"format": "pt"})


def values(tensor: Tensor) -> Iterator[memoryview]:
    """A tensor of any float dtype as it is released, in pieces."""
    tensor = torch.atleast_1d(tensor.detach())
    rows = max(1, PIECE * len(tensor) // max(1, tensor.numel()))
    for piece in tensor.split(rows):
        if piece.numel():
            flat = piece.to(torch.bfloat16).cpu().contiguous().view(-1)  # half as much leaves a GPU
            yield memoryview(flat.view(torch.uint8).numpy())


def _places(blocks: Blocks) -> Iterator[tuple[str, TensorSpan]]:
    """Names and places in the file's order. Raises ValueError or msgspec's."""
    if blocks.size < _LENGTH:
        raise ValueError(f"{blocks.size} bytes have no header")
    length = int.from_bytes(blocks.source.read(0, _LENGTH), "little")
    end = _LENGTH + length
    if length > _LONGEST or end > blocks.size or length % 2:
        raise ValueError(f"a header of {length} bytes in a file of {blocks.size}")
    said = msgspec.json.decode(bytes(blocks.source.read(_LENGTH, end)), type=dict[str, msgspec.Raw])
    said.pop("__metadata__", None)
    entries = [(name, msgspec.json.decode(raw, type=_Entry)) for name, raw in said.items()]
    for name, entry in sorted(entries, key=lambda item: item[1].data_offsets):
        if entry.dtype != "BF16":
            raise ValueError(f"{name} is {entry.dtype}: a policy travels as bfloat16 (BF16)")
        start, stop = (_LENGTH + length + offset for offset in entry.data_offsets)
        if start != end or stop - start != 2 * math.prod(entry.shape):
            raise ValueError(f"{name} of the shape {entry.shape} has the bytes from {start} to {stop}")
        end = stop
        yield name, TensorSpan(tuple(entry.shape), start, stop)
    if end != blocks.size:
        raise ValueError(f"tensors of {end} bytes in a file of {blocks.size}")
