"""Baseline of the row `averaging`: hivemind's stock DHT and DecentralizedAverager, with the same codec and
time-outs.

python -m lab.processes.baseline_hivemind '{"bootstrap": [...]}'     -> {"addresses"}
{"do": "open", "numel": N, "members": n}   {"do": "average", "fill": x}   {"do": "close"}
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from hivemind import DHT
from hivemind.averaging import DecentralizedAverager
from hivemind.compression import Float16Compression

from lab.processes.member import DEADLINE, draw
from lab.swarms.partner import Answer, heard, opened, say
from swarm.settings.config import Averaging


class Stock:
    def __init__(self, dht: DHT) -> None:
        self.dht = dht
        self.averager: Any = None

    def answer(self, asked: Answer) -> Answer:
        match asked["do"]:
            case "open":
                return self._open(asked["numel"], asked["members"])
            case "average":
                return self._average(asked["fill"])
            case _:
                self.close()
                return {}

    def _open(self, numel: int, members: int) -> Answer:
        times = Averaging()
        self.averager = DecentralizedAverager(
            [torch.zeros(numel)],
            self.dht,
            start=True,
            prefix=f"bare{numel}x{members}",
            target_group_size=members,
            min_matchmaking_time=times.match,
            request_timeout=times.request,
            compression=Float16Compression(),
            allow_state_sharing=False,
        )
        return {}

    def _average(self, fill: float) -> Answer:
        with self.averager.get_tensors() as tensors:
            draw(tensors[0], fill)
        began = time.perf_counter()
        gathered = self.averager.step(timeout=DEADLINE)
        seconds = time.perf_counter() - began
        with self.averager.get_tensors() as tensors:
            mean = float(tensors[0].mean())
        return {"seconds": seconds, "members": len(gathered or ()), "mean": mean}

    def close(self) -> None:
        if self.averager is not None:
            self.averager.shutdown()
            self.averager = None


def main() -> int:
    setup = opened()
    torch.set_num_threads(1)
    dht = DHT(
        initial_peers=setup["bootstrap"] or None,
        start=True,
        host_maddrs=["/ip4/127.0.0.1/tcp/0"],
        use_relay=False,
        use_auto_relay=False,
    )
    stock = Stock(dht)
    try:
        say(addresses=[str(address) for address in dht.get_visible_maddrs()])
        while (question := heard()) is not None:  # no thread reads the pipe while hivemind forks
            say(**stock.answer(question))
    finally:
        stock.close()
        dht.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
