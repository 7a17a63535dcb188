"""Patches between this peer and the swarm: a release from bytes that are here already, for the cost of the
change.

    publisher: make     from the version before, and at a rung from eight before, or every KEPT versions from
                        version 0 where that can be made here -> files held, named in the Release
    receiver:  fetch    the cheapest way from a version that is here, or that can be made here -> its files ->
                        the release's blocks, one by one, into an image of their own (swarm.storage.image)

A file is served by its publisher and by every peer that fetched it, for KEPT versions and for no more bytes
than one release. Invariants: the result has the requested root; where a patch is unavailable, or makes other
bytes, the next way is tried, and where none is left the caller fetches the whole release; a patch that makes
other bytes is not tried again, and its publisher is named, unless it was damaged here. Not handled here:
which way is the cheapest (swarm.core.agreement.patch_path), the files (swarm.storage.patch_files).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from peers.runtime.faults import DiskFaults
from peers.runtime.kernel import Kernel
from peers.runtime.releases.version_zero import VersionZero
from swarm import events
from swarm.core.agreement.patch_path import KEPT, RUNG, PatchStep, cheapest
from swarm.limits import remember
from swarm.net.blobs.store import Blobs
from swarm.net.ports import NetError
from swarm.protocol import Kind, Service
from swarm.storage import patch_files
from swarm.storage.blocks import Blocks, Damaged, file_block
from swarm.storage.patch_files import UselessFile
from swarm.storage.patches import PatchError
from swarm.storage.weights import Weights
from swarm.types import Digest, Patch, PeerId, Release

WAYS = 4
"""Ways that are tried for a release: one is lost to a holder that died, another to a liar."""

Known = Mapping[Digest, Sequence[Release]]
"""Weights -> their announced releases."""

Later = Callable[[], Sequence[PeerId]]
"""The current holders of a release."""


class PatchLadder:
    def __init__(self, kernel: Kernel, disk: DiskFaults, wholes: Blobs, folder: Path | None) -> None:
        """`wholes` holds the releases' own blocks; files are held in `folder`, or in memory."""
        self._kernel, self._wholes = kernel, wholes
        self.version_zero = VersionZero(kernel, wholes)
        self.files = Blobs(
            kernel.ports.mail,
            service=Service.PATCHES,
            folder=folder,
            keep=KEPT,
            rng=kernel.rng,
            on_bad=self._bad_holder,
            on_damage=disk.damaged,
            reach=kernel.ports.reach,
        )
        self.files.on_disk = partial(disk.report, "patches")
        self._useless: set[Digest] = set()
        """Patch files of announced releases that make other bytes than they promise."""
        self._steps: OrderedDict[Digest, Patch] = OrderedDict()
        """Weights -> a patch that made them here; claims of other peers about patches are unproven."""

    async def serve(self) -> None:
        await self.files.serve()

    # --- out ------------------------------------------------------------------------------------------------

    async def make(self, weights: Weights, parent: Digest) -> tuple[Patch, ...]:
        """Hold the patches to these weights -> their entries for the release. None where the parent is not
        here, or its patch is no smaller than the whole."""
        if (step := await self._made(self._wholes.blocks(parent), weights)) is None:
            return ()
        self._remember(weights.digest, step)
        further = await self._from_version_zero(weights) or await self._made_rung(weights)
        return (step,) if further is None else (step, further)

    async def _made(self, base: Blocks | None, weights: Weights) -> Patch | None:
        if base is None or base.size != weights.blocks.size:
            return None
        try:
            file = await self._kernel.ports.work.run(Kind.PATCH, patch_files.make, base, weights.blocks)
        except Damaged:
            await self._wholes.check(base.root)
            return None
        return await self._hold(weights, base.root, file)

    async def _from_version_zero(self, weights: Weights) -> Patch | None:
        """In place of a rung, for peers that join: a release names two patches at most."""
        if weights.version % KEPT:
            return None
        return await self._made(await self.version_zero.blocks(), weights)

    async def _made_rung(self, weights: Weights) -> Patch | None:
        if weights.version % RUNG or (below := self._rung(weights.digest)) is None:
            return None
        lowest, files = below
        try:
            file = await self._kernel.ports.work.run(Kind.PATCH, _composed, files, weights.blocks.size)
        except (Damaged, PatchError):
            await self._check_files(files)
            return None
        return await self._hold(weights, lowest, file)

    async def _check_files(self, files: Sequence[Blocks]) -> None:
        for file in files:
            await self.files.check(file.root)

    async def _hold(self, weights: Weights, base: Digest, file: bytes) -> Patch | None:
        """The patch; None where it is no smaller than the whole."""
        if len(file) >= weights.blocks.size:
            return None
        blocks = await self._kernel.ports.work.run(Kind.PATCH, Blocks.of, file, file_block)
        self._make_room(weights.blocks.size)
        await self.files.take(weights.version, blocks, made_here=True)
        return Patch(base=base, root=blocks.root, size=blocks.size)

    def _remember(self, made: Digest, step: Patch) -> None:
        remember(self._steps, made, step, KEPT)

    def _rung(self, top: Digest) -> tuple[Digest, list[Blocks]] | None:
        """The weights RUNG steps below `top`, and the files of these steps; None where one is not here."""
        files: list[Blocks] = []
        for _ in range(RUNG):
            step = self._steps.get(top)
            if step is None or (found := self.files.blocks(step.root)) is None:
                return None
            files.insert(0, found)
            top = step.base
        return top, files

    # --- in -------------------------------------------------------------------------------------------------

    async def fetch(
        self, release: Release, known: Known, holders: Sequence[PeerId], later: Later = tuple
    ) -> Blocks | None:
        """The release's blocks, by patches, from `holders` and those that `later()` names meanwhile; None
        where these do not lead there. They are held for others."""
        if release.weights == self.version_zero.made_here():
            made = await self.version_zero.blocks()
            return None if made is None else await self._wholes.take(release.version, made)
        if self._useless:
            self._useless &= {
                patch.root for told in known.values() for made in told for patch in made.patches
            }
        missing = set[Digest]()
        for _ in range(WAYS):
            way = cheapest(release, known, self._can_be_here, self._useless | missing)
            if not way:
                return None
            if (base := await self._base(way[0].patch.base)) is None:
                continue
            if base.size != release.size:
                return None  # the whole release shows which publisher is at fault
            files = await self._files(way, holders, later, missing)
            if files and (draft := await self._apply(way, files, base)) is not None:
                return await self._wholes.take(release.version, draft)
        return None

    def bases(self) -> list[Digest]:
        """Weights from which patches may lead to a release here: those held, the newest version first,
        preceded by version 0, where it can be made."""
        made, held = self.version_zero.made_here(), self._wholes.wholes()
        return held if made is None else [made, *held]

    def _can_be_here(self, weights: Digest) -> bool:
        return weights == self.version_zero.made_here() or self._wholes.is_whole(weights)

    async def _base(self, weights: Digest) -> Blocks | None:
        if weights == self.version_zero.made_here():
            return await self.version_zero.blocks()
        return self._wholes.blocks(weights)

    async def take(self, release: Release, holders: Sequence[PeerId], later: Later = tuple) -> None:
        """Hold all patches that a release names, for other peers; `holders` and `later` as in `fetch`. Raises
        NetError."""
        self._make_room(release.size)
        for patch in release.patches:
            if not self.files.is_whole(patch.root):
                await self.files.fetch(release.version, patch.root, patch.size, holders, later)

    async def _files(
        self, way: Sequence[PatchStep], holders: Sequence[PeerId], later: Later, missing: set[Digest]
    ) -> list[Blocks]:
        """The files of a way; none where one cannot be had, which is `missing` from then on. Steps that
        change the same have one file."""
        self._make_room(way[-1].release.size)
        wanted = {patch.root: (made.version, patch.root, patch.size, holders, later) for patch, made in way}
        fetches = (self.files.fetch(*each) for each in wanted.values())
        files = dict[Digest, Blocks]()
        for root, file in zip(wanted, await asyncio.gather(*fetches, return_exceptions=True), strict=True):
            if isinstance(file, NetError):
                missing.add(root)
            elif isinstance(file, BaseException):
                raise file
            else:
                files[root] = file
        return [files[patch.root] for patch, _ in way] if len(files) == len(wanted) else []

    async def _apply(self, way: Sequence[PatchStep], files: Sequence[Blocks], base: Blocks) -> Blocks | None:
        """The result of applying the files to `base`, as a draft; None where it has another root."""
        chain = [(file, made.weights) for (_, made), file in zip(way, files, strict=True)]
        draft = self._wholes.draft(base.size)
        try:
            whole = await self._kernel.ports.work.run(Kind.PATCH, patch_files.apply, base, chain, draft)
        except Damaged:
            await self._wholes.check(base.root)
            await self._check_files(files)
            return None
        except UselessFile as error:
            patch, made = way[error.step]
            await self._wholes.check(base.root)
            await self.files.check(patch.root)
            if base.is_intact() and files[error.step].is_intact():
                self._useless.add(patch.root)
                reason = f"patch to version {made.version}: {error}; it is not tried again"
                self._kernel.emit(events.Rejected, sender=made.publisher, kind=Service.PATCHES, reason=reason)
            return None
        for patch, made in way:
            self._remember(made.weights, patch)
        return whole

    def _make_room(self, size: int) -> None:
        """Files of older versions take no more than one release of `size` bytes."""
        self.files.most = size

    def _bad_holder(self, holder: PeerId, reason: str) -> None:
        self._kernel.emit(events.Rejected, sender=holder, kind=Service.PATCHES, reason=reason)


def _composed(files: Sequence[Blocks], size: int) -> bytes:
    """The file that does what these do in turn. Raises PatchError, and Damaged where one of them has changed:
    with most bytes that are others it still is a patch."""
    made = patch_files.compose(files, size)
    if not all(file.is_intact() for file in files):
        raise Damaged("a file of a step is damaged here")
    return made
