"""hivemind's streams of a learner: from whom they are taken, and parts of a round at the pace of its line.

    stream of a peer that is not invited --> closed, nothing of it is read
    part --> PacedWriter --pieces--> p2pd --> ... p2pd --pieces--> PacedReader --> part

Only streams that carry parts are paced: who meets whom is small and must not wait. A reader that reads slowly
holds its sender back once the buffers between them are full (some hundred KiB). Not handled here: the pace
(swarm.net.rate).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

from hivemind.p2p import P2P, PeerID

from swarm.net.rate import UNLIMITED, RateLimit, RateLimits

PARTS = "rpc_aggregate_part"
"""How the names of streams that carry parts end."""

Handler = Callable[[Any, Any, Any], Awaitable[None]]


class PacedReader:
    """What hivemind asks of a stream's reader."""

    def __init__(self, reader: asyncio.StreamReader, limit: RateLimit) -> None:
        self._reader, self._limit = reader, limit

    async def readexactly(self, size: int) -> bytes:
        """Raises asyncio.IncompleteReadError."""
        pieces = list[bytes]()
        for begin in range(0, size, self._limit.piece):
            pieces.append(await self._reader.readexactly(min(size - begin, self._limit.piece)))
            await self._limit.wait(len(pieces[-1]))
        return b"".join(pieces)


class PacedWriter:
    """What hivemind asks of a stream's writer: bytes leave in `drain`."""

    def __init__(self, writer: asyncio.StreamWriter, limit: RateLimit) -> None:
        self._writer, self._limit = writer, limit
        self._written = list[memoryview]()

    def write(self, data: bytes | memoryview) -> None:
        self._written.append(memoryview(data))

    async def drain(self) -> None:
        written, self._written = self._written, []
        for data in written:
            for begin in range(0, len(data), self._limit.piece):
                piece = data[begin : begin + self._limit.piece]
                await self._limit.wait(len(piece))
                self._writer.write(piece)
                await self._writer.drain()

    def close(self) -> None:
        self._writer.close()


class PacedP2P(P2P):  # type: ignore[misc]
    """Made by `replicate`; then `limits` may be set, and `answers`."""

    limits: RateLimits = UNLIMITED
    answers: Callable[[PeerID], bool] = staticmethod(lambda peer: True)
    """Whose streams are taken; others' are closed."""

    async def call_binary_stream_handler(self, peer_id: PeerID, handler_name: str) -> tuple[Any, Any, Any]:
        info, reader, writer = await super().call_binary_stream_handler(peer_id, handler_name)
        return info, *self._paced(handler_name, reader, writer)

    async def add_binary_stream_handler(self, name: str, handler: Handler, balanced: bool = False) -> None:
        async def paced(info: Any, reader: Any, writer: Any) -> None:
            if not self.answers(info.peer_id):
                return writer.close()  # type: ignore[no-any-return]
            await handler(info, *self._paced(name, reader, writer))

        await super().add_binary_stream_handler(name, paced, balanced=balanced)

    def _paced(self, name: str, reader: Any, writer: Any) -> tuple[Any, Any]:
        if not name.endswith(PARTS) or all(limit.rate == math.inf for limit in self.limits):
            return reader, writer
        return PacedReader(reader, self.limits.down), PacedWriter(writer, self.limits.up)
