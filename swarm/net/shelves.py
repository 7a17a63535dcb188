"""Shelves: storage of blobs, in memory or as files of a folder that outlive the peer.

A shelf knows digests, bytes and which manifests are of whole releases; swarm.net.blobs decides what is held.
In a folder every file is written durably (temporary file, fsync, rename, fsync of the folder) and verified
whenever it is read: a damaged file is reported and not held any more. What the disk refuses is held in memory
until it is dropped. Not handled: two processes on one folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from swarm.durable import write_durably
from swarm.net.fetching import digest_of
from swarm.types import Digest, Manifest
from swarm.wire import decode

DIGEST = re.compile(rb"[0-9a-f]{64}")


class MemoryShelf:
    """Blobs in a dictionary."""

    def __init__(self) -> None:
        self._blobs: dict[Digest, bytes] = {}
        self._pinned: set[Digest] = set()

    def __len__(self) -> int:
        return len(self._blobs)

    def __contains__(self, digest: Digest) -> bool:
        return digest in self._blobs

    def get(self, digest: Digest) -> bytes | None:
        return self._blobs.get(digest)

    def add(self, blobs: Mapping[Digest, bytes], pin: bool = False) -> None:
        self._blobs.update(blobs)
        if pin:
            self._pinned.update(blobs)

    def begin(self, manifest: Digest, data: bytes) -> None:
        self._blobs[manifest] = data

    def complaint(self) -> str:
        return ""

    def mark(self, manifest: Digest) -> None:
        """No mark is needed: a shelf in memory does not outlive the peer."""

    def releases(self) -> list[Digest]:
        return []

    def begun(self) -> list[Digest]:
        return []

    def drop(self, digests: Sequence[Digest]) -> None:
        for digest in digests:
            if digest not in self._pinned:
                self._blobs.pop(digest, None)


class Folder:
    """Blobs as files named by their digests; an empty `<digest>.release` marks the manifest of a release that
    is here as a whole, `<digest>.begun` one of which chunks are here, `<digest>.pin` what stays. What the
    disk refuses is held in memory.
    """

    def __init__(self, path: Path, on_damage: Callable[[str], None]) -> None:
        self._path, self._on_damage = path, on_damage
        path.mkdir(parents=True, exist_ok=True)
        self._held: set[Digest] = set()
        self._spare: dict[Digest, bytes] = {}
        """Those of them that the disk refused."""
        self._refused = ""
        for file in sorted(path.iterdir()):
            if DIGEST.fullmatch(file.name.encode()):
                self._held.add(Digest(file.name))
                self.get(Digest(file.name))
            elif file.suffix not in (".release", ".begun", ".pin"):
                file.unlink()
        self._drop_orphans()

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, digest: Digest) -> bool:
        return digest in self._held

    def get(self, digest: Digest) -> bytes | None:
        """The blob's bytes, verified. A damaged or missing file is reported once and not held any more."""
        if digest not in self._held:
            return None
        if digest in self._spare:
            return self._spare[digest]
        path = self._path / digest
        try:
            data = path.read_bytes()
            if digest_of(data) == digest:
                return data
            what = f"damaged, of {len(data)} bytes"
        except FileNotFoundError:
            what = "gone"
        except OSError as error:
            what = f"not readable ({error.strerror})"
        self._held.discard(digest)
        self._on_damage(f"{path} is {what}: its release is left out until it is fetched again")
        self._unlink(digest)
        return None

    def add(self, blobs: Mapping[Digest, bytes], pin: bool = False) -> None:
        for digest, data in blobs.items():
            if digest not in self._held and not self._write(digest, data):
                self._spare[digest] = data
            if pin:
                self._write(f"{digest}.pin", b"")
        self._held.update(blobs)

    def begin(self, manifest: Digest, data: bytes) -> None:
        self.add({manifest: data})
        self._write(f"{manifest}.begun", b"")

    def mark(self, manifest: Digest) -> None:
        self._write(f"{manifest}.release", b"")
        self._unlink(f"{manifest}.begun")

    def complaint(self) -> str:
        """Why the disk refused something since the last call; empty when it took everything."""
        told, self._refused = self._refused, ""
        return told

    def _write(self, name: str, data: bytes) -> bool:
        try:
            write_durably(self._path / name, data)
        except OSError as error:
            self._refused = (
                f"{self._path} takes no more ({error.strerror}): what is missing there is held in memory"
                " alone"
            )
            return False
        return True

    def _unlink(self, name: str) -> None:
        try:
            (self._path / name).unlink(missing_ok=True)
        except OSError as error:
            self._refused = f"{self._path / name} cannot be removed ({error.strerror})"

    def releases(self) -> list[Digest]:
        """Manifests of releases that are here as a whole."""
        return [digest for digest in self._marked("release") if self._whole(digest)]

    def begun(self) -> list[Digest]:
        """Manifests of releases that a fetch began and did not end."""
        return [digest for digest in self._marked("begun") if digest in self._held]

    def drop(self, digests: Sequence[Digest]) -> None:
        for digest in digests:
            for mark in ("release", "begun"):
                self._unlink(f"{digest}.{mark}")
            if not (self._path / f"{digest}.pin").exists():
                self._held.discard(digest)
                self._spare.pop(digest, None)
                self._unlink(digest)

    def _drop_orphans(self) -> None:
        """Delete what a crash left behind: chunks of no release, marks without a blob."""
        needed: set[Digest] = set(self._marked("pin"))
        for manifest in (*self.releases(), *self.begun()):
            needed.update([manifest, *decode((self._path / manifest).read_bytes(), Manifest).chunks])
        self.drop(sorted({*self._held, *self._marked("release"), *self._marked("begun")} - needed))

    def _whole(self, manifest: Digest) -> bool:
        data = self.get(manifest)
        return data is not None and all(chunk in self._held for chunk in decode(data, Manifest).chunks)

    def _marked(self, mark: str) -> list[Digest]:
        return sorted(Digest(file.stem) for file in self._path.glob(f"*.{mark}"))
