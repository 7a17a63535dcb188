"""Patches between this peer and the swarm: a release from what is here already, for the bytes that changed.

    publisher: make     from the version before, and at a rung from eight before -> files held, named in the
                        Release
    receiver:  fetch    the cheapest way from a version that is here -> its files -> the release's blocks

A file is served by its publisher and by whoever fetched it, for two rungs, and for no more bytes than one
release. Invariants: what comes out has the root that was asked for; where no way leads there, or a patch
cannot be had, the caller fetches the whole release; a patch that makes other bytes is not tried again, and
its publisher is named. Not handled here: which way is the cheapest (swarm.core.ladder), the files
(swarm.patch_files).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from swarm import events, patch_files
from swarm.blocks import Blocks, block_size, file_block
from swarm.core.ladder import LONGEST, RUNG, cheapest
from swarm.net.blobs import Blobs
from swarm.net.ports import NetError
from swarm.patches import PatchError
from swarm.protocol import Kind, Service
from swarm.types import Digest, Patch, PeerId, Release
from swarm.weights import Weights

if TYPE_CHECKING:
    from peers.runtime.host import Host

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
        """Patch files that make other bytes than they promise."""

    async def serve(self) -> None:
        await self.files.serve()

    # --- out ------------------------------------------------------------------------------------------------

    async def make(self, weights: Weights, parent: Digest, known: Known) -> tuple[Patch, ...]:
        """Hold the patches to these weights -> what their release says of them. None where the parent is not
        here, or its patch is no smaller than the whole."""
        found = await self._wholes.read(parent)
        if found is None or found[0].size != weights.blocks.size:
            return ()
        step = await self._host.ports.work.run(Kind.PATCH, patch_files.make, found[1], weights.blocks)
        if len(step) >= weights.blocks.size:
            return ()
        patches = [await self._hold(weights, parent, step)]
        if weights.version % RUNG == 0 and (below := await self._rung(patches[0], known)) is not None:
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

    async def _rung(self, last: Patch, known: Known) -> tuple[Digest, list[bytes]] | None:
        """The weights RUNG steps before those that `last` makes, and the files of these steps; None where one
        is not here."""
        files: list[bytes] = []
        for _ in range(RUNG):
            if (found := await self.files.read(last.root)) is None:
                return None
            files.insert(0, b"".join(found[1]))
            base = last.base
            if len(files) < RUNG:
                steps = [release.patches[0] for release in known.get(base, ()) if release.patches]
                if not steps:
                    return None
                last = steps[0]
        return base, files

    # --- in -------------------------------------------------------------------------------------------------

    async def fetch(self, release: Release, known: Known, holders: Sequence[PeerId]) -> Blocks | None:
        """The release's blocks, by patches; None where these do not lead there. They are held for others."""
        way = cheapest(release, known, self._wholes.is_whole, self._useless)
        if not way or (found := await self._wholes.read(way[0].patch.base)) is None:
            return None
        blocks, leaves = found[1], list(found[0].leaves)
        self._make_room(release.size)
        files = await asyncio.gather(
            *(self.files.fetch(made.version, patch.root, patch.size, holders) for patch, made in way),
            return_exceptions=True,
        )
        for (patch, made), file in zip(way, files, strict=True):
            if isinstance(file, NetError):
                return None  # who has the whole is asked next, and the error says who failed how
            if isinstance(file, BaseException):
                raise file
            try:
                blocks, leaves = await self._host.ports.work.run(
                    Kind.PATCH, patch_files.applied, blocks, leaves, file.whole, release.size, made.weights
                )
            except PatchError as error:
                self._useless.add(patch.root)
                reason = f"patch to version {made.version}: {error}; the whole release is fetched"
                self._host.emit(events.Rejected, sender=made.publisher, kind=Service.PATCHES, reason=reason)
                return None
        whole = Blocks(b"".join(blocks), tuple(leaves), release.weights, block_size(release.size))
        await self._wholes.take(release.version, whole)
        return whole

    def _make_room(self, size: int) -> None:
        """Files of older versions take no more than one release of `size` bytes."""
        self.files.most = size

    def _bad_holder(self, holder: PeerId, reason: str) -> None:
        self._host.emit(events.Rejected, sender=holder, kind=Service.PATCHES, reason=reason)
