"""Tries addresses: one in a way that shows why it failed, several until one answers.

    host, port --knock--> "" or the reason            --greeted--> the same, where libp2p has to answer
    addresses --until_reached--> a reason for each: all at once, those over relays a little later

Not handled: which addresses are worth trying (swarm.net.libp2p.network), libp2p's part of a dial
(swarm.net.libp2p.p2pd).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence

from swarm.net.libp2p.addresses import Address

PROBE_SECONDS = 5.0
"""Seconds for a TCP handshake: three times one to the other side of the world."""

HEAD_START = 0.5
"""Seconds before a relay is tried, where there are direct addresses: a handshake around the world."""

GRACE = 1.0
"""Seconds for the others once one address has answered: more bootstrap peers are better than one, and a
silent one must not hold up a start."""

GREETING = b"/multistream/1.0.0"
"""libp2p's first bytes on a connection that it accepts."""

CUT = "not waited for: another address answered"


async def knock(host: str, port: int) -> str:
    """Why no TCP connection comes about; empty when one does."""
    return await _reason(host, port, b"")


async def greeted(host: str, port: int) -> str:
    """Why no libp2p answers there; empty when one does."""
    return await _reason(host, port, GREETING)


async def _reason(host: str, port: int, greeting: bytes) -> str:
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                said = await reader.read(64) if greeting else b""
            finally:
                writer.close()
    except TimeoutError:
        return f"timed out after {PROBE_SECONDS:g} s (the machine is off, or a firewall drops the packets)"
    except ConnectionRefusedError:
        return "connection refused (nothing listens on that port)"
    except socket.gaierror:
        return f"the name {host} cannot be resolved"
    except OSError as error:
        return str(error.strerror or error).lower()
    return "" if greeting in said else "another program answers there"


async def until_reached(
    reach: Callable[[Address], Awaitable[str]], addresses: Sequence[Address], grace: float = 0.0
) -> list[str]:
    """Try all addresses until one is reached, and the others for `grace` seconds more. A reason for each;
    empty: it was reached."""
    late = HEAD_START if not all(address.relayed for address in addresses) else 0.0

    async def tried(address: Address) -> str:
        if address.relayed:
            await asyncio.sleep(late)
        return await reach(address)

    tasks = [asyncio.create_task(tried(address)) for address in addresses]
    pending, reached = set(tasks), False
    try:
        while pending and not reached:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            reached = any(not task.result() for task in done)
        if pending and grace:
            await asyncio.wait(pending, timeout=grace)
        return [task.result() if task.done() else CUT for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
