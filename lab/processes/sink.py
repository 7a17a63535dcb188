"""Receives a sampler's groups, for the row `engines`: a node that admits every group and always has credit.

    python -m lab.processes.sink '{"folder": ..., "run": digest}'
        -> {"addresses"}, until its parent is gone

A learner's work on a group is not part of a sampler's cost: it runs on another machine.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from lab.processes import hosted
from lab.swarms.partner import Answer, answer_all, opened, say
from peers.runtime.signals import SignalHandler, run_until_signalled
from swarm.frames import wire
from swarm.protocol import Service, Topic
from swarm.settings.config import Listen
from swarm.types import Digest, Receipt, Verdict

CREDIT = 1_000_000
RECEIPT = wire.encode(Receipt(verdict=Verdict.ADMIT, detail="", version=0, credit=CREDIT))


async def _program(setup: dict[str, Any], _: SignalHandler) -> None:
    import torch

    torch.set_num_threads(1)
    folder, run = Path(setup["folder"]), Digest(setup["run"])
    async with hosted.node(folder, run, Listen(host="127.0.0.1")) as (node, _key):
        await node.mail.serve(Service.GROUPS, _take)
        topics = (Topic.BEAT_SAMPLER, Topic.EVENT, Topic.RELEASE)
        listening = [asyncio.create_task(_listen(node, name)) for name in topics]
        try:
            say(addresses=node.addresses())
            await answer_all(_nothing)
        finally:
            for task in listening:
                task.cancel()


async def _listen(node: Any, name: Topic) -> None:
    async with node.gossip.subscribe(wire.topic(node.run, name)) as messages:
        async for _ in messages:
            pass


async def _take(sender: Any, frame: bytes) -> bytes:
    return RECEIPT


async def _nothing(_: Answer) -> Answer:
    return {}


def main() -> int:
    setup = opened()
    return run_until_signalled(lambda on_signal: _program(setup, on_signal))


if __name__ == "__main__":
    sys.exit(main())
