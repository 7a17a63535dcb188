"""Turns of answers: bounds how many answers of a service are sent at once, fairly between peers.

A link that carries all answers at once delays each of them; one after the other, the first arrives early. The
next turn goes to the peer whose last turn is longest ago. A peer that would wait for long gets Busy, so that
it can ask another holder, or again. A turn ends when its answer is sent, or after LONGEST seconds: a slow
reader must not delay the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial

from swarm.limits import remember
from swarm.net.ports import Busy
from swarm.types import PeerId

AT_ONCE = 2
"""Answers that are sent at once: the receiver of the first of many can pass it on while the second is sent.
One alone would leave the line idle between two."""

QUEUE = 16
"""Calls that wait: at 20 Mbit/s the last of them has its MiB after 7 s. A later caller asks another peer."""

FROM_ONE = 10
"""Calls of one peer, waiting or at their turn: a fetch keeps up to eight under way, and asks a second time
where one is late."""

REMEMBERED = 256
"""Peers whose last turn is remembered: more than can wait."""

WAIT = 2.5
"""Seconds that a call waits: well below those after which its sender counts the holder as silent."""

LONGEST = 20.0
"""Seconds of a turn at most. On an uplink so slow that eight blocks take longer, more answers leave at
once."""


FULL = "busy: too many wait already, try later"


class AnswerTurns:
    """The turns of one service."""

    def __init__(self, at_once: int = AT_ONCE, wait: float = WAIT) -> None:
        """`at_once` calls have their turn, QUEUE wait, each for `wait` seconds."""
        self._at_once, self._wait = at_once, wait
        self._waiting: list[tuple[PeerId, asyncio.Future[Callable[[], None]]]] = []
        self._turns: dict[int, tuple[PeerId, float]] = {}
        """Number of a turn that has not ended -> its peer, and the loop seconds at which it ends at last; the
        oldest first."""
        self._timer: asyncio.TimerHandle | None = None
        """For the end of the oldest turn, where a call waits for it: most turns end long before."""
        self._of: Counter[PeerId] = Counter()
        self._served: OrderedDict[PeerId, int] = OrderedDict()
        """Peers that had a turn, the last one last -> the number of that turn."""
        self._number = 0

    async def take(self, peer: PeerId) -> Callable[[], None]:
        """Wait for a turn. Returns the function that ends it, to be called once the answer has left. Raises
        Busy."""
        self._end_old()
        if self._of[peer] >= FROM_ONE or (len(self._waiting) >= QUEUE and not self._make_room(peer)):
            raise Busy(FULL)
        self._of[peer] += 1
        if len(self._turns) < self._at_once and not self._waiting:
            return self._begin(peer)
        mine: tuple[PeerId, asyncio.Future[Callable[[], None]]]
        mine = peer, asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        self._watch()
        try:
            async with asyncio.timeout(self._wait):
                return await mine[1]
        except BaseException as error:
            if mine in self._waiting:
                self._waiting.remove(mine)
                self._less(peer)
            elif _came(mine[1]):
                mine[1].result()()  # its turn came in the same moment
            if isinstance(error, TimeoutError):
                raise Busy(f"busy with others for {self._wait:g} s, try later") from error
            raise

    def _make_room(self, peer: PeerId) -> bool:
        """Turn away a call of the peer with the most calls, for one with fewer; of those with as many, of the
        one that had a turn last."""

        def claim(one: PeerId, more: int = 0) -> tuple[int, int]:
            return self._of[one] + more, self._served.get(one, -1)

        last = max(reversed(self._waiting), key=lambda waiting: claim(waiting[0]))
        if claim(last[0]) <= claim(peer, 1):
            return False
        self._waiting.remove(last)
        self._less(last[0])
        if not last[1].done():
            last[1].set_exception(Busy(FULL))
        return True

    def _next(self) -> None:
        """Give free turns to the peers whose last turn is longest ago, and among these in the order of their
        calls."""
        while len(self._turns) < self._at_once and self._waiting:
            first = min(self._waiting, key=lambda waiting: self._served.get(waiting[0], -1))
            self._waiting.remove(first)
            peer, mine = first
            if mine.done():  # its caller has gone
                self._less(peer)
            else:
                mine.set_result(self._begin(peer))
        self._watch()

    def _begin(self, peer: PeerId) -> Callable[[], None]:
        self._number += 1
        remember(self._served, peer, self._number, REMEMBERED)
        self._turns[self._number] = peer, asyncio.get_running_loop().time() + LONGEST
        return partial(self._end, self._number)

    def _end(self, turn: int) -> None:
        if (taken := self._turns.pop(turn, None)) is not None:
            self._less(taken[0])
            self._next()

    def _end_old(self) -> None:
        """End turns that have lasted LONGEST."""
        now = asyncio.get_running_loop().time()
        for turn, (_, end) in list(self._turns.items()):
            if now < end:
                break
            self._end(turn)

    def _watch(self) -> None:
        """Look at the oldest turn when it has to end, while a call waits."""
        if self._timer is None and self._waiting and self._turns:
            _, end = next(iter(self._turns.values()))
            self._timer = asyncio.get_running_loop().call_at(end, self._look)

    def _look(self) -> None:
        self._timer = None
        self._end_old()
        self._watch()

    def _less(self, peer: PeerId) -> None:
        self._of[peer] -= 1
        if self._of[peer] <= 0:
            del self._of[peer]


def _came(turn: asyncio.Future[Callable[[], None]]) -> bool:
    return turn.done() and not turn.cancelled() and turn.exception() is None


def no_turn() -> None:
    """The end of a turn, for services without turns."""
