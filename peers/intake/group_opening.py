"""Groups from their frames and texts from groups, off the event loop where they are large.

    frame --opened--> envelope, Group (WireError)          Group --decoded--> one text for each completion
    Group --contradiction--> why its tokens are not those of its heads

A group of 8 x 7,300 tokens would stop heartbeats for ten milliseconds; a small one takes less time than the
way to a thread and back. Not handled here: whether a group is admitted (swarm.core.intake.admission).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Protocol, TypeVar

from peers.runtime.host import Host
from swarm.draws import heads
from swarm.frames import wire
from swarm.limits import Limit
from swarm.protocol import Kind
from swarm.settings.config import Run
from swarm.tasks.toy import Toy
from swarm.types import Group, Noise

T = TypeVar("T")

APART, APART_TOKENS = 32 << 10, 8192
"""Bytes of a frame, and tokens of a group, beyond which they are opened and decoded in a thread: about half a
millisecond of the event loop each, several times the cost of a thread switch."""

CHECKED_APART = 512
"""Tokens of a group beyond which its heads are checked in a thread: about two milliseconds."""


class Decoder(Protocol):
    """The part of the run's tokenization that groups need; a tabular policy has letters instead."""

    @property
    def vocabulary(self) -> int:
        """Number of tokens; every token is below it."""
        ...

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of each completion."""
        ...


def noise_of(run: Run) -> Noise:
    """The noise that groups of a run are replayed with: a table's is the inverse distribution function."""
    return Noise.INVERSE if run.task.name == Toy.environment else Noise.GUMBEL


class GroupOpener:
    """`limit`: of a group's frame in this run."""

    def __init__(self, host: Host, decoder: Decoder, limit: Limit) -> None:
        self._host, self._decoder, self._limit = host, decoder, limit
        self.noise = noise_of(host.config.run)
        """Of this run's policy, by which groups are replayed and heads are checked."""

    async def opened(self, frame: bytes) -> tuple[wire.Opened, Group]:
        """Raises WireError for bytes that are no group of this run, signed by its sender."""
        return await self._call(len(frame) > APART, self._host.frames.read, frame, self._limit, Group)

    async def decoded(self, group: Group) -> list[str]:
        """The group's completions as text, one string each."""
        return await self._call(sum(group.lengths) > APART_TOKENS, self.texts, group)

    async def contradiction(self, group: Group) -> str | None:
        """Why a group contradicts its own heads, or None; also of a run without heads."""
        if group.heads is None:
            return None
        if group.noise != self.noise:
            return f"its noise is {group.noise!r}, heads are checked by {self.noise.value!r} here"
        apart = sum(group.lengths) > CHECKED_APART
        return await self._call(apart, heads.contradiction, group, self._decoder.vocabulary)

    def texts(self, group: Group) -> list[str]:
        """The same at once, here."""
        tokens = memoryview(group.tokens.data).cast("i").tolist()
        ends = list(accumulate(group.lengths, initial=0))
        return self._decoder.decode_batch([tokens[start:end] for start, end in pairwise(ends)])

    async def _call(self, apart: bool, function: Callable[..., T], *args: Any) -> T:
        return await self._host.ports.work.run(Kind.OPEN, function, *args) if apart else function(*args)
