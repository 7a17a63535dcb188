"""The dashboard on a port: which one, how it closes, and what clients without manners cost."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx2
import pytest
from dashboard_story import SAMPLERS, heard, story

from dashboard.fold.state import SwarmState
from dashboard.serve import server as serving
from dashboard.serve.app import create_app
from dashboard.serve.feed import Feed
from dashboard.serve.server import DashboardPortTaken, NoAddress, Server, serve

ASK = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def fed(versions: int = 1) -> Feed:
    feed = Feed(SwarmState())
    for event in story(versions, start=time.time() - 0.6 * versions):
        feed(event)
    return feed


@asynccontextmanager
async def page(feed: Feed | None = None) -> AsyncIterator[Server]:
    server = await serve(create_app(feed or fed()), "127.0.0.1", 0, free=False)
    try:
        yield server
    finally:
        await server.close()


def run(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scene(), 60))


async def until(so: Callable[[], bool]) -> None:
    while not so():
        await asyncio.sleep(0.02)


async def ask(server: Server, path: str = "healthz") -> httpx2.Response:
    async with httpx2.AsyncClient() as client:
        return await client.get(server.url + path)


def test_a_host_that_is_no_address_of_this_machine_is_said_so() -> None:
    async def scene() -> None:
        for host in ("no such host", "192.0.2.1"):
            with pytest.raises(OSError, match=f"no address {host}: .*`--host`") as refused:
                await serve(create_app(fed()), host, 0, free=False)
            assert refused.value.errno == errno.EADDRNOTAVAIL

    asyncio.run(scene())


def test_a_port_that_this_user_may_not_have_is_said_with_the_option_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr("dashboard.serve.server.socket.create_server", refused)
        with pytest.raises(NoAddress, match=r"port 80 of 127\.0\.0\.1 is not for this user.*`--port`"):
            asyncio.run(serve(create_app(fed()), "127.0.0.1", 80, free=False))


def test_a_taken_port_moves_on_only_when_asked() -> None:
    async def scene() -> None:
        async with page() as first:
            with pytest.raises(
                DashboardPortTaken, match=f"port {first.port} of 127.0.0.1 is in use: .*peer.page.port=0"
            ) as refused:
                await serve(create_app(fed()), "127.0.0.1", first.port, free=False)
            assert refused.value.errno == errno.EADDRINUSE and "`--port 0`" in str(refused.value)
            second = await serve(create_app(fed()), "127.0.0.1", first.port, free=True)
            assert first.port < second.port < first.port + 50
            assert (await ask(second)).json()["status"] == "ok"
            await second.close()
        again = await serve(create_app(fed()), "127.0.0.1", first.port, free=False)
        await again.close()

    run(scene)


def test_serving_leaves_signals_to_the_host() -> None:
    async def scene() -> None:
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        async with page():
            assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before

    run(scene)


def test_closing_ends_the_streams_and_the_same_feed_can_be_served_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "GRACE", 3600)  # streams end by themselves

    async def scene() -> None:
        feed = fed(3)
        for _ in range(2):
            server = await serve(create_app(feed), "127.0.0.1", 0, free=False)
            async with httpx2.AsyncClient() as client, client.stream("GET", server.url + "stream") as answer:
                views = (
                    json.loads(line[6:]) async for line in answer.aiter_lines() if line.startswith("data: ")
                )
                assert (await anext(views))["full"]
                async with asyncio.TaskGroup() as group:
                    group.create_task(server.close())
                    assert [view async for view in views] == []

    run(scene)


def test_an_error_of_ours_is_in_the_servers_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboard.serve.json_api.view_of", lambda *_, **__: 1 / 0)

    async def scene() -> None:
        async with page() as server:
            answer = await ask(server, "api/state")
            assert answer.status_code == 500 and "division" not in answer.text

    run(scene)
    assert "ZeroDivisionError" in caplog.text


def test_a_body_does_not_wait_for_the_head_to_be_acknowledged() -> None:
    async def scene() -> None:
        async with page() as server, httpx2.AsyncClient() as client:
            await client.get(server.url + "healthz")
            (connection,) = server._server.server_state.connections
            wired = connection.transport.get_extra_info("socket")
            assert wired.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    run(scene)


def test_connections_beyond_the_limit_get_503_and_one_that_ends_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "CONNECTIONS", 3)

    async def scene() -> None:
        async with page() as server:
            held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
            await until(lambda: len(server._server.server_state.connections) == 2)
            assert (await ask(server)).status_code == 503
            held[0][1].close()
            await until(lambda: len(server._server.server_state.connections) < 2)
            assert (await ask(server)).status_code == 200
            held[1][1].close()

    run(scene)


def test_pipelined_requests_are_answered() -> None:
    async def scene() -> None:
        async with page() as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(ASK * 2 + ASK[:-2] + b"Connection: close\r\n\r\n")
            assert (await reader.read()).count(b"HTTP/1.1 200 OK") == 3
            writer.close()

    run(scene)


async def deaf(server: Server) -> socket.socket:
    """A client of the stream that does not read, over buffers of the kernel that hold next to nothing."""
    for listener in server._server.servers[0].sockets:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", server.port))
    await loop.sock_sendall(client, b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return client


@pytest.mark.nightly
def test_a_reader_that_never_reads_costs_no_memory_and_does_not_stop_the_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        feed, made = fed(300), 0
        plain = feed.updates

        async def updates() -> AsyncIterator[str]:
            nonlocal made
            async for view in plain():
                made += 1
                yield view

        monkeypatch.setattr(feed, "updates", updates)
        async with page(feed) as server:
            client = await deaf(server)
            for number in range(40):
                feed(heard(SAMPLERS[0], 50, time.time(), seq=10**6 + number))
                await asyncio.sleep(0.05)
            assert feed.readers == 1 and 1 <= made <= 4, "four updates a second were due"
        client.close()

    run(scene)


def test_a_page_on_all_addresses_answers_to_every_address_and_the_machines_name() -> None:
    async def scene() -> None:
        server = await serve(create_app(fed()), "0.0.0.0", 0, free=False)
        try:
            names = {"10.1.2.3": 200, "[fe80::1]:80": 200, socket.gethostname(): 200, "evil.example": 421}
            async with httpx2.AsyncClient() as client:
                for name, status in names.items():
                    got = await client.get(f"http://127.0.0.1:{server.port}/healthz", headers={"Host": name})
                    assert got.status_code == status, name
        finally:
            await server.close()

    run(scene)
