"""hivemind's packages without their `__init__`: a node that watches reads and writes the board of real nodes
under the same rules, without torch and without processes but p2pd; an averager has torch and no scipy."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hive_world import HivePorts, HiveWorld
from shared_nodes import Shared, shared_nodes

from swarm.frames.wire import topic
from swarm.types import PeerId


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    with shared_nodes(lambda world: world.ports(1)) as run:
        yield run


BEGIN = """
import asyncio, sys
from pathlib import Path
from swarm.settings.config import Listen
from swarm.membership.identity import open_key
from swarm.net.libp2p.node import Node
from swarm.net.libp2p.network import WayIn
from swarm.frames.wire import topic

async def main(run, key, address):
    keyring, listen, watching = open_key(Path(key)), Listen(dial_only=True), WayIn(watches=True)
    node = await Node.start(keyring, Path(key), run, listen, [address], print, way_in=watching)
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
    words = [str(world.run), tempfile.mkdtemp(dir=world.folder) + "/light", peer.addresses()[0]]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", f"{BEGIN}{check}{END}", *words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said, _ = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, said.decode()


def test_the_board_works_both_ways_without_torch(shared: Shared) -> None:
    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        (peer,) = peers
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

    shared(body)


def test_without_torch_a_dead_p2pd_is_replaced_and_the_board_goes_on(shared: Shared) -> None:
    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        (peer,) = peers
        assert await peer.board.put(topic(world.run, "member"), b"here", 120)
        await without_torch(
            world,
            peer,
            """
import os, signal
async def check(node, run):
    os.kill(node.pids()["p2pd"], signal.SIGKILL)
    async with asyncio.timeout(60):
        while node.generation == 0 or not await node.board.get(topic(run, "member")):
            await asyncio.sleep(0.1)
""",
        )

    shared(body)


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


def test_a_record_that_its_owner_did_not_sign_is_not_believed_without_torch(shared: Shared) -> None:
    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        (peer,) = peers
        owner = PeerId("12D3KooWBv1JUxbGetLPesuHAB469wPhu9UeTbh9UPm9abejcDA9")
        dht = await peer.node.live_dht()
        assert await dht.ask(forge, topic(world.run, "newest"), owner)
        await without_torch(
            world,
            peer,
            """
async def check(node, run):
    assert await node.board.get(topic(run, "newest")) == {}
""",
        )

    shared(body)


def test_msgpack_is_bounded_without_torch() -> None:
    script = """
from swarm.net.messaging import guard
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


@pytest.mark.parametrize(
    ("module", "without"),
    [
        ("swarm.net.libp2p.node", {"torch", "numpy", "scipy", "hivemind.optim", "hivemind.dht.dht"}),
        ("peers.build.assembly", {"torch", "transformers", "scipy"}),  # all that a seed imports
        (
            "swarm.net.averaging.averager",
            {"scipy", "hivemind.optim", "hivemind.moe", "hivemind.averaging.averager"},
        ),
    ],
)
def test_what_is_not_used_is_not_imported(module: str, without: set[str]) -> None:
    script = f"import sys, {module}; print(*{without} & set(sys.modules))"
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout == "\n", ran.stderr + ran.stdout


def test_a_program_that_has_hivemind_whole_keeps_it() -> None:
    script = (
        "import hivemind, swarm.net.libp2p.node;"
        "print(hivemind.DHT.__name__, hivemind.utils.MPFuture.__name__)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout == "DHT MPFuture\n", ran.stderr


def test_the_dht_of_a_node_that_is_made_before_torch_is_imported_has_no_torch(shared: Shared) -> None:
    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        (peer,) = peers
        dht = await peer.node.live_dht()
        assert await dht.ask(imported, "hivemind.dht.node")
        if "torch" not in sys.modules:  # in this test's process
            assert not await dht.ask(imported, "torch")

    shared(body)


async def imported(_: Any, module: str) -> bool:
    return module in sys.modules


def test_what_fails_beside_the_dht_is_told_with_its_reason_and_the_next_question_is_answered(
    shared: Shared,
) -> None:
    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        (peer,) = peers
        dht = await peer.node.live_dht()
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            await dht.ask(divided, 1, 0)
        assert await dht.ask(divided, 4, 2) == 2.0

    shared(body)


async def divided(_: Any, above: int, below: int) -> float:
    return above / below
