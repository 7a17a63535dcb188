"""A peer that publishes or fetches releases over a real node, and watches its event loop, for the row `loop`.

    python -m lab.processes.exchanging '{"folder": ..., "bootstrap": [...]}'     -> {"me", "addresses"}
    {"do": "publish", "version": v, "size": bytes, "share": 0.012}    -> {"release", "stall", "seconds"}
    {"do": "fetch", "release": ...}                                   -> {"stall", "seconds"}

A version is random bytes, or the one before with a share of its values moved to a neighbour. `stall` is the
longest time in seconds for which the loop ran nothing else.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lab.processes import hosted
from lab.swarms.partner import Answer, answer_all, opened, say
from peers.runtime.signals import SignalHandler, run_until_signalled
from swarm.protocol import Kind, Role
from swarm.settings.config import Config, Listen
from swarm.storage.image import Draft
from swarm.storage.weights import Weights
from swarm.types import Digest, Release

RUN = Digest(hashlib.sha256(b"swarm bench loop").hexdigest())

TICK = 0.005
"""Seconds between two looks at the clock."""


class Exchange:
    def __init__(self, host: Any) -> None:
        self._host, self._releases = host, host.releases
        self._rng = np.random.default_rng(0)
        self._parent = Digest("")
        self._values = np.empty(0, np.uint16)

    async def answer(self, asked: Answer) -> Answer:
        if asked["do"] == "fetch":
            release = msgspec.convert(asked["release"], Release)
            self._releases.candidates.hear(release)
            return await self._watched(self._releases.fetch(release))
        self._values = self._next(asked["size"] // 2, asked["share"])
        return await self._watched(self._publish(asked["version"]))

    def _next(self, many: int, share: float) -> Any:
        if not len(self._values):
            return self._rng.integers(0, 1 << 16, many, np.uint16)
        return self._values + (self._rng.random(many, np.float32) < share).astype(np.uint16)

    async def _publish(self, version: int) -> Answer:
        draft = self._releases.draft(self._values.nbytes)
        await self._host.ports.work.run(Kind.COPY, draft.write, self._values.view(np.uint8).data)
        weights = await self._releases.pack(lambda: _made(version, draft))
        release = await self._releases.prepare(weights, parent=self._parent, learners=1, groups=1)
        await self._releases.announce(release)
        self._parent = weights.digest
        return {"release": msgspec.to_builtins(release)}

    async def _watched(self, work: Awaitable[Any]) -> Answer:
        watch, began = asyncio.create_task(_longest_stall()), time.perf_counter()
        try:
            told = await work
        finally:
            watch.cancel()
        answer: Answer = told if isinstance(told, dict) else {}
        return answer | {"seconds": time.perf_counter() - began, "stall": await watch}


def _made(version: int, draft: Draft) -> Weights:
    return Weights(version, draft.done())


async def _longest_stall() -> float:
    """Until cancelled."""
    longest, last = 0.0, time.perf_counter()
    try:
        while True:
            await asyncio.sleep(TICK)
            now = time.perf_counter()
            longest, last = max(longest, now - last - TICK), now
    except asyncio.CancelledError:
        return longest


async def _program(setup: Answer, _: SignalHandler) -> None:
    folder = Path(setup["folder"])
    async with hosted.node(folder, RUN, Listen(host="127.0.0.1"), setup["bootstrap"]) as (node, keyring):
        host = hosted.host(node, keyring, Config(), Role.LEARNER, folder, folder / "blobs")
        await host.releases.serve()
        say(me=node.me, addresses=node.addresses())
        await answer_all(Exchange(host).answer)


def main() -> int:
    setup = opened()
    return run_until_signalled(lambda on_signal: _program(setup, on_signal))


if __name__ == "__main__":
    sys.exit(main())
