"""Version 0, made by this peer itself from the model that the run began with.

    the model's files --write--> a draft --its root is the run's genesis--> the base of a patch

A run of all weights of a model on the Hub begins with bytes that any peer with the model's pinned commit on
its disk can make: they need not travel, and a patch from them leads to a much later version. They are made
when they are needed and held by no peer. Where the files make other bytes this is reported once, and not
tried again. Not handled here: the model's location (peers.build.model.base_model), making patches from it
(peers.runtime.releases.patch_ladder).
"""

from __future__ import annotations

from collections.abc import Callable

from peers.runtime.kernel import Kernel
from swarm import events
from swarm.net.blobs.store import Blobs
from swarm.protocol import Kind
from swarm.storage.blocks import Blocks
from swarm.storage.image import MakeDraft
from swarm.types import Digest

Write = Callable[[MakeDraft], Blocks]
"""Makes version 0. Raises ValueError or OSError."""


class VersionZero:
    def __init__(self, kernel: Kernel, wholes: Blobs) -> None:
        self._kernel, self._wholes = kernel, wholes
        self.write: Write | None = None
        """None where this peer cannot make it."""

    def made_here(self) -> Digest | None:
        """Its weights; None where they cannot be made here, as far as is known."""
        return self._kernel.who.genesis if self.write is not None else None

    async def blocks(self) -> Blocks | None:
        """Its bytes; None where they cannot be made."""
        write, genesis = self.write, self.made_here()
        if write is None or genesis is None:
            return None
        if (held := self._wholes.blocks(genesis)) is not None:
            return held
        try:
            made = await self._kernel.ports.work.run(Kind.PACK, write, self._wholes.draft)
        except (ValueError, OSError) as error:
            why = str(error)
        else:
            if made.root == genesis:
                return made
            why = f"its files make {made.root}, the run began with {genesis}"
        self.write = None
        text = f"version 0 is not made of the model on this disk ({why}): releases are fetched without it"
        self._kernel.emit(events.Noted, level="warning", text=text)
        return None
