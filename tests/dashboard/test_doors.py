"""Who may connect to the page and ask it: no network costs another more than its part."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator

import pytest
from starlette.types import Message, Receive, Scope, Send
from test_app import fed
from test_server import ASK, page, run, until

from dashboard.serve import server as serving
from dashboard.serve.app import SEATS, create_app
from dashboard.serve.doors import HERE, Crowd, Fair, Rate, Turns, network
from dashboard.serve.feed import READERS
from dashboard.serve.server import Server, serve
from lab.swarms.partner import Partner

MUCH, NOTHING = Rate(0.0, 1e6), Rate(0.0, 0.0)
FLOOD, HONEST = "127.0.0.9", "127.0.0.8"


def test_a_network_is_an_address_or_half_of_one() -> None:
    assert network("10.1.2.3") == "10.1.2.3" and network("::1") in HERE
    assert network("fe80::1%eth0") == network("fe80::2") != network("fe80:0:0:1::1")
    assert network("a:b") == "a:b", "as a proxy may forward it"


def test_while_a_crowd_asks_each_network_has_its_fair_share() -> None:
    fair = Fair(MUCH, Rate(0.0, 20), Rate(0.0, 5))
    heard = [sum(fair.take(who, 0.0) for _ in range(30)) for who in ("10.0.0.9", "10.0.0.8", "127.0.0.1")]
    assert heard == [25, 5, 30], "a proxy asks for everybody"


def test_what_an_answer_cost_beyond_the_usual_is_charged_to_who_asked() -> None:
    fair = Fair(Rate(1.0, 10.0), MUCH, NOTHING)
    assert fair.take("10.0.0.9", 0.0)
    fair.charge("10.0.0.9", 14.0, 0.0)
    fair.charge("127.0.0.1", 1e9, 0.0)
    assert not fair.take("10.0.0.9", 5.5) and fair.take("10.0.0.9", 6.5), "five below nothing, one a second"
    assert fair.take("10.0.0.8", 0.0) and fair.take("127.0.0.1", 0.0)


def test_what_one_network_costs_is_not_taken_of_anothers_fair_share() -> None:
    fair = Fair(MUCH, Rate(0.0, 20.0), Rate(0.0, 5.0))
    for _ in range(30):
        if fair.take("10.0.0.9", 0.0):
            fair.charge("10.0.0.9", 10.0, 0.0)
    assert sum(fair.take("10.0.0.8", 0.0) for _ in range(30)) >= 5


def test_a_connection_more_costs_no_look_at_those_that_are_there() -> None:
    crowd = Crowd[int](64)
    for number in range(1000):
        crowd.add(f"10.0.0.{number % 3 % 2}", number, float(number))
    assert crowd.too_many() == 0, "the oldest of the network that has two thirds"
    crowd.add("10.0.0.0", 0, 1000.0)
    assert crowd.too_many() == 2, "it is there anew"
    for number in range(1000):
        crowd.remove(f"10.0.0.{number % 3 % 2}", number)
    assert crowd.too_many() is None


def test_who_asked_least_is_heard_first_and_equals_take_turns() -> None:
    async def scene() -> list[str]:
        fair = Fair(MUCH, NOTHING, Rate(0.0, 9.0))
        for who, often in (("busy", 5), ("keen", 2)):
            for _ in range(often):
                assert fair.take(who, 0.0)
        turns, heard = Turns(asyncio.get_running_loop(), fair), list[str]()
        for who in (HERE[0], *["busy"] * 6, *["keen"] * 2):
            turns.wait(who, lambda who=who: heard.append(who))  # type: ignore[misc]
        await asyncio.sleep(0)
        assert heard == ["keen", "keen", "busy"], "a few in a turn of the loop"
        for who in ("new", "busy", "other"):
            turns.wait(who, lambda who=who: heard.append(who))  # type: ignore[misc]
        await until(lambda: len(heard) == 12)
        return heard

    heard = asyncio.run(scene())
    assert heard[3:] == ["new", "other", *["busy"] * 6, HERE[0]], "a proxy's wait for what is bounded"


def test_what_fails_to_begin_holds_up_nobody() -> None:
    def fails() -> None:
        raise ValueError("told to")

    async def scene() -> None:
        loop, told, heard = asyncio.get_running_loop(), list[str](), list[str]()
        loop.set_exception_handler(lambda _, context: told.append(str(context["exception"])))
        turns = Turns(loop, Fair(MUCH, MUCH, NOTHING))
        turns.wait("a", fails)
        turns.wait("b", lambda: heard.append("b"))
        await until(lambda: heard == ["b"])
        assert told == ["told to"]

    asyncio.run(scene())


async def asked(port: int, who: str, often: int = 1, ask: bytes = ASK) -> int:
    """How many requests of new connections from this address are answered."""
    answered = 0
    for _ in range(often):
        with contextlib.suppress(ConnectionError, EOFError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(who, 0))
            writer.write(ask)
            answered += b"200 OK" in await reader.readuntil(b"\r\n")
            writer.close()
    return answered


def test_who_asks_without_a_pause_is_cut_off_and_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_asked", Fair(Rate(0.0, 40.0), MUCH, NOTHING))
    monkeypatch.setattr(serving, "_arrivals", Fair(MUCH, MUCH, NOTHING))
    monkeypatch.setattr(serving, "UNIT", 1e9)  # no answer costs more than the usual one

    async def scene() -> None:
        async with page() as server:
            assert await asked(server.port, FLOOD, 80) == 40
            assert await asked(server.port, HONEST, 20) == 20

    run(scene)


def test_who_connects_without_a_pause_is_refused_before_anything_is_made_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "_arrivals", Fair(Rate(0.0, 30.0), MUCH, NOTHING))
    made = list[str]()
    begin = serving._Connection.connection_made

    def connection_made(self: serving._Connection, transport: asyncio.Transport) -> None:
        begin(self, transport)
        made.append(self.network)

    monkeypatch.setattr(serving._Connection, "connection_made", connection_made)

    async def scene() -> None:
        async with page() as server:
            assert await asked(server.port, FLOOD, 200) == 30
            assert await asked(server.port, HONEST, 20) == 20 and await asked(server.port, HERE[0], 50) == 50
            assert made.count(FLOOD) == 30

    run(scene)


def test_what_costs_much_is_cut_off_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_asked", Fair(Rate(0.0, 40.0), MUCH, NOTHING))
    costly = b"GET /api/state HTTP/1.1\r\nHost: localhost\r\n\r\n"

    async def scene() -> None:
        feed = fed(1)
        view = feed.state.view

        def slow(*args: object, **more: object) -> object:
            burn(20 * serving.UNIT)
            return view(*args, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(feed.state, "view", slow)
        monkeypatch.setattr("dashboard.serve.rendered.FRESH", 0.0)
        async with page(feed) as server:
            assert 1 <= await asked(server.port, FLOOD, 40, costly) <= 2
            assert await asked(server.port, HONEST, 20) == 20

    run(scene)


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_an_answer_is_charged_for_its_own_steps_and_not_for_what_the_loop_does_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    charged = list[float]()
    fair = Fair(MUCH, MUCH, NOTHING)
    monkeypatch.setattr(fair, "charge", lambda network, more, now: charged.append(more + 1))
    monkeypatch.setattr(serving, "_asked", fair)
    other, own = 60 * serving.UNIT, 20 * serving.UNIT

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asyncio.get_running_loop().call_soon(burn, other)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.001)
        burn(own if scope["path"] == "/dear" else 0.0)
        await send({"type": "http.response.start", "status": 200})
        burn(other)

    async def ask(path: str) -> None:
        async def ignore(message: Message) -> None: ...

        scope = {"type": "http", "client": (FLOOD, 1), "path": path}
        await serving.Metered(app)(scope, asyncio.Event().wait, ignore)  # type: ignore[arg-type]

    async def scene() -> None:
        await ask("/")
        await ask("/dear")

    asyncio.run(scene())
    cheap, dear = charged
    assert cheap < 10 and 20 <= dear < 30


@contextlib.contextmanager
def deaf(port: int, who: str, count: int) -> Iterator[list[socket.socket]]:
    """Clients of the stream that do not read."""
    with contextlib.ExitStack() as held:
        made = [
            held.enter_context(socket.create_connection(("127.0.0.1", port), None, (who, 0)))
            for _ in range(count)
        ]
        for one in made:
            one.sendall(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        yield made


def connected(server: Server, who: str) -> int:
    return sum(one.client[0] == who for one in server._server.server_state.connections)  # type: ignore[union-attr]


def test_connections_that_are_too_many_are_closed_where_most_are_and_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "_open", Crowd(12))

    async def scene() -> None:
        feed = fed(1)
        async with page(feed) as server:
            with deaf(server.port, HONEST, 2), deaf(server.port, FLOOD, 10):
                await until(lambda: feed.readers == 12)
                with deaf(server.port, HONEST, 1), deaf(server.port, HERE[0], 3):
                    await until(lambda: connected(server, HONEST) == 3 and connected(server, FLOOD) == 9)
                    await until(lambda: connected(server, HERE[0]) == 3 and feed.readers == 15)

    run(scene)


def test_a_few_networks_do_not_take_all_streams() -> None:
    async def scene() -> None:
        feed = fed(1)
        server = await serve(create_app(feed), "127.0.0.1", 0, free=False)
        with contextlib.ExitStack() as held:
            for number in range(2, 12):
                held.enter_context(deaf(server.port, f"127.0.0.{number}", SEATS))
            await until(lambda: feed.readers > READERS * 3 // 4)
            with deaf(server.port, "127.0.0.99", 1) as [late]:
                answer = await asyncio.to_thread(late.recv, 64)
            assert answer.startswith(b"HTTP/1.1 200") and feed.room > 0
        await server.close()

    run(scene)


def test_a_body_that_turns_out_malformed_after_its_answer_closes_its_connection_alone() -> None:
    begin = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def scene() -> None:
        faults = list[str]()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(str(context)))
        async with page() as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(begin)
            assert b" 405 " in await reader.readuntil(b"\r\n")
            writer.write(b"zz\r\n")
            assert await asked(server.port, HONEST, 3) == 3
            with contextlib.suppress(ConnectionError):
                await asyncio.wait_for(reader.read(), 5)
            writer.close()
        assert not faults

    run(scene)


def test_a_real_server_answers_an_honest_reader_beside_a_flood() -> None:
    """Its process has nothing of ours in it but the page; the flood is a thousand connections of one address,
    whole requests over those that are taken, and as many half ones of another."""

    async def half(port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.7", 0))
        writer.write(ASK[:20])

    async def scene(port: int) -> None:
        flood = asyncio.gather(*(asked(port, FLOOD) for _ in range(1000)))
        halves = asyncio.gather(*(half(port) for _ in range(500)), return_exceptions=True)
        assert await asked(port, HONEST, 10) == 10
        answered = sum(await flood)
        assert 0 < answered < 900, "beyond its burst it is refused"
        assert len(await halves) == 500
        state = b"GET /api/state HTTP/1.1\r\nHost: localhost\r\n\r\n"
        assert await asked(port, HONEST, 10, state) == 10

    with Partner("lab.processes.page_server", {"peers": 20, "past": 10}) as server:
        port = int(server.hear()["url"].rstrip("/").rsplit(":", 1)[1])
        asyncio.run(asyncio.wait_for(scene(port), 120))
