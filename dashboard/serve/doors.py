"""Who may connect to the page and ask it, by network: rates, costs, and how many connections.

    a new connection --Door--> refused before anything is made for it, when its network has used up its rate
    a request -------Fair----> heard or not; what its answer cost beyond the usual is charged afterwards
                     Turns---> who is heard waits for few others: first comes who asked least lately
    connections -----Crowd---> when they are too many, the oldest of the network that has most of them goes

Each network has a rate of its own. While all of them together use up theirs, each has less, and none of it is
another's: a flood of few networks costs the others nothing, one of many leaves each its part. This machine
itself has no limit, since a proxy on it asks for everybody: what readers behind one proxy share is its
business. Not handled here: deadlines of connections (dashboard.serve.server), what is answered
(dashboard.serve.app), and who has thousands of networks.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from swarm.core.budget import UNBOUNDED, Budget

T = TypeVar("T")

NETWORKS = 4096
"""Networks whose rates are remembered."""

HERE = ("127.0.0.1", "0000:0000:0000:0000", "")
"""Networks of this machine itself."""

UNIT = 0.0006
"""Seconds of the processor that a usual answer takes: what costs more counts as several requests."""

TURN = 64
"""Connections that are refused in one turn of the loop: a millisecond."""

HEARD = 4
"""Requests that begin in one turn of the loop: two milliseconds, and one that comes meanwhile is before all
others of who asks more."""

_AT_ONCE = struct.pack("ii", 1, 0)
"""SO_LINGER: a connection that is refused leaves nothing behind."""


class Rate(NamedTuple):
    """How much may be taken."""

    each: float
    """A second."""
    burst: float


def network(address: str) -> str:
    """What one client has at least: an IPv4 address, or the first half of an IPv6 one; anything else, as a
    proxy may forward it, is taken as it is."""
    try:
        return ipaddress.IPv6Address(address.partition("%")[0]).exploded[:19]
    except ValueError:
        return address


class Fair:
    """Rates of networks."""

    def __init__(self, own: Rate, all: Rate, fair: Rate) -> None:
        """`own`: of a network; `all`: of all of them together, beyond which each has `fair`."""
        self._own = Budget(own, UNBOUNDED, NETWORKS)
        self._all = Budget(UNBOUNDED, all, 1)
        self._fair = Budget(fair, UNBOUNDED, NETWORKS)

    def take(self, network: str, now: float) -> bool:
        """Whether a network may take one more, at `now` in seconds."""
        if network in HERE:
            return True
        return self._own.take(network, 1.0, now) and (
            self._all.take("", 1.0, now) or self._fair.take(network, 1.0, now)
        )

    def charge(self, network: str, more: float, now: float) -> None:
        """What it took cost so much more than one."""
        if network in HERE or more <= 0:
            return
        self._own.charge(network, more, now)
        if not self._all.take("", more, now):
            self._fair.charge(network, more, now)

    def left(self, network: str, now: float) -> float:
        """What a network may take while all take too much; nothing for this machine, which takes what it
        likes."""
        return 0.0 if network in HERE else self._fair.level(network, now)


class Turns:
    """What waits to begin, by network."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fair: Fair) -> None:
        self._loop, self._fair = loop, fair
        self._of: dict[str, deque[Callable[[], None]]] = {}

    def wait(self, network: str, begin: Callable[[], None]) -> None:
        """`begin` is called soon: after what waits of who has more left, and after what this network asked
        before."""
        if not self._of:
            self._loop.call_soon(self._take)
        self._of.setdefault(network, deque()).append(begin)

    def _take(self) -> None:
        now = self._loop.time()
        try:
            for _ in range(min(HEARD, len(self._of))):
                first = max(self._of, key=lambda network: self._fair.left(network, now))
                mine = self._of.pop(first)
                begin = mine.popleft()
                if mine:
                    self._of[first] = mine  # behind those that have as much left
                begin()
        finally:
            if self._of:  # also where one fails to begin
                self._loop.call_soon(self._take)


class Crowd(Generic[T]):
    """Connections by network, each since some time. One more costs no look at those that are there."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: dict[str, dict[T, float]] = {}
        """Of each network the oldest first."""
        self._count = 0

    def add(self, network: str, one: T, now: float) -> None:
        """It is there from `now` on, also if it was before."""
        self.remove(network, one)
        self._of.setdefault(network, {})[one] = now
        self._count += 1

    def remove(self, network: str, one: T) -> None:
        """It is not there any more, if it was."""
        mine = self._of.get(network, {})
        if one in mine:
            del mine[one]
            self._count -= 1
            if not mine:
                del self._of[network]

    def too_many(self) -> T | None:
        """Of more than `most` the oldest one of the network that has most of them."""
        if self._count <= self._most:
            return None
        most = max(map(len, self._of.values()))
        oldest = (next(iter(mine.items())) for mine in self._of.values() if len(mine) == most)
        return min(oldest, key=lambda one: one[1])[0]


class Door(socket.socket):
    """A listener that gives no connection of a network that opens too many. What is refused costs a
    hundredth of what a connection does that is taken."""

    def __init__(self, listener: socket.socket, arrivals: Fair) -> None:
        """It takes the place of `listener`."""
        super().__init__(listener.family, listener.type, listener.proto, fileno=listener.detach())
        self._arrivals = arrivals

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        """As a socket that does not block. After TURN refusals it says that nobody waits: the loop has other
        work, and comes back at once."""
        for _ in range(TURN):
            one, address = super().accept()
            if self._arrivals.take(network(address[0]), time.monotonic()):
                return one, address
            with contextlib.suppress(OSError), one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        raise BlockingIOError
