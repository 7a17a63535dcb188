"""The uplink as the kernel counts it: real connections of this process, and windows that are given."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from swarm.net import uplink
from swarm.net.uplink import BEST, SPAN, LineRate, Sent, Uplink, between, connections
from swarm.sim.clock import run

MB = 1_000_000


def rate_of(*windows: tuple[float, float], later: float = 0.0) -> int:
    """From windows of a quarter of a second: bytes, seconds busy."""
    line, now = LineRate(), 0.0
    for acked, busy in windows:
        now += 0.25
        line.add(Sent(int(acked), busy), 0.25, now)
    return line.rate(now + later)


def test_a_line_is_known_when_it_was_full_for_some_seconds() -> None:
    assert rate_of(*[(MB, 0.25)] * (4 * BEST - 1)) == 0
    assert rate_of(*[(MB, 0.25)] * 4 * BEST) == 4 * MB


def test_a_line_that_is_not_full_is_not_known_however_much_it_carries() -> None:
    assert rate_of(*[(MB, 0.15)] * 100) == 0
    assert rate_of(*([(MB, 0.25)] * 3 + [(MB, 0.15)]) * 100) == 0


def test_the_second_best_stretch_counts() -> None:
    some = [[(much * MB, 0.25)] * 4 for much in (1, 9, 2, 0.1, 1)]
    assert rate_of(*[window for stretch in some for window in stretch]) == 8 * MB


def test_what_was_measured_is_forgotten_after_a_while() -> None:
    full = [(MB, 0.25)] * 4 * BEST
    assert rate_of(*full, later=SPAN / 2) == 4 * MB
    assert rate_of(*full, later=2 * SPAN) == 0


def test_the_busiest_connection_tells_whether_a_line_is_full_and_new_ones_say_nothing() -> None:
    before = {1: Sent(10, 1.0), 2: Sent(10, 1.0)}
    after = {1: Sent(30, 1.5), 2: Sent(15, 1.1), 3: Sent(1000, 9.0)}
    assert between(before, after) == Sent(25, 0.5)
    assert between(before, {}) == Sent(0, 0.0)


def test_a_limit_is_the_rate_where_the_line_carries_more_or_is_not_known() -> None:
    assert Uplink(list).rate() == 0
    assert Uplink(list, limit=5.0).rate() == 5
    assert Uplink(list, known=7).rate() == 7
    assert Uplink(list, known=7, limit=5.0).rate() == 5


def test_a_line_is_watched_until_the_kernel_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = list[float]()

    async def main() -> int:
        now = asyncio.get_running_loop().time
        monkeypatch.setattr(uplink, "time", SimpleNamespace(monotonic=now))

        def connections(pids: object) -> dict[int, Sent]:
            looks.append(now())
            if len(looks) > 40:
                raise OSError("no answer")
            return {1: Sent(int(4 * MB * now()), now())}

        monkeypatch.setattr(uplink, "connections", connections)
        line = Uplink(list)
        await line.watch()
        return line.rate()

    assert run(main()) == 4 * MB
    apart = [b - a for a, b in pairwise(looks)]
    assert apart[0] == pytest.approx(uplink.IDLE) and apart[-1] == pytest.approx(uplink.WINDOW)


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_the_kernel_counts_what_the_other_side_has_acknowledged() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as mine, server.accept()[0] as theirs:
            inode = os.fstat(mine.fileno()).st_ino
            before = connections([os.getpid()])[inode]
            reader = threading.Thread(target=_read, args=(theirs, MB))
            reader.start()
            mine.sendall(bytes(MB))
            reader.join()
            give_up = time.monotonic() + 10
            while (after := connections([os.getpid()])[inode]).acked - before.acked < MB:
                assert time.monotonic() < give_up, (before, after)
            assert after.acked - before.acked == MB and after.busy >= before.busy


def test_a_process_that_is_gone_has_no_connections() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert connections([gone.pid]) == connections([None]) == {}


def test_a_process_that_nobody_has_waited_for_yet_has_no_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def scandir(path: Path) -> object:
        raise PermissionError(13, "Permission denied", str(path))  # the kernel, to anybody but root

    monkeypatch.setattr(uplink.os, "scandir", scandir)
    assert connections([os.getpid()]) == {}


def _read(sock: socket.socket, size: int) -> None:
    while size > 0:
        size -= len(sock.recv(1 << 20))
