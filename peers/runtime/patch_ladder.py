"""Patches between this peer and the swarm: a release from what is here already, for the bytes that changed.

    publisher: make     from the version before, and at a rung from eight before -> files held, named in the
                        Release
    receiver:  fetch    the cheapest way from a version that is here -> its files -> the release's blocks

A file is served by its publisher and by whoever fetched it, for two rungs, and for no more bytes than one
release. Invariants: what comes out has the root that was asked for; where a patch cannot be had, or makes
other bytes, the next way is tried, and where none is left the caller fetches the whole release; a patch that
makes other bytes is not tried again, and its publisher is named. Not handled here: which way is the cheapest
(swarm.core.ladder), the files (swarm.patch_files).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from swarm import events, patch_files
from swarm.blocks import Blocks, Buffer, block_size, file_block
from swarm.core.ladder import LONGEST, RUNG, Step, cheapest
from swarm.net.blobs import Blobs
from swarm.net.ports import NetError
from swarm.patches import PatchError
from swarm.protocol import Kind, Service
from swarm.types import Digest, Patch, PeerId, Release
from swarm.weights import Weights

if TYPE_CHECKING:
    from peers.runtime.host import Host

WAYS = 4
"""Ways that are tried for a release: one is lost to a holder that died, another to a liar."""

Known = Mapping[Digest, Sequence[Release]]
"""Weights -> their announced releases."""


class PatchLadder:
    def __init__(self, host: Host, wholes: Blobs) -> None:
        """`wholes` holds the releases' own blocks."""
        self._host, self._wholes = host, wholes
        self.files = Blobs(
            host.ports.mail,
            service=Service.PATCHES,
            rule=file_block,
            keep=LONGEST,
            rng=host.rng,
            on_bad=self._bad_holder,
        )
        self._useless: set[Digest] = set()
        """Patch files of announced releases that make other bytes than they promise."""
        self._steps: dict[Digest, Patch] = {}
        """Weights -> a patch that made them here: what others say of one is not yet true."""

    async def serve(self) -> None:
        await self.files.serve()

    # --- out ------------------------------------------------------------------------------------------------

    async def make(self, weights: Weights, parent: Digest) -> tuple[Patch, ...]:
        """Hold the patches to these weights -> what their release says of them. None where the parent is not
        here, or its patch is no smaller than the whole."""
        found = await self._wholes.read(parent)
        if found is None or found[0].size != weights.blocks.size:
            return ()
        step = await self._host.ports.work.run(Kind.PATCH, patch_files.make, found[1], weights.blocks)
        if len(step) >= weights.blocks.size:
            return ()
        patches = [await self._hold(weights, parent, step)]
        self._remember(weights.digest, patches[0])
        if weights.version % RUNG == 0 and (below := await self._rung(weights.digest)) is not None:
            base, files = below
            rung = await self._host.ports.work.run(
                Kind.PATCH, patch_files.compose, files, weights.blocks.size
            )
            if len(rung) < weights.blocks.size:
                patches.append(await self._hold(weights, base, rung))
        return tuple(patches)

    async def _hold(self, weights: Weights, base: Digest, file: bytes) -> Patch:
        blocks = await self._host.ports.work.run(Kind.PATCH, Blocks.of, file, file_block)
        self._make_room(weights.blocks.size)
        self.files.hold(weights.version, blocks)
        return Patch(base=base, root=blocks.root, size=blocks.size)

    def _remember(self, made: Digest, step: Patch) -> None:
        self._steps.pop(made, None)
        self._steps[made] = step
        if len(self._steps) > LONGEST:
            del self._steps[next(iter(self._steps))]

    async def _rung(self, top: Digest) -> tuple[Digest, list[bytes]] | None:
        """The weights RUNG steps below `top`, and the files of these steps; None where one is not here."""
        files: list[bytes] = []
        for _ in range(RUNG):
            step = self._steps.get(top)
            if step is None or (found := await self.files.read(step.root)) is None:
                return None
            files.insert(0, b"".join(found[1]))
            top = step.base
        return top, files

    # --- in -------------------------------------------------------------------------------------------------

    async def fetch(self, release: Release, known: Known, holders: Sequence[PeerId]) -> Blocks | None:
        """The release's blocks, by patches; None where these do not lead there. They are held for others."""
        self._useless &= {patch.root for told in known.values() for made in told for patch in made.patches}
        missing = set[Digest]()
        for _ in range(WAYS):
            way = cheapest(release, known, self._wholes.is_whole, self._useless | missing)
            if not way or (found := await self._wholes.read(way[0].patch.base)) is None:
                return None
            base, blocks = found
            if base.size != release.size:
                return None  # the whole tells who lies
            files = await self._files(way, holders, missing)
            if files and (whole := await self._apply(way, files, blocks, base.leaves)) is not None:
                await self._wholes.take(release.version, whole)
                return whole
        return None

    async def _files(
        self, way: Sequence[Step], holders: Sequence[PeerId], missing: set[Digest]
    ) -> list[Blocks]:
        """The files of a way; none where one cannot be had, which is `missing` from then on."""
        self._make_room(way[-1].release.size)
        found = await asyncio.gather(
            *(self.files.fetch(made.version, patch.root, patch.size, holders) for patch, made in way),
            return_exceptions=True,
        )
        files = list[Blocks]()
        for (patch, _), file in zip(way, found, strict=True):
            if isinstance(file, NetError):
                missing.add(patch.root)
            elif isinstance(file, BaseException):
                raise file
            else:
                files.append(file)
        return files if len(files) == len(way) else []

    async def _apply(
        self, way: Sequence[Step], files: Sequence[Blocks], blocks: list[Buffer], base: Sequence[Digest]
    ) -> Blocks | None:
        """What the files make of blocks with the leaves `base`; None where that is something else."""
        leaves, release = list(base), way[-1].release
        for (patch, made), file in zip(way, files, strict=True):
            try:
                blocks, leaves = await self._host.ports.work.run(
                    Kind.PATCH, patch_files.applied, blocks, leaves, file.whole, release.size, made.weights
                )
            except PatchError as error:
                self._useless.add(patch.root)
                reason = f"patch to version {made.version}: {error}; it is not tried again"
                self._host.emit(events.Rejected, sender=made.publisher, kind=Service.PATCHES, reason=reason)
                return None
            self._remember(made.weights, patch)
        return Blocks(b"".join(blocks), tuple(leaves), release.weights, block_size(release.size))

    def _make_room(self, size: int) -> None:
        """Files of older versions take no more than one release of `size` bytes."""
        self.files.most = size

    def _bad_holder(self, holder: PeerId, reason: str) -> None:
        self._host.emit(events.Rejected, sender=holder, kind=Service.PATCHES, reason=reason)
