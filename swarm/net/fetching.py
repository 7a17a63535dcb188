"""One fetch: blobs from those who hold them, each verified, the work spread by how fast holders answer.

    digest -> the holder that would answer soonest -> bytes with that digest
                busy                       asked again after a rest, or somebody else is
                refused                    not asked for this blob again
                unreachable, silent        rests; out of this fetch after a few times in a row
                wrong bytes                a liar: reported, and out of this fetch

A holder is silent when it sends no byte for 5 s and 8 round trips, however long a block takes; where a second
holder would be much faster, it is asked as well, and the first answer counts. A slow line is no fault. Not
handled: what is done with the bytes (swarm.net.blobs), and the deadline of a whole fetch, which its caller
keeps.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from swarm.blocks import digest_of
from swarm.net.ports import Busy, Mail, NetError, Refused
from swarm.types import Digest, PeerId

IDLE, TRIPS = 5.0, 8
"""Without a byte for so many seconds and round trips a holder is silent: lost packets are sent again within a
few round trips."""

TRIP = 1.0
"""Seconds of a round trip as long as no answer was faster: the fastest has carried bytes as well."""

LONGEST = 300.0
"""Seconds for one block: 3.5 kB/s. Slower ones would come, but not before the next release does."""

STRIKES = 3
"""Failures in a row after which a holder that has answered before is out; one that never has is out after the
first."""

REST, LONGEST_REST = 0.5, 4.0
"""Seconds before a busy or failing holder is asked again, doubled each time, with jitter."""

STARVED = 120.0
"""Seconds in which all holders are busy, or rest, until the fetch gives up: its caller looks whether it wants
something newer."""

GIVEN = 10.0
"""Seconds after which an unanswered request counts as being answered: a busy holder says so earlier."""

LOOK = 1.0
"""Seconds between two looks at whether another holder would be faster."""


@dataclass
class Holder:
    """What this fetch knows of a holder. Times are loop seconds."""

    peer: PeerId
    under: dict[Digest, float] = field(default_factory=dict)
    """Digest -> when it was asked for."""
    lacks: dict[Digest, str] = field(default_factory=dict)
    """Digest -> why it refused it."""
    pace: float = 0.0
    """Seconds of an answer, smoothed; 0 before the first."""
    trip: float = TRIP
    strikes: int = 0
    rest_until: float = 0.0
    rest: float = REST
    out: str = ""
    """Why it is not asked any more; empty while it is."""

    def cost(self, now: float, usual: float) -> float:
        """Seconds in which it would answer, by its own answers so far, or else by the usual ones."""
        oldest = now - min(self.under.values(), default=now)
        return (len(self.under) + 1) * max(self.pace or usual, oldest)

    def answered(self, seconds: float) -> None:
        self.pace = (self.pace + seconds) / 2 if self.pace else seconds
        self.trip = min(self.trip, seconds)
        self.strikes, self.rest = 0, REST

    def failed(self, reason: str, now: float, rng: random.Random) -> None:
        self.strikes += 1
        if self.strikes >= STRIKES or not self.pace:
            self.out = f"failed: {reason}"
        self.pause(now, rng)

    def pause(self, now: float, rng: random.Random) -> None:
        self.rest_until = now + self.rest * rng.uniform(0.5, 1.0)
        self.rest = min(2 * self.rest, LONGEST_REST)


class Fetch:
    def __init__(
        self,
        mail: Mail,
        service: str,
        holders: Sequence[PeerId],
        rng: random.Random,
        on_bad: Callable[[PeerId, str], None],
    ) -> None:
        self._mail, self._service, self._rng, self._on_bad = mail, service, rng, on_bad
        self._holders = [Holder(peer) for peer in dict.fromkeys(holders)]
        self._moved = asyncio.get_running_loop().time()

    async def blob(self, digest: Digest) -> bytes:
        """Bytes with this digest. Raises NetError naming who failed how."""
        data: bytes | None = None
        asked: dict[asyncio.Task[bytes | None], Holder] = {}
        async with asyncio.TaskGroup() as group:
            while data is None:
                holder = self._faster(digest, asked) if asked else await self._free(digest)
                if holder is not None:
                    holder.under[digest] = asyncio.get_running_loop().time()
                    asked[group.create_task(self._ask(holder, digest))] = holder
                if not asked:
                    break
                done, _ = await asyncio.wait(asked, timeout=LOOK, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    del asked[task]
                    data = task.result() or data
            for task in asked:
                task.cancel()
        if data is None:
            raise NetError(f"nobody gave {digest}: " + (self._reasons(digest) or "no holder is known"))
        return data

    async def _free(self, digest: Digest) -> Holder | None:
        """The holder to ask, as soon as one may be asked; None when nobody is left, or all were busy for too
        long."""
        loop = asyncio.get_running_loop()
        while able := [holder for holder in self._holders if not holder.out and digest not in holder.lacks]:
            now = loop.time()
            if rested := [holder for holder in able if holder.rest_until <= now]:
                return min(rested, key=lambda holder: holder.cost(now, self._usual()))
            if any(now - began > GIVEN for holder in self._holders for began in holder.under.values()):
                self._moved = now
            if now > self._moved + STARVED:
                return None
            await asyncio.sleep(min(holder.rest_until for holder in able) - now)
        return None

    def _faster(self, digest: Digest, asked: dict[asyncio.Task[bytes | None], Holder]) -> Holder | None:
        """A second holder to ask, when it would have delivered the blob twice by now and the first has
        not."""
        if len(asked) > 1:
            return None
        now, (first,) = asyncio.get_running_loop().time(), asked.values()
        late = now - first.under.get(digest, now)
        others = [
            holder
            for holder in self._holders
            if holder is not first
            and holder.pace
            and not holder.out
            and digest not in holder.lacks
            and holder.rest_until <= now
        ]
        best = min(others, key=lambda holder: holder.cost(now, holder.pace), default=None)
        return best if best is not None and late > LOOK + 2 * best.cost(now, best.pace) else None

    def _usual(self) -> float:
        """Seconds that the fastest holder takes."""
        return min((holder.pace for holder in self._holders if holder.pace), default=0.0)

    async def _ask(self, holder: Holder, digest: Digest) -> bytes | None:
        """Ask one holder. None when it did not deliver; its Holder has the reason."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            data = await self._mail.send(
                holder.peer, self._service, digest.encode(), LONGEST, idle=IDLE + TRIPS * holder.trip
            )
        except Busy:
            holder.pause(loop.time(), self._rng)
            return None
        except Refused as refusal:
            holder.lacks[digest] = f"refused: {refusal}"
            return None
        except NetError as error:
            holder.failed(str(error), loop.time(), self._rng)
            return None
        finally:
            del holder.under[digest]
        if digest_of(data) != digest:
            if not holder.out:
                holder.out = f"sent {len(data)} bytes that are not {digest}"
                self._on_bad(holder.peer, holder.out)
            return None
        self._moved = loop.time()
        holder.answered(self._moved - began)
        return data

    def _reasons(self, digest: Digest) -> str:
        told = (
            (holder.peer, holder.lacks.get(digest) or holder.out or f"is busy for {STARVED:g} s")
            for holder in self._holders
        )
        return "; ".join(f"{peer} {why}" for peer, why in told)
