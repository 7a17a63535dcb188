"""A connection that is closed here is closed for the other side, though others hold copies of its socket."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from swarm.net.p2pd import hang_up


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
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
