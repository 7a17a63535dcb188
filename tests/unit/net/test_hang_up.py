"""A connection that is closed here is closed for the other side, though others hold copies of its socket and
whatever the other side reads of it."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from swarm.net.libp2p import p2pd
from swarm.net.libp2p.p2pd import break_off, hang_up

LOOPS = pytest.mark.parametrize(
    "loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


@LOOPS
def test_the_other_side_learns_it_at_once(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def main() -> None:
        seen: asyncio.Queue[bytes] = asyncio.Queue()

        async def other_side(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.put_nowait(await reader.read())
            writer.close()

        path = tmp_path / "socket"
        async with await asyncio.start_unix_server(other_side, path):
            _, writer = await asyncio.open_unix_connection(path)
            writer.write(b"all")
            while writer.transport.get_write_buffer_size():  # type: ignore[attr-defined]
                await asyncio.sleep(0)
            copy = os.dup(writer.get_extra_info("socket").fileno())
            hang_up(writer)
            async with asyncio.timeout(10):
                assert await seen.get() == b"all"
            hang_up(writer)  # once more: of a closed one nothing is left to close
            await asyncio.sleep(0)
            hang_up(writer)
            os.close(copy)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


@LOOPS
@pytest.mark.parametrize("close", [break_off, hang_up])
def test_who_reads_nothing_holds_nothing_here(
    monkeypatch: pytest.MonkeyPatch,
    loop: Callable[[], asyncio.AbstractEventLoop],
    close: Callable[[asyncio.StreamWriter], None],
) -> None:
    monkeypatch.setattr(p2pd, "UNREAD_SECONDS", 0.5)

    async def main() -> None:
        near, far = socket.socketpair()
        with far, closing_copy(near):
            _, writer = await asyncio.open_unix_connection(sock=near)
            writer.write(bytes(4 << 20))
            close(writer)
            async with asyncio.timeout(10):
                await writer.wait_closed()
            far.settimeout(10)
            assert 0 < len(b"".join(iter(lambda: far.recv(1 << 20), b""))) < 4 << 20

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


@LOOPS
def test_who_reads_what_is_left_has_all_of_it(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> None:
        near, far = socket.socketpair()
        with far:
            _, writer = await asyncio.open_unix_connection(sock=near)
            writer.write(bytes(4 << 20))
            hang_up(writer)
            far.settimeout(10)
            read = asyncio.to_thread(lambda: b"".join(iter(lambda: far.recv(1 << 20), b"")))
            assert len(await read) == 4 << 20

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


@contextlib.contextmanager
def closing_copy(sock: socket.socket) -> Iterator[None]:
    """As a forked child has one."""
    copy = os.dup(sock.fileno())
    try:
        yield
    finally:
        os.close(copy)
