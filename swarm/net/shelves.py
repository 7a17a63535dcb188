"""Shelves: storage of blobs, in memory or as files of a folder that outlive the peer.

A shelf knows digests, bytes, and below which roots all blocks are here; swarm.net.blobs decides what is held.
In a folder every file is written durably (temporary file, fsync, rename, fsync of the folder) and verified
whenever it is read: a damaged file is reported and not held any more. What the disk refuses is held in memory
until it is dropped. Not handled: two processes on one folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec import Meta

from swarm.blocks import LARGEST, Blocks, Buffer, digest_of, list_blob, lone_leaf, read_leaf_list
from swarm.durable import write_durably
from swarm.types import Digest, Struct
from swarm.wire import WireError, decode, encode

DIGEST = re.compile(rb"[0-9a-f]{64}")


class Held(NamedTuple):
    """What is, or will be, here below a root."""

    root: Digest
    version: int
    size: int
    leaves: tuple[Digest, ...]

    @classmethod
    def of(cls, version: int, blocks: Blocks) -> Held:
        return cls(blocks.root, version, blocks.size, blocks.leaves)


class Mark(Struct):
    """Beside a leaf list in a folder."""

    version: int
    size: Annotated[int, Meta(gt=0, le=LARGEST)]


class MemoryShelf:
    """Blobs in a dictionary."""

    def __init__(self) -> None:
        self._blobs: dict[Digest, Buffer] = {}

    def __len__(self) -> int:
        return len(self._blobs)

    def __contains__(self, digest: Digest) -> bool:
        return digest in self._blobs

    def get(self, digest: Digest) -> Buffer | None:
        return self._blobs.get(digest)

    def add(self, blobs: Mapping[Digest, Buffer]) -> None:
        self._blobs.update(blobs)

    def begin(self, held: Held) -> None:
        self.add(list_blob(held.root, held.leaves))

    def complaint(self) -> str:
        return ""

    def mark(self, held: Held) -> None:
        """No mark is needed: a shelf in memory does not outlive the peer."""

    def whole(self) -> list[Held]:
        return []

    def begun(self) -> list[Held]:
        return []

    def drop(self, digests: Iterable[Digest]) -> None:
        for digest in digests:
            self._blobs.pop(digest, None)


class Folder:
    """Blobs as files named by their digests; `<root>.release` marks a leaf list whose blocks are all here,
    `<root>.begun` one of which some are. What the disk refuses is held in memory.
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
            elif file.suffix not in (".release", ".begun"):
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

    def add(self, blobs: Mapping[Digest, Buffer]) -> None:
        for digest, data in blobs.items():
            if digest not in self._held and not self._write(digest, data):
                self._spare[digest] = bytes(data)
        self._held.update(blobs)

    def begin(self, held: Held) -> None:
        self._note(held, "begun")

    def mark(self, held: Held) -> None:
        self._note(held, "release")
        self._unlink(f"{held.root}.begun")

    def _note(self, held: Held, mark: str) -> None:
        self.add(list_blob(held.root, held.leaves))
        self._write(f"{held.root}.{mark}", encode(Mark(version=held.version, size=held.size)))

    def complaint(self) -> str:
        """Why the disk refused something since the last call; empty when it took everything."""
        told, self._refused = self._refused, ""
        return told

    def _write(self, name: str, data: Buffer) -> bool:
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

    def whole(self) -> list[Held]:
        """What is here with all its blocks."""
        return [held for held in self._marked("release") if all(leaf in self._held for leaf in held.leaves)]

    def begun(self) -> list[Held]:
        """What a fetch began and did not end."""
        return self._marked("begun")

    def drop(self, digests: Iterable[Digest]) -> None:
        for digest in digests:
            for mark in ("release", "begun"):
                self._unlink(f"{digest}.{mark}")
            self._held.discard(digest)
            self._spare.pop(digest, None)
            self._unlink(digest)

    def _drop_orphans(self) -> None:
        """Delete what a crash left behind: blocks below no root, marks without a leaf list."""
        needed: set[Digest] = set()
        for held in (*self.whole(), *self.begun()):
            needed.update([held.root, *held.leaves])
        marked = {Digest(file.stem) for mark in ("release", "begun") for file in self._path.glob(f"*.{mark}")}
        self.drop(sorted({*self._held, *marked} - needed))

    def _marked(self, mark: str) -> list[Held]:
        """What these marks are beside, as far as it can be read."""
        read = (self._read(file) for file in sorted(self._path.glob(f"*.{mark}")))
        return [held for held in read if held is not None]

    def _read(self, file: Path) -> Held | None:
        root = Digest(file.stem)
        try:
            mark = decode(file.read_bytes(), Mark)
            leaves = lone_leaf(root, mark.size)
            if not leaves:
                if (data := self.get(root)) is None:
                    return None
                leaves = read_leaf_list(data, mark.size)
            return Held(root, mark.version, mark.size, leaves)
        except (OSError, WireError, ValueError) as error:
            self._on_damage(f"{file} is damaged ({error}): its release is left out until it is fetched again")
            return None
