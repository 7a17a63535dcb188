"""This peer's upload rate, as its kernel counts it: bytes that others acknowledged.

    /proc/PID/fd: sockets of p2pd and averager -----+
    sock_diag(7): bytes acknowledged, time busy  ---+--> bytes per second, while the line holds them up

Bytes that Python hands to p2pd say little of a line: buffers of megabytes lie in between, and in a round all
members wait for the slowest. So only stretches count in which a connection had something under way nearly all
the time. A line that nothing ever fills has no rate here, and is faster than the traffic that it carried
(swarm.core.agreement.shares). Of the last minutes' stretches the second best counts: an acknowledgement that
was held up counts when it comes, and in the other stretches other traffic used the line too.

Not handled: systems whose kernel does not answer (the rate is unknown then), and a line that is full at the
other end: the best stretches are those with others.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

WINDOW, IDLE = 0.25, 1.0
"""Seconds between two looks while something is sent, and else."""

SENDING = 1 << 16
"""Bytes of a window in which something is sent: gossip and receipts are less."""

FULL = 0.8
"""Share of the time that a connection on a full line has something under way: Python fills it up in steps."""

STRETCH = 1.0
"""Seconds that a line must be full: a burst after a pause may be faster than the traffic after it."""

SPAN = 900.0
"""Seconds until a stretch is forgotten: a line that was slow for a while is tried again."""

BEST = 2
"""Which of the stretches counts, the best being the first."""

_HEADER, _REQUEST, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBBxI48x"), struct.Struct("=HH")
_SOCK_DIAG, _DUMP, _SOCKETS, _DONE, _ERROR = 4, 0x301, 20, 3, 2
_ESTABLISHED, _TCP_INFO = 1, 2
_INODE, _MESSAGE = 68, 72
"""In struct inet_diag_msg: where the inode is, and its size."""
_ACKED, _BUSY_AT, _BUSY = 120, 168, struct.Struct("=QQ")
"""In struct tcp_info: bytes_acked, and the microseconds of busy_time and, of these, rwnd_limited."""


class Sent(NamedTuple):
    """By a connection, since it began."""

    acked: int
    """Bytes."""
    busy: float
    """Seconds with something under way, those without in which the other side took nothing."""


class LineRate:
    """The rate of a line, from the windows in which it was full. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._stretches = deque[tuple[float, float]]()
        self._acked, self._seconds = 0, 0.0

    def add(self, sent: Sent, seconds: float, now: float) -> None:
        """The bytes of all connections in the `seconds` before `now`, and how long the busiest was busy."""
        if sent.busy < FULL * seconds:
            self._acked, self._seconds = 0, 0.0
            return
        self._acked, self._seconds = self._acked + sent.acked, self._seconds + seconds
        if self._seconds >= STRETCH:
            self._stretches.append((now, self._acked / self._seconds))
            self._acked, self._seconds = 0, 0.0

    def rate(self, now: float) -> int:
        """Bytes per second; 0 while it is not known."""
        while self._stretches and self._stretches[0][0] < now - SPAN:
            self._stretches.popleft()
        rates = [rate for _, rate in self._stretches]
        return int(heapq.nlargest(BEST, rates)[-1]) if len(rates) >= BEST else 0


class Uplink:
    """Measures while `watch` runs."""

    def __init__(
        self, pids: Callable[[], Collection[int | None]], known: int = 0, limit: float = math.inf
    ) -> None:
        """`pids()` are the current sending processes, None for one that is not there. `known` bytes per
        second count until something is measured, for as long as that would; the peer sends `limit` at
        most."""
        self._pids, self._known, self._limit = pids, known, limit
        self._line, self._began = LineRate(), time.monotonic()

    def rate(self) -> int:
        """Bytes per second; 0 while it is not known."""
        now = time.monotonic()
        rate = self._line.rate(now) or (self._known if now < self._began + SPAN else 0)
        return int(min(rate or math.inf, self._limit)) if rate or self._limit < math.inf else 0

    async def watch(self) -> None:
        """Run for ever; return where the kernel does not answer."""
        before, since, pause = dict[int, Sent](), time.monotonic(), IDLE
        with contextlib.suppress(OSError):
            while True:
                await asyncio.sleep(pause)
                sent, now = connections(self._pids()), time.monotonic()
                window = between(before, sent)
                self._line.add(window, now - since, now)
                before, since = sent, now
                pause = WINDOW if window.acked >= SENDING else IDLE


def between(before: dict[int, Sent], after: dict[int, Sent]) -> Sent:
    """Bytes that all connections sent since `before`, and how long the busiest was busy. New ones begin at
    their first look."""
    known = [(before[inode], one) for inode, one in after.items() if inode in before]
    acked = sum(now.acked - then.acked for then, now in known)
    return Sent(acked, max((now.busy - then.busy for then, now in known), default=0.0))


def connections(pids: Collection[int | None]) -> dict[int, Sent]:
    """Inode -> sent bytes, for each TCP connection of these processes of this user. Raises OSError where the
    kernel does not answer."""
    inodes = {inode for pid in pids if pid for inode in _sockets(pid)}
    found = dict[int, Sent]()
    for family in (socket.AF_INET, socket.AF_INET6) if inodes else ():
        for message in _dump(family):
            inode = struct.unpack_from("=I", message, _INODE)[0]
            if inode in inodes and (sent := _sent(message[_MESSAGE:])) is not None:
                found[inode] = sent
    return found


def _sockets(pid: int) -> set[int]:
    inodes = set()
    # It ends, or closes some; one that has ended is the kernel's until it is waited for.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        for entry in os.scandir(Path("/proc", str(pid), "fd")):
            with contextlib.suppress(FileNotFoundError):
                if (link := os.readlink(entry.path)).startswith("socket:["):
                    inodes.add(int(link[len("socket:[") : -1]))
    return inodes


def _dump(family: int) -> Iterator[bytes]:
    """The established TCP connections of a family, each a struct inet_diag_msg and its attributes."""
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_TCP_INFO - 1), 1 << _ESTABLISHED)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as netlink:
        netlink.settimeout(IDLE)
        netlink.send(_HEADER.pack(_HEADER.size + len(body), _SOCKETS, _DUMP, 1, 0) + body)
        while True:
            rest = netlink.recv(1 << 16)
            while rest:
                size, kind, *_ = _HEADER.unpack_from(rest)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    raise OSError("the kernel does not report connections")
                yield rest[_HEADER.size : size]
                rest = rest[_aligned(size) :]


def _sent(attributes: bytes) -> Sent | None:
    """None where the kernel is older than these figures (4.10)."""
    while len(attributes) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(attributes)
        if kind == _TCP_INFO and size >= _ATTRIBUTE.size + _BUSY_AT + _BUSY.size:
            (acked,) = struct.unpack_from("=Q", attributes, _ATTRIBUTE.size + _ACKED)
            busy, refused = _BUSY.unpack_from(attributes, _ATTRIBUTE.size + _BUSY_AT)
            return Sent(acked, (busy - refused) / 1e6)
        attributes = attributes[_aligned(size) :]
    return None


def _aligned(size: int) -> int:
    return size + 3 & ~3
