"""Blobs: content-addressed bytes between peers, over the Mail port of either world.

    Blocks -> hold     blocks and leaf list, each under its digest; the root is in the Release
    fetch: leaf list, blocks of several holders (swarm.net.blobs.fetching) -> Blocks
    others' questions -> what is here of a root, a block (swarm.net.blobs.sharing)

Invariants: returned or held bytes have the digest that they were requested by; sizes are checked before
anything is allocated; a holder that lies is reported to `on_bad`, one that is late or busy is not, and the
others are tried. A block is held, and given to others, as soon as it is here: a fetch that failed continues
where it ended, after a restart too where there is a folder. A peer that asks here for a root being fetched
here may have some of it, and joins that fetch. Retention: the newest versions, those being fetched, here or
from here, and fetches that were begun and are newer. Where they lie is a shelf's business
(swarm.net.blobs.shelves); `on_damage` is called for data that a disk lost, `on_disk` for writes that it
refuses. Not handled: which peers may fetch (the handler's guard), finding the first holders (the Board), two
fetches of one root at once (both run).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from swarm.net.blobs.fetching import Fetch
from swarm.net.blobs.sharing import BlockQuery, Shared, Sharing
from swarm.net.blobs.shelves import Held, Shelf
from swarm.net.ports import Mail, NetError, Reach
from swarm.protocol import Service
from swarm.storage.blocks import (
    LARGEST,
    Blocks,
    block_size,
    block_sizes,
    file_block,
    lone_leaf,
    read_leaf_list,
)
from swarm.storage.image import Draft
from swarm.types import Digest, Fetching, PeerId

T = TypeVar("T")

LATELY = 90.0
"""Seconds after a question for a version during which a peer counts as fetching it: over 0.5 Mbit/s four
blocks that come together take 67 s, and then it asks again."""

ALONE = Reach()


def _ignore(peer: PeerId, reason: str) -> None:
    """The default: reports are dropped."""


def _bear(why: str) -> None:
    """The default: reports are dropped."""


class Blobs:
    """Holds, serves and fetches bytes as blocks, each under a version.

    `asked` is the time of the last request of another peer, in loop seconds. `most` is how many bytes of
    older versions are held beside the newest one, `lasting` whether bytes in a folder survive a power failure
    too.
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
        on_damage: Callable[[str], None] = _bear,
        reach: Reach = ALONE,
    ) -> None:
        """Read the folder back, if one is given: every file is hashed. Blocks.

        `keep` is the number of newest versions to hold; `rng` draws the pause for a busy holder; `reach`
        tells peers that fetch the same how to dial each other.
        """
        self.asked = 0.0
        self.most = LARGEST
        self.lasting = False
        self._mail, self._service, self._reach = mail, service, reach
        self._rule = file_block if service is Service.PATCHES else block_size
        self._on_bad = on_bad
        self._keep = keep
        self._rng = rng or random.Random()
        self.on_disk: Callable[[str], None] = _bear
        """Called with the reason when the disk refuses a write, and with an empty text when it accepts
        one."""
        self._shelf = Shelf(folder, on_damage, self._rule)
        self._whole: dict[Digest, Held] = {held.root: held for held in self._shelf.whole()}
        self._begun: dict[Digest, Held] = {held.root: held for held in self._shelf.begun()}
        """Of which some blocks are here, but not all."""
        self._fetching: Counter[Digest] = Counter()
        self._fetches: dict[Digest, list[Fetch]] = {}
        self._shared: dict[Digest, Shared] = {}
        """Roots that others asked for, or may ask for since they are being fetched."""
        self._wanted: dict[Digest, float] = {}
        """Root of a complete version -> time of its last request, in loop seconds."""
        self._last: Digest | None = None
        """The last version made here, until something newer is here: a learner that fell back to an old
        version has to offer it."""
        self._sharing = Sharing(mail, service, self._find, self._shelf.get, self._rng)
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="blobs") if folder is not None else None

    def hold(self, version: int, blocks: Blocks) -> None:
        """Hold these bytes, made here, for others, until newer ones take their place. Blocks where there is a
        disk."""
        held = Held.of(version, blocks)
        self._shelf.put(held, blocks, self.lasting)
        self._report_disk()
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
        """Roots of complete versions here, the newest first."""
        return [held.root for held in sorted(self._whole.values(), key=lambda held: -held.version)]

    def holds(self, root: Digest, size: int) -> bool:
        """Whether `size` bytes below `root` are here, as far as is known."""
        return self.is_whole(root) and self._whole[root].size == size

    def get(self, digest: Digest) -> bytes | None:
        """A block or a leaf list, if it is held here; sends no request."""
        data = self._shelf.get(digest)
        return bytes(data) if data is not None else None

    def coming(self) -> Fetching | None:
        """The current downloads, all together; None without any."""
        fetched = [held for root, held in self._begun.items() if root in self._fetching]
        return (
            Fetching(
                version=max(held.version for held in fetched),
                held=sum(map(self._arrived, fetched)),
                size=sum(held.size for held in fetched),
            )
            if fetched
            else None
        )

    def _arrived(self, held: Held) -> int:
        """Bytes of its blocks that are here."""
        has, step = self._shared[held.root].has, self._rule(held.size)
        last = (held.size - 1) // step
        return has.bit_count() * step - (has >> last & 1) * ((last + 1) * step - held.size)

    def blocks(self, root: Digest) -> Blocks | None:
        """The version below `root`, None where it is not whole; it can be read for as long as the result is
        held."""
        return self._shelf.blocks(root) if root in self._whole else None

    async def check(self, root: Digest) -> None:
        """Check all blocks below `root`, since reading one of them raised Damaged: those that are not here
        count as missing."""
        await self._off_loop(self._shelf.check, root)

    def clear(self) -> None:
        """Hold nothing any more."""
        kept, self._keep, self._last = self._keep, 0, None
        self._prune()
        self._keep = kept

    def statistics(self) -> Mapping[str, int]:
        return {"releases": len(self._whole), "blobs": len(self._shelf)}

    async def serve(self) -> None:
        await self._sharing.serve()

    def _find(self, sender: PeerId, query: BlockQuery) -> Shared | None:
        """The subject of a request; its sender joins the fetches of the same."""
        self.asked, root = asyncio.get_running_loop().time(), query.root
        if root in self._whole:
            self._wanted[root] = self.asked
        for fetch in self._fetches.get(root, ()):
            fetch.join(sender, query.addresses)
        if root not in self._shared and (held := self._whole.get(root) or self._begun.get(root)) is not None:
            self._shared[root] = Shared(held.leaves, self._here(held))
        return self._shared.get(root)

    def _here(self, held: Held) -> int:
        """A bit for each block that is here."""
        return sum(1 << block for block, leaf in enumerate(held.leaves) if leaf in self._shelf)

    async def fetch(
        self,
        version: int,
        root: Digest,
        size: int,
        holders: Sequence[PeerId],
        later: Callable[[], Sequence[PeerId]] = tuple,
    ) -> Blocks:
        """The `size` bytes below `root`, from `holders` and those that `later()` names while it lasts. Each
        block is held for others as soon as it is here.

        Raises NetError; blocks that are here by then are not requested again.
        """
        if not 0 < size <= LARGEST:
            raise NetError(f"version {version} claims {size} bytes: at most {LARGEST} are fetched")
        fetch = Fetch(self._mail, self._service, root, holders, self._rng, self._on_bad, self._reach, later)
        self._shared.setdefault(root, Shared())
        self._fetches.setdefault(root, []).append(fetch)
        try:
            leaves = await self._leaves(fetch, version, root, size)
            held = Held(root, version, size, leaves)
            async with self._coming(held):
                await self._fetch_blocks(fetch, held)
                whole = self._shelf.blocks(root)
        finally:
            self._fetches[root].remove(fetch)
            if not self._fetches[root]:
                del self._fetches[root]
                if root not in self._whole and root not in self._begun:
                    self._shared.pop(root, None)
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
        self._report_disk()
        return result

    def _report_disk(self) -> None:
        """Report whether the disk refuses. The peer goes on; only what would outlive it is lost."""
        if (why := self._shelf.refusal()) is not None:
            self.on_disk(why)

    async def store(self) -> None:
        """Retry the writes that the disk refused."""
        await self._off_loop(self._shelf.store)

    async def _leaves(self, fetch: Fetch, version: int, root: Digest, size: int) -> tuple[Digest, ...]:
        step = self._rule(size)
        if lone := lone_leaf(root, size, step):
            return lone
        data = self._shelf.get(root)
        try:
            return read_leaf_list(data if data is not None else await fetch.leaf_list(), size, step)
        except ValueError as error:
            raise NetError(f"version {version}: {error}; its publisher made a mistake or lies") from error

    async def _begin(self, held: Held) -> None:
        """Hold blocks of it from now on, before it is complete; peers that fetch the same wait for that,
        too."""
        if held.root not in self._whole:
            self._begun.setdefault(held.root, held)
            await self._off_loop(self._shelf.begin, held)
        self._prune()

    async def _fetch_blocks(self, fetch: Fetch, held: Held) -> None:
        """Hold all blocks, each as soon as it is here."""
        sizes, shared, same = (
            block_sizes(held.size, self._rule(held.size)),
            self._shared[held.root],
            _same(held),
        )
        if len(set(zip(held.leaves, sizes, strict=True))) > len(same):
            raise NetError(f"version {held.version} has equal blocks of different sizes: its publisher lies")
        for leaf, blocks in same.items():
            if self._shelf.lacks(held.root, leaf) and (data := self._shelf.get(leaf)) is not None:
                if len(data) != sizes[(blocks & -blocks).bit_length() - 1]:
                    raise NetError(
                        f"version {held.version} claims {leaf} to have another size: its publisher lies"
                    )
                await self._off_loop(self._shelf.add, {leaf: data})
        missing = {leaf: blocks for leaf, blocks in same.items() if self._shelf.lacks(held.root, leaf)}
        shared.begin(held.leaves, sum(same.values()) - sum(missing.values()))

        async def keep(block: int, data: bytes) -> None:
            await self._off_loop(self._shelf.add, {held.leaves[block]: data})
            shared.add(same[held.leaves[block]])

        await fetch.blocks(held.leaves, sizes, sum(blocks & -blocks for blocks in missing.values()), keep)

    def _complete(self, held: Held) -> None:
        self._begun.pop(held.root, None)
        self._whole[held.root] = held
        if (shared := self._shared.get(held.root)) is not None:
            shared.begin(held.leaves, (1 << len(held.leaves)) - 1)
        last = self._whole.get(self._last) if self._last is not None else None
        if last is not None and last.version < held.version:
            self._last = None
        self._prune()

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
        """Drop versions beyond the newest, but for the last one made here and as many again that another peer
        is fetching from here; and of incomplete ones those that are older, or more than as many.
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
            self._shared.pop(root, None)
        self._shelf.drop(sorted(old))


def _same(held: Held) -> dict[Digest, int]:
    """Leaf -> a bit for each of its blocks: equal ones are fetched once."""
    same: dict[Digest, int] = {}
    for block, leaf in enumerate(held.leaves):
        same[leaf] = same.get(leaf, 0) | 1 << block
    return same
