"""A node without torch: it reads and writes the board of real nodes under the same rules, in a process of its
own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import Any

import pytest
from hive_world import HivePorts, HiveWorld, in_world

from swarm.net import torch_free
from swarm.types import PeerId
from swarm.wire import topic

BEGIN = """
import asyncio, sys
from pathlib import Path
from swarm.net import torch_free
torch_free.enter()
from swarm.config import Listen
from swarm.identity import open_key
from swarm.net import hive
from swarm.wire import topic

async def main(run, key, address):
    keyring = open_key(Path(key))
    node = await hive.Node.start(keyring, Path(key), run, Listen(dial_only=True), [address], print)
    watching = asyncio.create_task(node.supervise())
    try:
        await check(node, run)
    finally:
        watching.cancel()
        await node.close()
    heavy = {"torch", "transformers"} & set(sys.modules)
    assert not heavy, heavy
"""
END = """
asyncio.run(main(*sys.argv[1:]))
"""


async def without_torch(world: HiveWorld, peer: HivePorts, check: str) -> None:
    """Run `async def check(node, run)` in a process that joins `peer` without torch."""
    words = [str(world.run), str(world.folder / "light"), peer.addresses()[0]]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", f"{BEGIN}{check}{END}", *words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, said.decode()


def test_the_board_works_both_ways_without_torch() -> None:
    async def body(world: HiveWorld) -> None:
        (peer,) = await world.ports(1)
        key = topic(world.run, "member")
        assert await peer.board.put(key, b"of a whole one", 60)
        await without_torch(
            world,
            peer,
            """
async def check(node, run):
    assert list((await node.board.get(topic(run, "member"))).values()) == [b"of a whole one"]
    assert await node.board.put(topic(run, "member"), b"of a light one", 60)
    assert set(node.pids()) == {"p2pd"}
""",
        )
        assert b"of a light one" in (await peer.board.get(key)).values()

    in_world(body)


def test_without_torch_a_dead_p2pd_is_replaced_and_the_board_goes_on() -> None:
    async def body(world: HiveWorld) -> None:
        (peer,) = await world.ports(1)
        assert await peer.board.put(topic(world.run, "member"), b"here", 60)
        await without_torch(
            world,
            peer,
            """
import os, signal
async def check(node, run):
    os.kill(node.pids()["p2pd"], signal.SIGKILL)
    async with asyncio.timeout(20):
        while node.generation == 0 or not await node.board.get(topic(run, "member")):
            await asyncio.sleep(0.1)
""",
        )

    in_world(body)


async def forge(node: Any, key: str, owner: str) -> bool:
    """Beside the DHT node: keep a record that `owner` never signed, past all rules."""
    import base58
    from hivemind.dht.routing import DHTID

    packed = node.protocol.serializer.dumps(b"forged") + bytes(64)
    return bool(
        node.protocol.storage.store_subkey(
            DHTID.generate(source=key), base58.b58decode(owner), packed, time.time() + 60
        )
    )


def test_a_record_that_its_owner_did_not_sign_is_not_believed_without_torch() -> None:
    async def body(world: HiveWorld) -> None:
        (peer,) = await world.ports(1)
        owner = PeerId("12D3KooWBv1JUxbGetLPesuHAB469wPhu9UeTbh9UPm9abejcDA9")
        dht = await peer.node.live_dht()
        assert await dht.ask(forge, topic(world.run, "member"), owner)
        await without_torch(
            world,
            peer,
            """
async def check(node, run):
    assert await node.board.get(topic(run, "member")) == {}
""",
        )

    in_world(body)


def test_msgpack_is_bounded_without_torch() -> None:
    script = """
from swarm.net import torch_free
torch_free.enter()
from swarm.net import guard
guard.install()
from hivemind.utils import MSGPackSerializer
try:
    MSGPackSerializer.loads(bytes(guard.DECODE_BYTES + 1))
except guard.GuardError:
    print("refused")
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout == "refused\n", ran.stderr


def test_a_process_that_has_hivemind_whole_cannot_be_without_torch() -> None:
    import hivemind  # noqa: F401 (that it was imported is the point)

    with pytest.raises(RuntimeError, match="imported hivemind whole"):
        torch_free.enter()
    assert not torch_free.slim()
