"""Strangers for tests: one real node that gossips heartbeats under many keys, which anybody may do in a
public run.

    python tests/e2e/strangers.py INVITE FOLDER
    <- [{"name": "...", "version": 3, "download": 90.0}, ...]
                      a line: who beats from now on, each under a key of its own; the others say goodbye
    -> a line after each that came in

It ends with its stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from swarm import events, invite, wire
from swarm.config import Listen
from swarm.identity import Keyring, open_key
from swarm.limits import BEAT_LIMIT, EVENT_LIMIT, Limit
from swarm.net.hive import Node
from swarm.protocol import Phase, Role
from swarm.types import Beat, Digest, Lag

EVERY = 1.0
"""Seconds between two heartbeats of each, the pace of the tests' runs."""

PAUSE = 0.01
"""Seconds between two messages: GossipSub drops what comes in one burst."""

BORN = int(1000 * time.time())


class Strangers:
    def __init__(self, node: Node, run: Digest) -> None:
        self.node, self.run = node, run
        self.keys: list[Keyring] = []
        self.say: list[dict[str, Any]] = []
        self.seq = 0

    async def beat_forever(self) -> None:
        while True:
            self.seq += 1
            keys, say = self.keys, self.say
            for key, told in zip(keys, say, strict=True):
                await self.tell(key, "beat/sampler", self.beat(**told), BEAT_LIMIT)
            await asyncio.sleep(max(EVERY - PAUSE * len(say), 0.0))

    async def now(self, say: list[dict[str, Any]]) -> None:
        gone = list(zip(self.keys, self.say, strict=True))[len(say) :]
        kept = self.keys[: len(say)]
        self.keys = kept + [Keyring(Ed25519PrivateKey.generate()) for _ in range(len(say) - len(kept))]
        self.say = say
        await asyncio.sleep(EVERY)  # a round of heartbeats that has begun ends with those that go
        for key, told in gone:
            left = events.Left(at=time.time(), peer=key.me, name=told["name"], reason="the test is over")
            await self.tell(key, "event", [left], EVENT_LIMIT)

    async def tell(self, key: Keyring, topic: str, noun: object, limit: Limit) -> None:
        await self.node.gossip.publish(
            wire.topic(self.run, topic), wire.seal(noun, self.run, key, limit=limit)
        )
        await asyncio.sleep(PAUSE)

    def beat(self, name: str, version: int, download: float = 0.0) -> Beat:
        return Beat(
            name=name,
            role=Role.SAMPLER,
            incarnation=BORN,
            seq=self.seq,
            version=version,
            weights=Digest(""),
            state="sampling",
            phase=Phase.SAMPLING,
            credit=0,
            takers=1,
            inbox=0,
            done=self.seq,
            refused=0,
            rate=1.0,
            tokens=100.0,
            busy=0.9,
            lag=Lag(download=download, generation=0.5),
            addresses=(),
            hardware=name[:40],
            at=time.time(),
        )


async def main(word: str, folder: Path) -> None:
    known = invite.read(word, time.time())
    key = folder / "stranger"
    node = await Node.start(
        keyring=open_key(key),
        key_path=key,
        run=known.run,
        listen=Listen(host="127.0.0.1", dial_only=True),
        bootstrap=known.addresses,
        report=lambda *_: None,
    )
    strangers = Strangers(node, known.run)
    beats = asyncio.create_task(strangers.beat_forever())
    try:
        while line := await asyncio.to_thread(sys.stdin.readline):
            await strangers.now(json.loads(line))
            print("heard", flush=True)
    finally:
        beats.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beats
        await node.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
