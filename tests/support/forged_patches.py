"""Patches that no honest learner makes."""

from __future__ import annotations

import struct

import zstandard

from swarm.storage.patches import RAW, SPARSE

SIZE = 4096


HEAD, LENGTHS = struct.Struct("<BI"), struct.Struct("<III")


def frame(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(1).compress(data) if data else b""


def sparse(
    gaps: bytes,
    codes: bytes = b"\0",
    sizes: bytes = b"",
    count: int | None = None,
    size: int = SIZE,
    **streams: bytes,
) -> bytes:
    """A `sparse` patch of these streams; `streams` replaces frames."""
    frames = [streams.get(name, frame(data)) for name, data in zip("abc", (gaps, codes, sizes), strict=True)]
    lengths = LENGTHS.pack(len(gaps) if count is None else count, len(frames[0]), len(frames[1]))
    return HEAD.pack(SPARSE, size) + lengths + b"".join(frames)


def raw(stream: bytes, size: int = SIZE) -> bytes:
    return HEAD.pack(RAW, size) + stream


def undeclared(data: bytes) -> bytes:
    """A frame that does not say how much is in it."""
    return zstandard.ZstdCompressor(1, write_content_size=False).compress(data)


BOMB = frame(bytes(1 << 26))
