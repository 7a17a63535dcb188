"""Limit of the row `averaging`: reduce-scatter and all-gather over plain TCP, in float16.

python -m lab.processes.baseline_tcp '{}'     -> {"addresses": [port]}
{"do": "open", "numel": N, "me": i, "ports": [...]}   {"do": "average", "fill": x}   {"do": "close"}

Each of n members reduces an n-th of the values: it takes these from all others, adds them up and sends the
means to all. No member is looked up, nothing is encrypted, checked, weighed or scaled, and no member may get
lost.
"""

from __future__ import annotations

import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from lab.processes.member import draw
from lab.swarms.partner import Answer, heard, opened, say

HOST = "127.0.0.1"
CHUNK = 1 << 18
"""Values that are converted at a time: they are in the processor's cache when the kernel copies them."""


class Plain:
    def __init__(self, listener: socket.socket) -> None:
        self.listener, self.sender = listener, ThreadPoolExecutor(1)
        self.received = torch.empty(CHUNK, dtype=torch.float16)
        self.others: dict[int, socket.socket] = {}

    def answer(self, asked: Answer) -> Answer:
        match asked["do"]:
            case "open":
                return self._open(asked["numel"], asked["me"], asked["ports"])
            case "average":
                return self._average(asked["fill"])
            case _:
                self.close()
                return {}

    def _open(self, numel: int, me: int, ports: list[int]) -> Answer:
        self.tensor = torch.zeros(numel)
        self.slices = [part.split(CHUNK) for part in self.tensor.tensor_split(len(ports))]
        self.mine = self.slices[me]
        for other in range(me):
            self.others[other] = socket.create_connection((HOST, ports[other]))
            self.others[other].sendall(bytes([me]))
        for _ in ports[me + 1 :]:
            connection, _address = self.listener.accept()
            self.others[connection.recv(1)[0]] = connection
        return {}

    def _average(self, fill: float) -> Answer:
        draw(self.tensor, fill)
        began = time.perf_counter()
        sending = [self.sender.submit(self._scatter)]
        self._reduce()
        sending.append(self.sender.submit(self._share))
        self._gather()
        for one in sending:
            one.result()
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "members": len(self.slices), "mean": float(self.tensor.mean())}

    def _scatter(self) -> None:
        """Send the parts that others reduce. All go through chunks and members in one order: no cycle of
        waits can form."""
        for number in range(len(self.slices[0])):
            for other, connection in self.others.items():
                for chunk in self.slices[other][number : number + 1]:
                    connection.sendall(_bytes(chunk.half()))

    def _reduce(self) -> None:
        for chunk in self.mine:
            for connection in self.others.values():
                chunk.add_(self._receive(connection, chunk.numel()))
            chunk.div_(len(self.slices))

    def _share(self) -> None:
        for chunk in self.mine:
            means = chunk.half()
            for connection in self.others.values():
                connection.sendall(_bytes(means))

    def _gather(self) -> None:
        for number in range(len(self.slices[0])):
            for other, connection in self.others.items():
                for chunk in self.slices[other][number : number + 1]:
                    chunk.copy_(self._receive(connection, chunk.numel()))

    def _receive(self, connection: socket.socket, values: int) -> torch.Tensor:
        part = self.received[:values]
        if connection.recv_into(_bytes(part), flags=socket.MSG_WAITALL) != part.nbytes:
            raise ConnectionError("a member is gone")
        return part

    def close(self) -> None:
        for connection in self.others.values():
            connection.close()
        self.others.clear()


def _bytes(values: torch.Tensor) -> Any:
    return values.numpy().data.cast("B")


def main() -> int:
    opened()
    torch.set_num_threads(1)
    with socket.create_server((HOST, 0)) as listener:
        plain = Plain(listener)
        say(addresses=[listener.getsockname()[1]])
        while (question := heard()) is not None:
            say(**plain.answer(question))
        plain.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
