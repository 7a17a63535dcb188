"""Releases on the disk as their publishers signed them, beside their bytes: a peer that returns can offer
them, even without a peer that announces them.

    releases/<root of the weights>        one sealed Release each, for as long as the bytes are held

Not handled: the validity of a seal (peers.runtime.releases.exchange), the bytes (swarm.net.blobs.shelves).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from swarm.storage.durable import write_durably
from swarm.types import Digest


class Announcements:
    def __init__(self, folder: Path | None, on_disk: Callable[[str], None]) -> None:
        """They are written to `folder`; None keeps none. `on_disk` is called with the reason when the disk
        refuses one, and with an empty text when it accepts one."""
        self._folder, self._on_disk = folder, on_disk

    def read(self) -> list[tuple[Path, bytes]]:
        """All that are kept, in no order."""
        found = []
        for path in sorted(self._folder.glob("*")) if self._folder is not None else ():
            try:
                found.append((path, path.read_bytes()))
            except OSError as error:
                self._on_disk(f"{path} cannot be read, and its release is left out: {error.strerror}")
        return found

    def keep(self, weights: Digest, sealed: bytes, has: Callable[[Digest], bool]) -> None:
        """Write one, and delete those whose bytes are no longer here."""
        if self._folder is None or not sealed:
            return
        try:
            write_durably(self._folder / weights, sealed)
            for path in self._folder.iterdir():
                if not has(Digest(path.name)):
                    path.unlink(missing_ok=True)
            self._on_disk("")
        except OSError as error:
            self._on_disk(f"{self._folder / weights} is not on the disk: {error.strerror}")
