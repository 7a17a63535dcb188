"""A node that answers with as many bytes as it is asked for, relays, or asks: for the row `relay`.

{"do": "reserve"}                              -> {"me", "addresses": over relays}
{"do": "met", "peer": ..., "addresses": ...}   -> {}
{"do": "take", "peer", "size", "times": n}     -> {"seconds": [of each]}
{"do": "cpu"}                                  -> {"cpu": seconds of this process and its p2pd so far}
"""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path
from typing import Any

from lab.processes import hosted
from lab.swarms.partner import Answer, answer_all, opened, say
from peers.runtime.signals import SignalHandler, run_until_signalled
from swarm.settings.config import Listen
from swarm.types import Digest, PeerId

RUN = Digest(hashlib.sha256(b"relay").hexdigest())
SERVICE = "bytes"


class Node:
    def __init__(self, node: Any) -> None:
        self._node = node

    async def answer(self, asked: Answer) -> Answer:
        node = self._node
        match asked["do"]:
            case "reserve":
                await node.reachability.look(node.mail)
                return {"me": node.me, "addresses": node.addresses()}
            case "met":
                node.network.remember(PeerId(asked["peer"]), asked["addresses"])
                return {}
            case "cpu":
                return {"cpu": sum(map(_cpu, ("self", node.pids()["p2pd"])))}
            case _:
                return {"seconds": [await self._taken(asked) for _ in range(asked["times"])]}

    async def _taken(self, asked: Answer) -> float:
        began = time.perf_counter()
        await self._node.mail.send(PeerId(asked["peer"]), SERVICE, b"%d" % asked["size"], timeout=30)
        return time.perf_counter() - began


def _cpu(pid: str | int) -> float:
    """Seconds of user and system time; proc(5): fields 14 and 15, in hundredths."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def _bytes(_: PeerId, question: bytes) -> bytes:
    return bytes(int(question))


async def _program(setup: Answer, _: SignalHandler) -> None:
    listen = Listen(dial_only=True) if setup["dial_only"] else Listen(host="127.0.0.1")
    async with hosted.node(Path(setup["folder"]), RUN, listen, setup["bootstrap"]) as (node, _keyring):
        await node.mail.serve(SERVICE, _bytes)
        await node.reachability.serve(node.mail)
        say(me=node.me, addresses=node.addresses())
        await answer_all(Node(node).answer)


def main() -> int:
    setup = opened()
    return run_until_signalled(lambda on_signal: _program(setup, on_signal))


if __name__ == "__main__":
    sys.exit(main())
