"""Frames of groups as their samplers signed them, in memory: the newest, up to some bytes."""

from __future__ import annotations

from collections import OrderedDict


class FrameShelf:
    def __init__(self, most: int) -> None:
        """`most`: bytes of all frames."""
        self._most, self._bytes = most, 0
        self._frames: OrderedDict[str, bytes] = OrderedDict()

    def put(self, key: str, frame: bytes) -> None:
        self._bytes += len(frame) - len(self._frames.pop(key, b""))
        self._frames[key] = frame
        while self._bytes > self._most:
            self._bytes -= len(self._frames.popitem(last=False)[1])

    def of(self, key: str) -> bytes:
        """The frame with this key; empty where it is not held."""
        return self._frames.get(key, b"")
