"""Which source a fetch asks next, and for which blocks.

    sources (the blocks of each, its speed, its open requests) --choose, second--> (source, blocks)

Blocks are bits of an integer, the first block's the lowest. Blocks of only one source come first: the others
cannot pass them on before they have them. The only source that has everything is asked for any of many, since
it knows best which it gave away least often: such a wide request keeps no other source from being asked for
the same, which it seldom brings. Not handled: sending requests (swarm.net.blobs.fetching).
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from swarm.net.blobs.sharing import CHOICE, Holding
from swarm.types import PeerId

OF_ONE, OF_ALONE = 4, 8
"""Questions to one source under way, among many and alone: the next block leaves while the last one travels.
Mail has eight streams to one."""

SPREAD = 16
"""A question names one in so many of the blocks that are missing: its source chooses, and others may have the
rest."""

LAST = 8
"""Blocks at the end that are asked for twice."""

FIRST = 2
"""Sources at hand while anything is missing, beside one for each two blocks: the second has it where the
first does not answer."""

PROMPT = 1.0
"""Seconds in which a source may answer with its list before another one is asked for its list as well."""

TRIP = 1.0
"""Seconds of a round trip as long as no answer was faster."""

STRIKES = 3
"""Failures in a row after which a source that has answered before is out; one that never has is out after the
first."""

REST, LONGEST_REST = 0.25, 4.0
"""Seconds before a busy or failing source is asked again, doubled each time, with jitter."""

LATE = 1.0
"""Seconds beyond twice those of another source after which a block is late."""

ALL = -1
"""The blocks of a source that has everything: all bits are set."""


@dataclass(eq=False)
class Question:
    """For one of some blocks."""

    wanted: int
    began: float
    """In loop seconds."""
    is_wide: bool
    """To the only one that has everything, for any of many."""
    is_late: bool = False
    """Another source is asked for the same."""
    is_again: bool = False
    """Another source is being asked for this."""
    task: asyncio.Task[None] | None = None


@dataclass(eq=False)
class BlockSource:
    """The state of a possible source. Times are loop seconds."""

    peer: PeerId
    introduced: bool = False
    """By others: it is dropped silently when it cannot be reached."""
    has: int = 0
    known: bool = False
    """It has sent its list of blocks."""
    asked: float = -math.inf
    """When it was last asked for the list, before it has sent one."""
    query: asyncio.Task[None] | None = None
    """The open request for its list."""
    under: list[Question] = field(default_factory=list)
    """Those for blocks, the oldest first."""
    pace: float = 0.0
    """Seconds of a block, smoothed; 0 before the first."""
    trip: float = TRIP
    strikes: int = 0
    struck: float = -math.inf
    """When it failed last."""
    rest_until: float = 0.0
    rest: float = REST
    out: str = ""
    """Why it is not asked any more; empty while it is."""
    refused: bool = False
    """It had nothing since then: a new list may change that."""

    @property
    def turned_away(self) -> bool:
        """It was busy, or failed, and has given nothing since: one question at a time is enough to see
        whether it does."""
        return self.rest > REST

    def is_at_hand(self, lacking: int, now: float) -> bool:
        """It can give some of the missing blocks, or is about to send its list."""
        able = self.has & lacking != 0 if self.known else now < self.asked + PROMPT
        return able and self.rest_until <= now

    def cost(self, now: float, usual: float) -> float:
        """Seconds in which it would give one more block, by its own answers so far, or else by the usual
        ones."""
        oldest = now - self.under[0].began if self.under else 0.0
        return (len(self.under) + 1) * max(self.pace or usual, oldest)

    def answered(self, holding: Holding) -> None:
        """It answered."""
        self.strikes, self.known = 0, True
        self.has = ALL if holding.has is None else int.from_bytes(holding.has, "little")

    def gave(self, seconds: float) -> None:
        self.pace = (self.pace + seconds) / 2 if self.pace else seconds
        self.rest = REST

    def failed(self, reason: str, began: float, now: float, rng: random.Random) -> None:
        """A question that was asked at `began` has failed; those that were under way together fail once."""
        if began < self.struck:
            return
        self.strikes, self.struck = self.strikes + 1, now
        if self.strikes >= STRIKES or not self.known:
            self.out = f"failed: {reason}"
        self.pause(now, rng)

    def pause(self, now: float, rng: random.Random) -> None:
        self.rest_until = now + self.rest * rng.uniform(0.5, 1.0)
        self.rest = min(2 * self.rest, LONGEST_REST)


def too_few(sources: Sequence[BlockSource], lacking: int, now: float) -> int:
    """How many more sources are to be asked for their lists: many blocks arrive sooner from many, and for one
    block the answers of twenty would be most of all messages."""
    return FIRST + lacking.bit_count() // 2 - sum(source.is_at_hand(lacking, now) for source in sources)


def free(lacking: int, questions: Sequence[Question]) -> int:
    """Blocks to ask for: each request brings one, and a narrow one that is not late one of those that it
    names."""
    coming = [question for question in questions if not question.is_late]
    if lacking.bit_count() <= len(coming):
        return 0
    for question in coming:
        if not question.is_wide:
            lacking &= ~question.wanted
    return lacking


def choose(
    sources: Sequence[BlockSource],
    able: Sequence[BlockSource],
    blocks: int,
    lacking: int,
    now: float,
    rng: random.Random,
) -> tuple[BlockSource, Question] | None:
    """Which of the sources that are `able` to ask for which of these blocks: the only one with some, or the
    one that would be fastest."""
    ranks = _ranks(sources, blocks)
    usual = min((source.pace for source in sources if source.pace), default=0.0)
    alone = [source for source in sources if source.has == ALL]
    for first in (ranks[0], blocks):
        if having := [source for source in able if source.has & first]:
            source = min(having, key=lambda source: (source.cost(now, usual), len(source.under)))
            is_wide = alone == [source]
            many = CHOICE if is_wide else min(CHOICE, 1 + lacking.bit_count() // SPREAD)
            return source, Question(_rarest(source.has, ranks, many, rng), now, is_wide)
    return None


def second(
    able: Sequence[BlockSource], questions: Sequence[Question], lacking: int, now: float
) -> tuple[BlockSource, Question] | None:
    """Another source for blocks that are late, or for the last ones at the end."""
    is_end = lacking.bit_count() <= LAST
    for question in questions:
        if not (question.is_late or question.is_again):
            for source in able:
                blocks = source.has & question.wanted & lacking
                if blocks and source.pace and question not in source.under:
                    cost = source.cost(now, source.pace)
                    if now - question.began > (cost if is_end else LATE + 2 * cost):
                        question.is_late = True
                        return source, Question(blocks, now, question.is_wide, is_again=True)
    return None


def numbers(blocks: int) -> Iterator[int]:
    """The numbers of these blocks, from the lowest on."""
    while blocks:
        low = blocks & -blocks
        yield low.bit_length() - 1
        blocks ^= low


def _ranks(sources: Iterable[BlockSource], blocks: int) -> list[int]:
    """These blocks by how many sources have them: one, two, three, four, more."""
    at_least = [0] * 5
    for source in sources:
        has = source.has & blocks
        for k in range(4, 0, -1):
            at_least[k] |= at_least[k - 1] & has
        at_least[0] |= has
    return [at_least[k] & ~at_least[k + 1] for k in range(4)] + [at_least[4]]


def _rarest(has: int, ranks: Sequence[int], many: int, rng: random.Random) -> int:
    """Up to `many` of them, the rarest, and of those as rare from a random one on."""
    found = 0
    for rank in ranks:
        blocks, missing = has & rank, many - found.bit_count()
        if blocks.bit_count() <= missing:
            found |= blocks
        elif missing:
            turn = rng.randrange(blocks.bit_length())
            for part in (blocks >> turn << turn, blocks & ((1 << turn) - 1)):
                for number in numbers(part):
                    if found.bit_count() == many:
                        break
                    found |= 1 << number
    return found
