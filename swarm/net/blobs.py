"""Content-addressed bytes between peers: one class over the Mail port, in both worlds.

    publish(whole) -> Manifest{chunks} -- its digest is in the Release --> fetch_release: manifest, chunks from several holders

A request is one digest, its answer the bytes (service `blobs`). Invariants: what is returned or held has the digest it was asked
by; sizes are checked before anything is allocated; a holder that lies or is silent is reported to `on_bad`, and the others are
tried. Whoever fetched a release holds it for others. Retention: the newest releases, besides what `put` pinned. With a folder
everything is on the disk (temporary file, fsync, rename, fsync of the folder) and is verified when it is read back at the start.
Not handled: who may fetch (the handler's guard), finding holders (the Board), two fetches of one digest at once (both run).
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from swarm.durable import write_durably
from swarm.net.ports import Mail, NetError, Refused
from swarm.types import Digest, Manifest, PeerId, Release
from swarm.wire import FRAME_LIMIT, WireError, decode, encode

SERVICE, STATES = "blobs", "states"
# Two names for one service: whoever counts what passes can tell a learner's state from a release.
CHUNK = 1 << 20
# Best throughput of streams is between 256 KiB and 1 MiB, and a lost one is cheap to repeat.
AT_ONCE = 4
# Chunks under way: enough to fill several holders' links, and at most 16 MiB in memory.
LARGEST = 16 << 30
# Bytes of a release: an 8-billion-parameter policy in bf16. Its manifest stays far below the 4 MiB of a mail.
_DIGEST = re.compile(rb"[0-9a-f]{64}")


def digest_of(data: bytes) -> Digest:
    return Digest(hashlib.sha256(data).hexdigest())


def _ignore(peer: PeerId, reason: str) -> None:
    """Nobody asked for reports."""


@dataclass(frozen=True)
class Search:
    """Who is asked, under which name, and who need not be asked again."""

    holders: Sequence[PeerId]
    service: str = SERVICE
    bad: dict[PeerId, str] = field(default_factory=dict)
    """Who lied or fell silent, and how."""


class Blobs:
    """`timeout` is in seconds for one chunk; `keep` the number of newest releases to hold."""

    def __init__(
        self,
        mail: Mail,
        *,
        folder: Path | None = None,
        keep: int = 4,
        timeout: float = 15.0,
        on_bad: Callable[[PeerId, str], None] = _ignore,
    ) -> None:
        """Reads the folder back, if one is given: every file is hashed, damaged ones are deleted. Blocks while it does."""
        self._mail = mail
        self._timeout = timeout
        self._on_bad = on_bad
        self._keep = keep
        self._shelf: _Memory | _Folder = _Folder(folder) if folder is not None else _Memory()
        self._releases: dict[Digest, Manifest] = {}
        for manifest in self._shelf.releases():
            data = self._shelf.get(manifest)
            if data is not None:
                self._releases[manifest] = decode(data, Manifest)

    def put(self, data: bytes) -> Digest:
        """Hold these bytes, uncut, until the end (spec files). Raises ValueError beyond a mail's 4 MiB: `publish` cuts."""
        if len(data) > FRAME_LIMIT:
            raise ValueError(f"a blob of {len(data)} bytes does not fit into one mail of {FRAME_LIMIT}: publish() cuts it")
        digest = digest_of(data)
        self._shelf.add({digest: data}, pin=True)
        return digest

    def publish(self, data: bytes, version: int, weights: Digest) -> tuple[Manifest, Digest]:
        """Cut a release's bytes and hold them -> the manifest and its digest. Raises ValueError when `weights` is not theirs."""
        if digest_of(data) != weights:
            raise ValueError(f"the bytes of version {version} do not have the digest {weights}")
        chunks = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
        named = [(digest_of(chunk), chunk) for chunk in chunks]
        manifest = Manifest(version=version, weights=weights, size=len(data), chunks=tuple(digest for digest, _ in named))
        self._shelf.add(dict(named))
        return manifest, self._hold(manifest)

    def get(self, digest: Digest) -> bytes | None:
        """What is held here, without asking anybody."""
        return self._shelf.get(digest)

    def keep(self, versions: int) -> None:
        """From now on hold only the newest `versions` releases' chunks."""
        self._keep = versions
        self._prune()

    def statistics(self) -> Mapping[str, int]:
        return {"releases": len(self._releases), "blobs": len(self._shelf)}

    async def serve(self) -> None:
        for service in (SERVICE, STATES):
            await self._mail.serve(service, self._answer)

    async def _answer(self, sender: PeerId, message: bytes) -> bytes:
        if not _DIGEST.fullmatch(message):
            raise Refused("not a digest: ask with 64 lower-case hex digits")
        data = self._shelf.get(Digest(message.decode()))
        if data is None:
            raise Refused("not held here")
        return data

    async def fetch(self, digest: Digest, holders: Sequence[PeerId], size: int | None = None) -> bytes:
        """Bytes with this digest, of `size` bytes when given, from here or the first holder that has them. Raises NetError."""
        return await self._fetch(Search(holders), digest, size)

    async def fetch_release(self, release: Release, holders: Sequence[PeerId], service: str = SERVICE) -> bytes:
        """A release's whole bytes, at most 4 chunks at a time. They are held for others from then on. Raises NetError."""
        if not 0 < release.size <= LARGEST:
            raise NetError(f"version {release.version} claims {release.size} bytes: at most {LARGEST} are fetched")
        search = Search(holders, service)
        data = await self._fetch(search, release.manifest, None)
        try:
            manifest = decode(data, Manifest)
        except WireError as error:
            raise NetError(f"the manifest of version {release.version} is {error}") from error
        _check(manifest, release)
        chunks = await self._fetch_chunks(search, manifest)
        whole = await _join(chunks, manifest)
        await self._keep_for_others(manifest, chunks)
        return whole

    async def _fetch(self, search: Search, digest: Digest, size: int | None, first: int = 0) -> bytes:
        """From here, else from the holders in turn, beginning with number `first`."""
        data = self._shelf.get(digest)
        if data is not None and size in (None, len(data)):
            return data
        failed: list[str] = []
        bad = search.bad
        for holder in (*search.holders[first:], *search.holders[:first]):
            if holder in bad:
                failed.append(f"{holder} {bad[holder]}")
                continue
            try:
                data = await self._mail.send(holder, search.service, digest.encode(), self._timeout)
            except Refused as refusal:
                failed.append(f"{holder} refused: {refusal}")
                continue
            except NetError as error:
                self._blame(bad, holder, f"failed: {error}")
            else:
                if size in (None, len(data)) and digest_of(data) == digest:
                    return data
                self._blame(bad, holder, f"sent {len(data)} bytes that are not {digest}")
            failed.append(f"{holder} {bad[holder]}")
        raise NetError(f"nobody gave {digest}: " + ("; ".join(failed) or "no holder is known"))

    def _blame(self, bad: dict[PeerId, str], holder: PeerId, reason: str) -> None:
        bad[holder] = reason
        self._on_bad(holder, reason)

    async def _fetch_chunks(self, search: Search, manifest: Manifest) -> dict[Digest, bytes]:
        """Digest -> bytes. Chunk k asks holder k first, so that the load is spread."""
        got: dict[Digest, bytes] = {}
        todo = iter(enumerate(manifest.chunks))

        async def take() -> None:
            for k, digest in todo:
                size = min(CHUNK, manifest.size - k * CHUNK)
                got[digest] = await self._fetch(search, digest, size, k % max(1, len(search.holders)))

        if len(manifest.chunks) == 1:
            await take()
            return got
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(AT_ONCE, len(manifest.chunks))):
                    group.create_task(take())
        except BaseExceptionGroup as broken:
            lost, bugs = broken.split(NetError)
            if bugs is not None or lost is None:
                raise
            raise NetError(str(lost.exceptions[0])) from broken
        return got

    async def _keep_for_others(self, manifest: Manifest, chunks: dict[Digest, bytes]) -> None:
        if isinstance(self._shelf, _Folder):
            # One chunk in a thread at a time: an fsync takes as long as a disk likes. A simulation has no folder.
            for digest, chunk in chunks.items():
                await asyncio.to_thread(self._shelf.add, {digest: chunk})
            await asyncio.to_thread(self._hold, manifest)
        else:
            self._shelf.add(chunks)
            self._hold(manifest)

    def _hold(self, manifest: Manifest) -> Digest:
        data = encode(manifest)
        digest = digest_of(data)
        self._shelf.add({digest: data})
        self._shelf.mark(digest)
        self._releases[digest] = manifest
        self._prune()
        return digest

    def _prune(self) -> None:
        versions = sorted({manifest.version for manifest in self._releases.values()})
        newest = set(versions[-self._keep :] if self._keep > 0 else ())
        gone = [digest for digest, manifest in self._releases.items() if manifest.version not in newest]
        if not gone:
            return
        old = {digest: self._releases.pop(digest) for digest in gone}
        needed = set(self._releases).union(*(manifest.chunks for manifest in self._releases.values()))
        dropped = set(old).union(*(manifest.chunks for manifest in old.values())) - needed
        self._shelf.drop(sorted(dropped))


def _check(manifest: Manifest, release: Release) -> None:
    """Before a byte of a chunk is asked for. Raises NetError."""
    agrees = (manifest.version, manifest.weights, manifest.size) == (release.version, release.weights, release.size)
    if not agrees or len(manifest.chunks) != -(-release.size // CHUNK):
        raise NetError(
            f"the manifest of version {release.version} ({manifest.size} bytes in {len(manifest.chunks)} chunks) does not fit "
            f"its release of {release.size} bytes: its publisher {release.publisher} made a mistake or lies"
        )


async def _join(chunks: Mapping[Digest, bytes], manifest: Manifest) -> bytes:
    whole = hashlib.sha256()
    for digest in manifest.chunks:
        whole.update(chunks[digest])
        await asyncio.sleep(0)  # a gigabyte takes a second to hash: others may run between chunks
    if whole.hexdigest() != manifest.weights:
        raise NetError(f"the chunks of version {manifest.version} do not add up to its weights {manifest.weights}")
    return b"".join(chunks[digest] for digest in manifest.chunks)


class _Memory:
    """Blobs in a dictionary."""

    def __init__(self) -> None:
        self._blobs: dict[Digest, bytes] = {}
        self._pinned: set[Digest] = set()

    def __len__(self) -> int:
        return len(self._blobs)

    def get(self, digest: Digest) -> bytes | None:
        return self._blobs.get(digest)

    def add(self, blobs: Mapping[Digest, bytes], pin: bool = False) -> None:
        self._blobs.update(blobs)
        if pin:
            self._pinned.update(blobs)

    def mark(self, manifest: Digest) -> None:
        """Nothing outlives a memory."""

    def releases(self) -> list[Digest]:
        return []

    def drop(self, digests: Sequence[Digest]) -> None:
        for digest in digests:
            if digest not in self._pinned:
                self._blobs.pop(digest, None)


class _Folder:
    """Blobs as files named by their digests; an empty `<digest>.release` marks a manifest, `<digest>.pin` what stays."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir(parents=True, exist_ok=True)
        self._held: set[Digest] = set()
        for file in sorted(path.iterdir()):
            if _DIGEST.fullmatch(file.name.encode()) and digest_of(file.read_bytes()) == file.name:
                self._held.add(Digest(file.name))
            elif file.suffix not in (".release", ".pin"):
                file.unlink()
        self._drop_orphans()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, digest: Digest) -> bytes | None:
        return (self._path / digest).read_bytes() if digest in self._held else None

    def add(self, blobs: Mapping[Digest, bytes], pin: bool = False) -> None:
        for digest, data in blobs.items():
            if digest not in self._held:
                write_durably(self._path / digest, data)
            if pin:
                write_durably(self._path / f"{digest}.pin", b"")
        self._held.update(blobs)

    def mark(self, manifest: Digest) -> None:
        write_durably(self._path / f"{manifest}.release", b"")

    def releases(self) -> list[Digest]:
        """Manifests of releases that are here as a whole."""
        return [digest for digest in self._marked("release") if self._whole(digest)]

    def drop(self, digests: Sequence[Digest]) -> None:
        for digest in digests:
            (self._path / f"{digest}.release").unlink(missing_ok=True)
            if not (self._path / f"{digest}.pin").exists():
                self._held.discard(digest)
                (self._path / digest).unlink(missing_ok=True)

    def _drop_orphans(self) -> None:
        """What a crash left behind: chunks of a release that was never complete, marks without a blob."""
        needed: set[Digest] = set(self._marked("pin"))
        for manifest in self.releases():
            needed.update([manifest, *decode((self._path / manifest).read_bytes(), Manifest).chunks])
        self.drop(sorted({*self._held, *self._marked("release")} - needed))

    def _whole(self, manifest: Digest) -> bool:
        data = self.get(manifest)
        return data is not None and all(chunk in self._held for chunk in decode(data, Manifest).chunks)

    def _marked(self, mark: str) -> list[Digest]:
        return sorted(Digest(file.stem) for file in self._path.glob(f"*.{mark}"))
