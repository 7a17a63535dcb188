"""A stranger for tests: a real node that gossips heartbeats of a sampler, which anybody may do in a public
run, under its own key: peers hear nobody who speaks for another. By an invite that makes members it is one,
and counts as one.

    python tests/support/strangers.py INVITE FOLDER
    <- {"name": "...", "version": 3, "download": 90.0}
                      who it says to be from now on; null: it says goodbye
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

from swarm import events
from swarm.frames import wire
from swarm.frames.run_types import Membership
from swarm.limits import BEAT_LIMIT, EVENT_LIMIT, Limit
from swarm.membership import invite
from swarm.membership.identity import Keyring, open_key
from swarm.net.libp2p.node import Node
from swarm.protocol import Phase, Role
from swarm.settings.config import Listen
from swarm.types import Beat, Digest, Lag

EVERY = 1.0
"""Seconds between two heartbeats of each, the pace of the tests' runs."""


class Stranger:
    def __init__(self, node: Node, run: Digest, key: Keyring, membership: Membership | None) -> None:
        self.node, self.run, self.key, self.membership = node, run, key, membership
        self.say: dict[str, Any] | None = None
        self.seq = self.incarnation = 0

    async def beat_forever(self) -> None:
        while True:
            self.seq += 1
            if self.say is not None:
                await self.tell("beat/sampler", self.beat(**self.say), BEAT_LIMIT)
            await asyncio.sleep(EVERY)

    async def now(self, say: dict[str, Any] | None) -> None:
        before, self.say = self.say, say
        if before is None:  # who left comes back in another life
            self.incarnation = int(1000 * time.time())
        await asyncio.sleep(EVERY)  # a heartbeat that has begun comes before the goodbye
        if before is not None and say is None:
            left = events.Left(
                at=time.time(), peer=self.key.me, name=before["name"], reason="the test is over"
            )
            await self.tell("event", [left], EVENT_LIMIT)

    async def tell(self, topic: str, noun: object, limit: Limit) -> None:
        await self.node.gossip.publish(
            wire.topic(self.run, topic), wire.seal(noun, self.run, self.key, self.membership, limit=limit)
        )

    def beat(self, name: str, version: int, download: float = 0.0) -> Beat:
        return Beat(
            name=name,
            role=Role.SAMPLER,
            incarnation=self.incarnation,
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
    path = folder / "stranger"
    key = open_key(path)
    node = await Node.start(
        keyring=key,
        key_path=path,
        run=known.run,
        listen=Listen(host="127.0.0.1", dial_only=True),
        bootstrap=known.addresses,
        report=lambda *_: None,
    )
    stranger = Stranger(node, known.run, key, known.admit(key.me))
    beats = asyncio.create_task(stranger.beat_forever())
    try:
        while line := await asyncio.to_thread(sys.stdin.readline):
            await stranger.now(json.loads(line))
            print("heard", flush=True)
    finally:
        beats.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beats
        await node.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
