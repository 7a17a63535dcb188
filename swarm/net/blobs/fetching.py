"""One fetch: the blocks below a root from all peers with some, each verified; the fastest source is asked
most.

    holders, those known later, and those that they introduce -> sources (swarm.net.blobs.sources)
        held/...   its blocks, and other fetching peers: at once, and again when it had nothing to give
        ...        "one of these": as a rule each block in one request, those that the fewest have first
                       busy                       asked again after a pause, or another source is
                       unreachable, silent        paused; out of this fetch after a few times in a row
                       refused, wrong bytes       out of this fetch; a liar is reported

A source is silent when it sends no byte for 5 s and 8 round trips, however long a block takes. A block is
requested twice where the first source is late, or at the end; the first answer counts. A slow line is no
fault. An introduced peer that cannot be dialled is forgotten: nothing waited for it. Not handled: the use of
the bytes (swarm.net.blobs.store), and the deadline of a whole fetch, which its caller keeps.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from swarm.frames.wire import WireError, decode, encode
from swarm.net.blobs.sharing import CHOICE, FELLOWS, NEWS, BlockQuery, Holding, held
from swarm.net.blobs.sources import (
    LATE,
    OF_ALONE,
    OF_ONE,
    BlockSource,
    Question,
    choose,
    free,
    numbers,
    second,
    too_few,
)
from swarm.net.ports import Busy, Mail, NetError, Reach, Refused
from swarm.protocol import Service
from swarm.storage.blocks import digest_of
from swarm.types import Digest, PeerId

AT_ONCE = 12
"""Questions for blocks under way: as many answers as keep several uplinks busy, and at most 48 MiB in
memory."""

DIALS = 2
"""Addresses of this peer in a request."""

RELAYED = "/p2p-circuit/"
"""In an address over a relay: no peer is sent there for blocks, since relays carry little."""

SOURCES = 20
"""Sources at a time; further ones are not introduced."""

TRIED = 80
"""Sources of a fetch in all: strangers introduce any peers they like."""

IDLE, TRIPS = 5.0, 8
"""Without a byte for so many seconds and round trips a source is silent: lost packets are sent again within a
few round trips."""

LONGEST = 300.0
"""Seconds for one block: 3.5 kB/s. Slower ones would come, but not before the next release does."""

TOLD = 2 * IDLE + NEWS
"""Seconds for an answer of a few bytes, which may wait for news."""

STARVED = 120.0
"""Seconds in which all sources are busy, or rest, until the fetch gives up: its caller looks whether it wants
something newer."""

BARE = 5.0
"""Seconds without a source of any missing block until the fetch gives up: fetching peers wait for each other,
and the caller has a patience of its own after that."""

GIVEN = 10.0
"""Seconds after which an unanswered request counts as being answered: a busy source says so earlier."""

LOOK = 1.0
"""Seconds between two looks at whether another source would be faster."""


class Fetch:
    """`leaf_list`, where there is one, then `blocks`."""

    def __init__(
        self,
        mail: Mail,
        service: Service,
        root: Digest,
        holders: Sequence[PeerId],
        rng: random.Random,
        on_bad: Callable[[PeerId, str], None],
        reach: Reach,
        later: Callable[[], Sequence[PeerId]] = tuple,
    ) -> None:
        """`later()`: holders that are known by now."""
        self._mail, self._service, self._rng, self._on_bad = mail, service, rng, on_bad
        self._root, self._introduced = root, reach.introduced
        self._addresses = tuple(address for address in reach.addresses() if RELAYED not in address)[:DIALS]
        self._sources = {peer: BlockSource(peer) for peer in dict.fromkeys(holders)}
        self._later, self._looked = later, asyncio.get_running_loop().time()
        self._moved = self._hoped = asyncio.get_running_loop().time()
        """When a block came last; when a source last had some of the missing ones."""
        self._wake = asyncio.Event()
        self._failure: NetError | None = None
        self._list = b""
        self._lacking = self._missing = 0
        """Blocks to ask for; those, and blocks that are being kept."""

    def join(self, peer: PeerId, addresses: Sequence[str]) -> None:
        """Another peer fetches the same: it may have blocks that are missing here."""
        known, now = self._sources.get(peer), asyncio.get_running_loop().time()
        if known is not None and known.refused and known.rest_until <= now:
            known.out, known.refused = "", False
        elif known is None and self._has_room():
            if addresses:
                self._introduced(peer, addresses)
            self._sources[peer] = BlockSource(peer, introduced=True)
            self._wake.set()

    async def leaf_list(self) -> bytes:
        """Leaves that have the digest `root`. Raises NetError with each source's failure."""
        await self._run(lambda: bool(self._list), self._ask_for_list)
        return self._list

    async def blocks(
        self,
        leaves: Sequence[Digest],
        sizes: Sequence[int],
        lacking: int,
        keep: Callable[[int, bytes], Awaitable[None]],
    ) -> None:
        """Call `keep` once for each block of `lacking`, as it comes. Raises NetError with each source's
        failure."""
        self._leaves, self._sizes, self._keep = leaves, sizes, keep
        self._lacking = self._missing = lacking
        await self._run(lambda: not self._missing, self._ask_for_blocks)

    async def _run(self, is_over: Callable[[], bool], ask: Callable[[asyncio.TaskGroup], None]) -> None:
        tasks: list[asyncio.Task[None]] = []
        async with asyncio.TaskGroup() as group:
            while not is_over() and self._failure is None:
                self._wake.clear()
                self._look_for_more()
                ask(group)
                if self._give_up():
                    break
                await self._look()
            for source in self._sources.values():
                tasks += [question.task for question in source.under if question.task is not None]
                tasks += [source.query] if source.query is not None else []
            for task in tasks:
                task.cancel()
        if self._failure is not None:
            raise self._failure

    def _look_for_more(self) -> None:
        """Whoever has come to hold it since the fetch began is a source too."""
        if (now := asyncio.get_running_loop().time()) < self._looked + LOOK:
            return
        self._looked = now
        for peer in self._later():
            if peer not in self._sources and self._has_room():
                self._sources[peer] = BlockSource(peer)

    def _has_room(self) -> bool:
        return len(self._alive()) < SOURCES and len(self._sources) < TRIED

    async def _look(self) -> None:
        """Wait until something came, a source has rested, or it is time to look again."""
        now = asyncio.get_running_loop().time()
        rests = [source.rest_until - now for source in self._alive() if source.rest_until > now]
        try:
            async with asyncio.timeout(min([LOOK, *rests])):
                await self._wake.wait()
        except TimeoutError:
            return

    def _alive(self) -> list[BlockSource]:
        return [source for source in self._sources.values() if not source.out]

    def _give_up(self) -> bool:
        now = asyncio.get_running_loop().time()
        alive = self._alive()
        if any(source.has & self._lacking or not source.known for source in alive):
            self._hoped = now
        if any(now - question.began > GIVEN for source in alive for question in source.under):
            self._moved = now
        if alive and now <= self._moved + STARVED and now <= self._hoped + BARE:
            return False
        why = "; ".join(f"{source.peer} {self._reason(source)}" for source in self._sources.values())
        self._failure = NetError(f"no holder sent {self._root}: " + (why or "no holder is known"))
        return True

    def _reason(self, source: BlockSource) -> str:
        if source.out:
            return source.out
        return (
            f"is busy for {STARVED:g} s" if source.has & self._lacking else "has none of the missing blocks"
        )

    # --- questions ------------------------------------------------------------------------------------------

    def _ask_for_list(self, group: asyncio.TaskGroup) -> None:
        """From two sources at a time, and one more whenever none has answered for a while."""
        now = asyncio.get_running_loop().time()
        free = 2 + int((now - self._moved) / LOOK) - sum(source.query is not None for source in self._alive())
        for source in self._alive():
            if source.query is None and source.rest_until <= now and free > 0:
                free -= 1
                source.query = group.create_task(
                    self._learn(source, BlockQuery(root=self._root, leaves=True))
                )

    def _ask_for_blocks(self, group: asyncio.TaskGroup) -> None:
        now, alive = asyncio.get_running_loop().time(), self._alive()
        ready = [source for source in alive if source.rest_until <= now]
        questions = [question for source in alive for question in source.under]
        self._cancel_answered(questions)
        most = max(OF_ONE, min(AT_ONCE // (len(alive) or 1), OF_ALONE))
        while len(questions) < AT_ONCE:
            able = [source for source in ready if len(source.under) < (1 if source.turned_away else most)]
            blocks = free(self._lacking, questions)
            choice = choose(alive, able, blocks, self._lacking, now, self._rng)
            choice = choice or second(able, questions, self._lacking, now)
            if choice is None:
                break
            self._start(group, *choice)
            questions.append(choice[1])
        left = free(self._lacking, [question for question in questions if now < question.began + LATE])
        more = too_few(alive, self._lacking, now)
        for source in ready:
            if source.query is not None:
                continue
            if source.known:
                due = left and len(questions) < AT_ONCE and not source.has & left
            elif due := more > 0:
                more, source.asked = more - 1, now
            if due:
                source.query = group.create_task(self._learn(source, self._news_of(source)))

    def _news_of(self, source: BlockSource) -> BlockQuery:
        """The request for its list of blocks, answered once it has more of those missing here."""
        if not source.known:
            return BlockQuery(root=self._root)
        news = self._lacking & ~source.has
        wanted = tuple(numbers(news)) if news.bit_count() <= CHOICE else ()
        return BlockQuery(root=self._root, seen=source.has.bit_count(), wanted=wanted)

    def _cancel_answered(self, questions: Sequence[Question]) -> None:
        """Cancel requests for blocks that came from another source."""
        for question in questions:
            if question.task is not None and not question.wanted & self._lacking:
                question.task.cancel()

    def _start(self, group: asyncio.TaskGroup, source: BlockSource, question: Question) -> None:
        source.under.append(question)
        question.task = group.create_task(self._ask(source, question))

    # --- answers --------------------------------------------------------------------------------------------

    async def _send(
        self, source: BlockSource, service: str, query: BlockQuery, timeout: float, idle: float | None
    ) -> Holding | None:
        """None when there is no answer; its BlockSource has the reason."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        room = min(FELLOWS, max(0, SOURCES - len(self._alive())))
        query = msgspec.structs.replace(query, fellows=room, addresses=self._addresses)
        try:
            answer = await self._mail.send(source.peer, service, encode(query), timeout, idle)
            holding = decode(answer, Holding)
        except Busy:
            source.pause(loop.time(), self._rng)
        except Refused as refusal:
            source.out, source.refused = f"refused: {refusal}", True
            source.pause(loop.time(), self._rng)
        except WireError as error:
            self._blame(source, f"sent {len(answer)} bytes that are no answer ({error})")
        except NetError as error:
            source.failed(str(error), began, loop.time(), self._rng)
        else:
            source.answered(holding)
            for fellow in holding.fellows:
                self.join(fellow.peer, fellow.addresses)
            return holding
        if source.out and source.introduced and not source.known:
            del self._sources[source.peer]
        return None

    async def _learn(self, source: BlockSource, query: BlockQuery) -> None:
        """Ask for its list of blocks, and for the leaf list."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            holding = await self._send(source, held(self._service), query, TOLD, None)
        finally:
            source.query = None
            self._wake.set()
        if holding is None:
            return
        if query.seen is None:
            source.trip = min(source.trip, loop.time() - began)
        if query.leaves and not holding.leaves:
            source.pause(loop.time(), self._rng)  # it waits for the list itself
        elif query.leaves and digest_of(holding.leaves) != self._root:
            self._blame(source, f"sent {len(holding.leaves)} bytes that are not {self._root}")
        elif query.leaves:
            self._list = holding.leaves

    async def _ask(self, source: BlockSource, question: Question) -> None:
        query = BlockQuery(root=self._root, wanted=tuple(numbers(question.wanted)))
        try:
            holding = await self._send(source, self._service, query, LONGEST, IDLE + TRIPS * source.trip)
        finally:
            source.under.remove(question)
            self._wake.set()
        if holding is not None:
            await self._receive(source, question, holding)

    async def _receive(self, source: BlockSource, question: Question, holding: Holding) -> None:
        now, block, data = asyncio.get_running_loop().time(), holding.block, holding.data
        if block is None:
            source.has &= ~question.wanted
            source.pause(now, self._rng)
            return
        if not question.wanted >> block & 1 or digest_of(data) != self._leaves[block]:
            self._blame(source, f"sent {len(data)} bytes that are not block {block} of {self._root}")
            return
        if len(data) != self._sizes[block]:
            self._failure = NetError(
                f"{self._leaves[block]} has {len(data)} bytes, not {self._sizes[block]}: whoever published"
                f" {self._root} made a mistake or lies"
            )
            return
        self._moved = now
        source.gave(now - question.began)
        if self._lacking >> block & 1:
            self._lacking &= ~(1 << block)
            await self._keep(block, data)
            self._missing &= ~(1 << block)
            self._wake.set()

    def _blame(self, source: BlockSource, why: str) -> None:
        if not source.out:
            source.out = why
            self._on_bad(source.peer, why)
