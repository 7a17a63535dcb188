"""Blobs: content-addressed bytes between peers, over the Mail port of either world.

    cut(whole) -> Manifest{chunks} -> hold     its digest is in the Release
    fetch_release: manifest, chunks of several holders

A request is one digest, its answer the bytes (service `blobs`); `cut` is what takes time, and may run
anywhere, all else belongs to the loop. Invariants: what is returned or held has the digest it was asked by;
sizes are checked before anything is allocated; a holder that lies is reported to `on_bad`, one that is late
or busy is not, and the others are tried. A chunk is held as soon as it is here, so that a fetch that failed
goes on where it ended, after a restart too where there is a folder; whoever fetched a release holds it for
others. Retention: the newest releases, what is being fetched, here or from here, what was begun and is newer
than they are, besides what `put` pinned. Where they lie is a shelf's business (swarm.net.shelves);
`on_damage` is told of what a disk lost or does not take. Not handled: who may fetch (the handler's guard),
finding holders (the Board), two fetches of one digest at once (both run).
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from swarm.net.fetching import Fetch, digest_of
from swarm.net.ports import Mail, NetError, Refused
from swarm.net.shelves import DIGEST, Folder, MemoryShelf
from swarm.net.turns import AnswerTurns
from swarm.protocol import FRAME_LIMIT, Service
from swarm.types import Digest, Manifest, PeerId, Release
from swarm.wire import WireError, decode, encode

CHUNK = 1 << 20
"""Bytes of a chunk: streams are fastest between 256 KiB and 1 MiB, and a lost chunk is cheap to repeat."""

AT_ONCE = 4
"""Chunks under way: enough to fill several holders' links, and at most 16 MiB in memory."""

MOST = 60_000
"""Chunks of a release: its manifest, 66 bytes for each, is one mail. Beyond 60 GB chunks are larger, up to
what a mail carries."""

LARGEST = FRAME_LIMIT // CHUNK * MOST * CHUNK
"""Bytes of a release or a state: 250 GB, 120 billion parameters in bf16, or the state of 20 billion."""


class Cut(NamedTuple):
    """A release's bytes, cut up."""

    manifest: Manifest
    chunks: dict[Digest, bytes]


def cut(data: bytes, version: int, known: Digest | None = None) -> Cut:
    """Cut and hash a release's bytes, the whole only where its digest is not `known`: 1 s of CPU for a GB.

    Raises ValueError when there are none, or too many.
    """
    if not 0 < len(data) <= LARGEST:
        raise ValueError(f"version {version} has {len(data)} bytes: at most {LARGEST} travel")
    step = chunk_size(len(data))
    named = [
        (digest_of(chunk), chunk) for chunk in (data[at : at + step] for at in range(0, len(data), step))
    ]
    digests = tuple(digest for digest, _ in named)
    return Cut(
        Manifest(version=version, weights=known or digest_of(data), size=len(data), chunks=digests),
        dict(named),
    )


def chunk_size(size: int) -> int:
    """Bytes of a chunk, but for the last one, of a release of `size` bytes."""
    return CHUNK * -(-size // (MOST * CHUNK))


AGAIN = 60.0
"""Seconds after which a disk that still refuses is reported again: later windows see it too."""

LATELY = 20.0
"""Seconds after a request for a part of a release during which a peer counts as fetching it: one on a slow
line asks every few seconds."""


def _ignore(peer: PeerId, reason: str) -> None:
    """Nobody asked for reports."""


def _bear(what: str) -> None:
    """Nobody asked for reports."""


class Blobs:
    """`keep` is the number of newest releases to hold; `rng` draws how long a busy holder is left alone.

    `asked` is when somebody asked for something last, in loop seconds.
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
    ) -> None:
        """Read the folder back, if one is given: every file is hashed, damaged ones are deleted. Blocks."""
        self.asked = 0.0
        self._mail, self._service = mail, service
        self._on_bad = on_bad
        self._keep = keep
        self._rng = rng or random.Random()
        self._on_damage = on_damage
        self._shelf: MemoryShelf | Folder = Folder(folder, on_damage) if folder is not None else MemoryShelf()
        self._releases: dict[Digest, Manifest] = {}
        self._begun: dict[Digest, Manifest] = {}
        """Releases of which some chunks are here, but not all."""
        self._fetching: Counter[Digest] = Counter()
        self._part_of: dict[Digest, Digest] = {}
        """Manifest and chunks of the releases that are here -> the manifest."""
        self._wanted: dict[Digest, float] = {}
        """Release -> when a part of it was last asked for, in loop seconds."""
        self._last: Digest | None = None
        """The release published last, until a newer one is here: a learner that fell back to an old one has
        to offer it."""
        self._turns = AnswerTurns()
        self._complained = -AGAIN
        """When the disk was last reported, in monotonic seconds."""
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="blobs") if folder is not None else None
        for found, manifests in (
            (self._releases, self._shelf.releases()),
            (self._begun, self._shelf.begun()),
        ):
            for manifest in manifests:
                data = self._shelf.get(manifest)
                if data is not None:
                    found[manifest] = decode(data, Manifest)
        for address, whole in self._releases.items():
            self._name_parts(address, whole)

    def put(self, data: bytes) -> Digest:
        """Hold these bytes, uncut, until the end (spec files). Raises ValueError beyond a mail's 4 MiB:
        `publish` cuts."""
        if len(data) > FRAME_LIMIT:
            raise ValueError(
                f"a blob of {len(data)} bytes does not fit into one mail of {FRAME_LIMIT}: publish() cuts it"
            )
        digest = digest_of(data)
        self._shelf.add({digest: data}, pin=True)
        return digest

    def publish(self, data: bytes, version: int, weights: Digest) -> tuple[Manifest, Digest]:
        """Cut a release's bytes and hold them -> the manifest and its digest. Raises ValueError when
        `weights` is not theirs."""
        parts = cut(data, version)
        if parts.manifest.weights != weights:
            raise ValueError(f"the bytes of version {version} do not have the digest {weights}")
        return self.hold(parts)

    def hold(self, parts: Cut) -> tuple[Manifest, Digest]:
        """Hold what was cut -> the manifest and its digest."""
        self._shelf.add(parts.chunks)
        return parts.manifest, self._hold(parts.manifest)

    def get(self, digest: Digest) -> bytes | None:
        """The bytes, if they are held here; asks nobody."""
        return self._shelf.get(digest)

    def holds(self, release: Release) -> bool:
        """Whether all bytes of a release are here, undamaged."""
        manifest = self._releases.get(release.manifest)
        here = manifest is not None and all(
            digest in self._shelf for digest in (release.manifest, *manifest.chunks)
        )
        return manifest is not None and here and _agrees(manifest, release)

    def keep(self, versions: int) -> None:
        """From now on hold only the newest `versions` releases' chunks."""
        self._keep, self._last = versions, None
        self._prune()

    def clear(self) -> None:
        """Hold no release any more."""
        kept = self._keep
        self.keep(0)
        self._keep = kept

    def statistics(self) -> Mapping[str, int]:
        return {"releases": len(self._releases), "blobs": len(self._shelf)}

    async def serve(self) -> None:
        await self._mail.serve(self._service, self._answer, self._turns)

    async def _answer(self, sender: PeerId, message: bytes) -> bytes:
        self.asked = asyncio.get_running_loop().time()
        if (release := self._part_of.get(Digest(message.decode(errors="replace")))) is not None:
            self._wanted[release] = self.asked
        if not DIGEST.fullmatch(message):
            raise Refused("not a digest: ask with 64 lower-case hex digits")
        data = self._shelf.get(Digest(message.decode()))
        if data is None:
            raise Refused("not held here")
        return data

    async def fetch(self, digest: Digest, holders: Sequence[PeerId], size: int | None = None) -> bytes:
        """Bytes with this digest, of `size` bytes when given, from here or a holder that has them. Raises
        NetError."""
        return await self._take(self._from(holders), digest, size)

    def _from(self, holders: Sequence[PeerId]) -> Fetch:
        return Fetch(self._mail, self._service, holders, self._rng, self._on_bad)

    async def fetch_release(self, release: Release, holders: Sequence[PeerId]) -> bytes:
        """A release's whole bytes, at most 4 chunks at a time. They are held for others from then on.

        Raises NetError; what is here by then is not asked for again.
        """
        if not 0 < release.size <= LARGEST:
            raise NetError(
                f"version {release.version} claims {release.size} bytes: at most {LARGEST} are fetched"
            )
        fetch, address = self._from(holders), release.manifest
        data = await self._take(fetch, address, None)
        try:
            manifest = decode(data, Manifest)
        except WireError as error:
            raise NetError(f"the manifest of version {release.version} is {error}") from error
        _check(manifest, release)
        self._fetching[address] += 1
        try:
            await self._begin(address, manifest)
            chunks = await self._fetch_chunks(fetch, manifest)
            whole = await _join(chunks, manifest)
            await self._off_loop(self._shelf.mark, address)
            self._complete(address, manifest)
        finally:
            self._fetching -= Counter([address])
            self._prune()
        return whole

    async def _off_loop(self, change: Callable[..., None], *args: Any) -> None:
        """Change the shelf, one after the other; a folder in a thread, since an fsync takes as long as a disk
        likes."""
        if self._disk is None:
            change(*args)
        else:
            await asyncio.get_running_loop().run_in_executor(self._disk, change, *args)
        self._complain()

    def _complain(self) -> None:
        """Report a disk that refuses, at most every AGAIN seconds. The peer goes on; only what would outlive
        it is lost."""
        if (complaint := self._shelf.complaint()) and time.monotonic() - self._complained >= AGAIN:
            self._complained = time.monotonic()
            self._on_damage(complaint)

    async def _take(self, fetch: Fetch, digest: Digest, size: int | None) -> bytes:
        """A blob from here, else from the holders; fetching does not hold it."""
        data = self._shelf.get(digest)
        if data is None:
            data = await fetch.blob(digest)
        if size not in (None, len(data)):
            raise NetError(
                f"{digest} has {len(data)} bytes, not {size}: whoever published it made a mistake or lies"
            )
        return data

    async def _begin(self, address: Digest, manifest: Manifest) -> None:
        """Hold chunks of this release from now on, before it is complete."""
        if address not in self._releases and address not in self._begun:
            self._begun[address] = manifest
            await self._off_loop(self._shelf.begin, address, encode(manifest))
        self._prune()

    async def _fetch_chunks(self, fetch: Fetch, manifest: Manifest) -> dict[Digest, bytes]:
        """Digest -> bytes. Each is held as soon as it is here."""
        got: dict[Digest, bytes] = {}
        # Equal chunks have one digest, and are fetched once.
        step = chunk_size(manifest.size)
        sizes = {digest: min(step, manifest.size - k * step) for k, digest in enumerate(manifest.chunks)}
        todo = iter(sizes.items())

        async def take() -> None:
            for digest, size in todo:
                here = digest in self._shelf
                got[digest] = await self._take(fetch, digest, size)
                if not here:
                    await self._off_loop(self._shelf.add, {digest: got[digest]})

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(AT_ONCE, len(sizes))):
                    group.create_task(take())
        except BaseExceptionGroup as broken:
            lost, bugs = broken.split(NetError)
            if bugs is not None or lost is None:
                raise
            raise NetError(str(lost.exceptions[0])) from broken
        return got

    def _hold(self, manifest: Manifest) -> Digest:
        data = encode(manifest)
        digest = digest_of(data)
        self._shelf.add({digest: data})
        self._shelf.mark(digest)
        self._complain()
        self._last = digest
        self._complete(digest, manifest)
        return digest

    def _complete(self, digest: Digest, manifest: Manifest) -> None:
        self._begun.pop(digest, None)
        self._releases[digest] = manifest
        self._name_parts(digest, manifest)
        last = self._releases.get(self._last) if self._last is not None else None
        if last is not None and last.version < manifest.version:
            self._last = None
        self._prune()

    def _name_parts(self, digest: Digest, manifest: Manifest) -> None:
        self._part_of |= dict.fromkeys((digest, *manifest.chunks), digest)

    def _prune(self) -> None:
        """Drop releases beyond the newest `keep`, but for the last one published and as many again that
        somebody is fetching from here; and of those that were only begun what is older, or more than as many.
        """
        versions = sorted({manifest.version for manifest in self._releases.values()})
        newest = set(versions[-self._keep :] if self._keep > 0 else ())
        gone = [digest for digest, manifest in self._releases.items() if manifest.version not in newest]
        late = asyncio.get_running_loop().time() - LATELY if self._wanted else 0.0
        given = [digest for digest in gone if self._wanted.get(digest, late) > late]
        spared = (
            sorted(given, key=lambda digest: self._releases[digest].version)[-self._keep :]
            if self._keep > 0
            else []
        )
        gone = [digest for digest in gone if digest not in spared]
        begun = sorted(self._begun, key=lambda digest: self._begun[digest].version, reverse=True)
        oldest = min(newest, default=0)
        gone += [
            digest
            for k, digest in enumerate(begun)
            if k >= self._keep or self._begun[digest].version < oldest
        ]
        everything = self._begun | self._releases
        old = {
            digest: everything.pop(digest)
            for digest in gone
            if digest not in self._fetching and digest != self._last
        }
        if not old:
            return
        for digest in old:
            self._releases.pop(digest, None)
            self._begun.pop(digest, None)
            self._wanted.pop(digest, None)
        self._part_of = {part: digest for part, digest in self._part_of.items() if digest not in old}
        needed = set(everything).union(*(manifest.chunks for manifest in everything.values()))
        dropped = set(old).union(*(manifest.chunks for manifest in old.values())) - needed
        self._shelf.drop(sorted(dropped))


def _agrees(manifest: Manifest, release: Release) -> bool:
    return (manifest.version, manifest.weights, manifest.size) == (
        release.version,
        release.weights,
        release.size,
    )


def _check(manifest: Manifest, release: Release) -> None:
    """Check a manifest before a chunk is asked for. Raises NetError."""
    if not _agrees(manifest, release) or len(manifest.chunks) != -(-release.size // chunk_size(release.size)):
        raise NetError(
            f"the manifest of version {release.version} ({manifest.size} bytes in {len(manifest.chunks)}"
            f" chunks) does not fit its release of {release.size} bytes: its publisher {release.publisher}"
            " made a mistake or lies"
        )


async def _join(chunks: Mapping[Digest, bytes], manifest: Manifest) -> bytes:
    whole = hashlib.sha256()
    for digest in manifest.chunks:
        whole.update(chunks[digest])
        await asyncio.sleep(0)  # a gigabyte takes a second to hash: others may run between chunks
    if whole.hexdigest() != manifest.weights:
        raise NetError(
            f"the chunks of version {manifest.version} do not add up to its weights {manifest.weights}"
        )
    return b"".join(chunks[digest] for digest in manifest.chunks)
