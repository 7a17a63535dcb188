"""A block of released weights as a patch on the same block of an earlier version, lossless for any bytes.

    encode(old, new)             -> patch of one block, b"" when nothing changed
    apply(old, patch)            -> new                   change(old, patch): the same in place
    compose([v -> v+1, ...], n)  -> the patch v -> v+k of a block of n bytes, without any block

A block is read as little-endian 16-bit values, one bfloat16 each; an odd last byte counts as one with a zero
above it. A patch holds the *difference* of two values as integers, mod 2^16: a step of a real optimizer moves
most of those that change to a neighbour, and no pattern of bits is special. Differences add up, so patches
compose; applied twice, or to another block, they give other bytes, so a caller compares digests.

    patch  = codec (1 byte), block's bytes (uint32), body; integers are little-endian, streams zstd frames
    raw    = the new block
    sparse = count, bytes of the first stream, of the second (uint32 each), three streams:
             gaps    a byte per changed value: unchanged ones before it; 255 means 255 and more to come
             codes   2 bits per changed value, the lowest first: up by 1, down by 1, up or down by more
             sizes   a byte per value that changed by more: by how much more than 2; where it is 255, that
                     stands behind all these bytes as a uint16
    planes = bytes of the first stream (uint32), two streams: low, then high bytes of all differences, the
             sign in the lowest bit

A patch comes from a stranger: each length is checked against the block's before anything of that length is
allocated, and everything that is not a patch of a block of this length is a PatchError. Not handled here:
files, manifests, digests, threads.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarm.frames.compression import CompressionError, Zstd

Block = bytes | bytearray | memoryview
Values = NDArray[Any]
"""Little-endian uint16."""

Octets = NDArray[Any]
"""uint8"""

Positions = NDArray[Any]
"""int64, ascending."""

RAW, SPARSE, PLANES = 1, 2, 3
"""Codecs. Other numbers are free, such as for positions in the order of the base's exponents."""

LEVEL = 1
"""Of zstd. Its input has no repetitions worth a longer search: level 3 makes nothing smaller."""

FEW = 8
"""A sparse patch below a part in FEW of its block is taken without a look at the other codecs, which cost
several times its time."""

MORE = 255
"""Byte that a following one adds to."""

_VALUE = np.dtype("<u2")
_HEAD = struct.Struct("<BI")
_SPARSE = struct.Struct("<III")
_PLANES = struct.Struct("<I")
_BY_CODE = np.array([1, -1, 2, -2]).astype(_VALUE)
_OF_CODES = _BY_CODE[np.arange(256)[:, None] >> [0, 2, 4, 6] & 3]
"""(256, 4): the four differences that a byte of codes stands for, before the sizes of the even ones are
added."""


class _Mine(threading.local):
    """A thread's own."""

    def __init__(self) -> None:
        self.zstd = Zstd(LEVEL)


_mine = _Mine()


class PatchError(ValueError):
    """These bytes are no patch of such a block; the message gives the reason."""


def encode(old: Block, new: Block) -> bytes:
    """The patch that makes `new` of `old`: the smallest codec's. Deterministic.

    Raises ValueError when they differ in length.
    """
    size = _length(old)
    if size != _length(new):
        raise ValueError(f"a patch keeps the length of its block: {size} bytes, then {_length(new)}")
    patch = _of_difference(_values(new) - _values(old), size)
    if len(patch) * FEW > size:
        patch = min(patch, _raw(new, size), key=len)
    return patch


def apply(old: Block, patch: Block) -> memoryview:
    """The block that `patch` makes of `old`, of the same length, in memory of its own. Raises PatchError."""
    block = memoryview(bytearray(old))
    if _length(patch):
        change(block, patch)
    return block


def change(block: memoryview, patch: Block) -> None:
    """Turn `block`, which can be written, into what `patch` makes of it. Raises PatchError, and the block may
    have changed then."""
    size = _length(block)
    values = _values(block)
    _change(values, patch, size)
    if size % 2:  # then these are a copy
        block[:] = values.tobytes()[:size]


def compose(patches: Iterable[Block], size: int) -> bytes:
    """One patch with the effect of `patches` of a block of `size` bytes in turn. Raises PatchError.

    One that replaces the block (`raw`) makes those before it void, and the result replaces it too.
    """
    total = np.zeros(-(-size // 2), _VALUE)
    replaced = False
    for patch in patches:
        if _length(patch):
            replaced |= _change(total, patch, size) == RAW
    return _raw(total.tobytes()[:size], size) if replaced else _of_difference(total, size)


# --- differences to a patch ---------------------------------------------------------------------------------


def _of_difference(difference: Values, size: int) -> bytes:
    """`sparse` or `planes`, whichever is smaller."""
    positions = _nonzero(difference)
    if not len(positions):
        return b""
    patch = _HEAD.pack(SPARSE, size) + _sparse(positions, difference[positions])
    if len(patch) * FEW > size:
        patch = min(patch, _HEAD.pack(PLANES, size) + _planes(difference), key=len)
    return patch


def _nonzero(difference: Values) -> Positions:
    """Positions that are not 0, ascending. Four at a time are looked at first: few are set."""
    whole = len(difference) & ~3
    quads = difference[:whole].view(np.uint64)
    some = np.flatnonzero(quads != 0)
    inside = np.flatnonzero(quads[some].view(_VALUE) != 0)
    return np.append((some[inside >> 2] << 2) + (inside & 3), whole + np.flatnonzero(difference[whole:]))


def _raw(block: Block, size: int) -> bytes:
    return _HEAD.pack(RAW, size) + deflate(block)


def _sparse(positions: Positions, difference: Values) -> bytes:
    codes, sizes = _codes_and_sizes(difference)
    streams = deflate(encode_gaps(positions).data), deflate(codes.data), deflate(sizes)
    return _SPARSE.pack(len(positions), len(streams[0]), len(streams[1])) + b"".join(streams)


def encode_gaps(positions: Positions) -> Octets:
    """At least one position, ascending -> bytes that give the number of skipped ones before each."""
    gaps = np.diff(positions, prepend=-1)
    gaps -= 1
    if gaps.max() < MORE:
        return gaps.astype(np.uint8)
    more = gaps // MORE
    ends = np.arange(len(gaps)) + np.cumsum(more)
    octets = np.full(ends[-1] + 1, MORE, np.uint8)
    octets[ends] = gaps - MORE * more
    return octets


def _codes_and_sizes(difference: Values) -> tuple[Octets, bytes]:
    fell = difference >> 15
    change = np.where(fell, -difference, difference)
    large = change > 1
    codes = np.zeros(-(-len(change) // 4) * 4, np.uint8)
    codes[: len(change)] = fell
    codes[: len(change)] |= large.view(np.uint8) << 1
    extra = change[large] - 2
    sizes = np.minimum(extra, MORE).astype(np.uint8).tobytes() + extra[extra >= MORE].tobytes()
    return codes[0::4] | codes[1::4] << 2 | codes[2::4] << 4 | codes[3::4] << 6, sizes


def _planes(difference: Values) -> bytes:
    signed = difference << 1 ^ -(difference >> 15)
    low, high = (deflate(np.ascontiguousarray(plane).data) for plane in _bytes(signed).reshape(-1, 2).T)
    return _PLANES.pack(len(low)) + low + high


# --- a patch to values --------------------------------------------------------------------------------------


def _change(values: Values, patch: Block, size: int) -> int:
    """Apply `patch` to `values` in place and return its codec. Raises PatchError, and values may have changed
    then."""
    body = memoryview(patch).cast("B")
    if len(body) < _HEAD.size:
        raise PatchError(f"a patch has at least {_HEAD.size} bytes, not {len(body)}: it was cut off")
    codec, length = _HEAD.unpack_from(body)
    if codec not in _CHANGES:
        raise PatchError(f"patch of codec {codec}: damaged, or of a newer program than this")
    if length != size:
        raise PatchError(f"patch of a block of {length} bytes, and this one has {size}")
    _CHANGES[codec](values, body[_HEAD.size :], size)
    return int(codec)


def _change_raw(values: Values, body: memoryview, size: int) -> None:
    _bytes(values)[:size] = inflate(body, size, size)


def _change_sparse(values: Values, body: memoryview, size: int) -> None:
    (count, first, second), body = _lengths(_SPARSE, body)
    if not 0 < count <= len(values):
        raise PatchError(f"patch of {count} values in a block of {len(values)}")
    if first + second > len(body):
        raise PatchError(f"streams of {first} and {second} bytes in a patch with {len(body)} left")
    difference = _differences(body[first : first + second], body[first + second :], count)
    # np.add.at takes half the time of `values[positions] +=`.
    np.add.at(values, decode_gaps(body[:first], count, len(values)), difference)


def decode_gaps(stream: memoryview, count: int, values: int) -> Positions:
    """A deflated stream of gaps -> `count` positions (at least one) below `values`. Raises PatchError."""
    gaps = inflate(stream, count, count + values // MORE)
    ends = gaps != MORE
    if np.count_nonzero(ends) != count or not ends[-1]:
        raise PatchError(f"{np.count_nonzero(ends)} gaps for {count} values, or more of one behind the last")
    positions: Positions = np.add(gaps, ends, dtype=np.int64)
    positions.cumsum(out=positions)
    if len(gaps) > count:
        positions = positions[ends]
    positions -= 1
    if positions[-1] >= values:
        raise PatchError(f"position {positions[-1]} in a block of {values} values")
    return positions


def _differences(codes: memoryview, sizes: memoryview, count: int) -> Values:
    octets = -(-count // 4)
    difference: Values = _OF_CODES.take(inflate(codes, octets, octets), axis=0).reshape(-1)[:count]
    # Places instead of a mask: numpy takes a tenth of the time for them.
    large = np.flatnonzero(difference & 1 == 0)
    tail = inflate(sizes, len(large), 3 * len(large))
    extra, tail = tail[: len(large)].astype(_VALUE), tail[len(large) :]
    huge = extra == MORE
    if len(tail) != 2 * np.count_nonzero(huge):
        raise PatchError(f"{len(tail)} bytes for {np.count_nonzero(huge)} values that changed by much")
    extra[huge] = tail.view(_VALUE)
    twos = difference[large]
    difference[large] = np.where(twos >> 15, twos - extra, twos + extra)
    return difference


def _change_planes(values: Values, body: memoryview, size: int) -> None:
    (first,), body = _lengths(_PLANES, body)
    if first > len(body):
        raise PatchError(f"a stream of {first} bytes in a patch with {len(body)} left")
    signed = np.empty(len(values), _VALUE)
    for number, stream in enumerate((body[:first], body[first:])):
        _bytes(signed)[number::2] = inflate(stream, len(values), len(values))
    values += signed >> 1 ^ -(signed & 1)


_CHANGES: dict[int, Callable[[Values, memoryview, int], None]] = {
    RAW: _change_raw,
    SPARSE: _change_sparse,
    PLANES: _change_planes,
}


# --- bytes --------------------------------------------------------------------------------------------------


def _length(data: Block) -> int:
    return memoryview(data).nbytes


def _values(block: Block) -> Values:
    """The block's own memory, or with an odd last byte a copy."""
    octets = np.frombuffer(block, np.uint8)
    return (np.append(octets, np.uint8(0)) if len(octets) % 2 else octets).view(_VALUE)


def _bytes(values: Values) -> Octets:
    return values.view(np.uint8)


def _lengths(form: struct.Struct, body: memoryview) -> tuple[tuple[int, ...], memoryview]:
    """The numbers that a body begins with, and what follows them."""
    if len(body) < form.size:
        raise PatchError(f"a patch of this codec has at least {form.size} bytes more, not {len(body)}")
    return form.unpack_from(body), body[form.size :]


def deflate(data: Block) -> bytes:
    """A zstd frame that declares its size; nothing for nothing."""
    return _mine.zstd.deflate(data) if len(data) else b""


def inflate(stream: memoryview, least: int, most: int) -> Octets:
    """The content of a stream that must have `least` to `most` bytes of it. Raises PatchError."""
    if not len(stream) and not least:
        return np.empty(0, np.uint8)
    try:
        return np.frombuffer(_mine.zstd.inflate(stream, least, most), np.uint8)
    except CompressionError as error:
        raise PatchError(str(error)) from error
