"""Streams between peers, as p2pd hands them out, and messages of libp2p on one.

    reader --read_message--> message          number --varint--> its bytes, as they stand before a message

Not handled here: the content of messages, how streams are pooled (swarm.net.messaging.mail).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from swarm.types import PeerId

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]

StreamHandler = Callable[[PeerId, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class StreamDaemon(Protocol):
    """What mail and relays need of p2pd (swarm.net.libp2p.p2pd.Daemon)."""

    async def open_stream(self, peer: PeerId, name: str, timeout: float) -> Stream:
        """A new stream to a peer's handler `name`. Raises Unreachable or Silent."""
        ...

    async def on_stream(self, name: str, handler: StreamHandler) -> None:
        """Call `handler` for each stream that a peer opens to `name`."""
        ...


async def read_message(reader: asyncio.StreamReader, limit: int) -> bytes:
    """The next message. Raises ConnectionError for one above `limit` bytes, EOFError, OSError."""
    size = shift = 0
    while True:
        byte = (await reader.readexactly(1))[0]
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
        if shift > limit.bit_length() + 1:
            raise ConnectionError("the length of a message has no end")
    if size > limit:
        raise ConnectionError(f"a message of {size} bytes, the limit is {limit}")
    return await reader.readexactly(size)


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
