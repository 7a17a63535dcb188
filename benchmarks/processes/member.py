"""A learner that only averages, for the row `averaging`: real node, real HiveAverager.

python -m benchmarks.processes.member '{"folder": ..., "bootstrap": [...]}'     -> {"me", "addresses"}
{"do": "open", "numel": N}   {"do": "average", "version": v, "peers": [...], "fill": x}   {"do": "close"}
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.partner import Answer, answer_all, opened, say
from peers.runtime.signals import SignalHandler, run_until_signalled
from swarm.config import Averaging, Listen
from swarm.types import Digest, PeerId

RUN = Digest(hashlib.sha256(b"swarm bench averaging").hexdigest())
DEADLINE = 60.0
"""Seconds for a round: 25M parameters among four on a busy machine."""


class Member:
    def __init__(self, node: Any) -> None:
        self.node = node
        self.averager: Any = None
        self.tensor: Any = None

    async def answer(self, asked: Answer) -> Answer:
        match asked["do"]:
            case "open":
                return await self._open(asked["numel"])
            case "average":
                return await self._average(asked)
            case _:
                await self.close()
                return {}

    async def _open(self, numel: int) -> Answer:
        import torch

        from swarm.net.averager import HiveAverager
        from swarm.net.guard import averaging_prefix

        node = self.node
        self.averager = HiveAverager(
            daemon=node.control,
            dial_only=False,
            prefix=averaging_prefix(RUN),
            numel=numel,
            groups=1,
            settings=Averaging(deadline=DEADLINE),
            report=lambda *_: None,
        )
        await self.averager.start()
        self.tensor = torch.zeros(numel)
        return {}

    async def _average(self, asked: Answer) -> Answer:
        from swarm.net.ports import RoundLost

        self.tensor.fill_(asked["fill"])
        began = time.perf_counter()
        try:
            peers = [PeerId(peer) for peer in asked["peers"]]
            outcome = await self.averager.average(asked["version"], [self.tensor], 1.0, peers, DEADLINE)
        except RoundLost as error:
            return {"lost": str(error)}
        seconds = time.perf_counter() - began
        return {
            "seconds": seconds,
            "members": len(outcome.members) if outcome else 1,
            "mean": float(self.tensor.mean()),
        }

    async def close(self) -> None:
        if self.averager is not None:
            await self.averager.close()
            self.averager = self.tensor = None


async def _program(setup: dict[str, Any], _: SignalHandler) -> None:
    import torch

    torch.set_num_threads(1)
    from swarm.identity import open_key
    from swarm.net.hive import Node

    key = Path(setup["folder"]) / "key"
    node = await Node.start(
        keyring=open_key(key),
        key_path=key,
        run=RUN,
        listen=Listen(host="127.0.0.1"),
        bootstrap=setup["bootstrap"],
        report=lambda *_: None,
    )
    supervision = asyncio.create_task(node.supervise())
    member = Member(node)
    try:
        say(me=node.me, addresses=node.addresses())
        await answer_all(member.answer)
    finally:
        await member.close()
        supervision.cancel()
        await node.close()


def main() -> int:
    setup = opened()
    return run_until_signalled(lambda on_signal: _program(setup, on_signal))


if __name__ == "__main__":
    sys.exit(main())
