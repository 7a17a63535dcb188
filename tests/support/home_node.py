"""A real node in a process of its own, without torch, for tests that put it into a network namespace.

    python tests/support/home_node.py NAME FOLDER '{"host": "45.9.1.1"}' [BOOTSTRAP ...]
    <- {"do": "status"}
       {"do": "met", "peer": "...", "addresses": ["..."]}
       {"do": "ask", "peer": "...", "size": bytes of the answer}
    -> a line after each; the first one after the start

It ends with its stdin.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from swarm.membership.identity import open_key
from swarm.net.libp2p.network import WayIn
from swarm.net.libp2p.node import Node
from swarm.net.ports import NetError
from swarm.settings.config import Listen
from swarm.types import Digest, PeerId

RUN = Digest(hashlib.sha256(b"homes").hexdigest())
SERVICE = "bytes"


async def answer(_: PeerId, question: bytes) -> bytes:
    return bytes(int(question))


def status(node: Node) -> dict[str, Any]:
    reach = node.reachability
    return {
        "peer": node.me,
        "open": reach.open,
        "addresses": node.addresses(),
        "relays": reach.relays,
        "relayed": sorted(node.relayed()),
        "peers": sorted(node.peers()),
        "seen": {peer: one.seen for peer, one in reach.answers.items()},
        "why": [one.why for told in reach.answers.values() for one in told.dialled],
    }


async def obey(node: Node, order: dict[str, Any]) -> dict[str, Any]:
    match order["do"]:
        case "met":
            node.network.remember(order["peer"], order["addresses"])
        case "ask":
            began = time.monotonic()
            try:
                got = await node.mail.send(
                    order["peer"], SERVICE, b"%d" % order["size"], timeout=order.get("timeout", 60)
                )
            except NetError as error:
                return {"error": str(error)}
            return {"size": len(got), "seconds": time.monotonic() - began}
    return status(node)


async def main(name: str, folder: str, listen: str, *bootstrap: str) -> None:
    key = Path(folder) / name
    how = Listen(**{"host": "0.0.0.0", **json.loads(listen)})
    node = await Node.start(
        open_key(key), key, RUN, how, bootstrap, lambda *_: None, way_in=WayIn(watches=True)
    )
    await node.mail.serve(SERVICE, answer)
    await node.reachability.serve(node.mail)
    watching = node.reachability.watch(node.mail, lambda _: None)
    beside = [asyncio.create_task(node.supervise()), asyncio.create_task(watching)]
    try:
        print(json.dumps(status(node)), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await obey(node, json.loads(line))), flush=True)
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await node.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
