"""What a message costs beside its bytes: deadlines hold without a timer each, and a length does not travel
alone."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from mail_lines import RUN, SIZE, Line, echo, mail

from swarm.limits import FRAME_LIMIT, REASON_LIMIT
from swarm.net.messaging import mail as mails
from swarm.net.messaging.mail import StepDeadline
from swarm.net.ports import Refused
from swarm.types import PeerId

SERVER = PeerId("server")
MESSAGES = 50


async def emptied(server: mails.StreamMail) -> None:
    async with asyncio.timeout(5):
        while server.statistics()["streams_in"]:
            await asyncio.sleep(0.01)


def test_messages_on_one_stream_share_a_timer() -> None:
    async def main() -> None:
        line = Line()
        server, asker = mail(line), mail(line)
        await server.serve("groups", echo)
        await asker.send(SERVER, "groups", b"first")
        loop, made = asyncio.get_running_loop(), list[float]()
        before = loop.call_at

        def call_at(when: float, *args: Any, **more: Any) -> asyncio.TimerHandle:
            made.append(when)
            return before(when, *args, **more)

        loop.call_at = call_at  # type: ignore[assignment,method-assign]
        for _ in range(MESSAGES):
            await asker.send(SERVER, "groups", b"message")
        # The sender has a deadline for each; the first message is told to come sooner than an idle stream
        # must.
        assert len(made) <= MESSAGES + 2
        await asker.close()
        await server.close()

    asyncio.run(main())


def test_a_request_and_its_answer_leave_in_one_write_each(monkeypatch: pytest.MonkeyPatch) -> None:
    written = list[int]()
    before = asyncio.StreamWriter.write

    def write(self: asyncio.StreamWriter, data: Any) -> None:
        written.append(len(data))
        before(self, data)

    monkeypatch.setattr(asyncio.StreamWriter, "write", write)

    async def main() -> None:
        line = Line()
        server, asker = mail(line), mail(line)
        await server.serve("groups", echo)
        assert await asker.send(SERVER, "groups", bytes(100)) == bytes(100)
        assert written == [4 + 100, 1 + 4 + 100]
        assert await asker.send(SERVER, "groups", b"") == b""
        assert written[2:] == [4, 1 + 4]
        await asker.close()
        await server.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "size", [mails.PIECE - 1, mails.PIECE, mails.PIECE + 1, 3 * mails.PIECE, FRAME_LIMIT]
)
def test_an_answer_in_pieces_is_whole(size: int) -> None:
    async def main() -> None:
        line = Line()
        server, asker = mail(line), mail(line)
        await server.serve("groups", echo)
        message = bytes(k % 251 for k in range(size))
        assert await asker.send(SERVER, "groups", message) == message
        await asker.close()
        await server.close()

    asyncio.run(main())


def test_a_stream_that_says_nothing_for_long_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mails, "IDLE_SECONDS", 0.2)

    async def main() -> None:
        line = Line()
        server, asker = mail(line), mail(line)
        await server.serve("groups", echo)
        for _ in range(2):  # the second one comes on a new stream
            assert await asker.send(SERVER, "groups", b"message") == b"message"
            await emptied(server)
        await asker.close()
        await server.close()

    asyncio.run(main())


def test_a_stream_whose_answer_is_not_taken_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mails, "REPLY_SECONDS", 0.05)

    async def main() -> None:
        async def much(sender: PeerId, message: bytes) -> bytes:
            return bytes(FRAME_LIMIT)

        line = Line()
        server = mail(line)
        await server.serve("groups", much)
        _, writer = await line.open(PeerId("stranger"), f"{RUN[:16]}/groups")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(SIZE.pack(1) + b"?")
        while not server.statistics()["streams_in"]:
            await asyncio.sleep(0)
        await emptied(server)
        writer.close()
        await server.close()

    asyncio.run(main())


def test_a_handler_may_take_longer_than_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mails, "deadline", lambda size: 0.2)
    monkeypatch.setattr(mails, "IDLE_SECONDS", 0.2)

    async def main() -> None:
        async def slow(sender: PeerId, message: bytes) -> bytes:
            await asyncio.sleep(0.5)
            return message

        line = Line()
        server, asker = mail(line), mail(line)
        await server.serve("groups", slow)
        assert await asker.send(SERVER, "groups", b"message") == b"message"
        await asker.close()
        await server.close()

    asyncio.run(main())


def test_a_step_ends_when_its_last_deadline_has_passed() -> None:
    async def main() -> None:
        over = asyncio.Event()
        step = StepDeadline(over.set)
        step.begin(0.01)
        step.begin(math.inf)
        await asyncio.sleep(0.03)
        assert not over.is_set()
        step.begin(60.0)
        step.begin(0.02)
        async with asyncio.timeout(5):
            await over.wait()
        over.clear()
        step.begin(0.01)
        step.end()
        await asyncio.sleep(0.03)
        assert not over.is_set()

    asyncio.run(main())


@pytest.mark.parametrize("reason", [b"\x1b[2J no" * 100_000, b"\xff" * 4000, b"too late"])
def test_of_a_refusal_no_more_is_read_than_a_reason_has(
    reason: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hostile(*_: Any) -> tuple[int, bytes, Any]:
        return mails.REFUSED, reason, lambda: None

    monkeypatch.setattr(mails.StreamMail, "_handle", hostile)

    async def main() -> None:
        line = Line()
        server, asker = mail(line), mail(line)
        await server.serve("groups", echo)
        for _ in range(2):  # the next call is answered as well
            with pytest.raises(Refused) as refused:
                await asker.send(SERVER, "groups", b"first")
            assert len(str(refused.value).encode()) <= REASON_LIMIT
            assert str(refused.value)[:3] == reason.decode(errors="replace")[:3]
        await asker.close()
        await server.close()

    asyncio.run(main())
