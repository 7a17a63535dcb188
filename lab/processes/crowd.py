"""Strangers with keys of their own who try to close a node's mail and its page, for the row `strangers`.

python -m lab.processes.crowd '{"folder", "peer", "address", "page", "keys"}'   -> {} once connected
{"do": "mail half-open"}   ... each way until the next one; "rest" ends all

half-open   streams or connections that say nothing, or half of a head, opened anew as they are closed
slow        a byte of a message, or of a head, four times a second
many keys   whole requests of every key, ten a second each; at the page of 32 addresses
heavy       at the page: the same, and each asks for what costs most to make, no two for the same
deaf        at the page: asks for what is large, and reads a kilobyte a second of it
from here   at the page: whole requests from 127.0.0.1, which may ask as much as it likes
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from lab.swarms.partner import Answer, answer_all, opened, say
from swarm.membership.identity import open_key
from swarm.net.libp2p.addresses import Address
from swarm.net.libp2p.p2pd import Daemon
from swarm.net.ports import NetError
from swarm.protocol import Service
from swarm.settings.config import Listen
from swarm.types import Digest, PeerId

RUN, SERVICE = Digest("5" * 64), Service.GROUPS
LISTEN = Listen(host="127.0.0.1")
AT_ONCE, APART = 32, 0.1
"""Streams or connections of one key or address, and seconds between two of them."""

TRICKLE = 0.25
"""Seconds between two bytes of who is slow."""

HEADS = (b"", b"\0\0", struct.pack(">I", 700), struct.pack(">I", 700) + bytes(350))
WHOLE = struct.pack(">I", 16) + bytes(16)
ASK = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"

HEAVY = (
    *("/api/state?x={}", "/metrics?x={}", "/api/peers?x={}", "/?x={}", "/static/store.js?x={}"),
    *("/api/series.csv?window={}", "/api/events?after={}"),
)
"""What the page has to make, or to read from the disk, with a number that no other request has: the last two
are others for each."""

HEARS = 1024
"""Bytes a second of who is deaf, and of its buffer."""

Open = Callable[[int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


async def _again(do: Callable[[], Awaitable[None]]) -> None:
    while True:
        with contextlib.suppress(NetError, OSError, EOFError):
            await do()
        await asyncio.sleep(APART)


async def _hold(open_one: Open, who: int, said: bytes) -> None:
    reader, writer = await open_one(who)
    try:
        writer.write(said)
        await reader.read()  # until it is closed
    finally:
        writer.close()


async def _trickle(open_one: Open, who: int, said: bytes) -> None:
    _, writer = await open_one(who)
    try:
        for byte in said:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(TRICKLE)
    finally:
        writer.close()


async def _ask(open_one: Open, who: int, said: bytes) -> None:
    """`said` again and again; where that is nothing, what is heavy."""
    reader, writer = await open_one(who)
    try:
        while True:
            writer.write(said or _heavy())
            await writer.drain()
            if not await reader.read(1 << 20):
                return
            await asyncio.sleep(APART)
    finally:
        writer.close()


_numbers = itertools.count()


def _heavy() -> bytes:
    number = next(_numbers)
    head = f"GET {HEAVY[number % len(HEAVY)].format(number)} HTTP/1.1\r\nHost: localhost\r\n"
    return f"{head}Accept-Encoding: gzip\r\n\r\n".encode()


async def _deaf(open_one: Open, who: int, said: bytes) -> None:
    reader, writer = await open_one(who)
    try:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, HEARS)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(said)
        while True:
            await asyncio.sleep(1.0)
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            if not await reader.read(HEARS):
                return
            writer.transport.pause_reading()  # type: ignore[attr-defined]
    finally:
        writer.close()


WAYS = {
    "mail half-open": (_hold, HEADS),
    "mail slow": (_trickle, (struct.pack(">I", 700) + bytes(700),)),
    "mail many keys": (_ask, (WHOLE,)),
    "page half-open": (_hold, (b"", ASK[:20])),
    "page slow": (_trickle, (ASK[:-2] + b"X-Slow: " + bytes([120]) * 400,)),
    "page many keys": (_ask, (ASK,)),
    "page heavy": (_ask, (b"",)),
    "page deaf": (_deaf, (b"GET /api/state HTTP/1.1\r\nHost: localhost\r\n\r\n",)),
    "page from here": (_ask, (ASK,)),
}


async def _program(setup: Answer) -> None:
    at = Address.parse(setup["address"])
    assert at is not None
    daemons = []
    for number in range(setup["keys"]):
        key = Path(setup["folder"]) / f"key-{number}"
        daemons.append(
            await Daemon.launch(key, open_key(key).me, Listen(host=LISTEN.host, dial_only=True), 0)
        )
        await daemons[-1].reach(at)
    say()

    async def stream(who: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        name = f"{RUN[:16]}/{SERVICE}"
        return await daemons[who % len(daemons)].open_stream(PeerId(setup["peer"]), name, 10.0)

    async def connection(who: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(LISTEN.host, setup["page"])

    async def elsewhere(who: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        here = (f"127.0.1.{1 + who % AT_ONCE}", 0)
        return await asyncio.open_connection(LISTEN.host, setup["page"], local_addr=here)

    busy = list[asyncio.Task[None]]()

    async def answer(asked: Answer) -> Answer:
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
        busy.clear()
        if asked["do"] in WAYS:
            act, said = WAYS[asked["do"]]
            here = connection if asked["do"] == "page from here" else elsewhere
            open_one = stream if asked["do"].startswith("mail") else here
            for number in range(AT_ONCE * len(daemons)):
                what = said[number % len(said)]
                busy.append(
                    asyncio.create_task(_again(lambda who=number, what=what: act(open_one, who, what)))
                )
        return {}

    try:
        await answer_all(answer)
    finally:
        await answer({"do": "rest"})
        await asyncio.gather(*(daemon.stop() for daemon in daemons))


def main() -> int:
    asyncio.run(_program(opened()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
