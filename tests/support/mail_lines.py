"""Streams between peers of one process, for mail without a network."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable

import pytest

from swarm.net.messaging.mail import StreamMail
from swarm.types import Digest, PeerId

RUN = Digest("5" * 64)


SIZE = struct.Struct(">I")


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()


class Line:
    """Streams between peers of one process, over socket pairs."""

    def __init__(self) -> None:
        self.handlers: dict[str, Callable[..., Awaitable[None]]] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.me = PeerId("honest")

    async def open_stream(self, peer: PeerId, name: str, timeout: float) -> Stream:
        return await self.open(self.me, name)

    async def on_stream(self, name: str, handler: Callable[..., Awaitable[None]]) -> None:
        self.handlers[name] = handler

    async def open(self, sender: PeerId, name: str) -> Stream:
        near, far = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=far)
        task = asyncio.ensure_future(self.handlers[name](sender, reader, writer))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return await asyncio.open_unix_connection(sock=near)


async def no_dial(peer: PeerId, timeout: float) -> None:
    """Everybody is connected."""


def mail(line: Line) -> StreamMail:
    async def here() -> Line:
        return line

    return StreamMail(RUN, here, no_dial, hang_up, lambda service, what: pytest.fail(what))


async def echo(sender: PeerId, message: bytes) -> bytes:
    return message
