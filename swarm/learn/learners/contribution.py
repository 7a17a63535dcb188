"""A contribution of a learner on a slow line: the largest values of its change, chunk by chunk, in 8 bits.

    difference (P,) float32 --encode--> contribution          --add--> total (P,) float32, times a factor
                            --subtract--> the rest, for the next contribution (error feedback)

Of each CHUNK of values the largest `density` are kept, as multiples of a 127th of the largest one (top-k by
chunk: SparseLoCo, arXiv 2508.15706; error feedback: Stich et al. 2018, arXiv 1809.07599). The other values,
and the rounding errors of kept ones, stay behind exactly: a kept value and its multiple are within a factor
of two, so that their difference has no rounding error.

    contribution = version of the format (1 byte), P (uint64), segments of up to SEGMENT values; little-endian
    segment      = kept values, bytes of the first, second and third stream (uint32 each), bytes of the fourth
                   (uint32), four streams, each a zstd frame, none where nothing is kept:
                   counts  a uint16 per chunk: values kept
                   gaps    as in swarm.storage.patches
                   scales  a float32 per chunk
                   values  an int8 per kept value

A contribution comes from a stranger: each length is checked against P and the run's density before anything
of that length is allocated. Not handled here: whose contributions count and how much
(swarm.core.agreement.site_lists).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swarm.storage.patches import (
    MORE,
    Octets,
    PatchError,
    Positions,
    decode_gaps,
    deflate,
    encode_gaps,
    inflate,
)

Vector = NDArray[Any]
"""float32"""

CHUNK = 4096
"""Values of which the largest are kept, and that share a scale."""

SEGMENT = 1 << 22
"""Values that are encoded or decoded at a time: intermediate results of some 100 MB."""

STEPS = 127
"""Steps of 8 bits on each side of zero."""

TINY, HUGE = 2.0**-126, 1e30
"""Scales that are sent: a smaller one has fewer bits than a float32 should, a larger one has no finite
sum."""

FORMAT = 1

_HEAD = struct.Struct("<BQ")
_SEGMENT = struct.Struct("<5I")
_COUNT, _SCALE = np.dtype("<u2"), np.dtype("<f4")


class ContributionError(ValueError):
    """These bytes are no contribution to such a model; the message gives the reason."""


class KeptSegment(NamedTuple):
    """The kept values of a segment."""

    positions: Positions
    """In the whole vector, ascending."""
    values: Vector


def kept_per_chunk(density: float) -> int:
    """Values of a chunk that are kept at most."""
    return max(1, round(density * CHUNK))


def largest(size: int, density: float) -> int:
    """Bytes of a contribution of `size` values at most: streams that zstd makes no smaller."""
    chunks, segments = -(-size // CHUNK), -(-size // SEGMENT)
    content = chunks * (_COUNT.itemsize + _SCALE.itemsize + 2 * kept_per_chunk(density) + CHUNK // MORE + 1)
    return _HEAD.size + segments * (_SEGMENT.size + 4 * 64) + content + content // 128


def encode(difference: Vector, density: float) -> bytes:
    """The contribution of `difference` (P,) float32. Deterministic. Raises ValueError where a value is not
    finite, or so large that its sums would not be."""
    most = float(np.abs(difference).max(initial=0.0))
    if not most < HUGE:
        raise ValueError(f"a contribution's values are below {HUGE:g}, and one of these is {most:g}")
    parts = [_HEAD.pack(FORMAT, len(difference))]
    for start in range(0, len(difference), SEGMENT):
        parts.append(_encoded(difference[start : start + SEGMENT], kept_per_chunk(density)))
    return b"".join(parts)


def subtract(difference: Vector, contribution: bytes, density: float) -> None:
    """Subtract the contribution's values from `difference` (P,), in place. Raises ContributionError."""
    for kept in read(contribution, len(difference), density):
        difference[kept.positions] -= kept.values


def add(total: Vector, contribution: bytes, factor: float, density: float) -> None:
    """Add the contribution times `factor` to `total` (P,) float32, in place: the same bits on every machine.
    Raises ContributionError, and `total` may have changed then."""
    scaled = np.float32(factor)
    for kept in read(contribution, len(total), density):
        total[kept.positions] += kept.values * scaled


def norm(contribution: bytes, size: int, density: float) -> float:
    """L2 norm of a contribution to a model of `size` values. Raises ContributionError where it is none."""
    squares = (
        float(np.square(kept.values, dtype=np.float64).sum()) for kept in read(contribution, size, density)
    )
    return math.sqrt(sum(squares))


def read(contribution: bytes, size: int, density: float) -> Iterator[KeptSegment]:
    """The kept ones of `size` values, segment by segment. Raises ContributionError."""
    body = memoryview(contribution)
    if len(body) < _HEAD.size:
        raise ContributionError(f"a contribution has at least {_HEAD.size} bytes, not {len(body)}")
    form, values = _HEAD.unpack_from(body)
    if form != FORMAT:
        raise ContributionError(f"contribution of format {form}: damaged, or of a newer program than this")
    if values != size:
        raise ContributionError(f"contribution to a model of {values} values, and this one trains {size}")
    body = body[_HEAD.size :]
    for start in range(0, size, SEGMENT):
        try:
            kept, body = _decoded(body, min(SEGMENT, size - start), kept_per_chunk(density))
        except PatchError as error:
            raise ContributionError(str(error)) from error
        yield KeptSegment(kept.positions + start, kept.values)
    if len(body):
        raise ContributionError(f"{len(body)} bytes follow the last values")


def _encoded(difference: Vector, most: int) -> bytes:
    chunks = -(-len(difference) // CHUNK)
    padded = np.zeros(chunks * CHUNK, np.float32)
    padded[: len(difference)] = difference
    rows = padded.reshape(chunks, CHUNK)
    places = np.sort(np.argpartition(np.abs(rows), CHUNK - most, axis=1)[:, CHUNK - most :], axis=1)
    chosen = np.take_along_axis(rows, places, axis=1)
    scales = (np.abs(chosen).max(axis=1) / np.float32(STEPS)).astype(_SCALE)
    scales[scales < TINY] = 0.0
    steps = np.rint(
        np.divide(chosen, scales[:, None], out=np.zeros_like(chosen), where=scales[:, None] > 0)
    ).astype(np.int8)
    sent = steps != 0
    counts = sent.sum(axis=1).astype(_COUNT)
    count = int(counts.sum())
    if not count:
        return _SEGMENT.pack(0, 0, 0, 0, 0)
    positions = (places + np.arange(chunks)[:, None] * CHUNK)[sent]
    streams = [
        deflate(stream.data)
        for stream in (counts, encode_gaps(positions), scales, np.ascontiguousarray(steps[sent]))
    ]
    return _SEGMENT.pack(count, *map(len, streams)) + b"".join(streams)


def _decoded(body: memoryview, size: int, most: int) -> tuple[KeptSegment, memoryview]:
    """A segment of `size` values, of which `most` a chunk are kept, and what follows it. Raises PatchError
    and ContributionError."""
    if len(body) < _SEGMENT.size:
        raise ContributionError(f"{len(body)} bytes where a segment begins: it was cut off")
    count, *lengths = _SEGMENT.unpack_from(body)
    body = body[_SEGMENT.size :]
    chunks = -(-size // CHUNK)
    if count > min(size, chunks * most) or sum(lengths) > len(body):
        raise ContributionError(
            f"{count} values in {sum(lengths)} bytes are kept of {size}; {len(body)} bytes are left, and at"
            f" most {most} of {CHUNK} values are kept"
        )
    if not count:
        return KeptSegment(np.empty(0, np.int64), np.empty(0, np.float32)), body[sum(lengths) :]
    streams: list[memoryview] = []
    for length in lengths:
        streams.append(body[:length])
        body = body[length:]
    counts = _exactly(streams[0], chunks * _COUNT.itemsize).view(_COUNT)
    positions = decode_gaps(streams[1], count, size)
    scales = _exactly(streams[2], chunks * _SCALE.itemsize).view(_SCALE)
    steps = _exactly(streams[3], count).view(np.int8)
    if counts.max() > most or not np.array_equal(np.bincount(positions // CHUNK, minlength=chunks), counts):
        raise ContributionError(f"the counts of {chunks} chunks are not those of its {count} positions")
    if not bool(((scales >= 0) & (scales < HUGE)).all()):
        raise ContributionError("a scale is no number of a contribution: negative, too large or not finite")
    return KeptSegment(positions, steps * np.repeat(scales, counts)), body


def _exactly(stream: memoryview, size: int) -> Octets:
    return inflate(stream, size, size)
