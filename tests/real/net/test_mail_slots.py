"""Mail that strangers try to close: idle streams, headers without a message, messages that never end."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hive_world import HiveWorld
from mail_lines import RUN, SIZE, Line, Stream, echo, mail, no_dial

from swarm.core import stream_slots
from swarm.limits import FRAME_LIMIT, REQUEST
from swarm.membership.identity import open_key
from swarm.net.libp2p.addresses import Address
from swarm.net.libp2p.p2pd import Daemon
from swarm.net.messaging import mail as mails
from swarm.net.messaging.mail import StreamMail
from swarm.net.ports import NetError, Refused, Silent
from swarm.net.rate import RateLimit, RateLimits
from swarm.settings.config import Listen
from swarm.types import Digest, PeerId

WAYS: dict[str, bytes] = {
    "idle": b"",
    "half a header": b"\0\0",
    "a header": SIZE.pack(700),
    "half a message": SIZE.pack(700) + bytes(350),
    "half of a large message": SIZE.pack(FRAME_LIMIT) + bytes(2000),
}
"""What a stranger sends on a stream, and nothing after it."""


async def answered(asker: StreamMail, requests: int, service: str = "groups") -> float:
    """The share of requests that were answered."""
    good = 0
    for k in range(requests):
        with contextlib.suppress(NetError):
            good += await asker.send(PeerId("server"), service, b"%d" % k, timeout=2.0) == b"%d" % k
    return good / requests


@pytest.mark.parametrize("way", WAYS)
def test_nine_strangers_with_streams_that_say_nothing_keep_nobody_out(way: str) -> None:
    async def main() -> None:
        line = Line()
        server, honest = mail(line), mail(line)
        for service in ("groups", "newest"):
            await server.serve(service, echo)
        held = []
        for k in range(32):
            for stranger in range(9):
                reader, writer = await line.open(
                    PeerId(f"stranger-{stranger}"), f"{RUN[:16]}/{'groups' if k % 2 else 'newest'}"
                )
                writer.write(WAYS[way])
                held.append((reader, writer))
        await asyncio.sleep(0)
        assert await answered(honest, 30) == 1.0
        assert await answered(honest, 30, "newest") == 1.0
        assert server.statistics()["streams_in"] <= stream_slots.STREAMS
        for _, writer in held:
            writer.close()
        await honest.close()
        await server.close()

    asyncio.run(main())


def test_a_stream_that_gave_way_is_closed_for_its_peer() -> None:
    async def main() -> None:
        line = Line()
        server = mail(line)
        await server.serve("groups", echo)
        streams = [
            await line.open(PeerId("stranger"), f"{RUN[:16]}/groups")
            for _ in range(stream_slots.STREAMS_OF_ONE + 1)
        ]
        async with asyncio.timeout(5):
            assert await streams[0][0].read() == b""
        assert server.statistics()["streams_in"] == stream_slots.STREAMS_OF_ONE
        for _, writer in streams:
            writer.close()
        await server.close()

    asyncio.run(main())


def test_a_question_that_is_given_up_before_the_line_takes_its_answer_leaves_no_stream_open() -> None:
    async def main() -> None:
        line, limits, ended = Line(), RateLimits(RateLimit(), RateLimit(1000.0)), list[asyncio.StreamWriter]()

        async def here() -> Line:
            return line

        def end(writer: asyncio.StreamWriter) -> None:
            ended.append(writer)
            writer.close()

        server = mail(line)
        asker = StreamMail(RUN, here, no_dial, end, lambda service, what: pytest.fail(what), limits)
        await server.serve("blobs", echo)
        limits.down.count(10_000)
        with pytest.raises(Silent):
            await asker.send(PeerId("server"), "blobs", b"?", timeout=0.05)
        await asker.close()
        assert len(ended) == 1
        async with asyncio.timeout(5):
            while server.statistics()["streams_in"]:
                await asyncio.sleep(0.01)
        await server.close()

    asyncio.run(main())


def test_a_message_that_does_not_come_in_its_time_ends_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mails, "deadline", lambda size: 0.05)

    async def main() -> None:
        line = Line()
        server = mail(line)
        await server.serve("groups", echo)
        reader, writer = await line.open(PeerId("stranger"), f"{RUN[:16]}/groups")
        writer.write(WAYS["half a message"])
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        assert server.statistics() == {"streams_out": 0, "streams_in": 0, "calls_in": 0, "bytes_in": 0}
        writer.close()
        await server.close()

    asyncio.run(main())


def test_a_question_as_long_as_a_group_is_refused_before_it_is_sent() -> None:
    async def main() -> None:
        line = Line()
        server, honest = mail(line), mail(line)
        await server.serve("blobs", echo)
        with pytest.raises(Refused, match=f"limit {REQUEST}"):
            await honest.send(PeerId("server"), "blobs", bytes(REQUEST + 1))
        assert await honest.send(PeerId("server"), "blobs", bytes(REQUEST)) == bytes(REQUEST)
        await honest.close()
        await server.close()

    asyncio.run(main())


SERVICES = ("groups", "newest")


async def crowd(
    daemon: Daemon, run: Digest, server: PeerId, ways: tuple[str, ...], streams: list[Stream]
) -> None:
    """As many streams as one peer gets, none of which says anything more."""
    for k in range(32):
        with contextlib.suppress(NetError):
            stream = await daemon.open_stream(server, f"{run[:16]}/{SERVICES[k % 2]}", 10)
            stream[1].write(WAYS[ways[k % len(ways)]])
            streams.append(stream)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "ways", [("idle", "half a header"), ("a header", "half a message", "half of a large message")]
)
def test_nine_strangers_on_a_real_network_keep_nobody_out(ways: tuple[str, ...]) -> None:
    async def main() -> None:
        world, daemons, streams = HiveWorld("strangers"), [], list[Stream]()
        try:
            server, honest = await world.ports(2)
            for service in SERVICES:
                await server.mail.serve(service, echo)
            at = Address.parse(server.addresses()[0])
            assert at is not None
            for k in range(9):
                key = world.folder / f"stranger-{k}"
                daemons.append(
                    await Daemon.launch(key, open_key(key).me, Listen(host="127.0.0.1", dial_only=True), 0)
                )
                assert await daemons[-1].reach(at) == ""
            await asyncio.gather(*(crowd(daemon, world.run, server.me, ways, streams) for daemon in daemons))
            assert len(streams) > 256
            again = asyncio.gather(
                *(crowd(daemon, world.run, server.me, ways, streams) for daemon in daemons)
            )
            good = 0
            for k in range(60):
                with contextlib.suppress(NetError):
                    good += await honest.mail.send(server.me, SERVICES[k % 2], b"%d" % k) == b"%d" % k
                await asyncio.sleep(0.05)
            await again
            assert good >= 0.95 * 60, f"{good} of 60 were answered"
        finally:
            for _, writer in streams:
                writer.close()
            for daemon in daemons:
                await daemon.stop()
            await world.close()

    asyncio.run(main())
