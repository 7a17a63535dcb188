"""Blobs: content-addressed bytes between peers, over the Mail port of either world.

    Blocks -> hold     blocks and leaf list, each under its digest; the root is in the Release
    fetch: leaf list, blocks of several holders -> Blocks

A request is one digest, its answer the bytes (service `blobs`). Invariants: what is returned or held has the
digest it was asked by; sizes are checked before anything is allocated; a holder that lies is reported to
`on_bad`, one that is late or busy is not, and the others are tried. A block is held as soon as it is here, so
that a fetch that failed goes on where it ended, after a restart too where there is a folder; whoever fetched
something holds it for others. Retention: the newest versions, what is being fetched, here or from here, and
what was begun and is newer than they are. Where they lie is a shelf's business (swarm.net.shelves);
`on_damage` is told of what a disk lost or does not take. Not handled: who may fetch (the handler's guard),
finding holders (the Board), two fetches of one digest at once (both run).
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from swarm.blocks import LARGEST, Blocks, Buffer, Rule, block_size, block_sizes, lone_leaf, read_leaf_list
from swarm.image import Draft
from swarm.net.fetching import Fetch
from swarm.net.ports import Mail, NetError, Refused
from swarm.net.shelves import Held, Shelf
from swarm.net.turns import AnswerTurns
from swarm.protocol import Service
from swarm.types import Digest, PeerId

T = TypeVar("T")

DIGEST = re.compile(rb"[0-9a-f]{64}")

AT_ONCE = 4
"""Blocks under way: enough to fill several holders' links, and at most 16 MiB in memory."""

AGAIN = 60.0
"""Seconds after which a disk that still refuses is reported again: later windows see it too."""

LATELY = 90.0
"""Seconds after a request for a part of a version during which a peer counts as fetching it: over 0.5 Mbit/s
its four blocks come together, every 67 s, and then it asks again."""


def _ignore(peer: PeerId, reason: str) -> None:
    """Nobody asked for reports."""


def _bear(what: str) -> None:
    """Nobody asked for reports."""


class Blobs:
    """Holds, serves and fetches bytes as blocks, each under a version.

    `asked` is when somebody asked for something last, in loop seconds. `most` is how many bytes of older
    versions are held beside the newest one, `lasting` whether bytes in a folder outlive a power failure too.
    """

    def __init__(
        self,
        mail: Mail,
        *,
        folder: Path | None = None,
        keep: int = 4,
        on_bad: Callable[[PeerId, str], None] = _ignore,
        rng: random.Random | None = None,
        service: Service = Service.BLOBS,
        rule: Rule = block_size,
        on_damage: Callable[[str], None] = _bear,
    ) -> None:
        """Read the folder back, if one is given: every file is hashed. Blocks.

        `keep` is the number of newest versions to hold; `rng` draws how long a busy holder is left alone;
        `rule` says how large the blocks are.
        """
        self.asked = 0.0
        self.most = LARGEST
        self.lasting = False
        self._mail, self._service, self._rule = mail, service, rule
        self._on_bad = on_bad
        self._keep = keep
        self._rng = rng or random.Random()
        self._on_damage = on_damage
        self._shelf = Shelf(folder, on_damage, rule)
        self._whole: dict[Digest, Held] = {held.root: held for held in self._shelf.whole()}
        self._begun: dict[Digest, Held] = {held.root: held for held in self._shelf.begun()}
        """Of which some blocks are here, but not all."""
        self._fetching: Counter[Digest] = Counter()
        self._part_of: dict[Digest, Digest] = {}
        """Leaf list and leaves of what is here as a whole -> its root."""
        self._wanted: dict[Digest, float] = {}
        """Root -> when a part of it was last asked for, in loop seconds."""
        self._last: Digest | None = None
        """What was made here last, until something newer is here: a learner that fell back to an old version
        has to offer it."""
        self._turns = AnswerTurns()
        self._complained = -AGAIN
        """When the disk was last reported, in monotonic seconds."""
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="blobs") if folder is not None else None
        for held in self._whole.values():
            self._name_parts(held)

    def hold(self, version: int, blocks: Blocks) -> None:
        """Hold these bytes, made here, for others, until newer ones take their place. Blocks where there is a
        disk."""
        held = Held.of(version, blocks)
        self._shelf.put(held, blocks, self.lasting)
        self._complain()
        self._last = held.root
        self._complete(held)

    async def take(self, version: int, blocks: Blocks, made_here: bool = False) -> Blocks:
        """Hold these bytes for others, beside the loop where there is a disk; returns them as they are
        held."""
        held = Held.of(version, blocks)
        await self._off_loop(self._shelf.put, held, blocks, self.lasting)
        if made_here:
            self._last = held.root
        self._complete(held)
        return self.blocks(held.root) or blocks

    def draft(self, size: int) -> Draft:
        """Room for a version of `size` bytes in the making, which `hold` or `take` takes up as it is."""
        return self._shelf.draft(size)

    def is_whole(self, root: Digest) -> bool:
        """Whether all blocks below `root` are here, as far as is known."""
        return root in self._whole and self._shelf.is_whole(root)

    def wholes(self) -> list[Digest]:
        """Roots of what is here as a whole, the newest version first."""
        return [held.root for held in sorted(self._whole.values(), key=lambda held: -held.version)]

    def holds(self, root: Digest, size: int) -> bool:
        """Whether `size` bytes below `root` are here, as far as is known."""
        return self.is_whole(root) and self._whole[root].size == size

    def get(self, digest: Digest) -> bytes | None:
        """A block or a leaf list, if it is held here; asks nobody."""
        data = self._shelf.get(digest)
        return bytes(data) if data is not None else None

    def blocks(self, root: Digest) -> Blocks | None:
        """The version below `root`, None where it is not whole; it can be read for as long as the result is
        held."""
        return self._shelf.blocks(root) if root in self._whole else None

    async def check(self, root: Digest) -> None:
        """Look at all blocks below `root`, since reading one of them raised Damaged: what is not here counts
        as missing."""
        await self._off_loop(self._shelf.check, root)

    def clear(self) -> None:
        """Hold nothing any more."""
        kept, self._keep, self._last = self._keep, 0, None
        self._prune()
        self._keep = kept

    def statistics(self) -> Mapping[str, int]:
        return {"releases": len(self._whole), "blobs": len(self._shelf)}

    async def serve(self) -> None:
        await self._mail.serve(self._service, self._answer, self._turns)

    async def _answer(self, sender: PeerId, message: bytes) -> bytes:
        self.asked = asyncio.get_running_loop().time()
        if (root := self._part_of.get(Digest(message.decode(errors="replace")))) is not None:
            self._wanted[root] = self.asked
        if not DIGEST.fullmatch(message):
            raise Refused("not a digest: ask with 64 lower-case hex digits")
        data = self.get(Digest(message.decode()))
        if data is None:
            raise Refused("not held here")
        return data

    async def fetch(self, version: int, root: Digest, size: int, holders: Sequence[PeerId]) -> Blocks:
        """The `size` bytes below `root`, at most 4 blocks at a time. They are held for others from then on.

        Raises NetError; what is here by then is not asked for again.
        """
        if not 0 < size <= LARGEST:
            raise NetError(f"version {version} claims {size} bytes: at most {LARGEST} are fetched")
        fetch = Fetch(self._mail, self._service, holders, self._rng, self._on_bad)
        leaves = await self._leaves(fetch, version, root, size)
        held = Held(root, version, size, leaves)
        async with self._coming(held):
            await self._fetch_blocks(fetch, held)
            whole = self._shelf.blocks(root)
        if whole is None:
            raise NetError(f"version {version} was damaged on the disk while it came: it is fetched again")
        return whole

    @asynccontextmanager
    async def _coming(self, held: Held) -> AsyncIterator[None]:
        """Its blocks stay from now on; all of them are here at the end, unless that is an exception."""
        self._fetching[held.root] += 1
        try:
            await self._begin(held)
            yield
            await self._off_loop(self._shelf.mark, held, self.lasting)
            self._complete(held)
        finally:
            self._fetching -= Counter([held.root])
            self._prune()

    async def _off_loop(self, use: Callable[..., T], *args: Any) -> T:
        """Use the shelf, one call after the other; a folder in a thread, since an fsync takes as long as a
        disk likes."""
        if self._disk is None:
            result = use(*args)
        else:
            result = await asyncio.get_running_loop().run_in_executor(self._disk, use, *args)
        self._complain()
        return result

    def _complain(self) -> None:
        """Report a disk that refuses, at most every AGAIN seconds. The peer goes on; only what would outlive
        it is lost."""
        if (complaint := self._shelf.complaint()) and time.monotonic() - self._complained >= AGAIN:
            self._complained = time.monotonic()
            self._on_damage(complaint)

    async def _leaves(self, fetch: Fetch, version: int, root: Digest, size: int) -> tuple[Digest, ...]:
        step = self._rule(size)
        if lone := lone_leaf(root, size, step):
            return lone
        try:
            return read_leaf_list(await self._blob(fetch, root), size, step)
        except ValueError as error:
            raise NetError(
                f"version {version}: {error}; whoever published it made a mistake or lies"
            ) from error

    async def _blob(self, fetch: Fetch, digest: Digest) -> Buffer:
        """A blob from here, else from the holders; fetching does not hold it."""
        data = self._shelf.get(digest)
        return data if data is not None else await fetch.blob(digest)

    async def _begin(self, held: Held) -> None:
        """Hold blocks of it from now on, before it is complete."""
        if held.root not in self._whole and held.root not in self._begun:
            self._begun[held.root] = held
            await self._off_loop(self._shelf.begin, held)
        self._prune()

    async def _fetch_blocks(self, fetch: Fetch, held: Held) -> None:
        """Hold all blocks, each as soon as it is here."""
        # Equal blocks have one leaf, and are fetched once.
        sizes = block_sizes(held.size, self._rule(held.size))
        todo = iter(dict(zip(held.leaves, sizes, strict=True)).items())

        async def take() -> None:
            for leaf, size in todo:
                if not self._shelf.lacks(held.root, leaf):
                    continue
                block = await self._blob(fetch, leaf)
                if len(block) != size:
                    raise NetError(
                        f"{leaf} has {len(block)} bytes, not {size}: whoever published version"
                        f" {held.version} made a mistake or lies"
                    )
                await self._off_loop(self._shelf.add, {leaf: block})

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(take())
        except BaseExceptionGroup as broken:
            lost, bugs = broken.split(NetError)
            if bugs is not None or lost is None:
                raise
            raise NetError(str(lost.exceptions[0])) from broken

    def _complete(self, held: Held) -> None:
        self._begun.pop(held.root, None)
        self._whole[held.root] = held
        self._name_parts(held)
        last = self._whole.get(self._last) if self._last is not None else None
        if last is not None and last.version < held.version:
            self._last = None
        self._prune()

    def _name_parts(self, held: Held) -> None:
        self._part_of |= dict.fromkeys((held.root, *held.leaves), held.root)

    def _newest(self) -> set[int]:
        """The versions to hold: the newest, and those before it up to `keep` in all and `most` bytes."""
        sizes = Counter[int]()
        for held in self._whole.values():
            sizes[held.version] += held.size
        newest, left = set[int](), self.most
        for version in sorted(sizes, reverse=True)[: self._keep]:
            if newest and (left := left - sizes[version]) < 0:
                break
            newest.add(version)
        return newest

    def _prune(self) -> None:
        """Drop versions beyond the newest, but for the last one made here and as many again that somebody is
        fetching from here; and of those that were only begun what is older, or more than as many.
        """
        newest = self._newest()
        gone = [root for root, held in self._whole.items() if held.version not in newest]
        late = asyncio.get_running_loop().time() - LATELY if self._wanted else 0.0
        given = [root for root in gone if self._wanted.get(root, late) > late]
        spared = sorted(given, key=lambda root: self._whole[root].version, reverse=True)[: self._keep]
        gone = [root for root in gone if root not in spared]
        begun = sorted(self._begun, key=lambda root: self._begun[root].version, reverse=True)
        oldest = min(newest, default=0)
        gone += [
            root for k, root in enumerate(begun) if k >= self._keep or self._begun[root].version < oldest
        ]
        everything = self._begun | self._whole
        old = {
            root: everything.pop(root) for root in gone if root not in self._fetching and root != self._last
        }
        if not old:
            return
        for root in old:
            self._whole.pop(root, None)
            self._begun.pop(root, None)
            self._wanted.pop(root, None)
        self._part_of = {part: root for part, root in self._part_of.items() if root not in old}
        self._shelf.drop(sorted(old))
