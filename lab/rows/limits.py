"""Row `limits`: Mbit/s of blocks that pass between two real nodes on loopback, beside what one of them was
told to give (`peer.limits.upload`) or to take (`peer.limits.download`).

Not handled here: rounds, which share these with blocks, and what goes first (tests/net/test_rate.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.figures.table import Figure
from lab.processes import hosted
from swarm.protocol import Service
from swarm.settings.config import Listen
from swarm.settings.peer_limits import Limits
from swarm.types import Digest, PeerId

if TYPE_CHECKING:
    from lab.figures.table import Say

RUN = Digest(hashlib.sha256(b"limits").hexdigest())
LISTEN = Listen(host="127.0.0.1")
ASKED = (2.0, 20.0, 100.0)
"""Mbit/s."""

BLOCK, STREAMS = 1 << 18, 4
SECONDS = 10.0
WARM = 2.0
"""Seconds before: buffers fill, and a line that was idle sends a burst at once."""


def measure(say: Say, asked: tuple[float, ...] = ASKED, seconds: float = SECONDS) -> list[Figure]:
    figures = []
    for direction in ("upload", "download"):
        for mbit in asked:
            passed = asyncio.run(_passed(direction, mbit, seconds))
            say(f"{direction} {mbit:g} Mbit/s: {passed:.2f}")
            what = f"blocks with peer.limits.{direction} = {mbit:g}"
            figures.append(Figure("limits", what, passed, "Mbit/s", against="asked", other=mbit))
    return figures


async def _passed(direction: str, mbit: float, seconds: float) -> float:
    """Mbit/s of blocks from one node to another."""
    limited = Limits(upload=mbit) if direction == "upload" else Limits(download=mbit)
    gives, takes = (limited, Limits()) if direction == "upload" else (Limits(), limited)
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder:
        async with AsyncExitStack() as nodes:
            one, _ = await nodes.enter_async_context(_node(folder, "one", gives))
            await one.mail.serve(Service.BLOBS, _block)
            other, _ = await nodes.enter_async_context(_node(folder, "other", takes, one.addresses()[:1]))
            arrived = list[int]()
            fetching = [asyncio.create_task(_fetch(other.mail, one.me, arrived)) for _ in range(STREAMS)]
            await asyncio.sleep(WARM)
            before, began = len(arrived), time.monotonic()
            await asyncio.sleep(seconds)
            passed, lasted = sum(arrived[before:]), time.monotonic() - began
            for task in fetching:
                task.cancel()
            await asyncio.gather(*fetching, return_exceptions=True)
    return 8e-6 * passed / lasted


def _node(folder: str, name: str, limits: Limits, bootstrap: tuple[str, ...] = ()) -> Any:
    own = Path(folder) / name
    own.mkdir()
    return hosted.node(own, RUN, LISTEN, bootstrap, limits)


async def _block(_: PeerId, question: bytes) -> bytes:
    return bytes(BLOCK)


async def _fetch(mail: Any, holder: PeerId, arrived: list[int]) -> None:
    while True:
        arrived.append(len(await mail.send(holder, Service.BLOBS, b"?", timeout=60.0)))
