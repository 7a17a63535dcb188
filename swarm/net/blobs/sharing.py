"""Answers to fetching peers: the blocks of a root here, one of the blocks that a peer lacks, other fetching
peers.

    service held/...  root, the asker's wait           -> blocks that are here, leaf list, fellows
    service ...       root, numbers of blocks          -> the block of these that was given away least often

A peer that asks for a root states where it can be dialled, and is introduced to the next ones that ask for
it: so fetching peers find each other without a list of all. A holder chooses the block, so that it gives each
once before it gives any twice, whichever peer asks. Invariants: claims of a stranger are bounded before they
are kept (swarm.types, ASKERS); a peer that cannot be dialled is never introduced. Not handled: whose bytes
are held, and for how long (swarm.net.blobs.store); how a fetch asks (swarm.net.blobs.fetching).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from swarm.frames.wire import encode
from swarm.limits import remember
from swarm.net.ports import Mail, Refused, read_question
from swarm.net.turns import AnswerTurns
from swarm.protocol import Service
from swarm.storage.blocks import CARRIED, MOST, Buffer, leaf_list
from swarm.types import Digest, PeerId, Struct

BlockNumber = Annotated[int, Meta(ge=0, le=MOST)]
"""Place of a block in its version, from 0, or how many there are."""

CHOICE = 64
"""Blocks of which a peer is asked to choose one."""

FELLOWS = 6
"""Peers that an answer introduces."""

Addresses = Annotated[tuple[Annotated[str, Meta(max_length=256)], ...], Meta(max_length=2)]
"""Addresses at which a peer claims that it can be dialled."""

ASKERS = 64
"""Peers that are remembered for a root, the last ones that asked: enough to draw from."""

LATELY = 60.0
"""Seconds for which a peer is introduced after its request: it asks every few seconds, and holds the blocks
it has."""

NEWS = 10.0
"""Seconds for which a request for news waits: with twenty fetching peers each, requests that end without news
would be most of all messages."""

LULL = 0.1
"""Seconds from a question for more to its answer at least, but for the first block: at 20 Mbit/s a fetch has
two blocks more by then, which one answer names."""

TELLING = 96
"""Questions that wait for news, or are answered, at once: each costs a timer."""


class Fellow(Struct):
    """Another peer that fetches the same, and the addresses at which it claims that it can be dialled."""

    peer: PeerId
    addresses: Addresses


class BlockQuery(Struct, tag="blocks"):
    """Asks a peer for a block below a root, or for its list of blocks."""

    root: Digest
    wanted: Annotated[tuple[BlockNumber, ...], Meta(max_length=CHOICE)] = ()
    """Numbers of blocks, of which the peer chooses one, or of which one is waited for."""
    leaves: bool = False
    """The leaf list is wanted."""
    seen: BlockNumber | None = None
    """Wait until the peer has one of `wanted`, or where these are too many to name more blocks than so many,
    for a few seconds at most."""
    fellows: int = 0
    """Number of other fetching peers that the asker wants to know."""
    addresses: Addresses = ()
    """Where the asker can be dialled; empty where it cannot, and it is not introduced."""


class Holding(Struct, tag="holding"):
    """Answer to a BlockQuery."""

    has: Annotated[bytes, Meta(max_length=-(-MOST // 8))] | None
    """A bit for each block that the peer has, the lowest of the first byte for the first; None: all."""
    fellows: Annotated[tuple[Fellow, ...], Meta(max_length=FELLOWS)] = ()
    leaves: Annotated[bytes, Meta(max_length=CARRIED)] = b""
    """Leaf list, see swarm.storage.blocks."""
    block: BlockNumber | None = None
    """Number of the block that is in `data`; None where the peer has none of those that were wanted."""
    data: Annotated[bytes, Meta(max_length=CARRIED)] = b""


@dataclass
class Asker:
    """A peer that asked for a root."""

    when: float = 0.0
    """The last time, in loop seconds."""
    addresses: tuple[str, ...] = ()
    given: int = 0
    """A bit for each block that it was given."""


class Shared:
    """One root as others see it: its blocks here, and the peers that fetch it."""

    def __init__(self, leaves: Sequence[Digest] = (), has: int = 0) -> None:
        """`has`: a bit for each block that is here, the first block's the lowest."""
        self._moved = asyncio.Event()
        self._given = Counter[int]()
        self._askers: OrderedDict[PeerId, Asker] = OrderedDict()
        self.begin(leaves, has)

    def begin(self, leaves: Sequence[Digest], has: int) -> None:
        """The leaf list is here, and these blocks."""
        self.leaves, self.has = leaves, has
        self._move()

    @property
    def is_whole(self) -> bool:
        return bool(self.leaves) and self.has.bit_count() == len(self.leaves)

    def add(self, blocks: int) -> None:
        """These blocks are here."""
        self.has |= blocks
        self._move()

    def lose(self, block: int) -> None:
        self.has &= ~(1 << block)

    def _move(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    async def news(self, seen: int, wanted: Sequence[int]) -> None:
        """Wait until one of `wanted` is here, or where there are none more than `seen` blocks, for NEWS
        seconds at most."""
        loop, named = asyncio.get_running_loop(), sum(1 << block for block in set(wanted))
        until = loop.time() + (LULL if seen else 0.0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NEWS):
                while not (self.has & named if named else self.is_whole or self.has.bit_count() > seen):
                    await self._moved.wait()
                await asyncio.sleep(until - loop.time())

    def choices(self, peer: PeerId, wanted: Sequence[int]) -> list[int]:
        """Those of them that are here, in order: the one that this peer was given last, then by how often
        each was given."""
        here = {block for block in wanted if block < len(self.leaves) and self.has >> block & 1}
        had = self._askers[peer].given
        return sorted(here, key=lambda block: (had >> block & 1, self._given[block], block))

    def gave(self, peer: PeerId, block: int) -> None:
        self._given[block] += 1
        self._askers[peer].given |= 1 << block

    def asked(self, peer: PeerId, addresses: Sequence[str]) -> None:
        asker = self._askers.get(peer) or Asker()
        asker.when, asker.addresses = asyncio.get_running_loop().time(), tuple(addresses)
        remember(self._askers, peer, asker, ASKERS)

    def fellows(self, asker: PeerId, many: int, rng: random.Random) -> tuple[Fellow, ...]:
        """Up to `many` others that asked lately and can be dialled."""
        since = asyncio.get_running_loop().time() - LATELY
        found = [
            (peer, one.addresses)
            for peer, one in self._askers.items()
            if one.when > since and one.addresses and peer != asker
        ]
        some = rng.sample(found, min(many, len(found), FELLOWS))
        return tuple(Fellow(peer=peer, addresses=addresses) for peer, addresses in some)

    @property
    def bitmap(self) -> bytes | None:
        """`has` as sent; None stands for all blocks."""
        return None if self.is_whole else self.has.to_bytes(-(-len(self.leaves) // 8), "little")


def held(service: Service) -> str:
    """The service that lists the blocks that `service` gives."""
    return f"{Service.HELD}/{service}"


class Sharing:
    """The two services of one store of blobs."""

    def __init__(
        self,
        mail: Mail,
        service: Service,
        find: Callable[[PeerId, BlockQuery], Shared | None],
        get: Callable[[Digest], Buffer | None],
        rng: random.Random,
    ) -> None:
        """`find` is called with every request, and returns its subject; `get` returns a block."""
        self._mail, self._service = mail, service
        self._find, self._get, self._rng = find, get, rng
        self.turns = AnswerTurns()

    async def serve(self) -> None:
        await self._mail.serve(held(self._service), self._answer, AnswerTurns(TELLING))
        await self._mail.serve(self._service, self._give, self.turns)

    async def _answer(self, sender: PeerId, message: bytes) -> bytes:
        query, shared = self._open(sender, message)
        if query.seen is not None:
            await shared.news(query.seen, query.wanted)
        leaves = leaf_list(shared.leaves) if query.leaves and len(shared.leaves) > 1 else b""
        return encode(Holding(has=shared.bitmap, fellows=self._fellows(sender, query, shared), leaves=leaves))

    async def _give(self, sender: PeerId, message: bytes) -> bytes:
        query, shared = self._open(sender, message)
        fellows = self._fellows(sender, query, shared)
        for block in shared.choices(sender, query.wanted):
            if (data := self._get(shared.leaves[block])) is not None:
                shared.gave(sender, block)
                return encode(Holding(has=shared.bitmap, fellows=fellows, block=block, data=bytes(data)))
            shared.lose(block)  # the disk lost it
        return encode(Holding(has=shared.bitmap, fellows=fellows))

    def _open(self, sender: PeerId, message: bytes) -> tuple[BlockQuery, Shared]:
        query = read_question(message, BlockQuery)
        if (shared := self._find(sender, query)) is None:
            raise Refused("not held here")
        shared.asked(sender, query.addresses)
        return query, shared

    def _fellows(self, sender: PeerId, query: BlockQuery, shared: Shared) -> tuple[Fellow, ...]:
        return shared.fellows(sender, query.fellows, self._rng) if query.fellows else ()
