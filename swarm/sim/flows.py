"""Flows: large messages that share the lines of their two ends, as connections of one router do.

    start(sender, receiver, size) --> rate, found again whenever a flow beside it starts or ends
        --> arrived, or lost: cut, crashed, cancelled

In come every peer's line and the flows, out come the moments at which they end. Rates are max-min fair
(Bertsekas and Gallager, Data Networks, 1992, 6.5.2): no flow could have more without taking it from one that
has no more. A side of a line has a level, the rate there of a flow that is not held back at its other end; a
flow's rate is the lower level of its two ends. When a flow starts or ends, levels are found again from its
two sides on, as far as it matters to others; all changes of one moment are rated once.

Invariants: the rates at a side never add up to more than its own, and they are less only where every flow is
held back at its other end; the order of everything is a function of the calls. Not handled: packets and their
loss, how a connection finds its rate, messages too small to matter.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from swarm.net.turns import no_turn
from swarm.types import PeerId

SAME = 1e-9
"""Relative difference of two rates that count as equal: far below a figure's precision, far above
rounding."""

TICK = 1e-9
"""Seconds by which a timer of a loop may be early: a loop adds waits up, and rounds."""


class AccessLine(NamedTuple):
    """What connects a peer with all others. Rates in bytes per second."""

    up: float = math.inf
    down: float = math.inf


class Side:
    """One direction of a line."""

    __slots__ = ("flows", "level", "rate")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.level = math.inf
        """Bytes per second that a flow gets here unless it gets less elsewhere; infinite while there is
        room."""
        self.flows: dict[Flow, None] = {}

    def fair(self, most: float) -> float:
        """The level at which the flows, each at the level of its other end and `most` at most, fill this
        side."""
        room, many = self.rate, len(self.flows)
        for limit in sorted([flow.level_beyond(self, most) for flow in self.flows]):
            if limit * many >= room:
                return room / many
            room -= limit
            many -= 1
        return math.inf


class Flow:
    """A message under way. Times are loop seconds."""

    __slots__ = (
        "alarm",
        "among",
        "arrived",
        "delay",
        "departed",
        "down",
        "due",
        "left",
        "lost",
        "pair",
        "rate",
        "since",
        "until",
        "up",
    )

    def __init__(
        self,
        among: Flows,
        pair: tuple[PeerId, PeerId],
        sides: tuple[Side | None, Side | None],
        size: int,
        delay: float,
        arrived: Callable[[], None],
        lost: Callable[[bool], None],
        departed: Callable[[], None],
    ) -> None:
        self.among = among
        self.pair = pair
        self.up, self.down = sides
        self.left = float(size)
        self.delay = delay
        """Seconds from a byte's departure to its arrival."""
        self.arrived, self.lost, self.departed = arrived, lost, departed
        self.rate, self.since = 0.0, asyncio.get_running_loop().time()
        self.due = self.alarm = math.inf
        self.until = math.inf
        """When its last byte arrives; infinite while it is under way."""

    def cancel(self) -> None:
        self.among.lose(self, False)

    @property
    def sides(self) -> list[Side]:
        return [side for side in (self.up, self.down) if side is not None]

    def beyond(self, side: Side) -> Side | None:
        return self.down if side is self.up else self.up

    def level_beyond(self, side: Side, most: float) -> float:
        other = self.beyond(side)
        return most if other is None else min(most, other.level)

    def fair(self, most: float) -> float:
        return min([most, *(side.level for side in self.sides)])

    def run_at(self, rate: float, now: float) -> None:
        self.left -= self.rate * (now - self.since)
        self.rate, self.since = rate, now
        self.due = now + max(self.left, 0.0) / rate


class Flows:
    """All flows among peers with `lines`; a peer without one is unlimited. `most` is the largest rate of a
    flow in bytes per second."""

    def __init__(self, lines: Mapping[PeerId, AccessLine], most: float) -> None:
        self._up = {peer: Side(line.up) for peer, line in lines.items() if line.up < math.inf}
        self._down = {peer: Side(line.down) for peer, line in lines.items() if line.down < math.inf}
        self._most = most
        self._going: dict[Flow, None] = {}
        self._changed: dict[Side, None] = {}
        """Sides at which flows started or ended in this moment."""
        self._fresh: dict[Flow, None] = {}
        self._alarms: list[tuple[float, int, Flow]] = []
        """When a flow may have ended: it is looked at then, and later again where others slowed it down."""
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    def limited(self, sender: PeerId, receiver: PeerId) -> bool:
        """Whether either line has an end."""
        return sender in self._up or receiver in self._down

    def uplink(self, peer: PeerId) -> int:
        """Bytes per second; 0: without an end."""
        return int(self._up[peer].rate) if peer in self._up else 0

    def start(
        self,
        sender: PeerId,
        receiver: PeerId,
        size: int,
        delay: float,
        arrived: Callable[[], None],
        lost: Callable[[bool], None],
        departed: Callable[[], None] = no_turn,
    ) -> Flow:
        """`departed` is called when the last byte left, `arrived` `delay` seconds later; or `lost`, at once,
        with whether the connection broke."""
        sides = self._up.get(sender), self._down.get(receiver)
        flow = Flow(self, (sender, receiver), sides, size, delay, arrived, lost, departed)
        self._going[flow] = self._fresh[flow] = None
        self._rate_soon(flow.sides)
        for side in flow.sides:
            side.flows[flow] = None
        return flow

    def lose(self, flow: Flow, broke: bool) -> None:
        """Take a flow off its lines. Nothing happens when it has ended."""
        if flow in self._going:
            self._end(flow, asyncio.get_running_loop().time())
            flow.lost(broke)

    def cut(self, is_cut: Callable[[PeerId, PeerId], bool]) -> None:
        """Drop transfers between such pairs; the bytes stop, and no connection breaks."""
        for flow in [flow for flow in self._going if is_cut(*flow.pair)]:
            self.lose(flow, False)

    def crash(self, peer: PeerId) -> None:
        """A peer is gone: connections with it break."""
        for flow in [flow for flow in self._going if peer in flow.pair]:
            self.lose(flow, True)

    def _end(self, flow: Flow, until: float) -> None:
        del self._going[flow]
        self._fresh.pop(flow, None)
        flow.until, flow.alarm = until, math.inf
        for side in flow.sides:
            del side.flows[flow]
        self._rate_soon(flow.sides)

    def _rate_soon(self, sides: Iterable[Side]) -> None:
        if not self._changed:
            asyncio.get_running_loop().call_soon(self._rate)
        self._changed |= dict.fromkeys(sides)

    def _rate(self) -> None:
        """Find the levels that changed, and the rates that follow from them."""
        now, most = asyncio.get_running_loop().time(), self._most
        looked, self._changed = self._changed, {}
        flows, self._fresh = self._fresh, {}
        while looked:
            side = next(iter(looked))
            del looked[side]
            before, level = side.level, side.fair(most)
            if level == before or abs(level - before) <= SAME * before < math.inf:
                continue
            side.level = level
            flows |= side.flows
            for flow in side.flows:
                other = flow.beyond(side)
                if other is not None and min(before, level) < other.level:
                    looked[other] = None
        for flow in flows:
            rate = flow.fair(most)
            if abs(rate - flow.rate) > SAME * rate:
                flow.run_at(rate, now)
                self._watch(flow)
        self._set()

    def _watch(self, flow: Flow) -> None:
        if flow.due < flow.alarm:
            flow.alarm = flow.due
            self._count += 1
            heapq.heappush(self._alarms, (flow.due, self._count, flow))

    def _set(self) -> None:
        if not self._alarms:
            return
        first = self._alarms[0][0]
        if self._timer is not None:
            if self._timer.when() <= first:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(first, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now, alarms = loop.time(), self._alarms
        while alarms and alarms[0][0] <= now + TICK:
            when, _, flow = heapq.heappop(alarms)
            if flow.alarm != when:
                continue  # it has ended, or an earlier look was set
            flow.alarm = math.inf
            if flow.due > now + TICK:
                self._watch(flow)
            else:
                self._end(flow, now + flow.delay)
                flow.departed()
                loop.call_later(flow.delay, flow.arrived)
        self._set()
