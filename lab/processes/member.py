"""A learner that only averages, for the rows `averaging` and `rounds`: real node, real HiveAverager.

python -m lab.processes.member '{"folder": ..., "bootstrap": [...], "host": ...}'
    -> {"me", "addresses"}
{"do": "open", "numel": N, "deadline": s}
{"do": "average", "version": v, "peers": [...], "fill": x}
{"do": "close"}
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import time
from pathlib import Path
from typing import Any

from lab.processes import hosted
from lab.swarms.partner import Answer, answer_all, opened, say
from peers.runtime.signals import SignalHandler, run_until_signalled
from swarm.net.uplink import Uplink
from swarm.settings.config import Averaging, Listen
from swarm.types import Digest, PeerId

RUN = Digest(hashlib.sha256(b"swarm bench averaging").hexdigest())
DEADLINE = 150.0
"""Seconds for a round where none is asked for: 100M parameters among four on a busy machine."""

LONGEST = 600.0
"""Seconds for a round whose deadline is by its lines."""


NOISE = 1 << 20
"""Values that are drawn; the others repeat them."""


def draw(tensor: Any, mean: float) -> None:
    """Values of this mean and noise of size 1, as gradients have it: of four constants one is far from the
    others, and means are clipped."""
    import torch

    noise = torch.randn(NOISE, generator=torch.Generator().manual_seed(int(mean)))
    for part in tensor.split(NOISE):
        torch.add(noise[: part.numel()], mean, out=part)


class Member:
    def __init__(self, node: Any) -> None:
        self.node = node
        self.averager: Any = None
        self.tensor: Any = None
        self.longest = LONGEST
        self.uplink = Uplink(lambda: (node.pids().get("p2pd"), self.averager and self.averager.pid()))

    async def answer(self, asked: Answer) -> Answer:
        match asked["do"]:
            case "open":
                return await self._open(asked["numel"], asked.get("deadline", DEADLINE))
            case "average":
                return await self._average(asked)
            case _:
                await self.close()
                return {}

    async def _open(self, numel: int, deadline: float) -> Answer:
        import torch

        from swarm.net.averaging.averager import HiveAverager
        from swarm.net.messaging.guard import averaging_prefix

        node, self.longest = self.node, deadline or LONGEST
        self.averager = HiveAverager(
            daemon=node.control,
            listen=node.listen,
            prefix=averaging_prefix(RUN),
            numel=numel,
            groups=1,
            settings=Averaging(deadline=deadline),
            report=lambda *_: None,
            uplink=self.uplink.rate,
        )
        await self.averager.start()
        self.tensor = torch.zeros(numel)
        return {}

    async def _average(self, asked: Answer) -> Answer:
        from swarm.net.ports import RoundLost

        draw(self.tensor, asked["fill"])
        began = time.perf_counter()
        try:
            peers = [PeerId(peer) for peer in asked["peers"]]
            outcome = await self.averager.average(asked["version"], [self.tensor], 1.0, peers, self.longest)
        except RoundLost as error:
            return {"lost": str(error)}
        seconds = time.perf_counter() - began
        return {
            "seconds": seconds,
            "members": len(outcome.members) if outcome else 1,
            "mean": float(self.tensor.mean()),
            "uplink": self.uplink.rate(),
        }

    async def close(self) -> None:
        if self.averager is not None:
            await self.averager.close()
            self.averager = self.tensor = None


async def _program(setup: dict[str, Any], _: SignalHandler) -> None:
    import torch

    torch.set_num_threads(1)
    listen = Listen(host=setup.get("host", "127.0.0.1"))
    async with hosted.node(Path(setup["folder"]), RUN, listen, setup["bootstrap"]) as (node, _key):
        member = Member(node)
        measuring = asyncio.create_task(member.uplink.watch())
        try:
            say(me=node.me, addresses=node.addresses())
            await answer_all(member.answer)
        finally:
            await member.close()
            measuring.cancel()


def main() -> int:
    setup = opened()
    return run_until_signalled(lambda on_signal: _program(setup, on_signal))


if __name__ == "__main__":
    sys.exit(main())
