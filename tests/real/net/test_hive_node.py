"""Nodes on loopback: real p2pd, GossipSub, streams and DHT children."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import glob
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from hive_world import LOOPBACK, HivePorts, HiveWorld, in_world
from hivemind.dht.protocol import DHTProtocol
from hivemind.p2p import P2PContext
from hivemind.proto import dht_pb2
from places import SUPPORT
from shared_nodes import Shared, echo, shared_nodes

from swarm.frames.wire import topic
from swarm.limits import FRAME_LIMIT
from swarm.membership.identity import open_key
from swarm.net.libp2p import children, supervision
from swarm.net.libp2p.dht import ChildDHT
from swarm.net.libp2p.node import Node
from swarm.net.libp2p.p2pd import Daemon
from swarm.net.messaging import board, guard
from swarm.net.ports import NetError, Refused, Silent, Unreachable
from swarm.processes.event_loop import EventLoop
from swarm.settings.config import Listen
from swarm.types import Digest, PeerId


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    with shared_nodes(lambda world: world.ports(3)) as run:
        yield run


async def until(condition: Callable[[], bool], seconds: float) -> float:
    """-> seconds that it took"""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + seconds, f"not within {seconds} s"
        await asyncio.sleep(0.05)
    return time.monotonic() - began


async def hears(sender: HivePorts, inbox: object, name: str, seconds: float = 10.0) -> PeerId:
    """Publishes until the reader has heard it. -> who it says the sender was"""
    text = os.urandom(8)
    async with asyncio.timeout(seconds):
        while True:
            await sender.gossip.publish(name, text)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    while True:
                        peer, message = await anext(inbox)  # type: ignore[call-overload]
                        if message == text:
                            return PeerId(peer)


def test_a_start_that_is_cancelled_ends_its_p2pd_first(tmp_path: Path) -> None:
    """Else it ends when no event loop is left to hear of it, which is told on the terminal."""
    key, before = tmp_path / "key", set(psutil.Process().children())
    me = open_key(key).me

    async def main() -> None:
        launch = asyncio.create_task(Daemon.launch(key, me, Listen(host="127.0.0.1", dial_only=True), 0))
        while not (begun := set(psutil.Process().children()) - before):
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        launch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await launch
        assert not [child for child in begun if child.is_running()]

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(main())


def test_gossip_reaches_others_with_the_signer_and_not_oneself(shared: Shared) -> None:
    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        first, second, third = peers
        name = topic(world.run, "beat")
        subscribe = [peer.gossip.subscribe(name) for peer in (first, second, third)]
        async with subscribe[0] as near, subscribe[1] as mine, subscribe[2] as far:
            assert await hears(second, near, name) == second.me
            assert await hears(second, far, name) == second.me  # the two are not connected with each other
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(mine), 0.3)

    shared(body)


def test_an_address_that_the_machine_lost_is_not_told_though_p2pd_goes_on_naming_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four peers that were connected from there make it an address that libp2p knows from others."""
    here = {"45.9.1.5"}
    monkeypatch.setattr("swarm.net.libp2p.children.is_here", lambda host: host in here)

    class Names:
        async def identify(self) -> tuple[str, ...]:
            return tuple(f"/ip4/{host}/tcp/4711" for host in ("45.9.1.5", "45.9.1.77", "81.2.3.4"))

    async def attach(_daemon: Daemon) -> None: ...

    key = tmp_path / "key"
    node = children.NodeChildren(open_key(key), key, Digest("0" * 64), LOOPBACK, 0, attach, in_loop=True)
    told = []
    for now in ({"45.9.1.5"}, {"45.9.1.77"}, {"45.9.1.77"}, {"45.9.1.5"}):
        here.clear()
        here.update(now)
        asyncio.run(node.locate(Names()))  # type: ignore[arg-type]
        told.append([text.split("/")[2] for text in node.addresses])
    assert told == [
        ["45.9.1.5", "45.9.1.77", "81.2.3.4"],
        ["45.9.1.77", "81.2.3.4"],
        ["45.9.1.77", "81.2.3.4"],
        ["45.9.1.5", "81.2.3.4"],
    ]


def test_what_is_for_learners_alone_costs_no_connection_where_there_is_no_other_learner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("swarm.net.messaging.gossip.UNHEARD_SECONDS", 0.1)
    monkeypatch.setattr("swarm.net.libp2p.network.LOOK_SECONDS", 0.1)

    async def body(world: HiveWorld) -> None:
        _, second = await world.ports(2)
        for name in ("contribution", "counted"):
            await second.gossip.publish(topic(world.run, name), b"to nobody")
        await asyncio.sleep(1.5)
        assert not [detail for _, part, detail, _ in world.reports if part == "gossip"]
        await second.gossip.publish(topic(world.run, "beat"), b"to nobody")
        await until(lambda: any(part == "gossip" for _, part, _, _ in world.reports), 10.0)

    in_world(body)


def test_connections_are_tls_and_nothing_else(shared: Shared) -> None:
    def agreed(port: int, protocol: bytes) -> bytes:
        """multistream-select: lines, each behind its length."""
        with socket.create_connection(("127.0.0.1", port), timeout=5.0) as line:
            for said in (b"/multistream/1.0.0", protocol):
                line.sendall(bytes([len(said) + 1]) + said + b"\n")
            with line.makefile("rb") as answers:
                assert answers.readline()[1:] == b"/multistream/1.0.0\n"
                return answers.readline()[1:].strip()

    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        port = int(peers[0].node.addresses()[0].split("/tcp/")[1].split("/")[0])
        assert await asyncio.to_thread(agreed, port, b"/tls/1.0.0") == b"/tls/1.0.0"
        assert await asyncio.to_thread(agreed, port, b"/noise") == b"na"

    shared(body)


@pytest.mark.nightly
def test_one_that_nobody_listens_to_connects_anew_and_says_when_it_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("swarm.net.messaging.gossip.UNHEARD_SECONDS", 1.0)

    async def body(world: HiveWorld) -> None:
        first, second = await world.ports(2)
        name = topic(world.run, "event")
        await second.gossip.publish(name, b"lost")
        told = lambda: [(detail, seconds) for _, part, detail, seconds in world.reports if part == "gossip"]  # noqa: E731
        await until(lambda: len(told()) == 1, 10.0)
        assert name in told()[0][0] and told()[0][1] is None
        async with first.gossip.subscribe(name) as inbox:
            assert await hears(second, inbox, name) == second.me
            await until(lambda: len(told()) > 1 and told()[-1][1] is not None, 10.0)
        await first.mail.serve("echo", echo)
        assert await second.mail.send(first.me, "echo", b"still here") == b"still here"

    in_world(body)


def test_mail_carries_four_mebibytes_and_refuses_more(shared: Shared) -> None:
    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        first, second, _ = peers
        message = os.urandom(FRAME_LIMIT)
        assert await second.mail.send(first.me, "echo", message) == message
        with pytest.raises(ValueError, match="does not fit"):
            await second.mail.send(first.me, "echo", message + b"x")

    shared(body)


def test_refusals_bugs_silence_and_strangers_are_told_apart(shared: Shared) -> None:
    over = asyncio.Event()

    async def refuse(_sender: PeerId, _message: bytes) -> bytes:
        raise Refused("not today")

    async def broken(_sender: PeerId, _message: bytes) -> bytes:
        raise KeyError("ours")

    async def slow(_sender: PeerId, message: bytes) -> bytes:
        await over.wait()
        return message

    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        first, second, _ = peers
        for service, handler in (("refuse", refuse), ("broken", broken), ("slow", slow)):
            await first.mail.serve(service, handler)
        with pytest.raises(Refused, match="not today"):
            await second.mail.send(first.me, "refuse", b"")
        with pytest.raises(Refused, match="internal error"):
            await second.mail.send(first.me, "broken", b"")
        assert any(part == "mail" and "KeyError" in detail for _, part, detail, _ in world.reports)
        with pytest.raises(Silent):
            await second.mail.send(first.me, "slow", b"", timeout=0.5)
        over.set()
        with pytest.raises(Unreachable):
            await second.mail.send(first.me, "nobody-serves-this", b"", timeout=3)
        gone = open_key(world.folder / "gone").me
        with pytest.raises(Unreachable):
            await second.mail.send(gone, "echo", b"", timeout=5)

    shared(body)


def test_an_answer_that_comes_byte_by_byte_is_not_silent(shared: Shared) -> None:
    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        first, second, _ = peers

        async def drip(peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            size = int.from_bytes(await reader.readexactly(4), "big")
            message = await reader.readexactly(size)
            writer.write(b"\0" + size.to_bytes(4, "big"))
            for k in range(size):
                await asyncio.sleep(0.4)
                writer.write(message[k : k + 1])
            await reader.read()
            writer.close()

        line = await first.node.line()
        await line.on_stream(f"{world.run[:16]}/drip", drip)
        assert await second.mail.send(first.me, "drip", b"slowly", timeout=30.0, idle=1.5) == b"slowly"
        with pytest.raises(Silent):
            await second.mail.send(first.me, "drip", b"slowly", timeout=30.0, idle=0.2)

    shared(body)


def test_a_message_that_nobody_reads_leaves_no_descriptor_behind(shared: Shared) -> None:
    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        first, hostile, _ = peers
        kept, over = list[asyncio.StreamWriter](), asyncio.Event()

        async def read_nothing(
            peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            kept.append(writer)
            await over.wait()

        line = await hostile.node.line()
        await line.on_stream(f"{world.run[:16]}/deaf", read_nothing)
        mine = lambda: psutil.Process().num_fds() - len(kept)  # noqa: E731
        before = mine()
        for _ in range(6):
            with pytest.raises(Silent):
                await first.mail.send(hostile.me, "deaf", os.urandom(FRAME_LIMIT), timeout=1.0)
        await until(lambda: mine() < before + 3, 5)
        over.set()
        for writer in kept:
            writer.transport.abort()

    shared(body)


def test_mail_beyond_the_limit_of_calls_is_refused(shared: Shared) -> None:
    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        release = asyncio.Event()

        async def wait(_sender: PeerId, message: bytes) -> bytes:
            await release.wait()
            return message

        first, _, third = peers
        services = ["a", "b", "c"]
        for service in services:
            await first.mail.serve(service, wait)
        calls = [
            asyncio.create_task(third.mail.send(first.me, service, b"x"))
            for service in services
            for _ in range(8)
        ]
        done, _ = await asyncio.wait(calls, timeout=2)
        assert len(done) == 8  # 24 calls, 16 may run
        assert all(isinstance(call.exception(), Refused) for call in done)
        release.set()
        assert await asyncio.gather(*(call for call in calls if call not in done)) == [b"x"] * 16

    shared(body)


def test_a_frame_that_announces_too_much_is_refused_before_it_is_sent(shared: Shared) -> None:
    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        first, second, _ = peers
        line = await second.node.line()
        reader, writer = await line.open_stream(first.me, f"{world.run[:16]}/echo", 5)
        writer.write((1 << 31).to_bytes(4, "big"))
        answer = await asyncio.wait_for(reader.read(), 5)
        assert answer[0] == 1 and b"limit" in answer
        writer.close()

    shared(body)


def test_a_killed_p2pd_is_replaced_on_its_port_and_everything_works_again(shared: Shared) -> None:
    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        first, second, _ = peers
        name = topic(world.run, "beat")
        async with first.gossip.subscribe(name) as inbox:
            assert await hears(second, inbox, name) == second.me
            addresses, generation = first.addresses(), first.node.generation
            os.kill(first.node.pids()["p2pd"], signal.SIGKILL)
            await until(lambda: first.node.generation > generation, 15)
            assert first.addresses() == addresses
            assert await hears(second, inbox, name, 20) == second.me
        assert await second.mail.send(first.me, "echo", b"again") == b"again"
        assert await first.board.put(topic(world.run, "member"), b"again", 60)
        assert (await second.board.get(topic(world.run, "member")))[first.me] == b"again"
        told = [
            (part, seconds is None)
            for peer, part, _, seconds in world.reports
            if peer == first.me and part == "p2pd"
        ]
        assert told == [("p2pd", True), ("p2pd", False)]

    shared(body)


@pytest.mark.parametrize("kind", ["p2pd", "p2pclient"])
def test_a_p2pd_whose_socket_something_removed_is_replaced(kind: str, shared: Shared) -> None:
    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        first, second, _ = peers
        generation = first.node.generation
        (path,) = glob.glob(f"/tmp/hivemind-{first.me[-10:]}-{kind}-*")
        os.unlink(path)
        await until(lambda: first.node.generation > generation, 15)
        assert "was removed" in next(why for peer, _, why, _ in world.reports if peer == first.me)
        await until(lambda: first.me in second.node.peers(), 30)
        assert await second.mail.send(first.me, "echo", b"again") == b"again"
        assert await first.mail.send(second.me, "echo", b"again") == b"again"

    shared(body)


def test_a_killed_p2pd_whose_port_another_program_takes_is_replaced_on_another_one(shared: Shared) -> None:
    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        first, _, back = peers
        port, generation = back.node.port, back.node.generation
        p2pd = psutil.Process(back.node.pids()["p2pd"])
        p2pd.kill()
        p2pd.wait(5)  # nobody looks at it meanwhile: the loop stands still
        with socket.create_server(("127.0.0.1", port)):
            await until(lambda: back.node.generation > generation, 15)
            assert back.node.port != port
            await until(lambda: first.me in back.node.peers(), 30)
            assert await first.mail.send(back.me, "echo", b"again") == b"again"

    shared(body)


def test_a_dht_that_is_killed_before_it_is_of_use_is_made_anew(
    monkeypatch: pytest.MonkeyPatch, shared: Shared
) -> None:
    killed = list[int]()

    class Killed(ChildDHT):
        async def launch(self, *given: Any) -> None:
            if not killed:
                killed.append(self.pid)
                os.kill(self.pid, signal.SIGKILL)
            await super().launch(*given)

    monkeypatch.setattr(children, "ChildDHT", Killed)

    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        first, _, _ = peers
        begun = await world.start("begun", first.addresses()[:1])
        assert await begun.board.put(topic(world.run, "member"), b"mine", 60)
        assert (await first.board.get(topic(world.run, "member")))[begun.me] == b"mine"
        assert killed and not psutil.pid_exists(killed[0])

    shared(body)


@pytest.mark.nightly
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_hung_dht_is_replaced(how: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(supervision, "HEALTH_SECONDS", 1.0)

    async def body(world: HiveWorld) -> None:
        first, second = await world.ports(2)
        key = topic(world.run, "member")
        assert await second.board.put(key, b"before", 60)
        generation, child = first.node.generation, first.node.pids()["dht"]
        os.kill(child, how)
        await until(lambda: first.node.generation > generation, 15)
        assert not psutil.pid_exists(child)
        assert await first.board.put(key, b"mine", 60)
        assert await second.board.get(key) == {first.me: b"mine", second.me: b"before"}

    in_world(body)


def test_who_answers_a_greeting_with_what_cannot_be_read_counts_as_one_that_did_not_answer(
    monkeypatch: pytest.MonkeyPatch, shared: Shared
) -> None:
    async def ping(self: Any, request: dht_pb2.PingRequest, context: P2PContext) -> dht_pb2.PingResponse:
        return dht_pb2.PingResponse(peer=dht_pb2.NodeInfo(node_id=b"\xff" * 32), available=True)

    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        first = peers[0]
        with monkeypatch.context() as patch:
            patch.setattr(DHTProtocol, "rpc_ping", ping)  # in the process that is forked next
            hostile = await world.start("hostile", first.addresses()[:1])
        assert await first.node.network.greet(frozenset({hostile.me})) == (0, [])

    shared(body)


def test_a_dht_for_which_the_machine_has_no_process_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, shared: Shared
) -> None:
    monkeypatch.setattr(supervision, "AGAIN_SECONDS", 0.5)
    fork, refused = os.fork, list[int]()

    def full() -> int:
        if len(refused) < 2:
            refused.append(errno.EAGAIN)
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return fork()

    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        first = peers[0]
        generation = first.node.generation
        monkeypatch.setattr(os, "fork", full)
        os.kill(first.node.pids()["dht"], signal.SIGKILL)
        await until(lambda: first.node.generation > generation, 15)
        assert await first.board.put(topic(world.run, "member"), b"again", 60)
        told = [(detail, seconds is None) for _, part, detail, seconds in world.reports if part == "dht"]
        assert [fault for _, fault in told] == [True, True, True, False]
        assert all(os.strerror(errno.EAGAIN) in detail for detail, _ in told[1:3])

    shared(body)


def test_who_answers_a_question_with_an_id_of_a_megabyte_hangs_nobody(
    monkeypatch: pytest.MonkeyPatch, shared: Shared
) -> None:
    async def find(self: Any, request: dht_pb2.FindRequest, context: P2PContext) -> dht_pb2.FindResponse:
        near = {"nearest_node_ids": [b"\x01" * 20], "nearest_peer_ids": [b"\xff" * (1 << 20)]}
        results = [dht_pb2.FindResult(type=dht_pb2.NOT_FOUND, **near)] * len(request.keys)
        return dht_pb2.FindResponse(results=results, peer=self.node_info)

    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        first = peers[0]
        child = first.node.pids()["dht"]
        with monkeypatch.context() as patch:
            patch.setattr(guard, "_find_bounded", find)  # in the process that is forked next
            hostile = await world.start("hostile", first.addresses()[:1])
        guard.install()
        began = time.monotonic()
        await first.node.network.greet(frozenset({hostile.me}))
        assert await first.board.get(topic(world.run, "newest")) == {}
        assert time.monotonic() - began < board.ANSWER_SECONDS and first.node.pids()["dht"] == child

    shared(body)


def test_a_put_counts_only_when_another_node_has_it() -> None:
    async def body(world: HiveWorld) -> None:
        key = topic(world.run, "member")
        first = await world.start("first")
        assert await first.board.put(key, b"alone", 60)  # there is no other
        second = await world.start("second", first.addresses()[:1])
        assert await second.board.get(key) == {first.me: b"alone"}
        await world.end([first.node])
        await until(lambda: not second.node.peers(), 10)
        assert not await second.board.put(key, b"cut off", 60)

    in_world(body)


@pytest.mark.nightly
def test_a_bootstrap_that_comes_back_is_found_again() -> None:
    async def body(world: HiveWorld) -> None:
        first, second = await world.ports(2)
        name, key = topic(world.run, "beat"), topic(world.run, "newest")
        await world.end([first.node])
        await until(lambda: not second.node.peers(), 10)
        for _ in range(5):  # a caller that does not give up must not make the return slower
            with pytest.raises(Unreachable):
                await second.mail.send(first.me, "echo", b"", timeout=2)
        listen = msgspec.structs.replace(LOOPBACK, port=first.node.port)
        again = await world.start("peer0", listen=listen)
        await again.mail.serve("echo", echo)
        assert again.me == first.me
        assert await until(lambda: first.me in second.node.peers(), 30) < 30
        assert await second.mail.send(first.me, "echo", b"hello") == b"hello"
        async with again.gossip.subscribe(name) as inbox:
            assert await hears(second, inbox, name, 20) == second.me
        await until(lambda: any(part == "network" and seconds for _, part, _, seconds in world.reports), 10)
        assert await second.board.put(key, b"value", 60)
        assert await again.board.get(key) == {second.me: b"value"}

    in_world(body)


def test_an_unreachable_bootstrap_is_named_with_its_reason(shared: Shared) -> None:
    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        first = peers[0]
        stranger = open_key(world.folder / "stranger").me
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            refused = f"/ip4/127.0.0.1/tcp/{closed.getsockname()[1]}/p2p/{stranger}"
            other = f"/ip4/127.0.0.1/tcp/{first.node.port}/p2p/{stranger}"
            with pytest.raises(Unreachable) as error:
                await world.start("second", (refused, other))
        assert f"{refused}: connection refused" in str(error.value)
        assert f"{other}: another peer answers there ({first.me})" in str(error.value)
        with pytest.raises(NetError, match="should look like"):
            await world.start("second", ("127.0.0.1:31337",))

    shared(body)


def test_a_port_in_use_is_named(shared: Shared) -> None:
    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        first = peers[0]
        with pytest.raises(NetError, match=rf"TCP port {first.node.port} .* already in use"):
            await world.start("second", listen=msgspec.structs.replace(LOOPBACK, port=first.node.port))

    shared(body)


def test_a_peer_that_only_dials_is_answered_over_the_connection_that_it_opened(shared: Shared) -> None:
    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        first = peers[0]
        dialler = await world.start(
            "dialler", first.addresses()[:1], msgspec.structs.replace(LOOPBACK, dial_only=True)
        )
        await dialler.mail.serve("echo", echo)
        assert dialler.addresses() == ()
        assert await first.mail.send(dialler.me, "echo", b"back") == b"back"
        assert await dialler.board.put(topic(world.run, "member"), b"here", 60)
        assert (await first.board.get(topic(world.run, "member")))[dialler.me] == b"here"

    shared(body)


def test_peers_that_know_only_addresses_from_heartbeats_can_write_to_each_other(shared: Shared) -> None:
    async def body(world: HiveWorld, peers: list[HivePorts]) -> None:
        first, second = peers[0], await world.start("alone")
        second.node.network.remember(first.me, first.addresses())
        assert await second.mail.send(first.me, "echo", b"found") == b"found"

    shared(body)


PARENT = """
import asyncio, sys
from pathlib import Path
from typing import Any
sys.path.insert(0, sys.argv[1])
from hive_world import HiveWorld

async def main():
    world = HiveWorld()
    await world.ports(2)
    print("ready", world.folder, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.nightly
def test_nothing_outlives_a_parent_that_was_killed() -> None:
    command = [sys.executable, "-c", PARENT, str(SUPPORT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        ready, folder = parent.stdout.readline().split()
        assert ready == "ready"
        children = psutil.Process(parent.pid).children(recursive=True)
        names = [child.name() for child in children]
        assert names.count("p2pd") == 2 and len(children) >= 4
        parent.kill()
        _, alive = psutil.wait_procs(children, timeout=3)
        assert not [child for child in alive if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    for key in Path(folder).iterdir():
        # The next start with the same key takes away the sockets that the killed one left.
        me = open_key(key).me
        left = list(Path("/tmp").glob(f"hivemind-{me[-10:]}-*.sock"))
        assert left
        asyncio.run(_start_and_close(key))
        assert not [path for path in left if path.exists()]


async def _start_and_close(key: Path) -> None:
    node = await Node.start(open_key(key), key, Digest("0" * 64), LOOPBACK, (), lambda *_: None)
    await node.close()
