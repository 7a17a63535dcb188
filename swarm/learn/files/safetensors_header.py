"""The header of a file of tensors, as the library of safetensors writes it.

    8 bytes: length of the rest | JSON: metadata; name -> dtype, shape, place of its values

The format: https://huggingface.co/docs/safetensors. Not handled: the values, which follow in the order of the
names given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

LENGTH = 8
"""Bytes of the length, and a header is filled up to a multiple of it."""


def header(tensors: Mapping[str, tuple[str, tuple[int, ...], int]], metadata: Mapping[str, str]) -> bytes:
    """`tensors`: name -> dtype, shape and bytes, in the order of their values."""
    said: dict[str, object] = {"__metadata__": metadata}
    end = 0
    for name, (dtype, shape, size) in tensors.items():
        start, end = end, end + size
        said[name] = {"dtype": dtype, "shape": shape, "data_offsets": (start, end)}
    text = json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % LENGTH)
    return len(text).to_bytes(LENGTH, "little") + text
